"""Where a key stands, as a number added to its score.

Shapes: B batch, Q queries, K keys, H heads, E width of one head; of pictures Y X rows and columns of a grid,
M side of a window, R side of a neighbourhood.
"""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.linear import Linear

__all__ = [
    "BucketedPositionBias",
    "ContinuousPositionBias",
    "DecomposedPositionBias",
    "GeometricPrior",
    "RelativePositionBias",
    "bucket",
    "relative_position_index",
]


def bucket(distance: Tensor, buckets: int, max_distance: int, both_ways: bool) -> Tensor:
    """T5's bucket of each distance key - query: near ones have a bucket each, further ones share, the furthest all one.

    Section 2.1 of https://arxiv.org/abs/1910.10683.  Half of the buckets are for one distance each, the others grow with
    the logarithm up to `furthest`.  Both ways, half are for keys that come after; else those all fall into bucket 0.
    """
    first = torch.zeros_like(distance)
    if both_ways:
        buckets //= 2
        first, distance = (distance > 0).long() * buckets, distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    near = buckets // 2
    grown = torch.log(distance.clamp(min=1).float() / near) / math.log(max_distance / near) * (buckets - near)
    far = (near + grown.long()).clamp(max=buckets - 1)
    return first + torch.where(distance < near, distance, far)


class BucketedPositionBias(nn.Module):
    """A learned number for each bucket and head; one table serves all layers of a stack."""

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, *, both_ways: bool):
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        self.max_distance, self.both_ways = max_distance, both_ways

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """For queries and keys that stand at these places, (Q,) and (K,) → (1, H, Q, K)."""
        numbers = bucket(
            keys - queries[:, None], self.table.num_embeddings, self.max_distance, self.both_ways
        )  # (Q, K)
        return self.table(numbers).permute(2, 0, 1)[None]  # (1, H, Q, K)


class DecomposedPositionBias(nn.Module):
    """How far up and how far left a key stands, as a query asks for it: q · R_row[distance] + q · R_column[distance].

    Section 4.1 of https://arxiv.org/abs/2112.01526.  There is a learned vector for each distance in rows and one for each
    in columns, 2 · side - 1 of them; on a grid of another size they are stretched.  Tokens that stand before the grid get 0.
    """

    def __init__(self, width: int, side: int, before: int = 0):
        """`width` is that of one head, `side` that of the finer grid of the two."""
        super().__init__()
        self.before = before
        self.rows = nn.Parameter(torch.empty(2 * side - 1, width))
        self.columns = nn.Parameter(torch.empty(2 * side - 1, width))
        nn.init.trunc_normal_(self.rows, std=0.02)
        nn.init.trunc_normal_(self.columns, std=0.02)

    def forward(self, q: Tensor, queries: tuple[int, int], keys: tuple[int, int]) -> Tensor:
        """For q (B, H, Q, E) on a grid of (rows, columns), and keys on another, → (B, H, Q, K)."""
        rows, columns = (_distances(*args) for args in zip((self.rows, self.columns), queries, keys, strict=True))
        q = q[:, :, self.before :].unflatten(2, queries)  # (B, H, Y, X, E)
        up = torch.einsum("bhyxe,yke->bhyxk", q, rows)  # (B, H, Y, X, rows of keys)
        left = torch.einsum("bhyxe,xke->bhyxk", q, columns)  # (B, H, Y, X, columns of keys)
        bias = (up[..., None] + left[..., None, :]).flatten(4).flatten(2, 3)  # (B, H, Y · X, K)
        return F.pad(bias, (self.before, 0, self.before, 0)) if self.before else bias


def _distances(table: Tensor, queries: int, keys: int) -> Tensor:
    """The vector of each distance query - key along one axis, counted in steps of the finer grid: (queries, keys, E)."""
    side = max(queries, keys)
    if len(table) != 2 * side - 1:
        table = F.interpolate(table.T[None], 2 * side - 1, mode="linear")[0].T  # (2 · side - 1, E)
    query = torch.arange(queries, device=table.device) * (side // queries)
    key = torch.arange(keys, device=table.device) * (side // keys)
    return table[query[:, None] - key + key[-1]]  # the least distance, from query 0 to the last key, is row 0


@lru_cache(maxsize=64)
def relative_position_index(window: int, largest: int, device: torch.device) -> Tensor:
    """Number the offsets between two places of a window, by rows and columns, query - key: (M · M · M · M,).

    A table for windows of side `largest` has a row for each offset that they know, (2 · largest - 1)² of them: those of a
    smaller window are the ones in its middle.
    """
    with torch.inference_mode(False):  # kept for later calls, of which some may learn
        place = torch.arange(window * window, device=device)
        down, across = (x[:, None] - x for x in (place // window, place % window))  # (M · M, M · M)
        return ((down + largest - 1) * (2 * largest - 1) + across + largest - 1).flatten()


class RelativePositionBias(nn.Module):
    """Swin's bias: a learned number for each offset between two places of a window, and each head.

    B of equation 4 of https://arxiv.org/abs/2103.14030.
    """

    def __init__(self, heads: int, window: int):
        super().__init__()
        self.window = window
        self.table = nn.Parameter(torch.empty((2 * window - 1) ** 2, heads))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, window: int) -> Tensor:
        """For all pairs of a window, no larger than the table's: (1, H, M · M, M · M)."""
        numbers = relative_position_index(window, self.window, self.table.device)
        return self.table.T.index_select(1, numbers).view(1, -1, window**2, window**2)


class ContinuousPositionBias(nn.Module):
    """Swin V2's bias: a small network reads the offset, on a logarithmic scale, so that other windows need no other table.

    Section 3.3 of https://arxiv.org/abs/2111.09883.  Offsets are measured by the window of training, whose furthest is 8 before
    the logarithm; what comes out is kept between 0 and 16, as the released code does.
    """

    def __init__(self, heads: int, window: int, hidden: int = 512):
        super().__init__()
        self.max_distance = max(1, window - 1)
        self.up, self.down = Linear(2, hidden), Linear(hidden, heads, bias=False)

    def forward(self, window: int) -> Tensor:
        """For all pairs of a window of any size: (1, H, M · M, M · M)."""
        like = self.up.weight
        line = 8 / self.max_distance * torch.arange(1 - window, window, dtype=like.dtype, device=like.device)
        line = line.sign() * (line.abs() + 1).log2() / 3  # log₂ 8 = 3: within the window of training hardly above 1
        offsets = torch.cartesian_prod(line, line)  # ((2 M - 1)², 2)
        table = 16 * torch.sigmoid(self.down(torch.relu(self.up(offsets))))  # ((2 M - 1)², H)
        numbers = relative_position_index(window, window, table.device)
        return table.T.index_select(1, numbers).view(1, -1, window**2, window**2)


class GeometricPrior(nn.Module):
    """LR-Net's bias: a small network reads how far a neighbour lies down and to the right.

    Section 3.2 of https://arxiv.org/abs/1904.11491.  The edge of the neighbourhood is at 1.
    """

    def __init__(self, heads: int, kernel: int, hidden: int = 32):
        super().__init__()
        self.kernel = kernel
        self.up, self.down = Linear(2, hidden), Linear(hidden, heads)

    def forward(self) -> Tensor:
        """For each neighbour, row by row: (H, R · R)."""
        line = torch.linspace(-1, 1, self.kernel).to(self.up.weight) if self.kernel > 1 else self.up.weight.new_zeros(1)
        offsets = torch.cartesian_prod(line, line)  # (R · R, 2)
        return self.down(torch.relu(self.up(offsets))).T
