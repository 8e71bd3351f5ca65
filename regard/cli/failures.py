"""Inputs that cannot be answered: skipped, marked, and listed once at the end; the others are answered."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from regard.cli.io import note, write, write_json

__all__ = ["BadInput", "Failures", "answer_each"]

Answer = TypeVar("Answer")
LISTED = 50  # failures that are listed, of any number


class BadInput(NamedTuple):
    """An input that could not be read or answered, and why."""

    source: str
    error: str


def answer_each(items: "Sequence[str | BadInput]", predict: Callable[[list[str]], Sequence[Answer]],
                refused: type[ValueError] = ValueError) -> "Iterator[tuple[str, Answer | BadInput]]":  # fmt: skip
    """The answer to each input; if one of them is refused, the others are answered in smaller batches."""
    answers = _answer_halves([item for item in items if isinstance(item, str)], predict, refused)
    for item in items:
        yield (item.source, item) if isinstance(item, BadInput) else (item, next(answers))


def _answer_halves(items: list[str], predict: Callable[[list[str]], Sequence[Answer]], refused: type[ValueError],
                   ) -> "Iterator[Answer | BadInput]":  # fmt: skip
    try:
        answers = predict(items) if items else ()
    except refused as error:
        if len(items) == 1:
            yield BadInput(items[0], str(error))
            return
        middle = len(items) // 2
        yield from _answer_halves(items[:middle], predict, refused)
        yield from _answer_halves(items[middle:], predict, refused)
        return
    yield from answers


class Failures:
    """What failed so far.  `code` lists it and returns 0, or 2 if nothing succeeded or with --strict."""

    def __init__(self, *, strict: bool = False, json_: bool = False):
        self.failed = self.succeeded = 0
        self._strict, self._json = strict, json_
        self._errors: list[str] = []  # the first ones
        self._alike = True  # all errors are the same
        self._waiting: list[str] = []  # marks that are written if anything succeeds, or if they are many

    def count(self, failed: BadInput) -> None:
        """Count an input that has no line of output."""
        self.failed += 1
        self._alike = self._alike and (not self._errors or failed.error == self._errors[0])
        if len(self._errors) < LISTED:
            self._errors.append(failed.error)

    def skip(self, failed: BadInput, mark: str = "") -> None:
        """Write a mark in place of the answer, so that lines of input and output belong together."""
        self.count(failed)
        if self._json:
            write_json({"source": failed.source, "error": failed.error})
        elif self.succeeded or self.failed > LISTED:
            self._write_waiting()
            write(mark)
        else:
            self._waiting.append(mark)

    def success(self, count: int = 1) -> None:
        """Count an answer, or several; call it before they are written."""
        self.succeeded += count
        self._write_waiting()

    def _write_waiting(self) -> None:
        for mark in self._waiting:
            write(mark)
        self._waiting.clear()

    def code(self) -> int:
        """List the failures on standard error; the exit code."""
        if not self.failed:
            return 0
        total = self.failed + self.succeeded
        if self.failed == 1 or (not self.succeeded and self._alike):
            skipped = "" if not self.succeeded else f"skipped 1 of {total:,}: "
            note(f"regard: {skipped}{self._errors[0]}")
        else:
            note(f"regard: skipped {self.failed:,} of {total:,}:")
            for error in self._errors:
                note(f"  {error}")
            if self.failed > LISTED:
                note(f"  and {self.failed - LISTED:,} more")
        return 2 if self._strict or not self.succeeded else 0
