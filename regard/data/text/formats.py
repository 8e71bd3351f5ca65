"""Own files: which are meant, of which format each is, and their rows.

Files that hold pairs by themselves (TSV, CSV, JSONL, JSON, TMX, .xlsx, .parquet) are read one after the other.  Two plain files
without tabs are line-aligned: source and target.
"""

import glob
import os
import re
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path

from regard.data.files import BadLine, read_lines_checked
from regard.data.text.columns import DEFAULT, language_of, parse_pair
from regard.data.text.delimited import read_delimited
from regard.data.text.json_rows import read_json, read_jsonl
from regard.data.text.rows import BadRow, ReadNotes, Row, bad_row, keep_rows
from regard.data.text.tables import read_parquet, read_xlsx
from regard.data.text.tmx import read_tmx

__all__ = ["ENDINGS", "expand_paths", "find_pair_files", "is_aligned", "read_rows"]

PAIRED = frozenset((".tsv", ".tab", ".csv", ".jsonl", ".ndjson", ".json", ".tmx", ".xlsx", ".parquet"))
ENDINGS = PAIRED | {".txt", ".text", ".md"}  # read from a folder; plain or .gz
SNIFFED = 100  # lines that decide whether a file holds tabs
MAX_FILES = 10_000  # of a folder or a pattern
NAMED = 5  # files of a folder that are not read

_BREAKS = re.compile(r"\s*[\r\n]\s*")


def expand_paths(own: str) -> list[Path]:
    """The files of `data.train`: paths, patterns and folders, separated by commas; those of a pattern or folder are sorted."""
    return [file for part in _parts(own) for file in _expand(part)]


def _parts(own: str) -> list[str]:
    if os.path.exists(os.path.expanduser(own)):
        return [own]
    return [part for name in own.split(",") if (part := name.strip())]


def find_pair_files(own: str, notes: ReadNotes) -> list[Path]:
    """The files of `expand_paths` that may hold pairs; `notes` gets how many a folder or pattern has, and which are not read.

    Of a folder, plain texts without tabs are left out if other files hold pairs: they are notes, not data.
    """
    files = list[Path]()
    for part in _parts(own):
        found, path, rest = _expand(part), Path(part).expanduser(), ""
        if path.is_dir():
            paired = [file for file in found if _ending(file) in PAIRED or _has_tabs(file)]
            found = paired or [file for file in found if _ending(file) != ".md"] or found
            chosen = set(found)
            others = sorted(str(file.relative_to(path)) for file in islice(_inside(path), MAX_FILES) if file not in chosen)
            rest = f"; not read: {', '.join(others[:NAMED])}" if others else ""
            rest += f" and {len(others) - NAMED:,} more" if len(others) > NAMED else ""
        if path.is_dir() or len(found) > 1:
            notes.found[part] = f"{len(found):,} file{'s' * (len(found) > 1)}{rest}"
        files += found
    return files


def _expand(part: str) -> list[Path]:
    path = Path(part).expanduser()
    if path.is_dir():
        found = _few((file for file in _inside(path) if _ending(file) in ENDINGS), part)
        if not found:
            raise ValueError(
                f"{part} is a folder without text files ({', '.join(sorted(ENDINGS))}); give a file, or another folder"
            )
        return found
    if not os.path.exists(path) and glob.has_magic(part):
        found = _few((Path(name) for name in glob.iglob(str(path), recursive=True) if Path(name).is_file()), part)
        if not found:
            raise ValueError(f"no file matches {part}; check the pattern")
        return found
    if not os.path.exists(path):
        raise ValueError(f"no file {part}; check the path")
    return [path]


def _inside(folder: Path) -> Iterator[Path]:
    """The files of a folder and its folders, without hidden ones."""
    inside = (file for file in folder.rglob("*") if not any(name.startswith(".") for name in file.relative_to(folder).parts))
    return (file for file in inside if file.is_file())


def _few(files: Iterator[Path], part: str) -> list[Path]:
    found = sorted(islice(files, MAX_FILES + 1))
    if len(found) > MAX_FILES:
        raise ValueError(f"{part} has over {MAX_FILES:,} files; join them into fewer")
    return found


def _ending(file: Path) -> str:
    """The ending that names the format, without .gz."""
    return (Path(file.stem) if file.suffix == ".gz" else file).suffix.lower()


def is_aligned(files: list[Path]) -> bool:
    """Whether these are two plain files whose lines belong together."""
    if len(files) != 2 or any(_ending(file) in PAIRED for file in files):
        return False
    return not all(map(_has_tabs, files))


def _has_tabs(file: Path) -> bool:
    lines = [line for line in islice(read_lines_checked(file), SNIFFED) if isinstance(line, str) and line.strip()]
    return bool(lines) and 2 * sum("\t" in line for line in lines) > len(lines)


def read_rows(files: list[Path], columns: str, pair: str, notes: ReadNotes, *, every: bool = False, lenient: bool = False,
              ) -> Iterator[Row]:  # fmt: skip
    """Stream source and target of each row; with `every`, the other columns follow; `notes` gets what was found.

    With `lenient`, a table without the named columns is read by position: test data may come without a header row.
    """
    if not files:
        raise ValueError("0 files given (); give a file of pairs, or two line-aligned ones")
    if is_aligned(files):
        if columns != DEFAULT and not lenient:
            raise ValueError(f"data.columns={columns} is for files with columns; {files[0]} and {files[1]} have no tabs and are "
                             "read line by line, source first")  # fmt: skip
        if pair and not lenient and parse_pair(pair) != tuple(language_of(_ending(file)[1:]) for file in files):
            raise ValueError(f"data.pair={pair} is for files that name their languages; {files[0]} and {files[1]} are read line "
                             "by line, source first: put them in that order and leave data.pair out")  # fmt: skip
        yield from keep_rows(_aligned(*files), files[0], notes)
        return
    if len(files) > 2 and not any(_ending(file) in PAIRED for file in files) and not any(map(_has_tabs, files)):
        raise ValueError(f"{len(files)} files given ({', '.join(map(str, files[:4]))}, …), and no tabs in them; give files of "
                         "pairs, or two line-aligned ones")  # fmt: skip
    for file in files:
        rows = keep_rows(_read(file, columns, pair, notes, every, lenient), file, notes)
        yield from _join_lines(rows, file, notes) if _ending(file) in PAIRED - {".tsv", ".tab"} else rows


def _join_lines(rows: Iterator[Row], file: Path, notes: ReadNotes) -> Iterator[Row]:
    """The rows with a space for each line break inside a cell."""
    for row in rows:
        if any("\n" in cell or "\r" in cell for cell in row):
            notes.joined[str(file)] = notes.joined.get(str(file), 0) + 1
            yield tuple([_BREAKS.sub(" ", cell) for cell in row])
        else:
            yield row


def _read(file: Path, columns: str, pair: str, notes: ReadNotes, every: bool, lenient: bool) -> Iterator[Row | BadRow]:
    match _ending(file):
        case ".jsonl" | ".ndjson":
            return read_jsonl(file, columns, pair, lenient)
        case ".json":
            return read_json(file, columns, pair, lenient)
        case ".tmx":
            return read_tmx(file, columns, pair, notes)
        case ".xlsx":
            return read_xlsx(file, columns, notes, every=every, lenient=lenient, pair=pair)
        case ".parquet":
            return read_parquet(file, columns, notes, lenient=lenient, pair=pair)
        case ending:
            return read_delimited(file, columns, notes, every=every, lenient=lenient, quoted=ending == ".csv", pair=pair)


def _aligned(source: Path, target: Path) -> Iterator[Row | BadRow]:
    both = zip_longest(read_lines_checked(source), read_lines_checked(target))
    for number, (left, right) in enumerate(both, 1):
        if left is None or right is None:
            short, long = (source, target) if left is None else (target, source)
            raise ValueError(f"{short} ends after line {number - 1}, {long} has more lines; give files of the same length")
        if isinstance(left, BadLine):
            yield bad_row(left)
        elif isinstance(right, BadLine):
            yield bad_row(right, target)
        else:
            yield left, right
