"""Text from files, plain or .gz, always streamed: parallel (TSV, JSONL, or two line-aligned files), labelled, or plain.

A labelled text is a pair too: the text and the name of its class.  Word pairs with human ratings test word vectors.
"""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from regard.data.files import read_lines, read_pieces

__all__ = ["Pair", "RatedPair", "read_fraction", "read_labeled", "read_pairs", "read_ratings", "read_text"]

PIECE = 1 << 16  # bytes; a longer line comes in several pieces: some large texts have no line ends

Pair = tuple[str, str]  # source and target, or text and class


def read_pairs(files: list[Path], columns: str = "source,target") -> Iterator[Pair]:
    """Stream the sentence pairs of one TSV or JSONL file, or of two line-aligned files."""
    if len(files) == 2:
        return _aligned(*files)
    if len(files) != 1:
        raise ValueError(f"{len(files)} files given ({', '.join(map(str, files))}); give one TSV or JSONL file, or two "
                         "line-aligned ones")  # fmt: skip
    return _jsonl(files[0], columns) if ".jsonl" in files[0].suffixes else _tsv(files[0])


def _tsv(file: Path) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(file), 1):
        source, tab, rest = line.partition("\t")
        if tab:
            yield source, rest.partition("\t")[0]
        elif line.strip():
            raise ValueError(f"{file} line {number} has no tab; wanted source, a tab, target; or text, a tab, class")


def _jsonl(file: Path, columns: str) -> Iterator[Pair]:
    source, comma, target = columns.partition(",")
    if not comma:
        raise ValueError(f"data.columns is {columns!r}; wanted two keys such as 'source,target'")
    for number, line in enumerate(read_lines(file), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{file} line {number} is not JSON: {error}") from None
        left, right = (row.get(key) if isinstance(row, dict) else None for key in (source, target))
        right = str(right) if isinstance(right, int) else right  # a class may be a number
        if not isinstance(left, str) or not isinstance(right, str):
            keys = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
            raise ValueError(f"{file} line {number} needs text under {source!r} and {target!r}, it has {keys}; name its keys in "
                             "data.columns")  # fmt: skip
        if any("\ud800" <= character <= "\udfff" for character in left + right):
            raise ValueError(f"{file} line {number} holds half a character (a surrogate such as \\ud800); fix the JSON")
        yield left, right


def _aligned(source: Path, target: Path) -> Iterator[Pair]:
    for number, (left, right) in enumerate(zip_longest(read_lines(source), read_lines(target)), 1):
        if left is None or right is None:
            short, long = (source, target) if left is None else (target, source)
            raise ValueError(f"{short} ends after line {number - 1}, {long} has more lines; give files of the same length")
        yield left, right


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
