"""Rated word pairs: two words and a rating on each line, with tabs or spaces between."""

import math
from collections.abc import Mapping
from pathlib import Path

from regard.data.files import read_lines
from regard.data.official.write import write_rows

__all__ = ["read"]

FILES = {"wordsim353": "EN-WS-353-ALL.txt", "wordsim353-similarity": "EN-WS-353-SIM.txt",
         "wordsim353-relatedness": "EN-WS-353-REL.txt", "simlex999": "EN-SIMLEX-999.txt", "men3000": "EN-MEN-TR-3k.txt",
         "rg65": "EN-RG-65.txt"}  # fmt: skip


def read(name: str, files: Mapping[str, Path], folder: Path) -> dict[str, int]:
    """Write each list with tabs."""
    counts = {}
    for split, file in FILES.items():
        rows = [line.split() for line in read_lines(files[file]) if line.strip()]
        for number, row in enumerate(rows, 1):
            if len(row) != 3 or not _is_rating(row[2]):
                raise ValueError(f"{files[file]} line {number} is not two words and a rating; get the official file")
        if not rows:
            raise ValueError(f"{files[file]} is empty; get it again")
        write_rows(folder / f"{split}.tsv", rows)
        counts[split] = len(rows)
    return counts


def _is_rating(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and float(text) >= 0
    except ValueError:
        return False
