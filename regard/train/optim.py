"""Optimizers and schedules: section 5.3 of https://arxiv.org/abs/1706.03762, Adafactor for T5, and a cosine."""

import math
from typing import Any

import torch
from torch import nn

from regard.config import TrainConfig

__all__ = ["adafactor", "adam", "cosine", "inverse_square_root", "learning_rate", "make_optimizer"]

FLOOR = 0.1  # of the peak, where a cosine ends


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer of a run."""
    return {"adam": adam, "adafactor": adafactor}[config.optimizer](model, config.weight_decay)


def adam(model: nn.Module, weight_decay: float = 0.0) -> torch.optim.Adam:
    """Adam with the paper's β and ε, in one fused kernel; the schedule sets its learning rate before each step.

    Weight decay is decoupled from the gradient (https://arxiv.org/abs/1711.05101) and leaves biases and norms alone.
    """
    return torch.optim.AdamW(_groups(model, weight_decay), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)


def adafactor(model: nn.Module, weight_decay: float = 0.0) -> torch.optim.Adafactor:
    """Adafactor (https://arxiv.org/abs/1804.04235), with which T5 was trained: steps are relative to the size of the weights.

    A small T5 starts with embeddings some sixty times as large as its query weights: no absolute step suits both.
    """
    return torch.optim.Adafactor(_groups(model, weight_decay), lr=0.0)


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    matrices, vectors = list[nn.Parameter](), list[nn.Parameter]()
    for p in model.parameters():  # a vector folded to (1, D, 1) is still one
        (matrices if p.ndim == 2 or sum(side > 1 for side in p.shape) > 1 else vectors).append(p)
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def learning_rate(step: int, config: TrainConfig) -> float:
    """The learning rate of a step; steps count from 1."""
    if config.schedule == "cosine":
        return cosine(step, config.lr, config.warmup, config.steps)
    return inverse_square_root(step, config.lr, config.warmup)


def inverse_square_root(step: int, peak: float, warmup: int) -> float:
    """Linear warm-up to the peak, then 1 / √step."""
    return peak * min(step / warmup, (warmup / step) ** 0.5)


def cosine(step: int, peak: float, warmup: int, steps: int) -> float:
    """Linear warm-up to the peak, then half a cosine down to a tenth of it at the last step."""
    if step <= warmup:
        return peak * step / warmup
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return peak * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * progress)) / 2)
