"""Tables in text files: TSV, whose cells are what stands between tabs, and CSV with any delimiter, quotes and line breaks.

CSV is parsed by Python's csv module, record by record.  A quote that is not closed would make the rest of the file one cell: its
line is left out, and reading goes on with the next line.
"""

import csv
from collections import Counter, deque
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from regard.data.files import BadLine, read_lines_checked
from regard.data.text.columns import DEFAULT, choose_columns
from regard.data.text.rows import BadRow, ReadNotes, Row, bad_row

__all__ = ["read_csv_records", "read_delimited", "sniff_delimiter"]

DELIMITERS = ",;\t|"
SNIFFED = 200  # lines that decide about the delimiter
MAX_SPAN = 200  # lines of one record
MAX_CELL = 131_072  # characters of one cell: the limit of Python's csv module

Record = tuple[int, list[str]]  # line number and cells
TAB = "has no tab"
WANTED = "wanted source, a tab, target; or text, a tab, class"


def read_delimited(file: Path, columns: str, notes: ReadNotes, *, every: bool = False, lenient: bool = False,
                   quoted: bool = False, pair: str = "") -> Iterator[Row | BadRow]:  # fmt: skip
    """Stream the chosen columns of a TSV or (`quoted`) CSV file; with `every`, the columns that were not chosen follow."""
    if quoted:
        delimiter = sniff_delimiter(file)
        return choose_cells(read_csv_records(file, delimiter), file, columns, notes, every, lenient, delimiter, pair)
    if not every and not pair and columns == DEFAULT:
        first = next((line for line in read_lines_checked(file) if isinstance(line, str) and "\t" in line), "")
        found = choose_columns(first.split("\t"), columns, file)
        if found == ((0, 1), ()):
            return _read_tsv_pairs(file)
    return choose_cells(_read_tsv_records(file), file, columns, notes, every, lenient, pair=pair)


def choose_cells(records: Iterator[Record | BadRow], file: Path, columns: str, notes: ReadNotes, every: bool, lenient: bool,
                 delimiter: str = "", pair: str = "") -> Iterator[Row | BadRow]:  # fmt: skip
    """The cells of the chosen columns of each record; the first record decides which these are."""
    first, before = None, list[BadRow]()
    for record in records:
        if not isinstance(record, BadRow) and len(record[1]) > 1:
            first = record
            break
        before.append(record if isinstance(record, BadRow) else _too_few(record[0], delimiter))
    yield from before
    if first is None:
        return
    found = choose_columns(first[1], columns, file, lenient, pair)
    chosen, size, wanted = found.indexes, max(found.indexes) + 1, f"data.columns={columns} wants them"
    if found.header:
        rest = f" of {len(first[1])} columns" if len(first[1]) > len(chosen) else ""
        notes.columns[str(file)] = f"header row {', '.join(found.header)}{rest}" + _named(delimiter)
        notes.names[str(file)] = found.header
    elif delimiter and delimiter != ",":
        notes.columns[str(file)] = f"no header row{_named(delimiter)}"
    for record in records if found.header else chain((first,), records):
        if isinstance(record, BadRow):
            yield record
        elif len(cells := record[1]) < size:
            yield _too_few(record[0], delimiter) if size == 2 else BadRow(record[0], f"has fewer than {size} columns", wanted)
        elif every:
            yield (*(cells[index] for index in chosen), *(cell for index, cell in enumerate(cells) if index not in chosen))
        else:
            yield tuple([cells[index] for index in chosen])


def _named(delimiter: str) -> str:
    names = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
    return f", {names[delimiter]} between columns" if delimiter in names else ""


def _too_few(number: int, delimiter: str) -> BadRow:
    if not delimiter or delimiter == "\t":
        return BadRow(number, TAB, WANTED)
    return BadRow(number, "has one column", f"wanted source and target, or text and class, with {delimiter!r} between them")


def _read_tsv_pairs(file: Path) -> Iterator[Row | BadRow]:
    """The first two columns of a file without a header row: the usual case, and the fastest."""
    for number, line in enumerate(read_lines_checked(file), 1):
        if isinstance(line, BadLine):
            yield bad_row(line)
            continue
        source, tab, rest = line.partition("\t")
        if tab:
            yield source, rest.partition("\t")[0]
        elif source.strip():
            yield BadRow(number, TAB, WANTED)


def _read_tsv_records(file: Path) -> Iterator[Record | BadRow]:
    for number, line in enumerate(read_lines_checked(file), 1):
        if isinstance(line, BadLine):
            yield bad_row(line)
        elif "\t" in line:
            yield number, line.split("\t")
        elif line.strip():
            yield BadRow(number, TAB, WANTED)


def sniff_delimiter(file: Path) -> str:
    """The delimiter of a CSV file: the one that splits its first records into the same number of cells, and into most."""
    head = [line for line in islice(read_lines_checked(file), SNIFFED) if isinstance(line, str)]
    best, best_score = ",", (0.0, 0)
    for delimiter in DELIMITERS:
        if not any(delimiter in line for line in head):
            continue
        records = (record for record in _parse(_Lines(iter(head)), delimiter) if not isinstance(record, BadRow))
        widths = Counter(len(cells) for _, cells in records if any(cells))
        several = {width: count for width, count in widths.items() if width > 1}
        if several:
            width, count = max(several.items(), key=lambda entry: (entry[1], entry[0]))
            score = (count / widths.total(), width)
            if score[0] > best_score[0] + 0.1 or (score[0] > best_score[0] - 0.1 and width > best_score[1]):
                best, best_score = delimiter, score
    return best


def read_csv_records(file: Path, delimiter: str) -> Iterator[Record | BadRow]:
    """Stream the records of a CSV file: the number of its first line, and its cells."""
    return _parse(_Lines(read_lines_checked(file)), delimiter)


class _UnclosedQuoteError(Exception):
    """A record that does not end."""


class _Lines:
    """Lines for csv.reader, which remember those of the record being read, so that they can be read again."""

    def __init__(self, lines: Iterator[str | BadLine]):
        self._lines, self._again = lines, deque[tuple[int, str]]()
        self._number = 0
        self.record: list[tuple[int, str]] = []
        self.bad: list[BadRow] = []

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        if len(self.record) >= MAX_SPAN:
            raise _UnclosedQuoteError
        number, line = self._take()
        self.record.append((number, line))
        return line + "\n"

    def _take(self) -> tuple[int, str]:
        if self._again:
            return self._again.popleft()
        for line in self._lines:
            self._number += 1
            if isinstance(line, str):
                return self._number, line
            self.bad.append(bad_row(line))
        if self.record:  # the file ends within a quoted cell
            raise _UnclosedQuoteError
        raise StopIteration

    def restart(self) -> None:
        """Read the record again from its second line."""
        self._again.extendleft(reversed(self.record[1:]))


def _parse(lines: _Lines, delimiter: str) -> Iterator[Record | BadRow]:
    reader = csv.reader(lines, delimiter=delimiter)
    while True:
        lines.record.clear()
        try:
            cells = next(reader)
        except StopIteration:
            yield from lines.bad
            return
        except _UnclosedQuoteError:
            yield BadRow(lines.record[0][0], "has a quote that is not closed", "close it, or double a quote inside a cell")
            lines.restart()
            continue
        except csv.Error as error:
            lines.restart()
            yield BadRow(lines.record[0][0], f"is not CSV ({error})", f"wanted cells with {delimiter!r} between them")
            continue
        if lines.bad:
            yield from lines.bad
            lines.bad.clear()
        if any(cells):
            yield lines.record[0][0], cells
