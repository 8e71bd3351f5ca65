"""Hugging Face's `MarianMTModel`, the encoder-decoder of this shape in transformers, trained the usual way.

Given: `attn_implementation="sdpa"`, no cache, smoothed cross-entropy on its logits (`F.cross_entropy`, which does less
work than the Trainer's own label smoother) and fused AdamW without decay, the Trainer's default.  It norms last, so it
has two norms less.
"""

from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import MarianConfig, MarianMTModel
from worker import Training, learn, parameters, serve_training


def build(shape: dict[str, Any]) -> MarianMTModel:
    sides = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": shape["depth"], f"{side}_attention_heads": shape["heads"], f"{side}_ffn_dim": shape["mlp"]}
    config = MarianConfig(
        vocab_size=shape["vocab"],
        d_model=shape["dim"],
        dropout=shape["dropout"],
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        max_position_embeddings=512,
        pad_token_id=shape["pad"],
        bos_token_id=shape["bos"],
        eos_token_id=shape["eos"],
        forced_eos_token_id=shape["eos"],
        decoder_start_token_id=shape["bos"],
        use_cache=False,
        **sides,
    )
    config._attn_implementation = "sdpa"
    return MarianMTModel(config).train()


def begin(shape: dict[str, Any], pairs: list[tuple[Tensor, Tensor]]) -> Training:
    model, pad = build(shape), shape["pad"]

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        source, target = batch
        logits = model(input_ids=source, attention_mask=source != pad, decoder_input_ids=target[:, :-1]).logits
        return F.cross_entropy(
            logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=pad, label_smoothing=shape["label_smoothing"]
        )

    trained = [p for p in model.parameters() if p.requires_grad]  # not the waves
    adam = torch.optim.AdamW(trained, lr=shape["rate"], betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True)
    about = {"version": transformers.__version__, "torch": torch.__version__, "parameters": parameters(model)}
    return Training(learn(loss, adam), pairs, {**about, "given": f"{model.config._attn_implementation}, fused AdamW"})


if __name__ == "__main__":
    serve_training(begin)
