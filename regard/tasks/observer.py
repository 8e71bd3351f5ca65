"""Someone who follows an answer while it is decoded: reads the text so far, and may stop waiting for the rest."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from regard.decode.search import Observer, Observers
from regard.tasks.joining import join_texts

__all__ = ["SentenceObserver", "TextObserver", "Unwanted", "observe_sentences", "quiet", "require_wanted"]


class TextObserver(Protocol):
    """Follows the answer to one text; asked after each step, in the threads that decode."""

    @property
    def wanted(self) -> bool:
        """False once nobody waits for the answer: its sentences leave the batch before the next step."""

    @property
    def partial(self) -> Callable[[str], None] | None:
        """Gets the text so far after each step, which may replace the one before; None if only the answer is wanted."""


class Unwanted(Exception):
    """An answer was given up because nobody waits for it any more."""


def require_wanted(observer: TextObserver | None) -> None:
    """Give up, between two searches or passes of a longer computation, if nobody waits for the result."""
    if observer is not None and not observer.wanted:
        raise Unwanted("nobody waits for the answer any more")


class TextProgress:
    """What is translated of one text: its sentences up to the first that is not complete."""

    def __init__(self, show: Callable[[str], None], parts: Sequence[str], decode: Callable[[list[int]], str]):
        self.show, self.parts, self.decode = show, parts, decode
        self.answers, self.done = [""] * (len(parts) // 2), [False] * (len(parts) // 2)
        self.lock = threading.Lock()  # sentences are decoded in several threads

    def update(self, sentence: int, tokens: list[int], done: bool) -> None:
        """The best output so far of a sentence, or its result."""
        with self.lock:
            visible = all(self.done[:sentence])
            self.answers[sentence], self.done[sentence] = self.decode(tokens), done
            if not visible:
                return
            if all(self.done):
                self.show(join_texts(self.parts, self.answers))
            else:
                count = self.done.index(False) + 1
                self.show(join_texts([*self.parts[: 2 * count], ""], self.answers[:count]))


@dataclass(frozen=True)
class SentenceObserver:
    """The observer of a sentence of a text."""

    text: TextObserver | Observer
    partial: Callable[[list[int], bool], None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether anyone waits for the text."""
        return self.text.wanted


def observe_sentences(observers: Sequence[TextObserver | None], pieces: Sequence[Sequence[str]],
                      decode: Callable[[list[int]], str]) -> list[Observer | None]:  # fmt: skip
    """An observer of each sentence of each text; `pieces` are the spaces and sentences of each in turn."""
    found: list[Observer | None] = []
    for observer, parts in zip(observers, pieces, strict=True):
        count = len(parts) // 2
        if observer is None:
            found += [None] * count
        elif observer.partial is None:
            found += [SentenceObserver(observer)] * count
        else:
            update = TextProgress(observer.partial, parts, decode).update
            found += [SentenceObserver(observer, partial(update, sentence)) for sentence in range(count)]
    return found


def quiet(observers: Observers | None, rows: Sequence[int]) -> Observers | None:
    """The observers of some sentences that are searched again, of which nothing is shown."""
    if observers is None:
        return None
    return [SentenceObserver(of) if (of := observers[row]) is not None else None for row in rows]
