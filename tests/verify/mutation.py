"""A mutation breaks one mechanism of the package; the checks that depend on it must fail.

Each chapter of regard/verify has a file `mutations_CHAPTER.py` here with a list MUTATIONS; test_mutations.py applies each one.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torch import Tensor

__all__ = ["Mutation", "all_mutations", "attend_with", "replace_everywhere"]


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


def replace_everywhere(patch: pytest.MonkeyPatch, original: Callable[..., Any], changed: Callable[..., Any]) -> None:
    """Replace a function of the package in every module that has imported it by name."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "regard"]
    places = [(module, name) for module in modules for name, value in vars(module).items() if value is original]
    assert places, f"no module of regard has {original}"
    for module, name in places:
        patch.setattr(module, name, changed)


def attend_with(**changes: object) -> Callable[[pytest.MonkeyPatch], None]:
    """`attend` is given these arguments, whatever it is called with."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        from regard.layers.attention import attend

        def changed(*qkv: Tensor, **options: object) -> tuple[Tensor, Tensor | None]:
            return attend(*qkv, **{**options, **changes})

        replace_everywhere(patch, attend, changed)

    return apply
