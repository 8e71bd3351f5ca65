"""BPE-dropout, https://arxiv.org/abs/1910.13267: in training a word is split differently each time it is read.

A byte-pair encoding merges the characters of a word, best pair first.  With dropout each possible merge of a step is dropped with
some probability, so that rarer, shorter tokens appear.  Corpora are encoded once, without it; here the words of a pool are
split again, as a function of the pool's seed.
"""

import unicodedata
from functools import lru_cache
from itertools import pairwise

import numpy as np

from regard.data.text.store import Ints, Pool
from regard.data.text.tokenizer import Tokenizer

__all__ = ["BPEDropout"]

PAIRS = 4096  # split at once: their words are Python objects
CACHED, LONGEST = 1 << 16, 20  # words whose merges are remembered, and the most tokens of one: without spaces a word is a clause

Ids = tuple[int, ...]


class BPEDropout:
    """Split the words of a pool again, each possible merge of a step dropped with probability `rate`."""

    def __init__(self, tokenizer: Tokenizer, rate: float, max_len: int):
        vocab, merges = tokenizer.bpe_merges()
        self.rate, self.max_len, self._vocab = rate, max_len, vocab
        self._merges = {(vocab[a], vocab[b]): (rank, vocab[a + b]) for rank, (a, b) in enumerate(merges)}
        self._spelled = {index: token for token, index in vocab.items()}
        self._special = set(tokenizer.special_ids)
        size = max(self._spelled) + 1
        self._starts, self._ends = np.ones(size, dtype=bool), np.ones(size, dtype=bool)  # a word, with this token
        for index, piece in self._spelled.items():
            if index not in self._special:
                self._starts[index] = piece[0] == "▁" or _is_punctuation(piece[0])
                self._ends[index] = _is_punctuation(piece[-1])
        self._remembered = lru_cache(CACHED)(self._find_path)

    def __call__(self, pool: Pool, rng: np.random.Generator) -> Pool:
        """The pool with its words split again; a side that would exceed `max_len` tokens stays as it was."""
        rows = np.arange(len(pool.starts))
        parts = [self._split_pairs(pool.take(rows[first : first + PAIRS]), rng) for first in range(0, len(rows), PAIRS)]
        tokens = np.concatenate([tokens for tokens, _ in parts])
        lengths = np.concatenate([lengths for _, lengths in parts])
        sources, targets = lengths[::2], lengths[1::2]
        return Pool(tokens, np.cumsum(sources + targets) - sources - targets, sources, targets)

    def _split_pairs(self, pool: Pool, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Some pairs, one after the other, split again: their tokens, and the length of each side."""
        sides = np.stack((pool.sources, pool.targets), 1).ravel()
        starts = self._word_starts(pool.tokens.astype(np.int64), sides)
        tokens = pool.tokens.tolist()
        words = [tuple(tokens[a:b]) for a, b in pairwise([*starts.tolist(), len(tokens)])]
        split = [self._split(word, u, rng) for word, u in zip(words, rng.random(len(words)).tolist(), strict=True)]

        # Which side a word is of, and how many tokens that side now has
        side = np.searchsorted(np.cumsum(sides), starts, side="right")
        lengths = np.bincount(side, weights=[len(word) for word in split], minlength=len(sides)).astype(np.int64)
        long = lengths > self.max_len
        if long.any():
            split = [old if long[at] else new for old, new, at in zip(words, split, side.tolist(), strict=True)]
            lengths = np.where(long, sides, lengths)
        return np.fromiter((token for word in split for token in word), pool.tokens.dtype, int(lengths.sum())), lengths

    def _word_starts(self, tokens: Ints, sides: Ints) -> Ints:
        """Positions at which a word starts: merges never cross them."""
        start = self._starts[tokens]
        start[1:] |= self._ends[tokens[:-1]]
        firsts = np.cumsum(sides) - sides
        start[firsts[sides > 0]] = True
        return np.flatnonzero(start)

    def _split(self, word: Ids, u: float, rng: np.random.Generator) -> Ids:
        """Sample one split.  All usual merges are made with probability (1 - rate) to their number: most words stay."""
        path = self._remembered(word) if len(word) <= LONGEST else self._find_path(word)
        kept, done = 1.0 - self.rate, 0
        if u < kept ** (len(path) - 1):
            return word
        # The first usual merge that is dropped: its step has a geometric distribution, given that there is one.
        while u < kept ** (done + 1):
            done += 1
        ids, dropped = list(path[done]), 1
        while candidates := self._candidates(ids):
            made = next((merge for merge in candidates[dropped:] if rng.random() < kept), None)
            if made is None:
                break
            _, at, merged = made
            ids[at : at + 2] = [merged]
            dropped = 0
        return tuple(ids)

    def _candidates(self, ids: list[int]) -> list[tuple[int, int, int]]:
        """The possible merges, best first: rank, position, merged token."""
        found = ((at, self._merges.get(pair)) for at, pair in enumerate(pairwise(ids)))
        return sorted((merge[0], at, merge[1]) for at, merge in found if merge is not None)

    def _find_path(self, word: Ids) -> tuple[Ids, ...]:
        """The word as characters, and after each merge, up to the word as it is encoded."""
        if word[0] in self._special:
            return (word,)
        ids = [self._vocab[character] for token in word for character in self._spelled[token]]
        path = [tuple(ids)]
        while candidates := self._candidates(ids):
            _, at, merged = candidates[0]
            ids[at : at + 2] = [merged]
            path.append(tuple(ids))
        assert path[-1] == word, "the tokenizer merges in another order"
        return tuple(path)


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character).startswith("P")
