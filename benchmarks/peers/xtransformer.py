"""x-transformers: an encoder and a decoder of its parts that, unlike `XTransformer`, share one table with the output.

Given: `attn_flash`, which is torch's fused attention, its sinusoid positions, relu, dropout after each sub-layer as
the paper has it, fused Adam; its own loss knows no smoothing, so `F.cross_entropy` on its logits.  Its attention has
no biases.
"""

from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from worker import Training, learn, parameters, serve_training
from x_transformers import Decoder, Encoder, TransformerWrapper


class Pair(nn.Module):
    """Encoder and decoder over one table."""

    def __init__(self, shape: dict[str, Any]):
        super().__init__()
        self.shape, drop = shape, shape["dropout"]
        layers = {
            "dim": shape["dim"],
            "depth": shape["depth"],
            "heads": shape["heads"],
            "attn_dim_head": shape["dim"] // shape["heads"],
            "attn_flash": True,
            "attn_sublayer_dropout": drop,
            "ff_mult": shape["mlp"] / shape["dim"],
            "ff_custom_activation": nn.ReLU(),
            "ff_sublayer_dropout": drop,
        }
        around = {"num_tokens": shape["vocab"], "max_seq_len": 512, "emb_dropout": drop, "scaled_sinu_pos_emb": True}
        self.encoder = TransformerWrapper(**around, attn_layers=Encoder(**layers), return_only_embed=True)
        self.decoder = TransformerWrapper(
            **around, attn_layers=Decoder(**layers, cross_attend=True), token_emb=self.encoder.token_emb, tie_embedding=True
        )

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        source, target = batch
        real = source != self.shape["pad"]
        memory = self.encoder(source, mask=real)
        logits = self.decoder(target[:, :-1], context=memory, context_mask=real)
        return F.cross_entropy(
            logits.flatten(0, 1),
            target[:, 1:].flatten(),
            ignore_index=self.shape["pad"],
            label_smoothing=self.shape["label_smoothing"],
        )


def begin(shape: dict[str, Any], pairs: list[tuple[Tensor, Tensor]]) -> Training:
    model = Pair(shape).train()
    adam = torch.optim.Adam(model.parameters(), lr=shape["rate"], betas=(0.9, 0.98), eps=1e-9, fused=True)
    about = {"version": version("x-transformers"), "torch": torch.__version__, "parameters": parameters(model)}
    return Training(learn(model.loss, adam), pairs, {**about, "given": "attn_flash, fused Adam"})


if __name__ == "__main__":
    serve_training(begin)
