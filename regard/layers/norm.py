"""Where the layer norm stands around a sub-layer: first or last.

Shapes: B batch, T tokens, D width.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from regard.layers.dropout import Dropout

__all__ = ["Around", "NormFirst", "NormLast"]

Around = Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]  # (x, f) → f wrapped in a residual and a norm


def _at_hand(norm: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    """A layer norm as a plain function with its weights at hand."""
    shape = list(norm.normalized_shape)
    return partial(torch.layer_norm, normalized_shape=shape, weight=norm.weight, bias=norm.bias, eps=norm.eps)


class NormFirst(nn.Module):
    """x + dropout(f(norm(x))): the residual path stays clear, so depth and large steps are safe.

    x ─┬─ norm ─ f ─ dropout ─ + ─
       └───────────────────────┘

    Nothing has normed the sum when the last block is left, so a stack of these ends in one more norm.
    """

    def __init__(self, dim: int, dropout: float):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(dim), Dropout(dropout)

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Wrap the sub-layer f: (B, T, D) → (B, T, D)."""
        return self.dropout.onto(x, f(self.norm(x)))

    def at_hand(self) -> Around:
        """The same as a plain function that drops nothing."""
        norm = _at_hand(self.norm)
        return lambda x, f: x + f(norm(x))

    @staticmethod
    def end(dim: int) -> nn.Module:
        """What follows the last block."""
        return nn.LayerNorm(dim)


class NormLast(nn.Module):
    """norm(x + dropout(f(x))): the paper's order, section 5.4; it needs a warm-up to train.

    x ─┬─ f ─ dropout ─ + ─ norm ─
       └────────────────┘
    """

    def __init__(self, dim: int, dropout: float):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(dim), Dropout(dropout)

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Wrap the sub-layer f: (B, T, D) → (B, T, D)."""
        return self.norm(self.dropout.onto(x, f(x)))

    def at_hand(self) -> Around:
        """The same as a plain function that drops nothing."""
        norm = _at_hand(self.norm)
        return lambda x, f: norm(x + f(x))

    @staticmethod
    def end(dim: int) -> nn.Module:
        """What follows the last block: nothing, its output is normed already."""
        return nn.Identity()
