"""Answers as HTML for notebooks; all text is escaped."""

import html
from collections.abc import Sequence
from typing import Protocol

from regard.data.terminal import printable

__all__ = ["ScoredAnswer", "answer_html", "answer_repr", "n_best_html", "shorten"]

MAX_SHOWN = 60  # letters of a text in a `repr`


class ScoredAnswer(Protocol):
    """A text that a search found."""

    @property
    def text(self) -> str:
        """The text itself."""

    @property
    def score(self) -> float | None:
        """How likely the model finds it, if that was computed."""


def shorten(text: str) -> str:
    """A text for a `repr`: quoted, and cut if it is long."""
    return repr(text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…")


def answer_repr(answer: ScoredAnswer) -> str:
    """The `repr` of an answer: its class, its text and its score, if it was computed."""
    score = "" if answer.score is None else f", score {answer.score:.3f}"
    return f"{type(answer).__name__}({shorten(answer.text)}{score})"


def n_best_html(answer: ScoredAnswer, n_best: Sequence[ScoredAnswer]) -> str:
    """An answer, and a table of the best ones with their scores if there are several."""
    best = [(f"{one.score:.3f}", one.text) for one in n_best if one.score is not None]
    return answer_html(answer.text, ("score", "text"), best if len(best) > 1 else ())


def answer_html(text: str, headings: Sequence[str] = (), rows: Sequence[Sequence[str]] = ()) -> str:
    """A text, and a table below it if there are rows."""
    body = f"<p>{_escape(text) or '<i>(empty)</i>'}</p>"
    if not rows:
        return body
    head = "".join(f"<th>{_escape(heading)}</th>" for heading in headings)
    lines = "".join("<tr>" + "".join(f"<td>{_escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"{body}<table><tr>{head}</tr>{lines}</table>"


def _escape(text: str) -> str:
    """Escape markup and control characters."""
    return html.escape(printable(text))
