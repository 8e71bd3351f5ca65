"""Position biases: the relative position of query and key, as a bias on the score.

Shapes: B batch, Q queries, K keys, H heads, E width of one head; of images Y X rows and columns of a grid, M side of a window,
R side of a neighbourhood.
"""

import math
from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.linear import Linear
from regard.layers.shapes import shift_distances, split_heads
from regard.layers.tap import positions_off

__all__ = ["BucketedPositionBias", "ContinuousPositionBias", "DecomposedPositionBias", "GeometricPrior",
           "RelativePositionBias", "SinusoidalPositionBias", "bucket", "relative_position_index"]  # fmt: skip


def bucket(distance: Tensor, buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    """T5's bucket of each distance key - query, section 2.1 of https://arxiv.org/abs/1910.10683.

    Half of the buckets hold one distance each; the others grow logarithmically up to `max_distance`, and the last holds all
    beyond.  If `bidirectional`, half of all buckets are for keys after the query; else those keys share bucket 0.
    """
    first = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        first, distance = (distance > 0).long() * buckets, distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    near = buckets // 2
    log_steps = torch.log(distance.clamp(min=1).float() / near) / math.log(max_distance / near) * (buckets - near)
    far = (near + log_steps.long()).clamp(max=buckets - 1)
    return first + torch.where(distance < near, distance, far)


class BucketedPositionBias(nn.Module):
    """T5's bias: one learned scalar per bucket and head; all layers of a stack share the table."""

    positional: ClassVar[bool] = True  # see `without_positions`

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, *, bidirectional: bool):
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        self.max_distance, self.bidirectional = max_distance, bidirectional

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Bias between positions of queries (Q,) and of keys (K,): (1, H, Q, K)."""
        if positions_off(self):
            return self.table.weight.new_zeros(1, self.table.embedding_dim, len(queries), len(keys))
        distance = keys - queries[:, None]  # (Q, K)
        buckets = bucket(distance, self.table.num_embeddings, self.max_distance, self.bidirectional)
        return self.table(buckets).permute(2, 0, 1)[None]  # (1, H, Q, K)


class SinusoidalPositionBias(nn.Module):
    """Transformer-XL's relative positions: the sinusoids of the distance, projected, and compared with the query.

    (q + u) · k + (q + v) · W r, section 3.3 of https://arxiv.org/abs/1901.02860; u and v are learned, one vector for each head.
    """

    positional: ClassVar[bool] = True  # see `without_positions`

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.distances = Linear(dim, dim, bias=False)
        self.content = nn.Parameter(torch.zeros(heads, 1, dim // heads))  # u
        self.position = nn.Parameter(torch.zeros(heads, 1, dim // heads))  # v
        nn.init.xavier_uniform_(self.distances.weight)

    def forward(self, q: Tensor, distances: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (B, H, Q, E) and sinusoids (2Q - 1, D) → q + u, and the bias of the second term (B, H, Q, Q)."""
        if positions_off(self):
            return q + self.content, q.new_zeros(*q.shape[:3], q.shape[2])
        heads, batch, scale = len(self.content), len(q), q.shape[-1] ** -0.5
        [r] = split_heads(scale * self.distances(distances)[None], heads)  # (1, H, 2Q - 1, E)
        # One product for each head, not for each head of each example: the distances are the same.
        queries = (q + self.position).transpose(0, 1).flatten(1, 2)  # (H, B · Q, E)
        scores = queries @ r[0].transpose(1, 2)  # (H, B · Q, 2Q - 1)
        return q + self.content, shift_distances(scores.unflatten(1, (batch, -1))).transpose(0, 1)


class DecomposedPositionBias(nn.Module):
    """MViT V2's bias: q · R_row[distance in rows] + q · R_column[distance in columns].

    Section 4.1 of https://arxiv.org/abs/2112.01526.  Both tables hold 2 · side - 1 learned vectors, interpolated for a grid of
    another size.  The `before` tokens before the grid, such as a class token, get 0.
    """

    positional: ClassVar[bool] = True  # see `without_positions`

    def __init__(self, width: int, side: int, before: int = 0):
        """`width` of one head, `side` of the finer of the two grids."""
        super().__init__()
        self.before = before
        self.rows = nn.Parameter(torch.empty(2 * side - 1, width))
        self.columns = nn.Parameter(torch.empty(2 * side - 1, width))
        nn.init.trunc_normal_(self.rows, std=0.02)
        nn.init.trunc_normal_(self.columns, std=0.02)

    def forward(self, q: Tensor, queries: tuple[int, int], keys: tuple[int, int]) -> Tensor:
        """For q (B, H, Q, E) on a `queries` grid of (rows, columns) and keys on a `keys` grid: (B, H, Q, K)."""
        if positions_off(self):
            return q.new_zeros(*q.shape[:3], self.before + keys[0] * keys[1])
        rows = _distance_vectors(self.rows, queries[0], keys[0])
        columns = _distance_vectors(self.columns, queries[1], keys[1])
        q = q[:, :, self.before :].unflatten(2, queries)  # (B, H, Y, X, E)
        up = torch.einsum("bhyxe,yke->bhyxk", q, rows)  # (B, H, Y, X, rows of keys)
        left = torch.einsum("bhyxe,xke->bhyxk", q, columns)  # (B, H, Y, X, columns of keys)
        bias = (up[..., None] + left[..., None, :]).flatten(4).flatten(2, 3)  # (B, H, Y · X, K)
        return F.pad(bias, (self.before, 0, self.before, 0)) if self.before else bias


def _distance_vectors(table: Tensor, queries: int, keys: int) -> Tensor:
    """Vector of each distance query - key along one axis, in steps of the finer grid: (queries, keys, E)."""
    side = max(queries, keys)
    if len(table) != 2 * side - 1:
        table = F.interpolate(table.T[None], 2 * side - 1, mode="linear")[0].T  # (2 · side - 1, E)
    query = torch.arange(queries, device=table.device) * (side // queries)
    key = torch.arange(keys, device=table.device) * (side // keys)
    return table[query[:, None] - key + key[-1]]  # row 0 is the distance of query 0 from the last key


@lru_cache(maxsize=64)
def relative_position_index(window: int, largest: int, device: torch.device) -> Tensor:
    """Table index of the offset query - key for all pairs of positions of a window: (M · M · M · M,).

    The table has a row for each of the (2 · largest - 1)² offsets in a window of side `largest`; a smaller window uses the
    middle of it.
    """
    with torch.inference_mode(False):  # cached, and training may use it later
        position = torch.arange(window * window, device=device)
        down, across = (x[:, None] - x for x in (position // window, position % window))  # (M · M, M · M)
        return ((down + largest - 1) * (2 * largest - 1) + across + largest - 1).flatten()


class RelativePositionBias(nn.Module):
    """Swin's bias: a learned scalar per head and offset in a window, B of equation 4 of https://arxiv.org/abs/2103.14030."""

    positional: ClassVar[bool] = True  # see `without_positions`

    def __init__(self, heads: int, window: int):
        super().__init__()
        self.window = window
        self.table = nn.Parameter(torch.empty((2 * window - 1) ** 2, heads))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, window: int) -> Tensor:
        """Bias between all pairs of a window that is no larger than the table's: (1, H, M · M, M · M)."""
        if positions_off(self):
            return self.table.new_zeros(1, self.table.shape[1], window**2, window**2)
        index = relative_position_index(window, self.window, self.table.device)
        return self.table.T.index_select(1, index).view(1, -1, window**2, window**2)


class ContinuousPositionBias(nn.Module):
    """Swin V2's bias: a small MLP of the log-spaced offset, so that it applies to windows of any size.

    Section 3.3 of https://arxiv.org/abs/2111.09883.  Offsets are scaled so that the largest of the training window is 8 before
    the logarithm; the output is between 0 and 16, as in the released code.
    """

    positional: ClassVar[bool] = True  # see `without_positions`

    def __init__(self, heads: int, window: int, hidden: int = 512):
        super().__init__()
        self.max_distance = max(1, window - 1)
        self.up, self.down = Linear(2, hidden), Linear(hidden, heads, bias=False)

    def forward(self, window: int) -> Tensor:
        """Bias between all pairs of a window of any size: (1, H, M · M, M · M)."""
        like = self.up.weight
        if positions_off(self):
            return like.new_zeros(1, self.down.out_features, window**2, window**2)
        line = 8 / self.max_distance * torch.arange(1 - window, window, dtype=like.dtype, device=like.device)
        line = line.sign() * (line.abs() + 1).log2() / 3  # log₂ 8 = 3: about 1 at the edge of the training window
        offsets = torch.cartesian_prod(line, line)  # ((2 M - 1)², 2)
        table = 16 * torch.sigmoid(self.down(torch.relu(self.up(offsets))))  # ((2 M - 1)², H)
        index = relative_position_index(window, window, table.device)
        return table.T.index_select(1, index).view(1, -1, window**2, window**2)


class GeometricPrior(nn.Module):
    """LR-Net's bias: a small MLP of a neighbour's offset, from -1 to 1; section 3.2 of https://arxiv.org/abs/1904.11491."""

    positional: ClassVar[bool] = True  # see `without_positions`

    def __init__(self, heads: int, kernel: int, hidden: int = 32):
        super().__init__()
        self.kernel = kernel
        self.up, self.down = Linear(2, hidden), Linear(hidden, heads)

    def forward(self) -> Tensor:
        """Bias of each neighbour, row by row: (H, R · R)."""
        if positions_off(self):
            return self.up.weight.new_zeros(self.down.out_features, self.kernel**2)
        line = torch.linspace(-1, 1, self.kernel).to(self.up.weight) if self.kernel > 1 else self.up.weight.new_zeros(1)
        offsets = torch.cartesian_prod(line, line)  # (R · R, 2)
        return self.down(torch.relu(self.up(offsets))).T
