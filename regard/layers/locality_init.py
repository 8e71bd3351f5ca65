"""Heads initialized to attend to neighbours.

From random weights a model needs thousands of steps to learn that neighbours matter.  So the first W dimensions start as
sinusoids of the position, where the content of tokens starts at zero.  A query is its position rotated by an offset, a key
its position: their product peaks at that offset.  Training may change all of it.

Shapes: T positions, A axes (1 for text, 2 for images), D width of the model, W dimensions for positions, F = W / 2A frequencies
of each axis.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.layers.attention import Attention

__all__ = ["init_local_head", "init_local_heads", "position_waves"]

Offset = Sequence[int]  # steps along each axis


@torch.no_grad()
def init_local_heads(attentions: Sequence[Attention], table: Tensor, contents: Sequence[Tensor], sides: Sequence[int],
                     offsets: Sequence[Offset], sharpness: float, scale: float) -> None:  # fmt: skip
    """Initialize all heads to attend to the position at one of `offsets`, in turn.

    `table` (T, D) holds the embeddings of the positions on a line or grid of these `sides` and gets sinusoids of this `scale`;
    `contents` (..., D) are the weights that make token embeddings.  Heads too narrow for a sinusoid per axis stay unchanged.
    """
    width = _width(attentions[0], len(sides))
    if not width or table.is_meta:
        return
    for content in contents:
        content[..., :width] = 0
    table.zero_()
    table[:, :width] = scale * position_waves(sides, width)
    first = 0
    for attention in attentions:
        of_heads = [offsets[(first + head) % len(offsets)] for head in range(attention.heads)]
        init_local_head(attention, of_heads, width, sharpness)
        first += attention.heads


def _width(attention: Attention, axes: int) -> int:
    """Dimensions for positions: whole sinusoids, at most one head and half of the input."""
    limit = min(attention.inner // attention.heads, attention.qkv.weight.shape[1] // 2)
    return limit // (2 * axes) * (2 * axes)


def position_waves(sides: Sequence[int], width: int) -> Tensor:
    """Sinusoids of the positions on a line or grid, row by row: (T, W).  Dot products depend on the offset alone."""
    axes = torch.meshgrid(*(torch.arange(side, dtype=torch.float32) for side in sides), indexing="ij")
    angle = torch.cat([axis.reshape(-1, 1) * _frequencies(width, len(sides)) for axis in axes], 1)  # (T, A · F)
    return torch.cat((angle.cos(), angle.sin()), 1)


@torch.no_grad()
def init_local_head(attention: Attention, offsets: Sequence[Offset], width: int, sharpness: float) -> None:
    """Initialize each head to attend to its offset, for inputs whose first W dimensions are `position_waves`.

    The larger `sharpness`, the more of a head's weight lies there.
    """
    query, key, _ = attention.qkv.weight.chunk(3)
    heads, scale = attention.heads, sharpness / width**0.25
    for q, k, offset in zip(query.chunk(heads), key.chunk(heads), offsets, strict=True):
        angle = torch.cat([_frequencies(width, len(offset)) * steps for steps in offset])  # (A · F,)
        cos, sin = angle.cos().diag(), angle.sin().diag()
        q[:width] = 0  # other rows stay random: where queries and keys are both zero, neither gets a gradient
        k.zero_()
        q[:width, :width] = scale * torch.cat((torch.cat((cos, -sin), 1), torch.cat((sin, cos), 1)))
        k[:width, :width] = scale * torch.eye(width)


def _frequencies(width: int, axes: int) -> Tensor:
    """Radians per step of each sinusoid of an axis: (F,)."""
    count = width // (2 * axes)
    return math.pi * (torch.arange(count) + 0.5) / count
