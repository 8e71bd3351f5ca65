"""Optimizer and schedules: section 5.3 of https://arxiv.org/abs/1706.03762, and a cosine for those who know their last step."""

import math
from typing import Any

import torch
from torch import nn

from regard.config import TrainConfig

__all__ = ["adafactor", "adam", "cosine", "inverse_square_root", "make_optimizer", "rate"]

FLOOR = 0.1  # of the peak, where a cosine ends


def make_optimizer(model: nn.Module, how: TrainConfig) -> torch.optim.Optimizer:
    """The one a run asks for."""
    return {"adam": adam, "adafactor": adafactor}[how.optimizer](model, how.weight_decay)


def adam(model: nn.Module, decay: float = 0.0) -> torch.optim.Adam:
    """Adam with the paper's β and ε, in one fused kernel; the schedule sets its rate before each step.

    `decay` draws matrices and tables towards zero, times the rate, beside the gradient (https://arxiv.org/abs/1711.05101);
    biases and norms are left alone.
    """
    return torch.optim.AdamW(_groups(model, decay), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)


def adafactor(model: nn.Module, decay: float = 0.0) -> torch.optim.Adafactor:
    """Adafactor (https://arxiv.org/abs/1804.04235), with which T5 was trained: each step is a share of the weights' own size.

    A small T5 starts with embeddings some sixty times as large as its query weights: steps of one size for both leave the one
    still or throw the other about.
    """
    return torch.optim.Adafactor(_groups(model, decay), lr=0.0)


def _groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    wide, narrow = list[nn.Parameter](), list[nn.Parameter]()
    for p in model.parameters():  # a vector stays one, however it is folded
        (wide if p.ndim == 2 or sum(side > 1 for side in p.shape) > 1 else narrow).append(p)
    return [{"params": wide, "weight_decay": decay}, {"params": narrow, "weight_decay": 0.0}]


def rate(step: int, how: TrainConfig) -> float:
    """The learning rate of a step; steps count from 1."""
    if how.schedule == "cosine":
        return cosine(step, how.lr, how.warmup, how.steps)
    return inverse_square_root(step, how.lr, how.warmup)


def inverse_square_root(step: int, peak: float, warmup: int) -> float:
    """Rise in a line to the peak over `warmup` steps, then fall with 1 / √step."""
    return peak * min(step / warmup, (warmup / step) ** 0.5)


def cosine(step: int, peak: float, warmup: int, steps: int) -> float:
    """Rise in a line to the peak over `warmup` steps, then fall along half a cosine to a tenth of it at the last step."""
    if step <= warmup:
        return peak * step / warmup
    way = min(1.0, (step - warmup) / max(1, steps - warmup))
    return peak * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * way)) / 2)
