"""Skip-gram batches: each word of a text, the words around it, and negatives drawn at random; section 2 of https://arxiv.org/abs/1310.4546.

A centre predicts the words up to r positions away, r drawn from 1 … window.  Frequent words are dropped at random first, which
brings the others closer together.  Windows end with the line.

    words        w w w w w │ c c c c … c │ w w w w w      a block: C centres and `window` words on either side
    context            ◂──left── c ──right──▸             of one centre
    negatives    n n n … n                                shared by the centres of a group of blocks

Pairs are not listed one by one: the scores of a block are one small matrix product, of which a mask selects the pairs.  What a
batch drops and draws is a function of (seed, epoch, batch), so training resumes from any `DataPosition` with identical batches.

Shapes: N blocks, C centres of a block, K = C + 2 · window words of a block, G groups, M negatives of a group, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.data.position import BatchStream, DataPosition
from regard.data.text.store import Ints, Tokens
from regard.data.text.windows import window_order

__all__ = ["SkipGramBatch", "WordSampler", "all_skipgrams", "count_words", "keep_probability", "noise_distribution", "skipgrams"]

SEGMENT = 1000  # consecutive tokens of the text; an epoch shuffles segments
CENTRES = 8  # of a block
GROUP = 8  # blocks that share negatives
SHARED_NEGATIVES = 32  # of a group
POWER = 0.75  # of the counts, in the distribution of the negatives
VALID_SEED = 0  # evaluation drops and draws the same words every time
CHUNK = 1 << 20  # tokens counted at once

Floats = npt.NDArray[np.float64]


class SkipGramBatch(NamedTuple):
    """Blocks of a text; the context of a centre is `left` words before it and `right` words after it."""

    words: Tensor  # (N, K)
    left: Tensor  # (N, C)
    right: Tensor  # (N, C)
    negatives: Tensor  # (G, M), for N / G blocks each

    @property
    def tokens(self) -> int:
        """Pairs of a centre and a context word."""
        return int(self.left.sum() + self.right.sum())


class WordSampler(NamedTuple):
    """What a batch draws from, by word id; special tokens are never kept nor drawn."""

    window: int
    keep: Floats  # (V,): probability that an occurrence stays in the text
    noise: Floats  # (V,): cumulative distribution of the negatives
    line_end: int  # id of the token that ends a line

    @classmethod
    def of(cls, counts: Ints, window: int, sample: float, line_end: int) -> "WordSampler":
        """From the counts (V,) of the words in the training text, zero for special tokens."""
        return cls(window, keep_probability(counts, sample), np.cumsum(noise_distribution(counts)), line_end)


def count_words(text: Tokens, vocab: int, special_ids: Sequence[int]) -> Ints:
    """How often each word occurs: (V,); zero for special tokens."""
    counts = np.zeros(vocab, dtype=np.int64)
    for start in range(0, len(text), CHUNK):
        counts += np.bincount(text[start : start + CHUNK], minlength=vocab)
    counts[list(special_ids)] = 0
    return counts


def keep_probability(counts: Ints, sample: float) -> Floats:
    """Probability that an occurrence of a word stays in the text, √(t/f) + t/f for a word of frequency f, at most 1: (V,).

    t is `sample`; 0 keeps all.  This is the formula of the authors' program; the paper prints √(t/f).
    """
    if not sample:
        return (counts > 0).astype(np.float64)
    with np.errstate(divide="ignore"):
        rarity = sample * counts.sum() / counts
    return np.where(counts > 0, np.minimum(1.0, np.sqrt(rarity) + rarity), 0.0)


def noise_distribution(counts: Ints) -> Floats:
    """The distribution of the negatives, the counts to the power of 3/4: (V,)."""
    weights = counts.astype(np.float64) ** POWER
    return weights / weights.sum()


def skipgrams(text: Tokens, sampler: WordSampler, tokens: int, seed: int,
              position: DataPosition = DataPosition()) -> BatchStream[SkipGramBatch]:  # fmt: skip
    """Endless batches of about `tokens` tokens of the text from a position on; one without any pair is skipped."""
    if len(text) < 2:
        raise ValueError(f"a text of {len(text)} tokens has no pair of words; give a longer text")
    length, last = max(2, min(SEGMENT, tokens, len(text))), position.epoch
    for seeds, starts, after in window_order(len(text), length, length, tokens // length, seed, position):
        if any(_has_pairs(text[start : start + length], sampler) for start in starts):
            yield partial(_make_batch, text, starts, length, sampler, seeds), after
            last = after.epoch
        elif after.epoch > last + 1:
            raise ValueError("no line of this text has two words of the vocabulary; give a longer text, or raise data.vocab")


def all_skipgrams(text: Tokens, sampler: WordSampler, tokens: int) -> Iterator[SkipGramBatch]:
    """The whole text once, in order; the same words are dropped and drawn every time."""
    for index, start in enumerate(range(0, len(text), max(2, tokens))):
        length = min(max(2, tokens), len(text) - start)
        batch = _make_batch(text, np.array([start]), length, sampler, [VALID_SEED, index])
        if batch.tokens:
            yield batch


def _has_pairs(text: Tokens, sampler: WordSampler) -> bool:
    """Whether a line of the text has two words."""
    words = sampler.keep[text] > 0
    lines = np.cumsum(text == sampler.line_end)[words]
    return bool((lines[1:] == lines[:-1]).any())


def _make_batch(text: Tokens, starts: Ints, length: int, sampler: WordSampler, seeds: list[int]) -> SkipGramBatch:
    """Drop frequent words, draw the reach of each window and the negatives, and cut the text into blocks."""
    rng, window = np.random.default_rng(seeds), sampler.window

    # 1) The tokens of all segments in a row, and the line each is on; a segment starts a line.
    tokens = text[starts[:, None] + np.arange(length)].ravel().astype(np.int64)
    line = (tokens == sampler.line_end).astype(np.int64)
    line[::length] += 1
    line = np.cumsum(line)

    # 2) Drop words at random, unless that leaves no pair.
    keep = sampler.keep[tokens]
    kept = rng.random(len(tokens)) < keep
    if not (np.diff(line[kept]) == 0).any():
        kept = keep > 0
    tokens, line = tokens[kept], line[kept]

    # 3) How far each window reaches to either side, at most to the ends of its line.
    firsts = np.flatnonzero(np.diff(line, prepend=0))
    lengths = np.diff(firsts, append=len(line))
    before = np.arange(len(line)) - np.repeat(firsts, lengths)
    after = np.repeat(lengths, lengths) - 1 - before
    reach = rng.integers(1, window + 1, len(line))
    left, right = np.minimum(reach, before), np.minimum(reach, after)

    # 4) Blocks that overlap by their context, in whole groups; what fills the last one is no centre's context.
    groups = max(1, -(-len(tokens) // (CENTRES * GROUP)))
    fill = groups * GROUP * CENTRES - len(tokens)
    padded = np.pad(tokens, (window, fill + window))
    words = np.lib.stride_tricks.sliding_window_view(padded, CENTRES + 2 * window)[::CENTRES].copy()  # (N, K)
    left, right = (np.pad(side, (0, fill)).reshape(-1, CENTRES) for side in (left, right))  # (N, C)
    draws = rng.random((groups, SHARED_NEGATIVES)) * sampler.noise[-1]  # rounding may leave the last sum beside 1
    negatives = np.searchsorted(sampler.noise, draws, side="right")  # (G, M)
    return SkipGramBatch(*map(torch.from_numpy, (words, left, right, negatives)))
