"""Let glibc keep the memory that one training step frees: the next one needs it again."""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["keep_freed"]

# mallopt(3) of glibc: settings while training, and glibc's defaults
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
KEEP = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: 64 * 2**20}
DEFAULT = {MMAP_MAX: 65_536, TRIM_THRESHOLD: 128 * 2**10, TOP_PAD: 128 * 2**10}


@contextmanager
def keep_freed() -> Iterator[None]:
    """Keep freed memory instead of returning it to the system and faulting it in again, page by page.

    A large tensor is otherwise a new mapping each time and every first touch of a page a fault: a tenth of a training step on a
    CPU.  Only glibc has these settings; elsewhere, or if the user has set MALLOC_…, nothing changes.
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        yield
        return
    library = ctypes.CDLL(None)
    for key, value in KEEP.items():
        library.mallopt(key, value)
    try:
        yield
    finally:
        for key, value in DEFAULT.items():
            library.mallopt(key, value)
        library.malloc_trim(0)
