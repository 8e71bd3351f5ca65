"""Sentence pairs of Tatoeba as ManyThings publishes them: a zip with one text of English, a tab, the other language.

https://www.manythings.org/anki
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

from regard.data.archives import GB, zip_files
from regard.data.official.write import write_rows

__all__ = ["read"]

MAX_WORDS = 60  # of an English sentence
MIN_PAIRS = 100
EACH = {"tatoeba-en-hi": 100}  # of 1,000 English sentences, for valid and for test
MOST = 10  # the same, of the larger sets
DEVANAGARI = ("tatoeba-en-hi",)  # sets whose other side is refused in another script
SPLITS = ("train", "valid", "test")

Pair = tuple[str, str]


def read(name: str, files: Mapping[str, Path], folder: Path) -> dict[str, int]:
    """Write the splits: an English sentence, whatever its case and punctuation, is in one of them only."""
    (file,) = files.values()
    language = file.name.split("-")[0]
    texts = [content for _, content in zip_files(file, lambda at: at == f"{language}.txt", GB)]
    if len(texts) != 1:
        raise ValueError(f"{file} has no {language}.txt; get the official file from manythings.org/anki")
    try:
        lines = texts[0].decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{language}.txt in {file} is not UTF-8 at byte {error.start:,}; get the official file") from None
    pairs = _pairs(lines, f"{language}.txt in {file}", name in DEVANAGARI)
    splits = split_pairs(pairs, EACH.get(name, MOST))
    for split, rows in splits.items():
        write_rows(folder / f"{split}.tsv.gz", rows)
    return {split: len(rows) for split, rows in splits.items()}


def _pairs(lines: list[str], file: str, devanagari: bool) -> set[Pair]:
    """The cleaned pairs, each once."""
    rows = [line.split("\t") for line in lines if line.strip()]
    found, wanted = sum(len(row) >= 2 for row in rows), max(MIN_PAIRS, len(rows) * 99 // 100)
    if found < wanted:
        raise ValueError(f"{file} has {found:,} lines of English, a tab, the other language, of {len(rows):,}; wanted at least "
                         f"{wanted:,}: get the official file")  # fmt: skip
    cleaned = {(_clean(row[0]), _clean(row[1])) for row in rows if len(row) >= 2}
    return {(english, other) for english, other in cleaned if english and other and len(english.split()) <= MAX_WORDS
            and not (devanagari and not _mostly_devanagari(other))}  # fmt: skip


def split_pairs(pairs: Iterable[Pair], each: int) -> dict[str, list[Pair]]:
    """Pairs in the order of the MD5 of their reduced English sentence; of 1,000 hashes `each` are valid, and as many test."""
    splits: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    for hashed, english, other in sorted((_hash(english), english, other) for english, other in pairs):
        place = int(hashed, 16) % 1000
        splits["valid" if place < each else "test" if place < 2 * each else "train"].append((english, other))
    others = set[str]()  # the other side: it must not leak either
    for split in SPLITS:
        splits[split] = [pair for pair in splits[split] if split == "train" or _reduce(pair[1]) not in others]
        others |= {_reduce(other) for _, other in splits[split]}
    return splits


def _hash(english: str) -> str:
    return hashlib.md5(_reduce(english).encode(), usedforsecurity=False).hexdigest()


def _reduce(text: str) -> str:
    """Letters and digits, in lower case."""
    return re.sub(r"[\W_]", "", text.lower())


def _clean(text: str) -> str:
    """NFC, one plain space for white space of any kind, no control or invisible characters."""
    spaced = re.sub(r"\s+", " ", unicodedata.normalize("NFC", text))
    return "".join(c for c in spaced if c == " " or unicodedata.category(c) not in ("Cc", "Cf", "Co", "Cs", "Cn")).strip()


def _mostly_devanagari(text: str) -> bool:
    letters = [c for c in text if c.isalpha()]
    return sum("\u0900" <= c <= "\u097f" for c in letters) * 2 > len(letters)
