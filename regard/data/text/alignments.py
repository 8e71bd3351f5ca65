"""Annotated word alignments, stored as line numbers, checksums and links; the sentences stay in their data set.

A line of the file is the line number of a sentence pair (from 1), its checksum and its links, separated by tabs.  A link is
`source-target` if sure and `source?target` if possible; words are separated by spaces and counted from 0.  Lines that start
with # are comments.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.data.files import read_lines
from regard.data.text.readers import Pair

__all__ = ["Link", "WordAlignment", "pair_checksum", "read_alignments"]

Link = tuple[int, int]  # index of a source word and of a target word


class WordAlignment(NamedTuple):
    """A sentence pair and its links; sure links are possible links too (Och & Ney 2003)."""

    line: int
    source: str
    target: str
    sure: frozenset[Link]
    possible: frozenset[Link]


def pair_checksum(pair: Pair) -> str:
    """The first 16 hex digits of the SHA-256 of source, tab, target."""
    return hashlib.sha256("\t".join(pair).encode()).hexdigest()[:16]


def read_alignments(file: Path, pairs: Sequence[Pair]) -> list[WordAlignment]:
    """Read the alignments of some of these sentence pairs; refuse a pair that is not the one that was annotated."""
    found = []
    for number, line in enumerate(read_lines(file), 1):
        if line.startswith("#") or not line.strip():
            continue
        where, columns = f"{file} line {number}", line.split("\t")
        if len(columns) != 3 or not columns[0].isdecimal():
            raise ValueError(f"{where} is {line!r}; wanted line number, checksum and links, separated by tabs")
        row, checksum, links = int(columns[0]), columns[1], columns[2].split()
        if not 1 <= row <= len(pairs):
            raise ValueError(f"{where} aligns sentence {row}, there are {len(pairs)}; give the data it was annotated on")
        pair = pairs[row - 1]
        if pair_checksum(pair) != checksum:
            raise ValueError(f"{where} was annotated on another sentence {row} than {pair[0]!r}; give the data with its checksum")
        found.append(WordAlignment(row, *pair, *_read_links(links, pair, where)))
    return found


def _read_links(links: list[str], pair: Pair, where: str) -> tuple[frozenset[Link], frozenset[Link]]:
    """Sure links, and possible links including the sure ones."""
    sure, possible = set(), set()
    words = [len(text.split()) for text in pair]
    for text in links:
        parts = re.fullmatch(r"(\d+)([-?])(\d+)", text, re.ASCII)
        if parts is None:
            raise ValueError(f"{where} has a link {text!r}; wanted source-target or source?target, such as 0-0 or 3?4")
        link = int(parts[1]), int(parts[3])
        if link[0] >= words[0] or link[1] >= words[1]:
            raise ValueError(f"{where} has a link {text}, the sentences have {words[0]} and {words[1]} words; count from 0")
        if link in possible:
            raise ValueError(f"{where} has the link {link[0]}-{link[1]} twice; keep one")
        possible.add(link)
        if parts[2] == "-":
            sure.add(link)
    return frozenset(sure), frozenset(possible)
