"""What this machine has: memory, room on the disk of a folder that may not exist yet, a processor; and a limit for oneDNN."""

import os
import platform
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["Memory", "bound_products", "existing_parent", "free_disk", "is_amd", "read_memory"]

MEMINFO, CPUINFO = Path("/proc/meminfo"), Path("/proc/cpuinfo")

# oneDNN, and torch's own layer around it, keep a compiled product for each shape of a batch, 0.7 MB each, 1,024 by default.
CACHES, PRODUCTS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), 64


def bound_products() -> None:
    """Call it before oneDNN's first product in a process; later it may have no effect.  What the user has set stays as it is."""
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


def is_amd() -> bool:
    """Whether the processor is one of AMD's; False if that is not known."""
    name = platform.processor()  # empty on many Linux systems
    with suppress(OSError):
        name += CPUINFO.read_text(encoding="utf-8", errors="replace")[:4096]
    return "AuthenticAMD" in name
