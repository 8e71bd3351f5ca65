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
                ) -> "Iterator[tuple[str, Answer | BadInput]]":  # fmt: skip
    """The answer to each input; if one of them is refused, each is tried alone."""
    readable = [item for item in items if isinstance(item, str)]
    try:
        answers: Iterator[Answer | BadInput] = iter(predict(readable) if readable else ())
    except ValueError:
        answers = (_answer_one(item, predict) for item in readable)
    for item in items:
        yield (item.source, item) if isinstance(item, BadInput) else (item, next(answers))


def _answer_one(item: str, predict: Callable[[list[str]], Sequence[Answer]]) -> Answer | BadInput:
    try:
        return predict([item])[0]
    except ValueError as error:
        return BadInput(item, str(error))


class Failures:
    """What failed so far.  `code` lists it and returns 0, or 2 if nothing succeeded or with --strict."""

    def __init__(self, *, strict: bool = False, json_: bool = False):
        self.errors: list[str] = []
        self.succeeded = 0
        self._strict, self._json = strict, json_
        self._waiting: list[str] = []  # marks that are written if anything succeeds

    def skip(self, failed: BadInput, mark: str = "") -> None:
        """Write a mark in place of the answer, so that lines of input and output belong together."""
        self.errors.append(failed.error)
        if self._json:
            write_json({"source": failed.source, "error": failed.error})
        elif self.succeeded:
            write(mark)
        else:
            self._waiting.append(mark)

    def success(self, count: int = 1) -> None:
        """Count an answer, or several; call it before they are written."""
        self.succeeded += count
        for mark in self._waiting:
            write(mark)
        self._waiting.clear()

    def code(self) -> int:
        """List the failures on standard error; the exit code."""
        if not self.errors:
            return 0
        total = len(self.errors) + self.succeeded
        if len(self.errors) == 1 or (not self.succeeded and len(set(self.errors)) == 1):
            skipped = "" if not self.succeeded else f"skipped 1 of {total:,}: "
            note(f"regard: {skipped}{self.errors[0]}")
        else:
            note(f"regard: skipped {len(self.errors):,} of {total:,}:")
            for error in self.errors[:LISTED]:
                note(f"  {error}")
            if len(self.errors) > LISTED:
                note(f"  and {len(self.errors) - LISTED:,} more")
        return 2 if self._strict or not self.succeeded else 0
