"""Text from files, always streamed: pairs of any format, labelled, or plain.

A labelled text is a pair too: the text and the name of its class.  Word pairs with human ratings test word vectors.
"""

import math
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from regard.data.files import read_lines, read_pieces
from regard.data.text.columns import DEFAULT
from regard.data.text.formats import read_rows
from regard.data.text.rows import ReadNotes

__all__ = ["Pair", "RatedPair", "read_fraction", "read_labeled", "read_pairs", "read_ratings", "read_text"]

PIECE = 1 << 16  # bytes; a longer line comes in several pieces: some large texts have no line ends

Pair = tuple[str, str]  # source and target, or text and class


def read_pairs(files: list[Path], columns: str = DEFAULT, pair: str = "", notes: ReadNotes | None = None) -> Iterator[Pair]:
    """Stream the sentence pairs of files that hold pairs, one after the other, or of two line-aligned files."""
    return map(itemgetter(0, 1), read_rows(files, columns, pair, notes or ReadNotes()))


def read_text(files: list[Path]) -> Iterator[str]:
    """Stream a plain text, line by line with the line ends: the pieces joined are the text."""
    for file in files:
        yield from read_pieces(file, PIECE)


def read_fraction(files: list[Path], first: int, last: int) -> Iterator[str]:
    """Stream a plain text from `first` to `last` percent of its characters."""
    total = sum(map(len, read_text(files)))
    start, stop, at = total * first // 100, total * last // 100, 0
    for piece in read_text(files):
        if part := piece[max(start - at, 0) : max(stop - at, 0)]:
            yield part
        at += len(piece)


def read_labeled(file: Path, names: Sequence[str]) -> Iterator[Pair]:
    """Stream the labelled texts of a TSV file: the id of the class first, then the columns of the text."""
    for number, line in enumerate(read_lines(file), 1):
        label, *columns = line.split("\t")
        if not columns or not label.isdecimal() or int(label) >= len(names):
            raise ValueError(f"{file} line {number} has class {label!r}; wanted 0 to {len(names) - 1}, a tab, and the text")
        yield ". ".join(columns), names[int(label)]


class RatedPair(NamedTuple):
    """Two words, and how similar people find them."""

    first: str
    second: str
    rating: float


def read_ratings(file: Path) -> list[RatedPair]:
    """The word pairs of a TSV file: two words and a rating on each line."""
    pairs = []
    for number, line in enumerate(read_lines(file), 1):
        if not line.strip():
            continue
        columns = line.split("\t")
        try:
            first, second, rating = columns[0], columns[1], float(columns[2])
        except (IndexError, ValueError):
            rating = math.nan
        if not math.isfinite(rating):
            raise ValueError(f"{file} line {number} is {line[:40]!r}; wanted two words and a number, separated by tabs")
        pairs.append(RatedPair(first, second, rating))
    if not pairs:
        raise ValueError(f"{file} is empty; wanted two words and a number on each line, separated by tabs")
    return pairs
