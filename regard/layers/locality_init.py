"""Heads that start out looking at the place beside each token.

From random weights a model needs thousands of steps to find out that neighbours matter.  So a part of the width, as wide as a
head, starts as waves that tell places apart, where the contents of tokens start at zero and do not disturb them; a query is its
own place turned by an offset, a key the place as it is.  Training is free to change all of it.

Shapes: T places, A axes (1 of a text, 2 of a picture), D width of the model, W of what tells a place, F = W / 2A frequencies
of each axis.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.layers.attention import Attention

__all__ = ["init_local_head", "init_local_heads", "places"]

Offset = Sequence[int]  # steps along each axis


@torch.no_grad()
def init_local_heads(
    attentions: Sequence[Attention],
    table: Tensor,
    contents: Sequence[Tensor],
    sides: Sequence[int],
    offsets: Sequence[Offset],
    sharp: float,
    size: float,
) -> None:
    """Start all heads, one after another, looking at the places that `offsets` name, in turn.

    `table` (T, D) is that of the places of a line or grid with such `sides`, where waves of this `size` are put; what makes
    `contents` (..., D) starts at zero there.  Heads too narrow to tell places apart are left as they are.
    """
    width = _width(attentions[0], len(sides))
    if not width:
        return
    for content in contents:
        content[..., :width] = 0
    table.zero_()
    table[:, :width] = size * places(sides, width)
    first = 0
    for attention in attentions:
        turn = [offsets[(first + head) % len(offsets)] for head in range(attention.heads)]
        init_local_head(attention, turn, width, sharp)
        first += attention.heads


def _width(attention: Attention, axes: int) -> int:
    """How many numbers may tell a place: in whole waves, no more than a head has, and than half of what comes in."""
    most = min(attention.inner // attention.heads, attention.qkv.weight.shape[1] // 2)
    return most // (2 * axes) * (2 * axes)


def places(sides: Sequence[int], width: int) -> Tensor:
    """Waves that tell the places of a line, or of a grid, row by row: (T, W).  Their scalar products see only offsets."""
    lines = torch.meshgrid(*(torch.arange(side, dtype=torch.float32) for side in sides), indexing="ij")
    angle = torch.cat([line.reshape(-1, 1) * _rates(width, len(sides)) for line in lines], 1)  # (T, A · F)
    return torch.cat((angle.cos(), angle.sin()), 1)


@torch.no_grad()
def init_local_head(attention: Attention, offsets: Sequence[Offset], width: int, sharp: float) -> None:
    """Start each head looking its offset away, where the first W inputs are `places`.

    The larger `sharp`, the less of a head's weight goes elsewhere.
    """
    query, key, _ = attention.qkv.weight.chunk(3)
    heads, scale = attention.heads, sharp / width**0.25
    for q, k, offset in zip(query.chunk(heads), key.chunk(heads), offsets, strict=True):
        turn = torch.cat([_rates(width, len(offset)) * steps for steps in offset])  # (A · F,)
        cos, sin = turn.cos().diag(), turn.sin().diag()
        q[:width] = 0  # where the keys are zero alone, queries are not: else neither would ever learn
        k.zero_()
        q[:width, :width] = scale * torch.cat((torch.cat((cos, -sin), 1), torch.cat((sin, cos), 1)))
        k[:width, :width] = scale * torch.eye(width)


def _rates(width: int, axes: int) -> Tensor:
    """How far each wave of an axis turns at one step: (F,)."""
    count = width // (2 * axes)
    return math.pi * (torch.arange(count) + 0.5) / count
