"""Translating a document as a whole, and what to report about translations."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.failures import BadInput, Failures, answer_each
from regard.cli.io import note, show_progress, write
from regard.data.documents import SUFFIXES, Document, read_document

if TYPE_CHECKING:
    from regard.tasks.translation import Translation

__all__ = ["AnswerNotes", "is_document", "prepare_document", "translate_document"]

BLOCKS = 256  # blocks of text translated together
LOW_COVERAGE = 0.5


def is_document(file: Path | None, out: Path | None) -> bool:
    """Whether --input is a document; a .txt file is one only with --out, otherwise its lines are texts."""
    return out is not None or (file is not None and file.suffix.lower() in SUFFIXES and file.suffix.lower() != ".txt")


def prepare_document(file: Path | None, out: Path | None, texts: list[str] | None, n_best: int, json_: bool) -> Document:
    """Read the document of --input, and refuse what would end badly before a model is loaded."""
    if file is None or texts:
        raise ValueError(f"--out {out} is for documents; give one with --input FILE, and no texts")
    if file.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"--out {out} is for documents ({', '.join(SUFFIXES)}), not {file}; leave it out and redirect the output"
        )
    if n_best > 1 or json_:
        raise ValueError(f"{file} is a document, which has one translation; leave out --n-best and --json")
    if out is not None and out.suffix.lower() != file.suffix.lower():
        raise ValueError(f"--out {out} for {file}; the format is kept, so use the ending {file.suffix}")
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"no folder {out.parent}; make it, or choose another --out")
    if out is not None and out.exists() and (not file.exists() or out.samefile(file)):
        raise ValueError(f"--out {out} would overwrite the document; choose another file")
    if out is None and file.suffix.lower() == ".docx":
        raise ValueError(f"{file} is no plain text; give --out FILE.docx for its translation")
    return read_document(file)


def translate_document(
    search: "Callable[..., list[Translation]]", document: Document, out: Path | None, failures: Failures
) -> int:
    """Translate the blocks of a document and write it; a block that must be skipped stays as it is."""
    from regard.data.files import write_atomic
    from regard.decode.constraints import PhrasesTooLong
    from regard.tasks.answer_html import shorten

    notes, answers = AnswerNotes(), list[str]()
    with show_progress("translating", total=len(document.texts)) as count:
        for first in range(0, len(document.texts), BLOCKS):
            some = document.texts[first : first + BLOCKS]
            predict = partial(search, progress=partial(count, first))
            for number, (block, answer) in enumerate(answer_each(some, predict, PhrasesTooLong), first + 1):
                if isinstance(answer, BadInput):
                    failures.count(answer._replace(error=f"block {number}, {shorten(block)}: {answer.error}"))
                    answers.append(block)
                    continue
                failures.success()
                notes.add(answer)
                answers.append(answer.text)
    if failures.failed and not failures.succeeded:  # a copy in the source language is no translation
        return failures.code()
    content = document.render(answers)
    if out is not None:
        write_atomic(out, content)
        write(f"saved {out}, {_count(failures.succeeded, 'block')} of text translated")
    elif sys.stdout.isatty():
        write(content.decode("utf-8", "replace"), end="")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    notes.report()
    return failures.code()


class AnswerNotes:
    """Counts what is off in translations, and says so in one line."""

    def __init__(self) -> None:
        self.unknown = self.texts_with_unknown = self.cut = self.restored = self.low = 0

    def add(self, answer: "Translation") -> None:
        """Count what is off in one answer."""
        self.unknown += answer.unknown
        self.texts_with_unknown += answer.unknown > 0
        self.cut += answer.cut
        self.restored += answer.restored
        self.low += answer.coverage is not None and answer.coverage < LOW_COVERAGE

    def report(self) -> None:
        """One line on standard error, if anything is off."""
        found = []
        if self.unknown:
            found.append(f"{_count(self.unknown, 'token')} in {_count(self.texts_with_unknown, 'text')} unknown to this model")
        if self.cut:
            found.append(f"{_count(self.cut, 'sentence')} longer than this model takes, translated in pieces")
        if self.restored:
            found.append(f"{_count(self.restored, 'placeholder')} (tags, addresses, numbers too) put back")
        if self.low:
            found.append(f"{_count(self.low, 'translation')} with coverage below {LOW_COVERAGE}: something may be left out")
        if found:
            note("; ".join(found))


def _count(count: int, what: str, plural: str = "s") -> str:
    return f"{count:,} {what}{plural if count != 1 else ''}"
