"""What this machine has: memory, and room on the disk of a folder that may not exist yet; and a bound on what oneDNN keeps."""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

__all__ = ["Memory", "bound_products", "existing_parent", "free_disk", "read_memory"]

MEMINFO = Path("/proc/meminfo")

# oneDNN, and torch's own layer around it, keep a compiled product for each shape of a batch, 0.7 MB each, 1,024 by default.
CACHES, PRODUCTS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), 64


def bound_products() -> None:
    """Call it before the first product of a process.  What the user has set in the environment stays as it is."""
    for name in CACHES:
        os.environ.setdefault(name, str(PRODUCTS))


class Memory(NamedTuple):
    """Bytes of memory: what is free or can be freed, and all."""

    available: int
    total: int


def read_memory() -> Memory | None:
    """The memory of this machine; None if it is not known, as on other systems than Linux."""
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.split()[1:]}
        return Memory(1024 * kilobytes["MemAvailable"], 1024 * kilobytes["MemTotal"])
    except (OSError, KeyError, ValueError):
        return None


def existing_parent(path: Path) -> Path:
    """The path itself, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


def free_disk(path: Path) -> int:
    """Bytes free on the disk of a path that may not exist yet."""
    return shutil.disk_usage(existing_parent(path)).free
