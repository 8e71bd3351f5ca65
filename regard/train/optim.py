"""The paper's optimizer and schedule, section 5.3 of https://arxiv.org/abs/1706.03762."""

import torch
from torch import nn

__all__ = ["adam", "inverse_square_root"]


def adam(model: nn.Module) -> torch.optim.Adam:
    """Adam with the paper's β and ε, in one fused kernel; the schedule sets its rate before each step."""
    return torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)


def inverse_square_root(step: int, peak: float, warmup: int) -> float:
    """Rise in a line to the peak over `warmup` steps, then fall with 1 / √step.  Steps count from 1."""
    return peak * min(step / warmup, (warmup / step) ** 0.5)
