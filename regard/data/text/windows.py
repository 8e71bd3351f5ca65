"""One long text, cut into windows of equal length: batches for language models, without padding.

An epoch begins at a random place within the first window, so that every epoch cuts elsewhere, and takes the windows in
random order: a function of (seed, epoch).  A `Place` says where in that order one stands.  What a batch hides is a
function of (seed, epoch, batch), so one can go on from any place to the very same batches.

Shapes: B windows, T tokens, S source tokens.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.data.text.batches import DataPosition, PairBatch
from regard.data.text.masking import corrupt_spans, mask_tokens
from regard.data.text.store import Ints
from regard.data.text.tokenizer import SpecialTokens

__all__ = ["MaskedBatch", "WindowBatch", "all_masked", "all_spans", "all_windows", "masked", "spans", "windows"]

Tokens = npt.NDArray[np.unsignedinteger]

HELD_OUT = 0  # the seed of what evaluation hides: the same every time


class WindowBatch(NamedTuple):
    """Some windows; all but the last token of each are read, all but the first predicted."""

    text: Tensor  # (B, T + 1)

    @property
    def tokens(self) -> int:
        """Tokens to predict."""
        return self.text[:, 1:].numel()

    def to(self, device: torch.device) -> "WindowBatch":
        """The same windows on another device."""
        return WindowBatch(self.text.to(device, non_blocking=True))


class MaskedBatch(NamedTuple):
    """Some windows, each from a start to an end, of which tokens were chosen to be guessed, and mostly hidden."""

    shown: Tensor  # (B, T): what the model reads
    chosen: Tensor  # (B, T): True where it is to guess
    truth: Tensor  # (B, T): what stood there

    @property
    def tokens(self) -> int:
        """Tokens to guess."""
        return int(self.chosen.sum())

    def to(self, device: torch.device) -> "MaskedBatch":
        """The same windows on another device."""
        return MaskedBatch(*(part.to(device, non_blocking=True) for part in self))


def windows(
    text: Tokens, length: int, tokens: int, seed: int, place: DataPosition = DataPosition()
) -> Iterator[tuple[WindowBatch, DataPosition]]:
    """Endless batches of about `tokens` tokens from a place on, each with the place of the one after it."""
    for _, starts, after in _order(len(text), length, length + 1, tokens // length, seed, place):
        yield WindowBatch(torch.from_numpy(_take(text, starts, length + 1))), after


def all_windows(text: Tokens, length: int, tokens: int) -> Iterator[WindowBatch]:
    """Every token but the first predicted once, in order; the last window may be shorter, and stands alone."""
    if len(text) < 2:
        raise ValueError(f"a text of {len(text)} tokens has no next token to predict; give a longer text")
    for starts, taken in _row(len(text) - 1, length, tokens // length):
        yield WindowBatch(torch.from_numpy(_take(text, starts, taken + 1)))


def masked(
    text: Tokens, length: int, tokens: int, seed: int, special: SpecialTokens, special_ids: Sequence[int], vocab: int,
    place: DataPosition = DataPosition(),
) -> Iterator[tuple[MaskedBatch, DataPosition]]:  # fmt: skip
    """Endless batches of windows, start and end within their `length`; every epoch hides other tokens.

    `special_ids` are never hidden nor drawn, of the `vocab` there are.
    """
    inside, last = _between(length), place.epoch
    for drawn, starts, after in _order(len(text), inside, inside, tokens // length, seed, place):
        batch = _hidden(_take(text, starts, inside), special, special_ids, vocab, drawn)
        if batch.tokens:  # a window of one line end has nothing to hide
            yield batch, after
            last = after.epoch
        elif after.epoch > last + 1:
            raise ValueError("this text has only special tokens, none to hide; give a text the tokenizer knows")


def all_masked(
    text: Tokens, length: int, tokens: int, special: SpecialTokens, special_ids: Sequence[int], vocab: int
) -> Iterator[MaskedBatch]:
    """The whole text once, in order, and the same tokens hidden every time."""
    inside = _between(length)
    for number, (starts, taken) in enumerate(_row(len(text), inside, tokens // length)):
        batch = _hidden(_take(text, starts, taken), special, special_ids, vocab, [HELD_OUT, number])
        if batch.tokens:
            yield batch


def spans(
    text: Tokens,
    length: int,
    tokens: int,
    seed: int,
    special: SpecialTokens,
    place: DataPosition = DataPosition(),
) -> Iterator[tuple[PairBatch, DataPosition]]:
    """Endless batches for T5: of windows of `length` tokens, what is left of each, and the spans that were cut out."""
    for drawn, starts, after in _order(len(text), length, length, tokens // length, seed, place):
        yield _corrupted(_take(text, starts, length), special, drawn), after


def all_spans(text: Tokens, length: int, tokens: int, special: SpecialTokens) -> Iterator[PairBatch]:
    """The whole text once, in order, and the same spans cut out every time; a single token at its end is left over."""
    if len(text) < 2:
        raise ValueError(f"a text of {len(text)} tokens has no span to spare; give a longer text")
    for number, (starts, taken) in enumerate(_row(len(text), length, tokens // length)):
        if taken > 1:
            yield _corrupted(_take(text, starts, taken), special, [HELD_OUT, number])


def _order(
    total: int, stride: int, length: int, size: int, seed: int, place: DataPosition
) -> Iterator[tuple[list[int], Ints, DataPosition]]:
    """Where the windows of each batch start, `size` of them, `stride` apart; what its draws depend on; the place after."""
    if total < length:
        raise ValueError(
            f"a text of {total:,} tokens has no window of {length}; give a longer text, or a smaller data.max_len"
        )
    size = max(1, size)
    epoch, _, skip = place
    while True:
        rng = np.random.default_rng([seed, epoch])
        first = int(rng.integers(min(stride, total - length + 1)))
        starts = rng.permutation(np.arange(first, total - length + 1, stride))
        count = -(-len(starts) // size)
        for number in range(skip, count):
            last = number + 1 == count
            after = DataPosition(epoch + 1) if last else DataPosition(epoch, 0, number + 1)
            yield [seed, epoch, number], starts[number * size : (number + 1) * size], after
        epoch, skip = epoch + 1, 0


def _row(total: int, length: int, size: int) -> Iterator[tuple[Ints, int]]:
    """Windows in order, `size` of them at a time, and how long they are: the last may be shorter, and stands alone."""
    size = max(1, size)
    whole = np.arange(0, total - length + 1, length)
    for i in range(0, len(whole), size):
        yield whole[i : i + size], length
    done = len(whole) * length
    if total > done:
        yield np.array([done]), total - done


def _between(length: int) -> int:
    if length < 3:
        raise ValueError(
            f"a window of {length} tokens has no room between its start and its end; use data.max_len=3 or more"
        )
    return length - 2


def _take(text: Tokens, starts: Ints, length: int) -> Ints:
    return text[starts[:, None] + np.arange(length)].astype(np.int64)  # (B, T)


def _hidden(
    text: Ints, special: SpecialTokens, special_ids: Sequence[int], vocab: int, drawn: list[int]
) -> MaskedBatch:
    if special.mask is None:
        raise ValueError("the tokenizer has no token to hide others with; wanted [MASK] or <mask> in its vocabulary")
    truth = np.pad(text, ((0, 0), (1, 1)), constant_values=((0, 0), (special.bos, special.eos)))  # (B, T + 2)
    kept = [*special_ids, special.bos, special.eos]
    shown, chosen = mask_tokens(truth, kept, special.mask, vocab, np.random.default_rng(drawn))
    return MaskedBatch(torch.from_numpy(shown), torch.from_numpy(chosen), torch.from_numpy(truth))


def _corrupted(text: Ints, special: SpecialTokens, drawn: list[int]) -> PairBatch:
    rng = np.random.default_rng(drawn)
    left, said = zip(
        *(corrupt_spans(row, special.sentinels, rng) for row in text), strict=True
    )  # all of one length each
    source = np.pad(np.stack(left), ((0, 0), (0, 1)), constant_values=special.eos)  # (B, S)
    target = np.pad(
        np.stack(said), ((0, 0), (1, 1)), constant_values=((0, 0), (special.bos, special.eos))
    )  # (B, T + 1)
    return PairBatch(torch.from_numpy(source), torch.from_numpy(target), special.pad)
