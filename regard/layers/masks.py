"""Attention masks.  A mask is boolean; True means that the query may attend to the key.

Shapes: B batch, Q queries, K keys; for images N windows, M side of a window, R side of a neighbourhood, Y X rows and columns
of the query grid.
"""

import torch
from torch import Tensor

from regard.layers.shapes import to_windows

__all__ = ["causal_mask", "length_mask", "neighborhood_mask", "padding_mask", "window_mask"]


def padding_mask(tokens: Tensor, pad: int) -> Tensor:
    """Every query may attend to real tokens, never to padding: (B, K) → (B, 1, 1, K)."""
    return (tokens != pad)[:, None, None]


def length_mask(lengths: Tensor, keys: int) -> Tensor:
    """Every query may attend to the first `lengths` (B,) keys of its row: (B, 1, 1, K)."""
    return (torch.arange(keys, device=lengths.device) < lengths[:, None])[:, None, None]


def causal_mask(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """A query may attend to its own and all earlier positions: (Q, K).

    The last query has the position of the last key, so a step with a cache (one query, many keys) attends to all keys.
    torch's `is_causal` aligns the first query with the first key instead, which is right only if Q = K.
    """
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def window_mask(rows: int, columns: int, window: int, shift: int, device: torch.device | None = None) -> Tensor:
    """Positions of a shifted window may attend to each other only if they are adjacent in the image: (N, M · M, M · M).

    Figure 4 of https://arxiv.org/abs/2103.14030.  Windows shifted by `shift` positions leave partial windows at the borders;
    rolling the grid puts several of these regions into one window.
    """
    down, across = ((torch.arange(side, device=device) - shift) // window for side in (rows, columns))  # may be -1
    region = down[:, None] * (columns + 1) + across  # an id for each region: (rows, columns)
    ids = to_windows(region.roll((-shift, -shift), (0, 1))[None, :, :, None], window)  # (N, M · M, 1)
    return ids == ids.transpose(1, 2)  # (N, M · M, M · M)


def neighborhood_mask(rows: int, columns: int, kernel: int, stride: int = 1, device: torch.device | None = None) -> Tensor:
    """A position may attend to those of its neighbourhood that lie inside the image: (Y · X, R · R).

    `rows` and `columns` are those of the image; every `stride`-th position is a query.
    """

    def along(side: int) -> Tensor:
        offsets = torch.arange(-(kernel // 2), kernel // 2 + 1, device=device)[:, None]
        index = offsets + torch.arange(0, side, stride, device=device)  # (R, Y)
        return (index >= 0) & (index < side)

    inside = along(rows)[:, None, :, None] & along(columns)[None, :, None]  # (R, R, Y, X)
    return inside.flatten(2).flatten(0, 1).T
