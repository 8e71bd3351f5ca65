"""Bounds on what a server's libraries keep for later: its memory stays flat over any number of requests."""

import ctypes
import os
import platform

from regard.data.machine import bound_products

__all__ = ["bound_memory", "return_freed"]

ARENA_MAX, ARENAS = -8, 2  # of mallopt(3): heaps that threads share, each with free memory of its own; by default 8 per core
GLIBC = ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


def bound_memory() -> None:
    """Call it before torch is imported, which reads the environment.  What the user has set there stays as it is."""
    bound_products()
    if GLIBC and not any(name.startswith("MALLOC_") for name in os.environ):
        GLIBC.mallopt(ARENA_MAX, ARENAS)


def return_freed() -> None:
    """Return freed memory between blocks that are in use to the system: about 10 ms for 100 MB.  Other threads go on."""
    if GLIBC:
        GLIBC.malloc_trim(0)
