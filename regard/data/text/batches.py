"""Batches by token count from length buckets; their order is a function of (seed, epoch).

An epoch shuffles the blocks of the store, reads them pool by pool, sorts a pool by length, cuts it into batches of about equal
token counts, and shuffles those.  Training resumes from a `DataPosition` at the next batch without reading earlier ones.

Shapes: B batch, S source and T target length.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from regard.data.position import BatchStream, DataPosition
from regard.data.text.mixture import MixedStore
from regard.data.text.store import Ints, PairStore, Pool
from regard.data.text.tokenizer import PAD, SpecialTokens

__all__ = ["LabeledBatch", "PairBatch", "all_labeled_batches", "all_pair_batches", "labeled_batches", "pad", "pair_batches"]

POOL = 16  # blocks in memory at once: 65,536 pairs
CHANGES = 3  # a stream of random numbers apart from those of the order, here and in mixture.py

Batch = TypeVar("Batch")
Change = Callable[[Pool, np.random.Generator], Pool]


class PairBatch(NamedTuple):
    """Sentence pairs, padded."""

    source: Tensor  # (B, S): tokens, end
    target: Tensor  # (B, T + 1): start, tokens, end
    pad: int = PAD  # the token after the end

    @property
    def tokens(self) -> int:
        """Target tokens to predict, including ends, without padding."""
        return int((self.target[:, 1:] != self.pad).sum())


class LabeledBatch(NamedTuple):
    """Texts, padded, and the class of each."""

    text: Tensor  # (B, T): start, tokens, end
    mask: Tensor  # (B, 1, 1, T): True for text, False for padding
    label: Tensor  # (B,)

    @property
    def tokens(self) -> int:
        """Classes to predict: one for each text."""
        return len(self.label)


def pair_batches(store: PairStore | MixedStore, special: SpecialTokens, tokens: int, seed: int,
                 position: DataPosition = DataPosition(), change: Change | None = None) -> BatchStream[PairBatch]:  # fmt: skip
    """Endless batches of at most `tokens` tokens from a position on; `change` is applied to each pool that is read."""
    return _endless(store, tokens, seed, position, 1, partial(_collate_pairs, special), change)


def all_pair_batches(store: PairStore, special: SpecialTokens, tokens: int) -> Iterator[PairBatch]:
    """Every pair once, in batches of similar length: for evaluation."""
    return _once(store, tokens, 1, partial(_collate_pairs, special))


def labeled_batches(store: PairStore | MixedStore, special: SpecialTokens, tokens: int, seed: int,
                    position: DataPosition = DataPosition()) -> BatchStream[LabeledBatch]:  # fmt: skip
    """Endless batches of labelled texts, from a store whose targets are class ids."""
    return _endless(store, tokens, seed, position, 2, partial(_collate_texts, special))


def all_labeled_batches(store: PairStore, special: SpecialTokens, tokens: int) -> Iterator[LabeledBatch]:
    """Every labelled text once, in batches of similar length: for evaluation."""
    return _once(store, tokens, 2, partial(_collate_texts, special))


def _endless(store: PairStore | MixedStore, tokens: int, seed: int, position: DataPosition, ends: int,
             collate: Callable[[Pool, Ints], Batch], change: Change | None = None) -> BatchStream[Batch]:  # fmt: skip
    """`ends` is the number of tokens that collating adds to a text: its end, and its start if the model reads one."""
    epoch, pool, skip = position
    while True:
        pools = store.pools(seed, epoch, POOL)
        while pool < len(pools):
            rng = np.random.default_rng([seed, epoch, pool])
            pairs = store.read(pools[pool])  # type: ignore[arg-type]  # each store reads its own pools
            if change is not None:
                pairs = change(pairs, np.random.default_rng([seed, epoch, pool, CHANGES]))
            rows = _split_by_tokens(pairs, tokens, rng.permutation(len(pairs.starts)), ends)
            rows = [rows[i] for i in rng.permutation(len(rows))]
            for index in range(skip, len(rows)):
                last = index + 1 == len(rows)
                after = DataPosition(epoch, pool + 1, 0) if last else DataPosition(epoch, pool, index + 1)
                # The last batch is copied at once: its caller may keep it, and would keep this pool, while the next is read.
                at = rows[index]
                yield partial(collate, *((pairs.take(at), np.arange(len(at))) if last else (pairs, at))), after
            pool, skip = pool + 1, 0
            del pairs, rows  # before the next pool is read: one pool is in memory, not two
        epoch, pool = epoch + 1, 0


def _once(store: PairStore, tokens: int, ends: int, collate: Callable[[Pool, Ints], Batch]) -> Iterator[Batch]:
    for first in range(0, store.blocks, POOL):
        pairs = store.read(range(first, min(first + POOL, store.blocks)))
        for rows in _split_by_tokens(pairs, tokens, np.arange(len(pairs.starts)), ends):
            yield collate(pairs, rows)
        del pairs


def _split_by_tokens(pool: Pool, tokens: int, order: Ints, ends: int) -> list[Ints]:
    """Rows of a pool → batches whose longer side, padded, has at most `tokens` tokens; a longer pair is a batch alone."""
    longer = np.maximum(pool.sources, pool.targets) + ends
    # Pairs of one length go from short sources to short targets, those of the next length back: neighbours are alike.
    length_difference = np.where(longer % 2, 1, -1) * (pool.sources - pool.targets)
    order = order[np.lexsort((length_difference[order], longer[order]))]  # ties stay in the order given
    longer = longer[order]
    cuts, first, max_len = [0], 0, 0
    for i, length in enumerate(longer.tolist()):
        max_len = max(max_len, length)
        if max_len * (i + 1 - first) > tokens and i > first:
            cuts.append(i)
            first, max_len = i, length
    return [order[a:b] for a, b in zip(cuts, [*cuts[1:], len(order)], strict=True)]


def _collate_pairs(special: SpecialTokens, pool: Pool, rows: Ints) -> PairBatch:
    pairs = pool.take(rows)
    source, target = _sides(pairs)
    source, target = _pad_rows(source, pairs.sources, special, 0), _pad_rows(target, pairs.targets, special, 1)
    return PairBatch(torch.from_numpy(source), torch.from_numpy(target), special.pad)


def _collate_texts(special: SpecialTokens, pool: Pool, rows: Ints) -> LabeledBatch:
    pairs = pool.take(rows)
    tokens, label = _sides(pairs)
    text = _pad_rows(tokens, pairs.sources, special, 1)
    mask = np.arange(text.shape[1]) < pairs.sources[:, None] + 2  # not `text != pad`: the end token may be the padding
    return LabeledBatch(torch.from_numpy(text), torch.from_numpy(mask)[:, None, None], torch.from_numpy(label))


def _sides(pairs: Pool) -> tuple[Ints, Ints]:
    """All source tokens, and all target tokens, of pairs that lie one after the other."""
    lengths = np.stack((pairs.sources, pairs.targets), 1).ravel()
    in_source = np.repeat(np.arange(len(lengths)) % 2 == 0, lengths)
    tokens = pairs.tokens.astype(np.int64)
    return tokens[in_source], tokens[~in_source]


def _pad_rows(tokens: Ints, lengths: Ints, special: SpecialTokens, starts: int) -> Ints:
    """Tokens of rows of the given lengths → (B, T), each with `starts` start tokens, its end token, then padding."""
    table = np.full((len(lengths), int(lengths.max()) + starts + 1), special.pad, dtype=np.int64)
    table[:, :starts] = special.bos
    table[:, starts:][np.arange(table.shape[1] - starts) < lengths[:, None]] = tokens
    table[np.arange(len(lengths)), lengths + starts] = special.eos
    return table


def pad(sentences: list[list[int]], special: SpecialTokens) -> Tensor:
    """Token ids of sentences → one padded tensor (B, S), each with its end token."""
    table = torch.full((len(sentences), max(map(len, sentences)) + 1), special.pad)
    for row, ids in zip(table, sentences, strict=True):
        row[: len(ids)] = torch.tensor(ids, dtype=torch.long)
        row[len(ids)] = special.eos
    return table
