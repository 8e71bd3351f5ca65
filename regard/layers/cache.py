"""Keys and values that are computed once and attended to at every later step.

Shapes: B batch or sentences, W beams, R = B · W rows, H heads, K keys, E width of one head.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["BeamCache", "Cache", "KeysValues", "pad_caches"]

CAPACITY = 16  # capacity of a new cache, in tokens


class KeysValues(NamedTuple):
    """Projected keys and values, each (B, H, K, E)."""

    keys: Tensor
    values: Tensor


class _Buffer:
    """Memory for keys and values (2, B, H, capacity, E); the first `filled` tokens are written."""

    def __init__(self, like: Tensor, batch: int, capacity: int):
        self.both = like.new_empty(2, batch, like.shape[2], capacity, like.shape[4])
        self.filled = 0


class Cache:
    """The keys and values of all tokens so far, with spare capacity: adding a token does not copy the earlier ones.

    A cache is immutable: `add` returns a longer one.  Both share one buffer; only a second continuation of the same prefix
    copies it.  No gradient flows back through a cache.
    """

    def __init__(self, buffer: _Buffer | None = None, used: int = 0):
        self.buffer, self.used = buffer, used

    def add(self, new: Tensor) -> "Cache":
        """Append the keys and values of later tokens, (2, B, H, K, E)."""
        count = new.shape[3]
        used, buffer = self.used + count, self.buffer
        if buffer is None or buffer.filled != self.used or used > buffer.both.shape[3]:
            buffer = _Buffer(new, new.shape[1], max(CAPACITY, 2 * used))
            if self.buffer is not None:
                buffer.both[:, :, :, : self.used] = self.buffer.both[:, :, :, : self.used]
        buffer.both.narrow(3, self.used, count).copy_(new.detach() if new.requires_grad else new)
        buffer.filled = used
        return Cache(buffer, used)

    def all(self) -> KeysValues:
        """All tokens so far, (B, H, K, E)."""
        assert self.buffer is not None
        return KeysValues(*self.buffer.both.narrow(3, 0, self.used).unbind())

    @torch.no_grad()
    def reorder(self, rows: Tensor) -> "Cache":
        """Select rows of the batch (R,), and keep the spare capacity."""
        if self.buffer is None:
            return self
        both = self.buffer.both
        buffer = _Buffer(both, len(rows), both.shape[3])
        buffer.filled = self.used
        torch.index_select(both[:, :, :, : self.used], 1, rows, out=buffer.both[:, :, :, : self.used])
        return Cache(buffer, self.used)


class BeamCache(NamedTuple):
    """The keys and values of all tokens so far, for B sentences with W beams each.

    All beams of a sentence share one cache that holds the tokens of all of them; `mask` selects each beam's own.  Beams
    thus swap parents without a copy.
    """

    blocks: tuple[Cache, ...]
    sentences: int
    mask: Tensor | None = None  # (B, 1, W, K): the keys of each beam; None = all
    beams: int = 1
    position: int = 0  # of the next token
    padding: Tensor | None = None  # (B,): keys before the first token of each sentence, which the mask hides; None = 0

    @property
    def next_positions(self) -> int | Tensor:
        """The position of the next token: one for all rows, or of each (R,)."""
        return self.position if self.padding is None else (self.position - self.padding).repeat_interleave(self.beams)

    @property
    def next_mask(self) -> Tensor | None:
        """The keys the next token of each beam attends to: those of its beam, and itself."""
        if self.mask is None:
            return None
        own = torch.eye(self.beams, dtype=torch.bool, device=self.mask.device)
        return torch.cat((self.mask, own.expand(len(self.mask), 1, -1, -1)), -1)

    def reorder(self, rows: Tensor) -> tuple["BeamCache", Tensor | None]:
        """Select rows; also return the sentence of each, or None if those are all sentences in their order.

        `rows` is (R,), or (B, W) with the beams of one sentence in each line.
        """
        rows = rows if rows.ndim == 2 else rows[:, None]
        sentence, parent = rows[:, 0] // self.beams, rows % self.beams
        blocks, mask, padding = self.blocks, self.mask, self.padding
        same = torch.equal(sentence, torch.arange(self.sentences, device=rows.device))
        if not same:  # else nothing is copied
            blocks = tuple(block.reorder(sentence) for block in blocks)
            mask = None if mask is None else mask.index_select(0, sentence)
            padding = None if padding is None else padding.index_select(0, sentence)
        if mask is None and rows.shape[1] > 1:
            mask = torch.ones(len(rows), 1, 1, blocks[0].used, dtype=torch.bool, device=rows.device)
        if mask is not None:
            mask = mask.gather(2, parent[:, None, :, None].expand(-1, -1, -1, mask.shape[-1]))
        return BeamCache(blocks, len(rows), mask, rows.shape[1], self.position, padding), None if same else sentence


def pad_caches(caches: Sequence[Cache]) -> Cache:
    """One cache of several sentences of different lengths, each a batch of 1; zeros come first, so that all end together."""
    longest = max(caches, key=lambda cache: cache.used)
    if longest.buffer is None:
        return longest
    _, _, heads, _, width = longest.buffer.both.shape
    both = longest.buffer.both.new_zeros(2, len(caches), heads, longest.used, width)
    for row, cache in enumerate(caches):
        if cache.buffer is not None:
            both[:, row, :, longest.used - cache.used :] = cache.buffer.both[:, 0, :, : cache.used]
    return Cache().add(both)
