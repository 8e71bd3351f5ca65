"""torch's own `nn.Transformer`, trained the usual way: all logits, `F.cross_entropy` with `ignore_index`.

Given: norm first, `tgt_is_causal`, fused Adam, embeddings started small enough to be tied, and no dropout inside the
mlp or on the attention weights, which torch would add and the paper has not.

Shapes: B batch, S source and T target length, D width, V vocabulary.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from worker import Training, learn, parameters, serve_training


def waves(length: int, dim: int) -> Tensor:
    """Sinusoid positions (T, D)."""
    angle = torch.arange(length)[:, None] * torch.exp(torch.arange(0, dim, 2) * (-math.log(10_000.0) / dim))
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)


class TorchTransformer(nn.Module):
    """`nn.Transformer` between one table of embeddings and the same table again."""

    def __init__(self, shape: dict[str, Any]):
        super().__init__()
        self.shape, dim, depth = shape, shape["dim"], shape["depth"]
        self.core = nn.Transformer(
            dim, shape["heads"], depth, depth, shape["mlp"], shape["dropout"], batch_first=True, norm_first=True
        )
        for layer in (*self.core.encoder.layers, *self.core.decoder.layers):
            layer.dropout = nn.Identity()  # inside the mlp
            layer.self_attn.dropout = 0.0
        for layer in self.core.decoder.layers:
            layer.multihead_attn.dropout = 0.0
        self.tokens = nn.Embedding(shape["vocab"], dim)
        nn.init.normal_(self.tokens.weight, std=dim**-0.5)
        self.register_buffer("places", waves(512, dim))
        self.dropout = nn.Dropout(shape["dropout"])

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.tokens(ids) * self.shape["dim"] ** 0.5 + self.places[: ids.shape[1]])

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        source, target = batch
        inputs, wanted = target[:, :-1], target[:, 1:]
        pads, causal = source == self.shape["pad"], nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
        x = self.core(self.embed(source), self.embed(inputs), tgt_mask=causal, tgt_is_causal=True,
                      src_key_padding_mask=pads, memory_key_padding_mask=pads)  # fmt: skip
        logits = x @ self.tokens.weight.T  # (B, T, V)
        return F.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), ignore_index=self.shape["pad"], label_smoothing=self.shape["label_smoothing"]
        )


def begin(shape: dict[str, Any], pairs: list[tuple[Tensor, Tensor]]) -> Training:
    model = TorchTransformer(shape).train()
    adam = torch.optim.Adam(model.parameters(), lr=shape["rate"], betas=(0.9, 0.98), eps=1e-9, fused=True)
    about = {"version": torch.__version__, "torch": torch.__version__, "parameters": parameters(model)}
    return Training(learn(model.loss, adam), pairs, {**about, "given": "norm first, tgt_is_causal, fused Adam"})


if __name__ == "__main__":
    serve_training(begin)
