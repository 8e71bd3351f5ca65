"""SST-2 in whole sentences: class, a tab, the sentence on each line."""

from collections.abc import Mapping
from pathlib import Path

from regard.data.files import read_lines
from regard.data.official.write import write_rows

__all__ = ["read"]

FILES = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
CLASSES = ("0", "1")


def read(name: str, files: Mapping[str, Path], folder: Path) -> dict[str, int]:
    """Write the splits, unchanged."""
    counts = {}
    for split, file in FILES.items():
        rows = [line.split("\t") for line in read_lines(files[file])]
        for number, row in enumerate(rows, 1):
            if len(row) != 2 or row[0] not in CLASSES or not row[1].strip():
                raise ValueError(f"{files[file]} line {number} is not 0 or 1, a tab and a sentence; get the official file")
        if {row[0] for row in rows} != set(CLASSES):
            found = rows[0][0] if rows else "none"
            raise ValueError(f"{files[file]} has the class {found} only; wanted 0 and 1: get the official file")
        write_rows(folder / f"{split}.tsv.gz", rows)
        counts[split] = len(rows)
    return counts
