"""One long text, cut into windows of equal length: batches for language models, without padding.

Every epoch starts at a random offset within the first window, so the cuts differ, and takes the windows in random
order: a function of (seed, epoch).  What a batch masks is a function of (seed, epoch, batch), so training resumes from
any `DataPosition` with identical batches.

Shapes: B windows, T tokens, S source tokens.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.position import BatchStream, DataPosition
from regard.data.text.batches import PairBatch
from regard.data.text.masking import corrupt_spans, mask_tokens
from regard.data.text.store import Ints, Tokens
from regard.data.text.tokenizer import SpecialTokens

__all__ = ["BoundedBatch", "MaskedBatch", "WindowBatch", "all_bounded_windows", "all_masked_windows", "all_span_windows",
           "all_windows", "bounded_windows", "masked_windows", "span_windows", "window_order", "windows"]  # fmt: skip

VALID_SEED = 0  # evaluation masks the same tokens every time


class WindowBatch(NamedTuple):
    """Windows; a model reads all but the last token of each and predicts all but the first."""

    text: Tensor  # (B, T + 1)

    @property
    def tokens(self) -> int:
        """Tokens to predict."""
        return self.text[:, 1:].numel()


class BoundedBatch(NamedTuple):
    """Windows from start to end token, between which each token is predicted from those before it, and from those after it."""

    words: Tensor  # (B, T + 2), or (B, T + 2, C) as character ids: what the model reads
    labels: Tensor  # (B, T): the tokens to predict

    @property
    def tokens(self) -> int:
        """Tokens to predict, in both directions together."""
        return 2 * self.labels.numel()


class MaskedBatch(NamedTuple):
    """Windows from start to end token, in which some tokens were chosen for prediction, and most of those masked."""

    shown: Tensor  # (B, T): what the model reads
    chosen: Tensor  # (B, T): True where it predicts the original token
    truth: Tensor  # (B, T): the original tokens

    @property
    def tokens(self) -> int:
        """Tokens to predict."""
        return int(self.chosen.sum())


def windows(text: Tokens, length: int, tokens: int, seed: int,
            position: DataPosition = DataPosition()) -> BatchStream[WindowBatch]:  # fmt: skip
    """Endless batches of about `tokens` tokens from a position on."""
    for _, starts, after in window_order(len(text), length, length + 1, tokens // length, seed, position):
        yield partial(_read_windows, text, starts, length + 1), after


def all_windows(text: Tokens, length: int, tokens: int) -> Iterator[WindowBatch]:
    """Every token but the first predicted once, in order; the last window may be shorter, in a batch of its own."""
    if len(text) < 2:
        raise ValueError(f"a text of {len(text)} tokens has no next token to predict; give a longer text")
    for starts, size in _sequential(len(text) - 1, length, tokens // length):
        yield _read_windows(text, starts, size + 1)


def bounded_windows(text: Tokens, length: int, tokens: int, seed: int, special: SpecialTokens,
                    position: DataPosition = DataPosition()) -> BatchStream[BoundedBatch]:  # fmt: skip
    """Endless batches of windows of `length` tokens between start and end, from a position on."""
    for _, starts, after in window_order(len(text), length, length, tokens // length, seed, position):
        yield partial(_bound, text, starts, length, special), after


def all_bounded_windows(text: Tokens, length: int, tokens: int, special: SpecialTokens) -> Iterator[BoundedBatch]:
    """The whole text once, in order; the last window may be shorter, in a batch of its own."""
    for starts, size in _sequential(len(text), length, tokens // length):
        yield _bound(text, starts, size, special)


def masked_windows(text: Tokens, length: int, tokens: int, seed: int, special: SpecialTokens, special_ids: Sequence[int],
                   vocab: int, position: DataPosition = DataPosition()) -> BatchStream[MaskedBatch]:  # fmt: skip
    """Endless batches of windows of `length` tokens, start and end included; `special_ids` are never masked nor sampled.

    A batch with nothing to mask is skipped; to know, windows are read up to the first ordinary token's, usually one.
    """
    (inside, kept), last = _plan_masking(length, special, special_ids), position.epoch
    for seeds, starts, after in window_order(len(text), inside, inside, tokens // length, seed, position):
        if any(not np.isin(text[start : start + inside], kept).all() for start in starts):
            yield partial(_mask, text, starts, inside, special, kept, vocab, seeds), after
            last = after.epoch
        elif after.epoch > last + 1:
            raise ValueError("this text has only special tokens, none to mask; give a text the tokenizer knows")


def all_masked_windows(text: Tokens, length: int, tokens: int, special: SpecialTokens, special_ids: Sequence[int],
                       vocab: int) -> Iterator[MaskedBatch]:  # fmt: skip
    """The whole text once, in order, with the same tokens masked every time."""
    inside, kept = _plan_masking(length, special, special_ids)
    for index, (starts, size) in enumerate(_sequential(len(text), inside, tokens // length)):
        batch = _mask(text, starts, size, special, kept, vocab, [VALID_SEED, index])
        if batch.tokens:
            yield batch


def span_windows(text: Tokens, length: int, tokens: int, seed: int, special: SpecialTokens,
                 position: DataPosition = DataPosition()) -> BatchStream[PairBatch]:  # fmt: skip
    """Endless batches for T5: windows of `length` tokens without some spans as source, the spans as target."""
    for seeds, starts, after in window_order(len(text), length, length, tokens // length, seed, position):
        yield partial(_corrupt, text, starts, length, special, seeds), after


def all_span_windows(text: Tokens, length: int, tokens: int, special: SpecialTokens) -> Iterator[PairBatch]:
    """The whole text once, in order, with the same spans cut out every time; a last window of one token is left out."""
    if len(text) < 2:
        raise ValueError(f"a text of {len(text)} tokens has no span to spare; give a longer text")
    for index, (starts, size) in enumerate(_sequential(len(text), length, tokens // length)):
        if size > 1:
            yield _corrupt(text, starts, size, special, [VALID_SEED, index])


def window_order(total: int, stride: int, length: int, size: int, seed: int,
           position: DataPosition) -> Iterator[tuple[list[int], Ints, DataPosition]]:  # fmt: skip
    """For each batch: its random seed, the starts of its `size` windows, `stride` apart, and the position after it."""
    if total < length:
        raise ValueError(f"a text of {total:,} tokens has no window of {length}; give more text, or lower data.max_len")
    size = max(1, size)
    epoch, _, skip = position
    while True:
        rng = np.random.default_rng([seed, epoch])
        first = int(rng.integers(min(stride, total - length + 1)))
        starts = rng.permutation(np.arange(first, total - length + 1, stride))
        count = -(-len(starts) // size)
        for index in range(skip, count):
            after = DataPosition(epoch + 1) if index + 1 == count else DataPosition(epoch, 0, index + 1)
            yield [seed, epoch, index], starts[index * size : (index + 1) * size], after
        epoch, skip = epoch + 1, 0


def _sequential(total: int, length: int, size: int) -> Iterator[tuple[Ints, int]]:
    """The starts of `size` windows at a time, in order, and their length; a shorter last window comes alone."""
    size = max(1, size)
    whole = np.arange(0, total - length + 1, length)
    for i in range(0, len(whole), size):
        yield whole[i : i + size], length
    done = len(whole) * length
    if total > done:
        yield np.array([done]), total - done


def _plan_masking(length: int, special: SpecialTokens, special_ids: Sequence[int]) -> tuple[int, list[int]]:
    """The tokens of a window between start and end, and the ids that are never masked."""
    if length < 3:
        raise ValueError(f"a window of {length} tokens has no room between start and end; use data.max_len=3 or more")
    if special.mask is None:
        raise ValueError("the tokenizer has no mask token; wanted [MASK] or <mask> in its vocabulary")
    return length - 2, [*special_ids, special.bos, special.eos]


def _take(text: Tokens, starts: Ints, length: int) -> Ints:
    return text[starts[:, None] + np.arange(length)].astype(np.int64)  # (B, T)


def _read_windows(text: Tokens, starts: Ints, length: int) -> WindowBatch:
    return WindowBatch(torch.from_numpy(_take(text, starts, length)))


def _bound(text: Tokens, starts: Ints, length: int, special: SpecialTokens) -> BoundedBatch:
    labels = _take(text, starts, length)
    words = np.pad(labels, ((0, 0), (1, 1)), constant_values=((0, 0), (special.bos, special.eos)))  # (B, T + 2)
    return BoundedBatch(torch.from_numpy(words), torch.from_numpy(labels))


def _mask(text: Tokens, starts: Ints, length: int, special: SpecialTokens, kept: list[int], vocab: int,
          seeds: list[int]) -> MaskedBatch:  # fmt: skip
    ends = ((0, 0), (special.bos, special.eos))
    truth = np.pad(_take(text, starts, length), ((0, 0), (1, 1)), constant_values=ends)  # (B, T + 2)
    assert special.mask is not None
    shown, chosen = mask_tokens(truth, kept, special.mask, vocab, np.random.default_rng(seeds))
    return MaskedBatch(torch.from_numpy(shown), torch.from_numpy(chosen), torch.from_numpy(truth))


def _corrupt(text: Tokens, starts: Ints, length: int, special: SpecialTokens, seeds: list[int]) -> PairBatch:
    rng, rows = np.random.default_rng(seeds), _take(text, starts, length)
    sources, targets = zip(*(corrupt_spans(row, special.sentinels, rng) for row in rows), strict=True)  # equal lengths
    ends = ((0, 0), (special.bos, special.eos))
    source = np.pad(np.stack(sources), ((0, 0), (0, 1)), constant_values=special.eos)  # (B, S)
    target = np.pad(np.stack(targets), ((0, 0), (1, 1)), constant_values=ends)  # (B, T + 1)
    return PairBatch(torch.from_numpy(source), torch.from_numpy(target), special.pad)
