"""What a user should know of own pairs before training: duplicates, HTML entities, swapped languages, leaked validation data.

One pass over the training pairs, in bounded memory; the findings are kept in the cache.  Up to 262,144 different pairs
are counted exactly, more are estimated from those whose hash falls into a part of all hashes: copies have the same hash.

Languages are told apart by words that are common on one side and rare on the other, learned from the first pairs.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.cache import cached
from regard.data.progress import Progress
from regard.data.terminal import printable
from regard.data.text.columns import language_of
from regard.data.text.rows import ReadNotes, Row
from regard.data.text.splits import Split

__all__ = ["DuplicateCounter", "SideWords", "check_pairs", "learn_side_words"]

BATCH = 4096  # pairs checked together
LEARNED = 10_000  # first pairs, from which the words of each side are learned
MAX_WORDS = 5000  # of each side
MAX_HASHES = 1 << 18  # kept in memory
COMPARED = 50_000  # validation sentences looked for in the training data
ALL_CHECKED, THEN_EVERY = 50, 16  # batches checked for swapped languages: the first ones, then one in this many
ENTITY = re.compile(r"&(?:[a-zA-Z]{2,8}|#\d{2,6}|#[xX][0-9a-fA-F]{2,5});")
VERSION = 2  # of these checks


class DuplicateCounter:
    """Counts rows that came before, exactly up to `MAX_HASHES` different ones, then by estimate."""

    def __init__(self, most: int = MAX_HASHES):
        self._most, self._shift = most, 0
        self._hashes: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._counts: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._waiting: list[npt.NDArray[np.uint64]] = []
        self._size = 0

    def add(self, rows: Iterable[object]) -> None:
        """Count some rows."""
        hashes = np.fromiter(map(hash, rows), np.int64).view(np.uint64)
        self._waiting.append(hashes[hashes & np.uint64((1 << self._shift) - 1) == 0])
        self._size += len(self._waiting[-1])
        if self._size >= self._most // 4:
            self._merge()

    def _merge(self) -> None:
        new = np.concatenate([np.zeros(0, np.uint64), *self._waiting])
        counts = np.concatenate([self._counts, np.ones(len(new), np.int64)])
        self._hashes, where = np.unique(np.concatenate([self._hashes, new]), return_inverse=True)
        self._counts = np.bincount(where, counts, len(self._hashes)).astype(np.int64)
        self._waiting, self._size = [], 0
        while len(self._hashes) > self._most:
            self._shift += 1
            kept = self._hashes & np.uint64((1 << self._shift) - 1) == 0
            self._hashes, self._counts = self._hashes[kept], self._counts[kept]

    def result(self) -> tuple[int, bool]:
        """The number of rows that are copies of earlier ones, and whether it is exact."""
        self._merge()
        return int((self._counts - 1).sum()) << self._shift, not self._shift


class SideWords(NamedTuple):
    """Words, or characters, that are common on one side of the pairs and rare on the other."""

    source: frozenset[str]
    target: frozenset[str]
    characters: bool  # of languages without spaces

    def lean(self, text: str) -> int:
        """How much a text looks like a source; negative: like a target."""
        units = set(text.lower() if self.characters else text.lower().split())
        return len(units & self.source) - len(units & self.target)

    def swapped(self, row: Sequence[str]) -> bool:
        """Whether a pair is probably the wrong way round."""
        source = self.lean(row[0])
        return source < 0 < (target := self.lean(row[1])) and target - source >= 3


def learn_side_words(rows: Sequence[Sequence[str]]) -> SideWords:
    """Learn which words belong to which side."""
    sides = [[row[side].lower() for row in rows] for side in (0, 1)]
    characters = any(2 * sum(len(text.split()) for text in side) < 3 * len(rows) and sum(map(len, side)) > 5 * len(rows)
                     for side in sides)  # fmt: skip
    counts = [Counter(unit for text in side for unit in set(text if characters else text.split())) for side in sides]
    source, target = (
        frozenset(
            unit
            for unit, count in here.most_common(MAX_WORDS)
            if count >= 3 and count + 0.5 >= 5 * (there[unit] + 0.5) and not unit.isnumeric() and not unit.isspace()
        )
        for here, there in (counts, counts[::-1])
    )
    return SideWords(source, target, characters)


def check_pairs(train: Split, valid: Split, *, languages: bool, strict: bool = False, progress: Progress) -> list[str]:
    """What to report before training, a few lines; `languages`: source and target are texts of two languages."""

    def write(_: Path) -> dict[str, object]:
        return {"lines": [*_check(train, valid, languages, strict, progress)]}

    folder = cached(["checks", VERSION, train.identity, valid.identity, languages, strict], write)
    lines = json.loads((folder / "about.json").read_text(encoding="utf-8"))["lines"]
    return [str(line) for line in lines]


def _check(train: Split, valid: Split, languages: bool, strict: bool, progress: Progress) -> Iterator[str]:
    assert train.rows
    assert valid.rows
    read, read_valid = ReadNotes(strict), ReadNotes(strict)
    rows, compared = train.rows(read), list(islice(valid.rows(read_valid), COMPARED))
    for _ in valid.rows(ReadNotes(strict)) if len(compared) == COMPARED else ():
        pass  # a bad line is found now, not after an hour of training

    learned = list(islice(rows, LEARNED))
    words = learn_side_words(learned) if languages else SideWords(frozenset(), frozenset(), False)
    _require_same_columns(read, read_valid)
    _require_texts(learned, train.name, languages)
    _require_same_direction(words, compared, train.name, valid.name)

    copies, leaked, entities, equal, swapped, example, done = DuplicateCounter(), set[str](), 0, 0, 0, "", 0
    sentences = {row[0] for row in compared}
    for number, batch in enumerate(_batches(learned, rows)):
        done += len(batch)
        copies.add(batch)
        leaked.update(sentences.intersection([row[0] for row in batch]))
        entities += _count_entities(batch)
        if languages:
            equal += sum(row[0] == row[1] and len(row[0]) > 3 for row in batch)
        if words.source and words.target and (number < ALL_CHECKED or number % THEN_EVERY == 0):
            wrong = [row for row in batch if words.swapped(row)]
            swapped += len(wrong) * (1 if number < ALL_CHECKED else THEN_EVERY)
            example = example or (wrong[0][0] if wrong else "")
        if done % (25 * BATCH) == 0:
            progress(f"checking {train.name}", done)

    _require_same_columns(read, read_valid)  # of the files behind the first pairs too
    yield from read.lines()
    duplicates, exact = copies.result()
    what = "pair" if languages else "text"
    found = [
        ("" if exact else "about ") + _counted(duplicates, f"duplicate {what}") if duplicates else "",
        f"{_counted(entities, what)} with HTML entities such as &amp;" if entities else "",
        f"{_counted(swapped, what)} whose languages are probably swapped, such as {_shown(example)}" if swapped else "",
        f"{_counted(equal, what)} whose target is the source" if equal else "",
    ]
    if any(found):
        yield f"{train.name}: {'; '.join(filter(None, found))}: all kept; correct the file if they are not meant"
    yield from read_valid.lines()
    if leaked:
        count = f"{sum(row[0] in leaked for row in compared):,} of {len(compared):,} validation sentences"
        yield f"{valid.name}: {count} are also in the training data: their scores will be too high"
    if wrong_valid := sum(map(words.swapped, compared)):
        yield f"{valid.name}: {_counted(wrong_valid, what)} whose languages are probably swapped: kept; correct the file"


def _batches(first: list[Row], rest: Iterator[Row]) -> Iterator[list[Row]]:
    for start in range(0, len(first), BATCH):
        yield first[start : start + BATCH]
    while batch := list(islice(rest, BATCH)):
        yield batch


def _count_entities(batch: Sequence[Row]) -> int:
    return sum(any("&" in cell and ENTITY.search(cell) for cell in row) for row in batch)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count > 1)}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


def _require_same_columns(train: ReadNotes, valid: ReadNotes) -> None:
    """Refuse files whose header rows, or languages, are in different orders."""
    first_file, first = "", Row()
    for file, header in (*train.names.items(), *valid.names.items()):
        names = tuple(language_of(name) or name.casefold() for name in header[:2])
        if first and names == first[::-1]:
            here, there = (printable(", ".join(columns), keep="") for columns in (names, first))
            raise ValueError(f"{file} has {here}, {first_file} {there}: the other direction; swap the columns of one, or name "
                             "them in data.columns")  # fmt: skip
        first_file, first = first_file or file, first or names


def _require_texts(rows: Sequence[Row], name: str, languages: bool) -> None:
    """Refuse a column of numbers, such as identifiers, in the place of texts."""
    for side, what in enumerate(("source", "target") if languages else ("text",)):
        numbers = sum(row[side].strip().isdecimal() for row in rows)
        if len(rows) >= 10 and numbers > 0.9 * len(rows):
            raise ValueError(f"the {what} column of {name} holds numbers, such as {rows[-1][side]!r}; choose other columns, such "
                             "as data.columns=2,3")  # fmt: skip


def _require_same_direction(words: SideWords, rows: Sequence[Row], train: str, valid: str) -> None:
    """Refuse validation data whose sources look like targets of the training data."""
    wrong = sum(map(words.swapped, rows))
    right = sum(words.swapped(row[1::-1]) for row in rows)
    if wrong >= 3 and wrong > right:
        raise ValueError(f"{valid} has source and target the other way round than {train}: in {wrong:,} of {len(rows):,} pairs "
                         "the source looks like a training target; swap its columns or files")  # fmt: skip
