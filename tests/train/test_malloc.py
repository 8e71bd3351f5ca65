"""Memory that a step frees is kept for the next one, and returned to the system at the end."""

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from regard.train import malloc

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc knows these settings")

MEASURED = """
import contextlib, resource, torch
from regard.train.malloc import keep_freed

def resident():  # MiB
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * resource.getpagesize() / 2**20

def freed():  # MiB more than at the start: with a tensor of 64, and after it is freed
    tensor = torch.ones(2**24)
    used = resident() - start
    del tensor
    print(used, resident() - start)

start = resident()
freed()
for error in (False, True):
    with contextlib.suppress(ZeroDivisionError), keep_freed():
        freed()
        if error:
            1 / 0
    print(resident() - start)
    freed()
"""


@glibc
def test_freed_memory_is_kept_inside_and_returned_afterwards_even_after_an_error():
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    usual, *both = ([float(number) for number in line.split()] for line in done.stdout.splitlines())
    for inside, after, again in (both[:3], both[3:]):
        assert min(inside) > 60  # used, and then kept
        assert max(after) < 16
        for used, left in (usual, again):
            assert used > 60
            assert left < 16


class Library:
    """A C library that records its calls."""

    def __init__(self):
        self.settings: dict[int, list[int]] = {}
        self.trimmed = 0

    def mallopt(self, key: int, value: int) -> int:
        assert not self.trimmed
        self.settings.setdefault(key, []).append(value)
        return 1

    def malloc_trim(self, pad: int) -> int:
        self.trimmed += 1
        return 1


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    """The user has no settings of malloc."""
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)


def test_an_error_passes_and_every_setting_is_reset(monkeypatch):
    library = Library()
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)

    def fail() -> None:
        with malloc.keep_freed():
            assert library.settings
            assert {len(values) for values in library.settings.values()} == {1}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert all(first != last for first, last in library.settings.values())
    assert library.trimmed == 1


@pytest.mark.parametrize("why", ["no glibc", "settings of the user"])
def test_without_glibc_or_with_settings_of_the_user_nothing_changes(monkeypatch, why):
    def touched(name):
        raise AssertionError("a C library was asked for")

    monkeypatch.setattr(platform, "libc_ver", lambda: ("", "") if why == "no glibc" else ("glibc", "2.36"))
    if why != "no glibc":
        monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    monkeypatch.setattr(ctypes, "CDLL", touched)
    ran = False
    with malloc.keep_freed():
        ran = True
    assert ran
    with pytest.raises(ZeroDivisionError), malloc.keep_freed():
        raise ZeroDivisionError
