"""regard's training step, as in `regard train` (regard/train/loop.py), without its log.

Pre-norm, fused Adam, the gradient's norm computed but not clipped, as in the recipe multi30k, and freed memory is kept.
"""

import math
from contextlib import ExitStack
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from worker import Training, parameters, serve_training

from regard.data.text.batches import PairBatch
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks.translation import sequence_loss
from regard.train.malloc import keep_freed
from regard.train.optim import adam
from regard.version import VERSION

KEPT = ExitStack()  # for as long as the worker lives


def begin(shape: dict[str, Any], pairs: list[tuple[Tensor, Tensor]]) -> Training:
    config = TransformerConfig(
        vocab=shape["vocab"],
        dim=shape["dim"],
        depth=shape["depth"],
        heads=shape["heads"],
        mlp_ratio=shape["mlp"] // shape["dim"],
        dropout=shape["dropout"],
    )
    return training(Transformer(config), shape, pairs)


def training(model: nn.Module, shape: dict[str, Any], pairs: list[tuple[Tensor, Tensor]]) -> Training:
    label_smoothing, optimizer = shape["label_smoothing"], adam(model.train())
    KEPT.enter_context(keep_freed())  # the allocator, as `regard train` sets it

    def step(batch: PairBatch, rate: float = shape["rate"]) -> tuple[float, float]:
        tokens = batch.tokens
        loss, nll = sequence_loss(model, batch, label_smoothing)
        (loss / tokens).backward()
        mean = float(nll) / tokens
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), math.inf))
        if not math.isfinite(mean + norm):
            raise ValueError(f"the loss is {mean:.3g} and its gradient {norm:.3g}")
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach()) / tokens, mean

    batches = [PairBatch(*pair) for pair in pairs]
    about = {"version": VERSION, "torch": torch.__version__, "parameters": parameters(model), "given": "fused Adam"}
    curve = lambda rates: [step(batch, rate)[1] for batch, rate in zip(batches, rates, strict=True)]  # noqa: E731
    keep = lambda file: save_file({name: value.clone() for name, value in model.state_dict().items()}, file)  # noqa: E731
    return Training(lambda batch: step(batch)[0], batches, about, {"curve": curve, "keep": keep})


if __name__ == "__main__":
    serve_training(begin)
