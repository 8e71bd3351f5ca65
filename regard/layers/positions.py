"""Position embeddings, because attention alone ignores order: added to the tokens, or of distances.

Shapes: T tokens, D width.
"""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.tap import positions_off

__all__ = ["LearnedGridPositions", "LearnedPositions", "SinusoidalDistances", "SinusoidalPositions", "shapes_only",
           "sinusoid", "waves"]  # fmt: skip

FIRST_ROWS = 1024  # of a table that grows on demand


def shapes_only() -> bool:
    """Whether a model is built without values, to learn its shapes: see models/fitting.py."""
    return torch.empty(0).device.type == "meta"


def sinusoid(length: int, dim: int) -> Tensor:
    """Section 3.5 of https://arxiv.org/abs/1706.03762: sine in dimension 2i, cosine in 2i + 1; (T, D)."""
    if shapes_only():
        return torch.empty(length, dim)
    position = torch.arange(length, dtype=torch.float64)[:, None]
    rate = torch.exp(torch.arange(0, dim, 2, dtype=torch.float64) * (-math.log(10_000.0) / dim))
    angle = position * rate  # (T, ⌈D / 2⌉)
    table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :dim]  # (T, D)
    return table.float()


class SinusoidalPositions(nn.Module):
    """The fixed sinusoids; the table grows on demand, so length is unlimited."""

    positional: ClassVar[bool] = True  # see `without_positions`

    def __init__(self, dim: int, max_len: int = 256):
        super().__init__()
        self.dim = dim
        self.register_buffer("table", sinusoid(min(max_len, FIRST_ROWS), dim), persistent=False)
        self.table: Tensor

    def forward(self, start: int, stop: int) -> Tensor:
        """Rows for positions start to stop - 1: (T, D)."""
        table = self.table  # read once: another thread may replace it
        if stop > len(table):
            with torch.inference_mode(False):  # grown in an evaluation, it must serve training too
                table = self.table = sinusoid(2 * stop, self.dim).to(table.device, table.dtype)
        rows = table[start:stop]
        return torch.zeros_like(rows) if positions_off(self) else rows


class SinusoidalDistances(nn.Module):
    """The sinusoids of the distances query - key, positive if the key comes first; the table grows on demand.

    Section 3.3 of https://arxiv.org/abs/1901.02860; `biases.SinusoidalPositionBias` makes a bias of them.
    """

    def __init__(self, dim: int, max_len: int = 256):
        super().__init__()
        self.dim = dim
        self.register_buffer("table", self._sinusoids(max_len), persistent=False)
        self.table: Tensor

    def forward(self, length: int) -> Tensor:
        """Rows for distances T - 1, T - 2, ..., 1 - T of T = `length` tokens: (2T - 1, D)."""
        table = self.table  # read once: another thread may replace it
        if 2 * length - 1 > len(table):
            with torch.inference_mode(False):  # grown in an evaluation, it must serve training too
                table = self.table = self._sinusoids(2 * length).to(table.device, table.dtype)
        middle = len(table) // 2  # distance 0
        return table[middle - length + 1 : middle + length]

    def _sinusoids(self, length: int) -> Tensor:
        if shapes_only():
            return torch.empty(2 * length - 1, self.dim)
        later = sinusoid(length, self.dim)  # distances 0 to T - 1
        even = torch.arange(self.dim, device=later.device) % 2 == 0
        earlier = torch.where(even, -later, later)  # a sine changes its sign with the distance, a cosine does not
        return torch.cat((later.flip(0), earlier[1:]))


class LearnedPositions(nn.Module):
    """One trained vector for each position, which limits the context length."""

    positional: ClassVar[bool] = True  # see `without_positions`

    def __init__(self, dim: int, max_len: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(max_len, dim) * 0.02)

    def forward(self, start: int, stop: int) -> Tensor:
        """Rows for positions start to stop - 1: (T, D)."""
        if stop > len(self.table):
            raise ValueError(f"{stop} tokens are more than the {len(self.table)} learned positions; "
                             f"split the text, or train with model.max_len={stop}")  # fmt: skip
        rows = self.table[start:stop]
        return torch.zeros_like(rows) if positions_off(self) else rows


def waves(side: int, dim: int) -> Tensor:
    """Initial position embeddings of a grid, half of the width for rows, half for columns: (side · side, D).

    With random vectors a model would first have to learn which positions are close to each other.
    """
    if shapes_only():
        return torch.empty(side * side, dim)
    half = -(-dim // 4)
    rate = torch.exp(torch.arange(half) * (-math.log(4.0 * side) / half)) * math.pi
    angle = torch.arange(side)[:, None] * rate  # (side, half)
    line = torch.cat((angle.sin(), angle.cos()), 1)  # (side, 2 · half)
    rows, columns = line[:, None].expand(-1, side, -1), line[None].expand(side, -1, -1)
    return torch.cat((rows, columns), -1).flatten(0, 1)[:, :dim]


class LearnedGridPositions(nn.Module):
    """One trained vector for each position of a square grid, and one for each token before the grid.

    For a grid of another size the trained one is interpolated, as in section 3.2 of https://arxiv.org/abs/2010.11929.
    """

    positional: ClassVar[bool] = True  # see `without_positions`

    def __init__(self, dim: int, side: int, before: int = 0):
        super().__init__()
        self.side, self.before = side, before
        self.table = nn.Parameter(torch.cat((0.02 * torch.randn(before, dim), 0.5 * waves(side, dim))))

    def forward(self, rows: int, columns: int) -> Tensor:
        """A row for each token, tokens before the grid first: (before + rows · columns, D)."""
        if positions_off(self):
            return self.table.new_zeros(self.before + rows * columns, self.table.shape[1])
        if (rows, columns) == (self.side, self.side):
            return self.table
        first, grid = self.table.split((self.before, self.side**2))
        grid = grid.T.view(1, -1, self.side, self.side)  # (1, D, side, side)
        grid = F.interpolate(grid, (rows, columns), mode="bicubic")
        return torch.cat((first, grid[0].flatten(1).T))
