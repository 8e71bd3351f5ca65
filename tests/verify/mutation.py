"""A mutation breaks one mechanism of the package; the checks that depend on it must fail.

Each chapter of regard/verify has a file `mutations_CHAPTER.py` here with a list MUTATIONS; test_mutations.py applies each one.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

__all__ = ["Mutation", "all_mutations"]


class Mutation(NamedTuple):
    """One change that breaks something, and the checks that must turn red."""

    what: str  # "scores are not divided by √d"
    apply: Callable[[pytest.MonkeyPatch], None]
    catches: tuple[str, ...]  # names of checks
    slow: bool = False  # its checks train models


def all_mutations() -> list[Mutation]:
    """The mutations of all chapters."""
    files = sorted(Path(__file__).parent.glob("mutations_*.py"))
    return [mutation for file in files for mutation in import_module(file.stem).MUTATIONS]
