"""Named reshapes, so that no model file holds a `view(...).transpose(...)` chain.

Shapes: B batch, T tokens, P parts, D width, H heads, E = D / H width of one head.
"""

from torch import Tensor

__all__ = ["join_heads", "split_heads"]


def split_heads(x: Tensor, heads: int, parts: int = 1) -> list[Tensor]:
    """Cut a width that holds some vectors side by side into those, and each into heads: (B, T, P · D) → P × (B, H, T, E)."""
    return [part.transpose(1, 2) for part in x.view(*x.shape[:2], parts, heads, -1).unbind(2)]


def join_heads(x: Tensor) -> Tensor:
    """Put the heads side by side again: (B, H, T, E) → (B, T, D)."""
    return x.transpose(1, 2).flatten(-2)
