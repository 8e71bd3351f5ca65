"""Tags and emoji of a sentence, taken out before it is translated and put beside the words they belong to.

A model that has never seen a tag translates worse with one in the sentence.  So the sentence is translated without them; each
word of the source is aligned with the word of the translation whose steps attend to it most, and a tag moves with its word.
Without cross-attention a word is aligned with the one at the same relative position.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from regard.data.text.placeholders import find_protected

__all__ = ["InlineMarkup", "Unmarked", "align_words", "insert_marks", "take_marks"]

_WORD = re.compile(r"\w+(?:[-'’]\w+)*|[^\w\s]")
Span = tuple[int, int]


class InlineMarkup(NamedTuple):
    """A tag or an emoji, and where it stood in the sentence without marks."""

    text: str
    at: int
    spaced: bool  # there was a space before it

    @property
    def opens(self) -> bool:
        """Whether it belongs to the word after it."""
        return self.text.startswith("<") and not self.text.startswith(("</", "<!")) and not self.text.endswith("/>")

    @property
    def closes(self) -> bool:
        """Whether it is the end of an element."""
        return self.text.startswith("</")


class Unmarked(NamedTuple):
    """A sentence without its marks, and the marks."""

    text: str
    marks: list[InlineMarkup]


def take_marks(sentence: str) -> Unmarked:
    """Take tags and emoji out of a sentence, with one of two spaces around them."""
    text, marks, at = "", list[InlineMarkup](), 0
    for span in find_protected(sentence):
        if span.kind not in ("tag", "emoji") or span.text.startswith("&"):
            continue
        text += sentence[at : span.start]
        at = span.end
        spaced = text[-1:].isspace()
        if spaced and sentence[at : at + 1].isspace() and not (marks and marks[-1].at == len(text)):
            at += 1
        marks.append(InlineMarkup(span.text, len(text), spaced))
    return Unmarked(text + sentence[at:], marks)


def align_words(source: str, target: str, source_tokens: Sequence[Span], target_tokens: Sequence[Span],
                weights: Sequence[Sequence[float]] | None) -> tuple[list[Span], list[Span]]:  # fmt: skip
    """The words of a source, and the word of the target that belongs to each; tokens and words as first and last character.

    `weights` (T, S) are the attention of each target token to each source token, None without attention.
    """
    words, others = ([found.span() for found in _WORD.finditer(text)] for text in (source, target))
    if not others:
        return words, [(len(target), len(target))] * len(words)
    if weights is None:
        return words, [others[min(len(others) - 1, n * len(others) // len(words))] for n in range(len(words))]
    sums = [[0.0] * len(others) for _ in words]
    rows, columns = (_words_of(tokens, spans) for tokens, spans in ((target_tokens, others), (source_tokens, words)))
    for row, attended in zip(rows, weights, strict=False):
        for column, weight in zip(columns, attended, strict=False):
            if row is not None and column is not None:
                sums[column][row] += weight
    return words, [others[max(range(len(others)), key=of.__getitem__)] for of in sums]


def _words_of(tokens: Sequence[Span], words: Sequence[Span]) -> list[int | None]:
    """The word that each token belongs to: the first that overlaps it."""
    return [next((n for n, (first, last) in enumerate(words) if first < end and start < last), None) for start, end in tokens]


def insert_marks(text: str, marks: Sequence[InlineMarkup], words: Sequence[Span], aligned: Sequence[Span]) -> str:
    """Put marks into a translation: around the words that belong to those inside a pair, else beside one word."""
    places = [_place(mark, words, aligned, len(text)) for mark in marks]
    stack = list[int]()
    for number, mark in enumerate(marks):
        if mark.opens:
            stack.append(number)
        elif mark.closes and stack:
            first = stack.pop()
            inside = [
                there for here, there in zip(words, aligned, strict=True) if marks[first].at <= here[0] and here[1] <= mark.at
            ]
            if inside:
                places[first], places[number] = min(start for start, _ in inside), max(end for _, end in inside)
            else:
                places[number] = places[first]
    written, at = "", 0
    order = sorted(range(len(marks)), key=lambda n: (places[n], not marks[n].closes if places[n] else False, n))
    for number in order:
        mark = marks[number]
        written += text[at : places[number]]
        at = places[number]
        alone = mark.spaced and not mark.opens and not mark.closes and written and not written[-1].isspace()
        written += (" " if alone else "") + mark.text
    return written + text[at:]


def _place(mark: InlineMarkup, words: Sequence[Span], aligned: Sequence[Span], end: int) -> int:
    if mark.opens:
        return next((there[0] for here, there in zip(words, aligned, strict=True) if here[1] > mark.at), end)
    before = [there[1] for here, there in zip(words, aligned, strict=True) if here[0] < mark.at]
    return before[-1] if before else 0
