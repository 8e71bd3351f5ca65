"""Named reshapes, so that no model file holds a `view(...).transpose(...)` chain.

Shapes: B batch, T tokens, D width, H heads, E = D / H width of one head.
"""

from torch import Tensor

__all__ = ["join_heads", "split_heads"]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Cut the width into heads: (B, T, D) → (B, H, T, E)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Put the heads side by side again: (B, H, T, E) → (B, T, D)."""
    return x.transpose(1, 2).flatten(-2)
