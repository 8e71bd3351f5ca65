"""Excel sheets and Parquet files, row by row; the libraries come with the extra `tables`."""

import importlib
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Protocol

from regard.data.files import MAX_LINE, open_bytes
from regard.data.terminal import printable
from regard.data.text.columns import DEFAULT, choose_languages, column_names, is_header, require_agreement
from regard.data.text.delimited import Record, choose_cells
from regard.data.text.json_rows import lookup
from regard.data.text.rows import BadRow, ReadNotes, Row
from regard.data.xml_parts import declares_entities

__all__ = ["read_parquet", "read_xlsx"]

MAX_ROWS = 1 << 20  # of an Excel sheet, by its format
MAX_COLUMNS = 100  # read of each row
MAX_UNPACKED = 1 << 30  # bytes of the files in an .xlsx
MAX_STRINGS = 1 << 28  # bytes of its shared strings, which are kept in memory
MAX_CHUNK = 1 << 30  # bytes of a column in one row group of a Parquet file
BATCH = 512  # rows read at once


def read_xlsx(
    file: Path, columns: str, notes: ReadNotes, *, every: bool = False, lenient: bool = False, pair: str = ""
) -> Iterator[Row | BadRow]:
    """Stream the chosen columns of the first sheet of an Excel file."""
    return choose_cells(_sheet(file), file, columns, notes, every, lenient, ",", pair)


def _sheet(file: Path) -> Iterator[Record | BadRow]:
    openpyxl = _require("openpyxl", file)
    _require_small(file)
    with open_bytes(file) as stream:
        try:
            with _quiet():
                book = openpyxl.load_workbook(stream, read_only=True, data_only=True)
                sheet = book.worksheets[0]
                sheet.reset_dimensions()  # some programs write wrong ones
                rows = enumerate(sheet.iter_rows(values_only=True, max_col=MAX_COLUMNS), 1)
            while True:
                with _quiet():
                    batch = list(islice(rows, BATCH))
                if not batch:
                    return
                if batch[-1][0] > MAX_ROWS:
                    raise ValueError(f"it has over {MAX_ROWS:,} rows")
                for number, row in batch:
                    cells = [_cell(value) for value in row]
                    if any(len(cell) > MAX_LINE for cell in cells):
                        yield _too_long(number)
                        continue
                    width = max((index for index, cell in enumerate(cells, 1) if cell), default=0)
                    if width:
                        yield number, cells[: max(2, width)]
        except Exception as error:  # openpyxl lets errors of any kind through
            raise ValueError(f"{file} is not a readable Excel file ({_short(error)}); save it again, or as CSV") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Ignore warnings of styles and extensions, which are not read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _cell(value: object) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _require_small(file: Path) -> None:
    """Refuse an .xlsx that unpacks to much more than a sheet of text, or that declares XML entities."""
    try:
        with open_bytes(file) as stream, zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            total = sum(member.file_size for member in members)
            strings = sum(member.file_size for member in members if "sharedstrings" in member.filename.lower())
            if total > MAX_UNPACKED or strings > MAX_STRINGS:
                raise ValueError(f"{file} unpacks to {total:,} bytes; at most {MAX_UNPACKED:,} are read, {MAX_STRINGS:,} of "
                                 "texts; save it as CSV")  # fmt: skip
            for member in members:
                if member.filename.lower().endswith((".xml", ".rels")):
                    with archive.open(member) as part:
                        if declares_entities(part):
                            raise ValueError(f"{file} declares XML entities, which regard does not expand; save it again, or "
                                             "as CSV")  # fmt: skip
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{file} is not an Excel file ({_short(error)}); save it again as .xlsx, or as CSV") from None


class _Field(Protocol):
    """A column of pyarrow: its name, and its type, which for a struct yields the fields inside it."""

    name: str
    type: "Iterable[_Field]"


class _Schema(Protocol):
    """The columns of a Parquet file, as pyarrow gives them."""

    names: list[str]

    def __iter__(self) -> "Iterator[_Field]":
        """The columns."""


def read_parquet(file: Path, columns: str, notes: ReadNotes, *, lenient: bool = False, pair: str = "") -> Iterator[Row | BadRow]:
    """Stream the chosen columns of a Parquet file; keys may be nested, as translation.en."""
    arrow, parquet = _require("pyarrow", file), _require("pyarrow.parquet", file)
    with open_bytes(file) as stream:
        try:
            table = parquet.ParquetFile(stream)
            keys = _keys(table.schema_arrow, columns, file, pair, lenient)
            for group in range(table.metadata.num_row_groups):
                for column in range(table.metadata.num_columns):
                    size = table.metadata.row_group(group).column(column).total_uncompressed_size
                    if size > MAX_CHUNK:
                        raise ValueError(f"{file} has {size:,} bytes in one column chunk; at most {MAX_CHUNK:,} are "
                                         "read: write smaller row groups")  # fmt: skip
            notes.columns[str(file)] = f"columns {', '.join(keys)}"
            notes.names[str(file)] = tuple(keys)
            tops = list(dict.fromkeys(_top(key, table.schema_arrow.names) for key in keys))
            number = 0
            for batch in table.iter_batches(batch_size=BATCH, columns=tops):
                for row in batch.to_pylist():
                    number += 1
                    yield _parquet_row(row, keys, number)
        except (arrow.ArrowException, OSError, OverflowError) as error:
            raise ValueError(f"{file} is not a whole Parquet file ({_short(error)}); write it again") from None


def _parquet_row(row: dict[str, object], keys: list[str], number: int) -> Row | BadRow:
    cells = ["" if (value := lookup(row, key)) is None else value for key in keys]
    texts = tuple(_cell(cell) for cell in cells if isinstance(cell, str | int | float))
    if len(texts) < len(keys):
        return BadRow(number, f"has no text under {' and '.join(keys)}", "name its columns in data.columns")
    if any(len(text) > MAX_LINE for text in texts):
        return _too_long(number)
    return texts


def _too_long(number: int) -> BadRow:
    return BadRow(number, f"has over {MAX_LINE:,} characters", "break it into shorter texts, or leave it out")


def _keys(schema: _Schema, columns: str, file: Path, pair: str = "", lenient: bool = False) -> list[str]:
    """The columns to read: by name, by number, or by default source and target, or the only two that hold text."""
    names, wanted = list(schema.names), column_names(columns)
    if pair and columns == DEFAULT:
        texts = [leaf for field in schema for leaf in _text_leaves(field, "")]
        if indexes := choose_languages(texts, pair, file, lenient):
            return [texts[index] for index in indexes]
    elif pair and not lenient:
        found = _keys(schema, columns, file)
        require_agreement(found, columns, pair, file)
        return found
    if all(_top(key, names) in names for key in wanted):
        return wanted
    leaves = [leaf for field in schema for leaf in _text_leaves(field, "")]
    if all(key.isdecimal() for key in wanted) and min(map(int, wanted)) > 0 and max(map(int, wanted)) <= len(names):
        return [names[int(key) - 1] for key in wanted]
    if columns == DEFAULT and (len(leaves) == 2 or is_header(names[:2])):
        return leaves if len(leaves) == 2 else names[:2]
    raise ValueError(f"{file} has the columns {', '.join([*names, *(leaf for leaf in leaves if '.' in leaf)][:12])}; "
                     f"data.columns={columns} is not among them; choose two of them")  # fmt: skip


def _text_leaves(field: _Field, prefix: str) -> list[str]:
    name, kind = prefix + field.name, str(field.type)
    if kind.startswith("struct<"):
        return [leaf for inner in field.type for leaf in _text_leaves(inner, f"{name}.")]
    return [name] if kind in ("string", "large_string", "string_view") or kind.startswith("dictionary<values=string") else []


def _top(key: str, names: list[str]) -> str:
    return key if key in names else key.split(".")[0]


def _require(library: str, file: Path) -> ModuleType:
    try:
        return importlib.import_module(library)
    except ImportError:
        raise ValueError(f"{file} needs a package: pip install {library.split('.')[0]}") from None


def _short(error: BaseException) -> str:
    return printable(str(error).split("\n")[0][:120], keep="") or type(error).__name__
