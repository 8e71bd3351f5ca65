"""What every step of a search asks of the whole vocabulary: the largest numbers, and the sum of all odds.

Shapes: B sentences, W beams, R = B · W rows, V vocabulary.
"""

import torch
from torch import Tensor

__all__ = ["blocked_logsumexp", "blocked_topk"]

COLUMNS = 256
ROWS = 32  # whose odds stay in a core's cache


def blocked_topk(x: Tensor, k: int, add: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k largest numbers of each sentence, and where among its W · V they stand: (B, W, V) → (B, k) twice.

    To each beam's numbers `add` (B, W) is added first, if given.  The same as `(x + add).topk(k)` over all, which on a CPU
    goes through them one by one.  Here the numbers of a beam are folded into columns, whose tops are found many at a time.
    The k largest stand in the k columns with the largest tops, and only those are looked at again.
    """
    batch, width, vocab = x.shape
    depth = vocab // COLUMNS
    if x.device.type != "cpu" or depth * k * 4 > width * vocab or depth < 2:
        return (x if add is None else x + add[:, :, None]).flatten(1).topk(k)
    whole = depth * COLUMNS  # what is left over, fewer than COLUMNS, are columns of one number each
    tops = torch.cat(
        (x[:, :, :whole].view(batch, width, depth, COLUMNS).amax(2), x[:, :, whole:]), 2
    )  # (B, W, columns)
    tops = tops if add is None else tops.add_(add[:, :, None])
    best = tops.flatten(1).topk(k).indices  # (B, k)
    beam, column = best // tops.shape[2], best % tops.shape[2]
    rows = torch.arange(depth)
    where = (beam * vocab + column)[:, :, None] + rows * COLUMNS  # (B, k, depth)
    there = (column < COLUMNS)[:, :, None] | (rows == depth - 1)
    values = x.flatten(1).gather(1, where.flatten(1)).view_as(where)
    values = values if add is None else values.add_(add.gather(1, beam)[:, :, None])
    values, place = values.masked_fill_(~there, -torch.inf).flatten(1).topk(k)
    return values, where.flatten(1).gather(1, place)


def blocked_logsumexp(logits: Tensor) -> Tensor:
    """The logarithm of the sum of all exponentials of each row: (R, V) → (R,); `logits.logsumexp(-1)` in small blocks."""
    if logits.device.type != "cpu" or len(logits) <= ROWS:
        return logits.logsumexp(-1)
    top = logits.amax(-1, keepdim=True)
    top.masked_fill_(top.isinf(), 0.0)  # of a row of -inf alone, too, the answer is -inf
    total, odds = torch.empty_like(top), logits.new_empty(ROWS, logits.shape[-1])
    for first in range(0, len(logits), ROWS):
        some = slice(first, min(first + ROWS, len(logits)))
        block = torch.sub(logits[some], top[some], out=odds[: some.stop - first])
        torch.sum(block.exp_(), -1, keepdim=True, out=total[some])
    return (total.log_() + top).squeeze(-1)
