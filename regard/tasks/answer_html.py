"""Answers as HTML for notebooks; all text is escaped."""

import html
from collections.abc import Sequence

__all__ = ["answer_html", "shorten"]

MAX_SHOWN = 60  # letters of a text in a `repr`


def shorten(text: str) -> str:
    """A text for a `repr`: quoted, and cut if it is long."""
    return repr(text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…")


def answer_html(text: str, headings: Sequence[str] = (), rows: Sequence[Sequence[str]] = ()) -> str:
    """A text, and a table below it if there are rows."""
    body = f"<p>{_escape(text) or '<i>(empty)</i>'}</p>"
    if not rows:
        return body
    head = "".join(f"<th>{_escape(heading)}</th>" for heading in headings)
    lines = "".join("<tr>" + "".join(f"<td>{_escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"{body}<table><tr>{head}</tr>{lines}</table>"


def _escape(text: str) -> str:
    """Escape markup, and replace control characters."""
    return html.escape("".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in text))
