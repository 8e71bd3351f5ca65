"""Batches by token count from length buckets; their order is a function of (seed, epoch).

An epoch shuffles the blocks of the store, reads them pool by pool, sorts a pool by length, cuts it into batches of
about equal numbers of tokens, and shuffles those.  A `Place` says where in that order one stands, so that training
resumes at the very next batch without reading what came before.

Shapes: B batch, S source and T target length.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from regard.data.text.store import Ints, PairStore, Pool
from regard.data.text.tokenizer import PAD, SpecialTokens

__all__ = ["DataPosition", "LabeledBatch", "PairBatch", "all_batches", "all_labelled", "batches", "labelled", "pad"]

POOL = 16  # blocks in memory at once: 65,536 pairs

Some = TypeVar("Some")  # a batch of one kind or the other


class PairBatch(NamedTuple):
    """Some sentence pairs, padded."""

    source: Tensor  # (B, S): tokens, end
    target: Tensor  # (B, T + 1): start, tokens, end
    pad: int = PAD  # the token after the end

    @property
    def tokens(self) -> int:
        """Target tokens to predict, ends counted, padding not."""
        return int((self.target[:, 1:] != self.pad).sum())

    def to(self, device: torch.device) -> "PairBatch":
        """The same batch on another device."""
        return PairBatch(self.source.to(device, non_blocking=True), self.target.to(device, non_blocking=True), self.pad)


class LabeledBatch(NamedTuple):
    """Some texts, padded, and the class of each."""

    text: Tensor  # (B, T): start, tokens, end
    mask: Tensor  # (B, 1, 1, T): True where there is text, not padding
    label: Tensor  # (B,)

    @property
    def tokens(self) -> int:
        """What is to predict: one class a text."""
        return len(self.label)

    def to(self, device: torch.device) -> "LabeledBatch":
        """The same batch on another device."""
        return LabeledBatch(*(part.to(device, non_blocking=True) for part in self))


class DataPosition(NamedTuple):
    """Where in the endless order of batches one stands."""

    epoch: int = 0
    pool: int = 0
    batch: int = 0


def batches(
    store: PairStore, special: SpecialTokens, tokens: int, seed: int, place: DataPosition = DataPosition()
) -> Iterator[tuple[PairBatch, DataPosition]]:
    """Endless batches from a place on, each with the place of the one after it."""
    return _endless(store, tokens, seed, place, 1, lambda pool, rows: _pairs(pool, rows, special))


def all_batches(store: PairStore, special: SpecialTokens, tokens: int) -> Iterator[PairBatch]:
    """Every pair once, in batches of similar length: for evaluation."""
    return _once(store, tokens, 1, lambda pool, rows: _pairs(pool, rows, special))


def labelled(
    store: PairStore, special: SpecialTokens, tokens: int, seed: int, place: DataPosition = DataPosition()
) -> Iterator[tuple[LabeledBatch, DataPosition]]:
    """The same for labelled texts, of a store whose targets are the number of a class."""
    return _endless(store, tokens, seed, place, 2, lambda pool, rows: _texts(pool, rows, special))


def all_labelled(store: PairStore, special: SpecialTokens, tokens: int) -> Iterator[LabeledBatch]:
    """Every labelled text once, in batches of similar length."""
    return _once(store, tokens, 2, lambda pool, rows: _texts(pool, rows, special))


def _endless(
    store: PairStore, tokens: int, seed: int, place: DataPosition, ends: int, collate: Callable[[Pool, Ints], Some]
) -> Iterator[tuple[Some, DataPosition]]:
    """`ends` is how many tokens a batch adds to a text: its end, and its start if the model reads that."""
    epoch, pool, skip = place
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(store.blocks)
        pools = [order[i : i + POOL] for i in range(0, len(order), POOL)]
        while pool < len(pools):
            rng = np.random.default_rng([seed, epoch, pool])
            held = store.read(pools[pool])
            rows = _cut(held, tokens, rng.permutation(len(held.starts)), ends)
            rows = [rows[i] for i in rng.permutation(len(rows))]
            for number in range(skip, len(rows)):
                last = number + 1 == len(rows)
                yield (
                    collate(held, rows[number]),
                    DataPosition(epoch, pool + 1, 0) if last else DataPosition(epoch, pool, number + 1),
                )
            pool, skip = pool + 1, 0
            del held, rows  # before the next ones are read: one pool is in memory, not two
        epoch, pool = epoch + 1, 0


def _once(store: PairStore, tokens: int, ends: int, collate: Callable[[Pool, Ints], Some]) -> Iterator[Some]:
    for first in range(0, store.blocks, POOL):
        held = store.read(range(first, min(first + POOL, store.blocks)))
        for rows in _cut(held, tokens, np.arange(len(held.starts)), ends):
            yield collate(held, rows)
        del held


def _cut(pool: Pool, tokens: int, order: Ints, ends: int) -> list[Ints]:
    """Rows of a pool → batches whose longer side, padded, has at most `tokens` tokens; a longer pair stands alone."""
    longer = np.maximum(pool.sources, pool.targets) + ends
    # Pairs of one length go from short sources to short targets, those of the next length back: neighbours are alike.
    lean = np.where(longer % 2, 1, -1) * (pool.sources - pool.targets)
    order = order[np.lexsort((lean[order], longer[order]))]  # ties stay in the order given
    longer = longer[order]
    cuts, first, max_len = [0], 0, 0
    for i, length in enumerate(longer.tolist()):
        max_len = max(max_len, length)
        if max_len * (i + 1 - first) > tokens and i > first:
            cuts.append(i)
            first, max_len = i, length
    return [order[a:b] for a, b in zip(cuts, [*cuts[1:], len(order)], strict=True)]


def _pairs(pool: Pool, rows: Ints, special: SpecialTokens) -> PairBatch:
    sources, targets = pool.sources[rows], pool.targets[rows]
    source = np.full((len(rows), int(sources.max()) + 1), special.pad, dtype=np.int64)
    target = np.full((len(rows), int(targets.max()) + 2), special.pad, dtype=np.int64)
    target[:, 0] = special.bos
    for i, (start, s, t) in enumerate(zip(pool.starts[rows].tolist(), sources.tolist(), targets.tolist(), strict=True)):
        source[i, :s] = pool.tokens[start : start + s]
        source[i, s] = special.eos
        target[i, 1 : 1 + t] = pool.tokens[start + s : start + s + t]
        target[i, 1 + t] = special.eos
    return PairBatch(torch.from_numpy(source), torch.from_numpy(target), special.pad)


def _texts(pool: Pool, rows: Ints, special: SpecialTokens) -> LabeledBatch:
    starts, lengths = pool.starts[rows], pool.sources[rows]
    text = np.full((len(rows), int(lengths.max()) + 2), special.pad, dtype=np.int64)
    text[:, 0] = special.bos
    for i, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        text[i, 1 : 1 + length] = pool.tokens[start : start + length]
        text[i, 1 + length] = special.eos
    mask = np.arange(text.shape[1]) < lengths[:, None] + 2  # not `text != pad`: an end may be the same token as padding
    label = pool.tokens[starts + lengths].astype(np.int64)
    return LabeledBatch(torch.from_numpy(text), torch.from_numpy(mask)[:, None, None], torch.from_numpy(label))


def pad(sentences: list[list[int]], special: SpecialTokens) -> Tensor:
    """Sentences of token numbers → one padded tensor (B, S), an end after each."""
    table = torch.full((len(sentences), max(map(len, sentences)) + 1), special.pad)
    for row, ids in zip(table, sentences, strict=True):
        row[: len(ids)] = torch.tensor(ids, dtype=torch.long)
        row[len(ids)] = special.eos
    return table
