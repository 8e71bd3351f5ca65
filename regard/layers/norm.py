"""Where the layer norm stands around a sub-layer: first, last, or at the end of its branch.

Shapes: B batch, T tokens, D width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.layers.dropout import Dropout, DropPath

__all__ = ["Around", "Norm", "PostNorm", "PreNorm", "ResPostNorm"]

Around = Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]  # (x, f) → f wrapped in a residual and a norm


Norm = Callable[[int], nn.Module]  # makes the norm of a width


def _at_hand(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """A norm as a plain function with its weights at hand."""
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    how: dict[str, Any] = {"normalized_shape": list(norm.normalized_shape), "weight": norm.weight, "eps": norm.eps}
    if isinstance(norm, nn.RMSNorm):
        return partial(torch.rms_norm, **how)
    return partial(torch.layer_norm, **how, bias=norm.bias)


class PreNorm(nn.Module):
    """x + dropout(f(norm(x))): the residual path stays clear, so depth and large steps are safe.

    x ─┬─ norm ─ f ─ dropout ─ + ─
       └───────────────────────┘

    Nothing has normed the sum when the last block is left, so a stack of these ends in one more norm.
    """

    def __init__(self, dim: int, dropout: float | DropPath, norm: Norm = nn.LayerNorm):
        super().__init__()
        self.norm, self.dropout = norm(dim), Dropout(dropout) if isinstance(dropout, float | int) else dropout

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Wrap the sub-layer f: (B, T, D) → (B, T, D)."""
        return self.dropout.add_residual(x, f(self.norm(x)))

    def at_hand(self) -> Around:
        """The same as a plain function that drops nothing."""
        norm = _at_hand(self.norm)
        return lambda x, f: x + f(norm(x))

    @staticmethod
    def final_norm(dim: int, norm: Norm = nn.LayerNorm) -> nn.Module:
        """What follows the last block."""
        return norm(dim)


class PostNorm(nn.Module):
    """norm(x + dropout(f(x))): the paper's order, section 5.4; it needs a warm-up to train.

    x ─┬─ f ─ dropout ─ + ─ norm ─
       └────────────────┘
    """

    def __init__(self, dim: int, dropout: float | DropPath, norm: Norm = nn.LayerNorm):
        super().__init__()
        self.norm, self.dropout = norm(dim), Dropout(dropout) if isinstance(dropout, float | int) else dropout

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Wrap the sub-layer f: (B, T, D) → (B, T, D)."""
        return self.norm(self.dropout.add_residual(x, f(x)))

    def at_hand(self) -> Around:
        """The same as a plain function that drops nothing."""
        norm = _at_hand(self.norm)
        return lambda x, f: norm(x + f(x))

    @staticmethod
    def final_norm(dim: int, norm: Norm = nn.LayerNorm) -> nn.Module:
        """What follows the last block: nothing, its output is normed already."""
        return nn.Identity()


class ResPostNorm(nn.Module):
    """x + dropout(norm(f(x))): no branch adds more than its norm allows, so sums stay small in deep and wide models.

    x ─┬─ f ─ norm ─ dropout ─ + ─
       └───────────────────────┘

    Section 3.2 of https://arxiv.org/abs/2111.09883.  As nothing has normed the sum, a stack of these ends in one more norm.
    """

    def __init__(self, dim: int, dropout: float | DropPath, norm: Norm = nn.LayerNorm):
        super().__init__()
        self.norm, self.dropout = norm(dim), Dropout(dropout) if isinstance(dropout, float | int) else dropout

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Wrap the sub-layer f: (B, T, D) → (B, T, D)."""
        return self.dropout.add_residual(x, self.norm(f(x)))

    def at_hand(self) -> Around:
        """The same as a plain function that drops nothing."""
        norm = _at_hand(self.norm)
        return lambda x, f: x + norm(f(x))

    @staticmethod
    def final_norm(dim: int, norm: Norm = nn.LayerNorm) -> nn.Module:
        """What follows the last block."""
        return norm(dim)
