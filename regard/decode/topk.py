"""Top-k and logsumexp over the vocabulary, in blocks.  Shapes: B sentences, W beams, R = B · W rows, V vocabulary."""

import torch
from torch import Tensor

__all__ = ["blocked_logsumexp", "blocked_topk"]

COLUMNS = 256
ROWS = 32  # rows whose exponentials fit in a core's cache


def blocked_topk(x: Tensor, k: int, add: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k largest values of each sentence, and their indices among its W · V: (B, W, V) → (B, k) twice.

    `add` (B, W) is added to the values of each beam first.  Equal to `(x + add).topk(k)` over all, which is not vectorized
    on a CPU.  Here the values of a beam are folded into columns, and the maximum of each column is vectorized.  The k
    largest values are in the k columns with the largest maxima, and only those are searched.
    """
    batch, width, vocab = x.shape
    depth = vocab // COLUMNS
    if x.device.type != "cpu" or depth * k * 4 > width * vocab or depth < 2:
        return (x if add is None else x + add[:, :, None]).flatten(1).topk(k)
    whole = depth * COLUMNS  # the remainder, fewer than COLUMNS, are columns of one value each
    tops = x[:, :, :whole].view(batch, width, depth, COLUMNS).amax(2)  # (B, W, COLUMNS)
    tops = torch.cat((tops, x[:, :, whole:]), 2)  # (B, W, columns)
    tops = tops if add is None else tops.add_(add[:, :, None])
    best = tops.flatten(1).topk(k).indices  # (B, k)
    beam, column = best // tops.shape[2], best % tops.shape[2]
    rows = torch.arange(depth)
    index = (beam * vocab + column)[:, :, None] + rows * COLUMNS  # (B, k, depth)
    valid = (column < COLUMNS)[:, :, None] | (rows == depth - 1)
    values = x.flatten(1).gather(1, index.flatten(1)).view_as(index)
    values = values if add is None else values.add_(add.gather(1, beam)[:, :, None])
    values, best = values.masked_fill_(~valid, -torch.inf).flatten(1).topk(k)
    return values, index.flatten(1).gather(1, best)


def blocked_logsumexp(logits: Tensor) -> Tensor:
    """`logits.logsumexp(-1)` in small blocks: (R, V) → (R,)."""
    if logits.device.type != "cpu" or len(logits) <= ROWS:
        return logits.logsumexp(-1)
    top = logits.amax(-1, keepdim=True)
    top.masked_fill_(top.isinf(), 0.0)  # so that a row of -inf gives -inf
    total, buffer = torch.empty_like(top), logits.new_empty(ROWS, logits.shape[-1])
    for first in range(0, len(logits), ROWS):
        rows = slice(first, min(first + ROWS, len(logits)))
        block = torch.sub(logits[rows], top[rows], out=buffer[: rows.stop - first])
        torch.sum(block.exp_(), -1, keepdim=True, out=total[rows])
    return (total.log_() + top).squeeze(-1)
