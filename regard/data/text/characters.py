"""Words as the ids of their characters, for models that spell their input.

A word is the bytes of its UTF-8 text between a start and an end, padded to one length, as in the code of Peters et al. 2018.
Any word has a spelling, so no word is unknown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from regard.data.text.tokenizer import Tokenizer

__all__ = ["ALPHABET", "CharacterTokenizer", "SpelledTokens", "Spelling", "spell"]

BOS, EOS, UNK, START, END, PAD = range(256, 262)  # after the 256 bytes: start and end of a text, of a word
ALPHABET = 262  # different ids

Spelling = tuple[int, ...]  # the ids of a word's characters


class SpelledTokens(NamedTuple):
    """The spellings of the tokens that are not text; the names are those of `SpecialTokens`."""

    pad: Spelling
    bos: Spelling  # start of a text
    eos: Spelling  # end of a text
    unk: Spelling  # a word that the training text has removed


def spell(characters: Sequence[int], length: int) -> Spelling:
    """The ids of a word of these characters, cut and padded to `length` ids."""
    inside = characters[: length - 2]
    return (START, *inside, END, *[PAD] * (length - 2 - len(inside)))


@dataclass(frozen=True)
class CharacterTokenizer:
    """A tokenizer whose tokens are spelled: `length` character ids instead of one id each."""

    words: Tokenizer
    length: int

    @cached_property
    def special(self) -> SpelledTokens:
        """The spellings of the special tokens."""
        return SpelledTokens((PAD,) * self.length, *(spell([token], self.length) for token in (BOS, EOS, UNK)))

    @cached_property
    def table(self) -> list[Spelling]:
        """The spelling of each token of the vocabulary."""
        tokens = self.words.ids_to_tokens(range(self.words.vocab))
        known, spelled = self.words.special, [spell(token.encode(), self.length) for token in tokens]
        for name in SpelledTokens._fields:
            spelled[getattr(known, name)] = getattr(self.special, name)
        return spelled

    def encode(self, lines: Sequence[str]) -> list[list[Spelling]]:
        """The spelling of each token of each line, also of those outside the vocabulary."""
        unk, encoded = self.words.special.unk, list[list[Spelling]]()
        for line, ids, spans in zip(lines, self.words.encode(lines), self.words.offsets(lines), strict=True):
            outside = (spell(self.words.normalize(line[start:end]).encode(), self.length) for start, end in spans)
            encoded.append([word if n == unk else self.table[n] for n, word in zip(ids, outside, strict=True)])
        return encoded

    def offsets(self, lines: Sequence[str]) -> list[list[tuple[int, int]]]:
        """The first character of each token in its line, and the one after its last."""
        return self.words.offsets(lines)
