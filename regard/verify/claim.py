"""A claim of the lecture notes, and the check that measures it.

A check is a function that yields measurements, each made by `equals`, `close`, `at_most`, `at_least`, `between` or `refutes`, and
plots (plots.py).  All measurements hold, or the verdict is FAILS; a check that raises has measured too little: ERROR.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import torch
from torch import Tensor

from regard.verify.plots import Curves, Heatmap

__all__ = ["Check", "Claim", "Finding", "Measurement", "Verdict", "at_least", "at_most", "between", "claim", "close", "equals",
           "not_checkable", "number", "refutes", "registered"]  # fmt: skip

NOTES = ("000", "001", "002", "003", "004")


class Verdict(StrEnum):
    """What the measurements say about a claim."""

    HOLDS = "holds"
    CONDITION = "holds under a condition"
    WRONG = "the notes are wrong"
    FAILS = "does not hold"
    ERROR = "could not be measured"
    SKIPPED = "not run"
    NOT_CHECKABLE = "not checkable"


@dataclass(frozen=True)
class Measurement:
    """One measured value beside the expected one."""

    what: str  # with the unit, if it has one
    expected: str
    measured: str
    holds: bool
    refutes: bool = False  # `expected` is what the notes say, and the measured value must differ from it


Finding = Measurement | Curves | Heatmap
Check = Callable[[], Iterator[Finding]]


@dataclass(frozen=True)
class Claim:
    """A claim, where it stands, and how it is checked."""

    row: str  # of the inventory of the notes: "1" to "88", or "c1" to "c28" for a correction
    name: str  # of the check
    chapter: str
    notes: tuple[str, ...]  # the files of the notes that make the claim
    says: str  # the claim, as the notes make it
    check: Check | None  # None: not checkable, for the reason `why_not`
    condition: str = ""  # the claim holds only under this condition, which the check shows
    right: str = ""  # the notes are wrong; this is right, and the check measures both
    slow: bool = False  # it takes longer: it trains a model, times layers or reads a data set
    data: tuple[str, ...] = ()  # data sets it reads
    why_not: str = ""

    @property
    def intended(self) -> Verdict:
        """The verdict if every measurement holds."""
        if self.check is None:
            return Verdict.NOT_CHECKABLE
        return Verdict.WRONG if self.right else Verdict.CONDITION if self.condition else Verdict.HOLDS


_CLAIMS: dict[str, Claim] = {}
CheckT = TypeVar("CheckT", bound=Check)


def claim(
    row: int | str, notes: str, says: str, *, condition: str = "", right: str = "", slow: bool = False, data: Sequence[str] = ()
) -> Callable[[CheckT], CheckT]:
    """Register a function as the check of a claim; `notes` are file numbers, as in "001 003".

    A row of the inventory may have several checks, such as a quick and a slow one.
    """
    assert not (condition and right), "a claim that is wrong does not also hold under a condition"

    def register(check: CheckT) -> CheckT:
        _register(Claim(str(row), check.__name__, _chapter(check.__module__), _files(notes), says, check, condition, right, slow,
                        tuple(data)))  # fmt: skip
        return check

    return register


def not_checkable(row: int | str, notes: str, says: str, *, name: str, chapter: str, why: str) -> None:
    """Register a claim that no program can check, with the reason."""
    _register(Claim(str(row), name, _chapter(chapter), _files(notes), says, None, why_not=why))


def registered() -> list[Claim]:
    """All claims of the chapters that are imported (catalogue.py imports them all), in the order of the inventory."""
    return sorted(_CLAIMS.values(), key=lambda claim: (claim.row.startswith("c"), int(claim.row.lstrip("c"))))


def _register(new: Claim) -> None:
    assert new.name not in _CLAIMS, f"two checks are named {new.name}"
    _CLAIMS[new.name] = new


def _chapter(module: str) -> str:
    return module.rpartition(".")[2]


def _files(notes: str) -> tuple[str, ...]:
    files = tuple(notes.split())
    assert files, "a claim stands in at least one file of the notes"
    assert set(files) <= set(NOTES), notes
    return files


def equals(what: str, measured: object, expected: object) -> Measurement:
    """The measured value is exactly the expected one: a count, a list, a text."""
    return Measurement(what, _written(expected), _written(measured), bool(measured == expected))


def close(what: str, measured: float | Tensor, expected: float | Tensor, *, rel: float = 0.0, within: float = 0.0) -> Measurement:
    """The measured value differs from the expected one by at most `within` + `rel` · |expected|.

    Of tensors every element does, with the largest |expected| for all; the largest difference is shown.
    """
    if isinstance(measured, Tensor) and isinstance(expected, Tensor) and measured.shape != expected.shape:
        return Measurement(f"{what}: shape", str(tuple(expected.shape)), str(tuple(measured.shape)), False)
    if isinstance(measured, Tensor) and isinstance(expected, Tensor) and measured.numel() > 1:
        difference = (measured.double() - expected.double()).abs()
        limit = within + rel * expected.double().abs().max().item()
        largest = difference.max().item()
        return Measurement(f"{what}: largest difference", f"≤ {number(limit)}", number(largest), largest <= limit)
    measured, expected = float(measured), float(expected)
    allowed = within + rel * abs(expected)
    return Measurement(what, f"{number(expected)} ± {number(allowed)}", number(measured), abs(measured - expected) <= allowed)


def at_most(what: str, measured: float, bound: float) -> Measurement:
    """The measured value is not above a bound."""
    return Measurement(what, f"≤ {number(bound)}", number(measured), measured <= bound)


def at_least(what: str, measured: float, bound: float) -> Measurement:
    """The measured value is not below a bound."""
    return Measurement(what, f"≥ {number(bound)}", number(measured), measured >= bound)


def between(what: str, measured: float, low: float, high: float) -> Measurement:
    """The measured value lies between two bounds."""
    return Measurement(what, f"{number(low)} to {number(high)}", number(measured), low <= measured <= high)


def refutes(what: str, measured: float | str | Tensor, notes_say: float | str | Tensor, *, by: float = 0.0) -> Measurement:
    """The measured value is not what the notes say: numbers differ by more than `by`, tensors somewhere, texts at all."""
    if isinstance(measured, Tensor) and isinstance(notes_say, Tensor):
        largest = (measured.double() - notes_say.double()).abs().max().item() if measured.shape == notes_say.shape else torch.inf
        return Measurement(f"{what}: largest difference", "0", number(largest), largest > by, refutes=True)
    if isinstance(measured, str) or isinstance(notes_say, str):
        return Measurement(what, str(notes_say), str(measured), measured != notes_say, refutes=True)
    differs = abs(float(measured) - float(notes_say)) > by
    return Measurement(what, number(float(notes_say)), number(float(measured)), differs, refutes=True)


def number(value: float) -> str:
    """A number as people read it: integers with commas, others with four significant digits, or three and a power of ten."""
    if abs(value) < 1e15 and value == int(value):
        return f"{int(value):,}"
    return f"{value:.2e}" if value and not 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"


def _written(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    return number(value)
