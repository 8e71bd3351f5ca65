"""What this machine has: memory, and room on the disk of a folder that may not exist yet."""

import shutil
from pathlib import Path
from typing import NamedTuple

__all__ = ["Memory", "existing_parent", "free_disk", "read_memory"]

MEMINFO = Path("/proc/meminfo")


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
