"""Named reshapes, so that no model file holds a `view(...).transpose(...)` chain.

Shapes: B batch, T tokens, W beams, P parts, D width, H heads, E = D / H width of one head.
"""

from torch import Tensor

__all__ = ["join_heads", "join_rows", "split_heads", "split_rows", "stack_rows"]


def split_heads(x: Tensor, heads: int, parts: int = 1) -> list[Tensor]:
    """Cut a width that holds some vectors side by side into those, and each into heads: (B, T, P · D) → P × (B, H, T, E)."""
    return [part.transpose(1, 2) for part in x.view(*x.shape[:2], parts, heads, -1).unbind(2)]


def join_heads(x: Tensor) -> Tensor:
    """Put the heads side by side again: (B, H, T, E) → (B, T, D)."""
    return x.transpose(1, 2).flatten(-2)


def split_rows(x: Tensor, beams: int, heads: int) -> Tensor:
    """`split_heads` for one token of each beam: (B · W, D) → (B, H, W, E)."""
    width = x.shape[-1] // heads
    if beams == 1:  # a step is made of calls so short that one less is felt
        return x.view(-1, heads, 1, width)
    return x.view(-1, beams, heads, width).transpose(1, 2)


def stack_rows(x: Tensor, beams: int, heads: int, parts: int) -> Tensor:
    """The same for some vectors side by side, as one tensor: (B · W, P · D) → (P, B, H, W, E)."""
    return x.view(-1, beams, parts, heads, x.shape[-1] // (parts * heads)).permute(2, 0, 3, 1, 4)


def join_rows(x: Tensor) -> Tensor:
    """`join_heads` for one token of each beam: (B, H, W, E) → (B · W, D)."""
    _, heads, beams, width = x.shape
    return (x if beams == 1 else x.transpose(1, 2)).reshape(-1, heads * width)  # one call less, as above
