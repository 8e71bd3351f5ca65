"""Rows of a text file: the cells of each, and notes on what could not be read.

A reader of a format yields rows, and a `BadRow` for each line it cannot read.  `keep_rows` leaves the bad ones out and notes
them; a file in which most rows are bad is probably of another format, and is refused.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from regard.data.files import MIN_NOT_UTF8, BadLine
from regard.data.terminal import printable

__all__ = ["ALL", "BadRow", "ReadNotes", "Row", "bad_row", "keep_rows"]

MAX_SHARE = 0.5  # of rows that cannot be read
MAX_SHARE_NOT_UTF8 = 0.01  # more are a file in another encoding, unless they are fewer than MIN_NOT_UTF8
ALL = 1.0  # of rows that another language or purpose may need: refused only if no other row is left
EARLY = 100  # bad rows after which a file is judged before its end
NAMED = 10  # lines named for each reason

Row = tuple[str, ...]  # source, target and perhaps more references; or text and class


class BadRow(NamedTuple):
    """A row that cannot be read: its line, why, and what was wanted or what to do."""

    number: int
    reason: str
    advice: str
    max_share: float = MAX_SHARE
    file: Path | None = None  # if it is another one than that of the other rows


def bad_row(line: BadLine, file: Path | None = None) -> BadRow:
    """A line that is no text, as a bad row."""
    return BadRow(*line, MAX_SHARE_NOT_UTF8 if line.reason.startswith("is not UTF-8") else MAX_SHARE, file)


@dataclass
class ReadNotes:
    """What was found while files were read: how their columns were understood, and which rows were left out."""

    strict: bool = False  # refuse the first bad row instead of leaving it out
    columns: dict[str, str] = field(default_factory=dict)  # file → header row, delimiter, languages, as a user should know them
    names: dict[str, Row] = field(default_factory=dict)  # file → names of its columns, source first
    left_out: dict[str, dict[str, list[int]]] = field(default_factory=dict)  # file → reason → first lines
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # file → reason → number of rows

    found: dict[str, str] = field(default_factory=dict)  # folder or pattern → how many files are read, and which are not
    joined: dict[str, int] = field(default_factory=dict)  # file → rows in which line breaks became spaces

    def leave_out(self, file: Path, row: BadRow) -> None:
        """Note a row that cannot be read."""
        if self.strict:
            raise _refusal(file, row, 1)
        reason = row.reason.partition(" at byte")[0].partition(", it has")[0]  # the same for all lines of a kind
        name = str(row.file or file)
        counts, lines = self.counts.setdefault(name, {}), self.left_out.setdefault(name, {})
        counts[reason] = counts.get(reason, 0) + 1
        if counts[reason] <= NAMED:
            lines.setdefault(reason, []).append(row.number)

    def lines(self) -> list[str]:
        """The notes, one line of text for each."""
        found = [f"{name}: {what}" for name, what in (*self.found.items(), *self.columns.items())]
        for file, count in self.joined.items():
            found.append(f"{file}: {count:,} row{'s' * (count > 1)} with line breaks inside a cell, read as spaces")
        for file, counts in self.counts.items():
            reasons = []
            for reason, count in counts.items():
                numbers = self.left_out[file][reason]
                named = ", ".join(map(str, numbers)) + (f" and {count - NAMED:,} more" if count > NAMED else "")
                reasons.append(f"{reason}: line{'s' * (count > 1)} {named}")
            total = sum(counts.values())
            found.append(f"{file}: {total:,} line{'s' * (total > 1)} left out ({'; '.join(reasons)})")
        return [printable(line, keep="") for line in found]


def _refusal(file: Path, row: BadRow, like_it: int, at_least: str = "") -> ValueError:
    more = f" ({at_least}{like_it:,} lines cannot be read)" if like_it > 1 else ""
    return ValueError(
        f"{row.file or file} line {row.number} {printable(row.reason, keep='')}; {printable(row.advice, keep='')}{more}"
    )


def keep_rows(rows: Iterable[Row | BadRow], file: Path, notes: ReadNotes) -> Iterator[Row]:
    """The good rows; the bad ones are noted, and refused if they are too many."""
    kept = bad = 0
    firsts, counts = dict[float, BadRow](), Counter[float]()  # by the share that is allowed of their kind

    def judge(share: float, at_least: str = "") -> None:
        too_many = counts[share] > share * (kept + bad) and (share != MAX_SHARE_NOT_UTF8 or counts[share] >= MIN_NOT_UTF8)
        if too_many or not kept:
            raise _refusal(file, firsts[share], counts[share], at_least)

    for row in rows:
        if not isinstance(row, BadRow):
            kept += 1
            yield row
            continue
        notes.leave_out(file, row)
        firsts.setdefault(row.max_share, row)
        counts[row.max_share] += 1
        bad += 1
        if counts[row.max_share] % EARLY == 0 and row.max_share < ALL:
            judge(row.max_share, "at least ")  # the rest is not read
    for share in firsts:
        judge(share)
