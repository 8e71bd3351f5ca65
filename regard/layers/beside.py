"""Heads that start out looking at the place beside each token.

From random weights a model needs thousands of steps to find out that neighbours matter.  So a part of the width, as wide as a
head, starts as waves that tell places apart, where the contents of tokens start at zero and do not disturb them; a query is its
own place turned by an offset, a key the place as it is.  Training is free to change all of it.

Shapes: T places, A axes (1 of a text, 2 of a picture), W numbers for a place, F = W / 2A frequencies of each axis.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.layers.attention import Attention

__all__ = ["look_beside", "places", "width_for"]


def width_for(attention: Attention, axes: int) -> int:
    """How many numbers may tell a place: as many as fit into a head, in whole waves; none if it is too narrow."""
    return attention.inner // attention.heads // (2 * axes) * (2 * axes)


def places(sides: Sequence[int], width: int) -> Tensor:
    """Waves that tell the places of a line, or of a grid, row by row: (T, W).  Their scalar products see only offsets."""
    lines = torch.meshgrid(*(torch.arange(side, dtype=torch.float32) for side in sides), indexing="ij")
    angle = torch.cat([line.reshape(-1, 1) * _rates(width, len(sides)) for line in lines], 1)  # (T, A · F)
    return torch.cat((angle.cos(), angle.sin()), 1)


@torch.no_grad()
def look_beside(attention: Attention, offsets: Sequence[Sequence[int]], width: int, sharp: float) -> None:
    """Start each head looking `offsets` away along each axis, in turn, where the first W inputs are `places`.

    The larger `sharp`, the less of a head's weight goes elsewhere.
    """
    query, key, _ = attention.qkv.weight.chunk(3)
    scale = sharp / width**0.25
    for number, (q, k) in enumerate(zip(query.chunk(attention.heads), key.chunk(attention.heads), strict=True)):
        offset = offsets[number % len(offsets)]
        turn = torch.cat([_rates(width, len(offset)) * steps for steps in offset])  # (A · F,)
        cos, sin = turn.cos().diag(), turn.sin().diag()
        q.zero_()
        k.zero_()
        q[:width, :width] = scale * torch.cat((torch.cat((cos, -sin), 1), torch.cat((sin, cos), 1)))
        k[:width, :width] = scale * torch.eye(width)


def _rates(width: int, axes: int) -> Tensor:
    """How far each wave of an axis turns at one step: (F,)."""
    count = width // (2 * axes)
    return math.pi * (torch.arange(count) + 0.5) / count
