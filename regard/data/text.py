"""Parallel text → pairs of sentences: TSV, JSONL, or two line-aligned files; plain or .gz; always streamed."""

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from regard.data.files import read_lines

__all__ = ["Pair", "read_pairs"]

Pair = tuple[str, str]  # source, target


def read_pairs(files: list[Path], columns: str = "source,target") -> Iterator[Pair]:
    """Stream the sentence pairs of one TSV or JSONL file, or of two line-aligned files."""
    if len(files) == 2:
        return _aligned(*files)
    if len(files) != 1:
        raise ValueError(
            f"{len(files)} files given ({', '.join(map(str, files))}); give one TSV or JSONL file, or two line-aligned ones"
        )
    return _jsonl(files[0], columns) if ".jsonl" in files[0].suffixes else _tsv(files[0])


def _tsv(file: Path) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(file), 1):
        source, tab, rest = line.partition("\t")
        if not tab:
            if not line.strip():
                continue
            raise ValueError(f"{file} line {number} has no tab; wanted source, a tab, target")
        yield source, rest.partition("\t")[0]


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
        if not isinstance(left, str) or not isinstance(right, str):
            keys = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
            raise ValueError(
                f"{file} line {number} needs text under {source!r} and {target!r}, it has {keys}; name its keys in data.columns"
            )
        if any("\ud800" <= character <= "\udfff" for character in left + right):
            raise ValueError(
                f"{file} line {number} holds half a character (a lone surrogate such as \\ud800); mend the JSON"
            )
        yield left, right


def _aligned(source: Path, target: Path) -> Iterator[Pair]:
    for number, (left, right) in enumerate(zip_longest(read_lines(source), read_lines(target)), 1):
        if left is None or right is None:
            short, long = (source, target) if left is None else (target, source)
            raise ValueError(
                f"{short} ends after line {number - 1}, {long} goes on; the two must have the same number of lines"
            )
        yield left, right
