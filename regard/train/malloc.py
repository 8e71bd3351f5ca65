"""Memory that one training step frees, the next one needs again."""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["keep_freed"]

# mallopt(3) of glibc: what to set while training, and the values glibc begins with
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
KEEP = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: 64 * 2**20}
USUAL = {MMAP_MAX: 65_536, TRIM_THRESHOLD: 128 * 2**10, TOP_PAD: 128 * 2**10}


@contextmanager
def keep_freed() -> Iterator[None]:
    """Let the C library keep what is freed, instead of giving it back to the system and fetching it anew, page by page.

    A large tensor is otherwise a new mapping each time, and the first touch of each of its pages a fault: a tenth of a
    training step on a CPU.  Only glibc knows these settings; elsewhere nothing changes.  At the end all is given back.
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):  # the user's word
        yield
        return
    library = ctypes.CDLL(None)
    for key, value in KEEP.items():
        library.mallopt(key, value)
    try:
        yield
    finally:
        for key, value in USUAL.items():
            library.mallopt(key, value)
        library.malloc_trim(0)
