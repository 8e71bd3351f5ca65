"""Batches by token count from length buckets; their order is a function of (seed, epoch).

An epoch shuffles the blocks of the store, reads them pool by pool, sorts a pool by length, cuts it into batches of
about equal numbers of tokens, and shuffles those.  A `Place` says where in that order one stands, so that training
resumes at the very next batch without reading what came before.

Shapes: B batch, S source and T target length.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.store import Ints, Pool, Store
from regard.data.tokenizer import BOS, EOS, PAD

__all__ = ["Batch", "Place", "all_batches", "batches", "pad"]

POOL = 16  # blocks in memory at once: 65,536 pairs


class Batch(NamedTuple):
    """Some sentence pairs, padded."""

    source: Tensor  # (B, S): tokens, end
    target: Tensor  # (B, T + 1): start, tokens, end

    @property
    def tokens(self) -> int:
        """Target tokens to predict, ends counted, padding not."""
        return int((self.target[:, 1:] != PAD).sum())

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        return Batch(self.source.to(device, non_blocking=True), self.target.to(device, non_blocking=True))


class Place(NamedTuple):
    """Where in the endless order of batches one stands."""

    epoch: int = 0
    pool: int = 0
    batch: int = 0


def batches(store: Store, tokens: int, seed: int, place: Place = Place()) -> Iterator[tuple[Batch, Place]]:
    """Endless batches from a place on, each with the place of the one after it."""
    epoch, pool, skip = place
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(store.blocks)
        pools = [order[i : i + POOL] for i in range(0, len(order), POOL)]
        while pool < len(pools):
            rng = np.random.default_rng([seed, epoch, pool])
            held = store.read(pools[pool])
            rows = _cut(held, tokens, rng.permutation(len(held.starts)))
            rows = [rows[i] for i in rng.permutation(len(rows))]
            for number in range(skip, len(rows)):
                last = number + 1 == len(rows)
                yield (
                    _collate(held, rows[number]),
                    Place(epoch, pool + 1, 0) if last else Place(epoch, pool, number + 1),
                )
            pool, skip = pool + 1, 0
        epoch, pool = epoch + 1, 0


def all_batches(store: Store, tokens: int) -> Iterator[Batch]:
    """Every pair once, in batches of similar length: for evaluation."""
    for first in range(0, store.blocks, POOL):
        held = store.read(range(first, min(first + POOL, store.blocks)))
        for rows in _cut(held, tokens, np.arange(len(held.starts))):
            yield _collate(held, rows)


def _cut(pool: Pool, tokens: int, order: Ints) -> list[Ints]:
    """Rows of a pool → batches whose longer side, padded, has at most `tokens` tokens; a longer pair stands alone."""
    longer = np.maximum(pool.sources, pool.targets) + 1  # the end token
    # Pairs of one length go from short sources to short targets, those of the next length back: neighbours are alike.
    lean = np.where(longer % 2, 1, -1) * (pool.sources - pool.targets)
    order = order[np.lexsort((lean[order], longer[order]))]  # ties stay in the order given
    longer = longer[order]
    cuts, first, longest = [0], 0, 0
    for i, length in enumerate(longer.tolist()):
        longest = max(longest, length)
        if longest * (i + 1 - first) > tokens and i > first:
            cuts.append(i)
            first, longest = i, length
    return [order[a:b] for a, b in zip(cuts, [*cuts[1:], len(order)], strict=True)]


def _collate(pool: Pool, rows: Ints) -> Batch:
    sources, targets = pool.sources[rows], pool.targets[rows]
    source = np.full((len(rows), int(sources.max()) + 1), PAD, dtype=np.int64)
    target = np.full((len(rows), int(targets.max()) + 2), PAD, dtype=np.int64)
    target[:, 0] = BOS
    for i, (start, s, t) in enumerate(zip(pool.starts[rows].tolist(), sources.tolist(), targets.tolist(), strict=True)):
        source[i, :s] = pool.tokens[start : start + s]
        source[i, s] = EOS
        target[i, 1 : 1 + t] = pool.tokens[start + s : start + s + t]
        target[i, 1 + t] = EOS
    return Batch(torch.from_numpy(source), torch.from_numpy(target))


def pad(sentences: list[list[int]]) -> Tensor:
    """Sentences of token numbers → one padded tensor (B, S), an end after each."""
    table = torch.full((len(sentences), max(map(len, sentences)) + 1), PAD)
    for row, ids in zip(table, sentences, strict=True):
        row[: len(ids)] = torch.tensor(ids, dtype=torch.long)
        row[len(ids)] = EOS
    return table
