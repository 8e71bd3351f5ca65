"""Who may look at whom.  A mask is boolean and True means "may look".

Shapes: B batch, Q queries, K keys; of pictures N windows, M side of a window, R side of a neighbourhood, Y X rows and columns
of places that look.
"""

import torch
from torch import Tensor

from regard.layers.shapes import to_windows

__all__ = ["causal_mask", "neighborhood_mask", "padding_mask", "window_mask"]


def padding_mask(tokens: Tensor, pad: int) -> Tensor:
    """Every query may look at real tokens, never at padding: (B, K) → (B, 1, 1, K)."""
    return (tokens != pad)[:, None, None]


def causal_mask(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """A query may look at itself and at what came before it: (Q, K).

    The last query stands at the last key, so a step with a cache (one query, many keys) sees its whole past.
    torch's own `is_causal` aligns the first query with the first key instead and is right only if Q = K.
    """
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def window_mask(rows: int, columns: int, window: int, shift: int, device: torch.device | None = None) -> Tensor:
    """Places that the roll of a shifted grid has put into one window look at each other only if they belong together.

    Figure 4 of https://arxiv.org/abs/2103.14030.  Windows that begin `shift` places in leave ragged regions at the borders;
    rolling the grid by as much brings several of those into one window.  Same region, may look: (N, M · M, M · M).
    """
    down, across = ((torch.arange(side, device=device) - shift) // window for side in (rows, columns))  # may be -1
    region = down[:, None] * (columns + 1) + across  # one number for each region of the shifted cut: (rows, columns)
    seen = to_windows(region.roll((-shift, -shift), (0, 1))[None, :, :, None], window)  # (N, M · M, 1)
    return seen == seen.transpose(1, 2)  # (N, M · M, M · M)


def neighborhood_mask(
    rows: int, columns: int, kernel: int, stride: int = 1, device: torch.device | None = None
) -> Tensor:
    """A place may look at those of its neighbourhood that lie inside the picture: (Y · X, R · R).

    `rows` and `columns` are the picture's; every `stride`-th place looks.
    """

    def along(side: int) -> Tensor:
        seen = torch.arange(-(kernel // 2), kernel // 2 + 1, device=device)[:, None]
        seen = seen + torch.arange(0, side, stride, device=device)  # (R, Y)
        return (seen >= 0) & (seen < side)

    seen = along(rows)[:, None, :, None] & along(columns)[None, :, None]  # (R, R, Y, X)
    return seen.flatten(2).flatten(0, 1).T
