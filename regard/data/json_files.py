"""Reading JSON files of unknown origin: bounded in size and depth."""

import json
import os
from pathlib import Path

__all__ = ["MAX_JSON", "load_json"]

MAX_JSON = 256 << 20  # bytes; the largest tokenizers of published models have 40 MB


def load_json(file: Path, limit: int = MAX_JSON) -> object:
    """The content of a JSON file; a damaged, too large or too deep one is a `ValueError` that says how, without the name."""
    if file.exists() and not file.is_file():
        raise ValueError("it is not a regular file")
    with open(file, "rb") as handle:
        if (size := os.fstat(handle.fileno()).st_size) > limit:
            raise ValueError(f"it has {size:,} bytes, more than {limit:,}")
        content = handle.read(limit + 1)  # a file may grow
    if len(content) > limit:
        raise ValueError(f"it has more than {limit:,} bytes")
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("its tables are nested too deeply") from None
