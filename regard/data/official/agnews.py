"""AG News: a CSV file, class 1 to 4, title, description, with remains of HTML from the web pages that it was made of."""

import csv
import hashlib
import html
import io
import re
from collections.abc import Mapping
from pathlib import Path

from regard.data.official.write import write_rows

__all__ = ["read", "repair_html"]

CLASSES = 4
HELD_OUT = 800  # rows of valid, and of test
MAX_BYTES = 1 << 24


def read(name: str, files: Mapping[str, Path], folder: Path) -> dict[str, int]:
    """Write the splits, in the order of the MD5 of title and description; a text is in one of them only."""
    (file,) = files.values()
    rows = dict[str, int]()  # text → class
    for number, row in enumerate(_records(file), 1):
        if len(row) != 3 or row[0] not in map(str, range(1, CLASSES + 1)):
            raise ValueError(
                f"{file} record {number} is not a class from 1 to {CLASSES}, a title and a description; get the official file"
            )
        title, text = map(repair_html, row[1:])
        rows.setdefault(f"{title}\t{text}", int(row[0]) - 1)
    if len(rows) < 3 * HELD_OUT:
        raise ValueError(f"{file} has {len(rows):,} different rows; wanted at least {3 * HELD_OUT:,}: get it again")
    ordered = sorted(rows, key=lambda text: hashlib.md5(text.encode(), usedforsecurity=False).digest())
    cuts = {"valid": (0, HELD_OUT), "test": (HELD_OUT, 2 * HELD_OUT), "train": (2 * HELD_OUT, len(ordered))}
    for split, (start, stop) in cuts.items():
        write_rows(folder / f"{split}.tsv.gz", [(rows[text], text) for text in ordered[start:stop]])
    return {split: stop - start for split, (start, stop) in sorted(cuts.items())}


def repair_html(text: str) -> str:
    """Undo entities whose ampersand was lost (#39; quot;), remove tags and backslashes, and leave single spaces."""
    text = html.unescape(html.unescape(text))
    text = html.unescape(re.sub(r" ?(?<![&\w])(#\d+|quot|lt|gt|amp|nbsp);", r"&\1;", text))  # the ampersand became a space
    text = re.sub(r"</?[a-zA-Z][^<>]{0,500}>", " ", text).replace("\\", " ")
    return " ".join(text.split())


def _records(file: Path) -> list[list[str]]:
    with open(file, "rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{file} has over {MAX_BYTES:,} bytes; get the official file, test.csv of 7,600 rows")
    try:
        return list(csv.reader(io.StringIO(content.decode("utf-8"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is not a CSV file in UTF-8 ({error}); get it again") from None
