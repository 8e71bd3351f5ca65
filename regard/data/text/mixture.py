"""Mixing other data into the training data, each with a share of the training examples.

An epoch reads every own pair once, and of each other set as many pairs as its share asks for.  They go on where the epoch
before stopped, in a shuffled order of that set: a larger set is read over several epochs, a smaller one is repeated, and no
pair is read again before all others of its set.  Which pairs a pool holds is a function of (seed, epoch, pool).
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regard.data.text.config import TextData
from regard.data.text.store import BLOCK, Ints, PairStore, Pool

__all__ = ["MixPart", "MixedPool", "MixedStore", "MixedValidation", "join_pools"]

ORDER, ROWS = 1, 2  # random streams of a set that is mixed in: the order of its blocks, and of the pairs of a block


class MixPart(NamedTuple):
    """Data to mix in."""

    name: str  # as it was given: a run folder, a file or a named set
    data: TextData
    share: float  # of the training examples; 0: its validation data is evaluated, nothing is mixed in


class MixedValidation(NamedTuple):
    """The encoded validation data of a part."""

    name: str
    valid: PairStore


class MixedPool(NamedTuple):
    """Which pairs are in memory together."""

    blocks: Ints  # of the own data
    ranges: tuple[tuple[int, int], ...]  # of each other set: first and last position in its endless shuffled order
    seed: int


class MixedStore:
    """Own pairs with a share of those of other stores."""

    def __init__(self, own: PairStore, others: Sequence[tuple[PairStore, float]]):
        self.own, self.others = own, [store for store, _ in others]
        self.own_share = 1 - sum(share for _, share in others)
        self.counts = [max(1, round(own.pairs * share / self.own_share)) for _, share in others]
        self.pairs = own.pairs + sum(self.counts)  # of an epoch
        parts = [own.digest, *((store.digest, share) for store, share in others)]
        self.digest = hashlib.sha256(repr(parts).encode()).hexdigest()

    def pools(self, seed: int, epoch: int, size: int) -> list[MixedPool]:
        """The pools of an epoch, of about `size` blocks in all; each has the shares of the whole."""
        order = np.random.default_rng([seed, epoch]).permutation(self.own.blocks)
        own_size = max(1, round(size * self.own_share))
        done, pools = 0, []
        for first in range(0, len(order), own_size):
            blocks = order[first : first + own_size]
            after = done + int(np.minimum(BLOCK, self.own.pairs - blocks * BLOCK).sum())
            ranges = tuple(
                (epoch * count + count * done // self.own.pairs, epoch * count + count * after // self.own.pairs)
                for count in self.counts
            )
            pools.append(MixedPool(blocks, ranges, seed))
            done = after
        return pools

    def read(self, pool: MixedPool) -> Pool:
        """Read a pool into memory: own pairs first, then those of the other sets."""
        parts = [self.own.read(pool.blocks)]
        for index, (store, (first, last)) in enumerate(zip(self.others, pool.ranges, strict=True)):
            parts += _read_range(store, [pool.seed, index], first, last)
        return join_pools(parts)


def _read_range(store: PairStore, seed: list[int], first: int, last: int) -> list[Pool]:
    """The pairs of a range of positions in the endless shuffled order of a store."""
    parts = []
    while first < last:
        lap, start = divmod(first, store.pairs)
        stop = min(last - lap * store.pairs, store.pairs)
        order = np.random.default_rng([*seed, lap, ORDER]).permutation(store.blocks)
        ends = np.cumsum(np.minimum(BLOCK, store.pairs - order * BLOCK))
        for number in range(int(np.searchsorted(ends, start, "right")), int(np.searchsorted(ends, stop, "left")) + 1):
            block = store.read([int(order[number])])
            count = len(block.starts)
            begin = int(ends[number]) - count
            rows = np.random.default_rng([*seed, lap, ROWS, int(order[number])]).permutation(count)
            parts.append(block.take(rows[max(start - begin, 0) : stop - begin]))
        first = lap * store.pairs + stop
    return parts


def join_pools(parts: Sequence[Pool]) -> Pool:
    """Several pools of one tokenizer as one."""
    offsets = np.cumsum([0, *(len(part.tokens) for part in parts[:-1])])
    starts = [part.starts + offset for part, offset in zip(parts, offsets, strict=True)]
    sources, targets = [part.sources for part in parts], [part.targets for part in parts]
    tokens = np.concatenate([part.tokens for part in parts])
    return Pool(tokens, np.concatenate(starts), np.concatenate(sources), np.concatenate(targets))
