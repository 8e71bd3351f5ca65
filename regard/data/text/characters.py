"""Words as the ids of their characters, for models that read characters.

A word is the bytes of its UTF-8 text between a start and an end, padded to one length, as in the code of Peters et al. 2018.
Any word has character ids, so no word is unknown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from regard.data.text.tokenizer import Tokenizer

__all__ = ["ALPHABET", "CharacterIds", "CharacterTokenizer", "SpecialCharacterIds", "to_character_ids"]

BOS, EOS, UNK, START, END, PAD = range(256, 262)  # after the 256 bytes: start and end of a text, of a word
ALPHABET = 262  # different ids

CharacterIds = tuple[int, ...]  # of one word


class SpecialCharacterIds(NamedTuple):
    """The character ids of the tokens that are not text; the names are those of `SpecialTokens`."""

    pad: CharacterIds
    bos: CharacterIds  # start of a text
    eos: CharacterIds  # end of a text
    unk: CharacterIds  # a word that the training text has removed


def to_character_ids(characters: Sequence[int], length: int) -> CharacterIds:
    """A word of these characters between its start and end, cut and padded to `length` ids."""
    inside = characters[: length - 2]
    return (START, *inside, END, *[PAD] * (length - 2 - len(inside)))


@dataclass(frozen=True)
class CharacterTokenizer:
    """A tokenizer whose tokens are `length` character ids each, instead of one id."""

    words: Tokenizer
    length: int

    @cached_property
    def special(self) -> SpecialCharacterIds:
        """The character ids of the special tokens."""
        others = (to_character_ids([token], self.length) for token in (BOS, EOS, UNK))
        return SpecialCharacterIds((PAD,) * self.length, *others)

    @cached_property
    def table(self) -> list[CharacterIds]:
        """The character ids of each token of the vocabulary."""
        tokens = self.words.ids_to_tokens(range(self.words.vocab))
        table = [to_character_ids(token.encode(), self.length) for token in tokens]
        for name in SpecialCharacterIds._fields:
            table[getattr(self.words.special, name)] = getattr(self.special, name)
        return table

    def encode(self, lines: Sequence[str]) -> list[list[CharacterIds]]:
        """The character ids of each token of each line, also of those outside the vocabulary."""
        ids = self.words.encode(lines)
        encoded = [[self.table[index] for index in line] for line in ids]
        unknown = [row for row, line in enumerate(ids) if self.words.special.unk in line]
        for row, spans in zip(unknown, self.words.offsets([lines[row] for row in unknown]), strict=True):
            for place, (index, (start, end)) in enumerate(zip(ids[row], spans, strict=True)):
                if index == self.words.special.unk:
                    text = self.words.normalize(lines[row][start:end])
                    encoded[row][place] = to_character_ids(text.encode(), self.length)
        return encoded

    def offsets(self, lines: Sequence[str]) -> list[list[tuple[int, int]]]:
        """The first character of each token in its line, and the one after its last."""
        return self.words.offsets(lines)
