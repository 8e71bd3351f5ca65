"""Plain text: line breaks stay, except in paragraphs that were wrapped by hand, which are wrapped again at their width."""

import re
import textwrap
from itertools import pairwise

from regard.data.documents.document import Document, decode_document

__all__ = ["read_txt"]

_PARAGRAPHS = re.compile(r"((?<![ \t])(?:[ \t]*+(?:\r\n|\n|\r(?!\n))){2,})")  # possessive: linear in a long row of spaces
_BREAK = re.compile(r"\r\n|\n|\r")
MIN_WIDTH, MAX_WIDTH = 40, 120  # of a line that was wrapped by hand


def read_txt(content: bytes) -> Document:
    """The paragraphs of a text; those that were wrapped by hand without their line breaks."""
    mark, text = decode_document(content)
    parts = _PARAGRAPHS.split(text)
    widths = [_wrapped_at(part) if number % 2 == 0 else 0 for number, part in enumerate(parts)]
    blocks = [number for number, part in enumerate(parts) if number % 2 == 0 and part.strip()]
    texts = [" ".join(line.strip() for line in _BREAK.split(parts[n])) if widths[n] else parts[n] for n in blocks]

    def render(answers: list[str]) -> bytes:
        written = list(parts)
        for number, answer in zip(blocks, answers, strict=True):
            written[number] = _wrap(answer, parts[number], widths[number]) if widths[number] else answer
        return "".join([mark, *written]).encode()

    return Document(texts, render)


def _wrapped_at(paragraph: str) -> int:
    """The width at which a paragraph was wrapped, 0 if its lines are lines: verses, lists, one sentence each.

    Wrapped by hand means that no line could have taken the first word of the next one, and that one line at least goes on in the
    middle of a sentence.
    """
    lines = [line for line in _BREAK.split(paragraph) if line.strip()]
    if len(lines) < 2:
        return 0
    width = max(len(line.rstrip()) for line in lines)
    if not MIN_WIDTH <= width <= MAX_WIDTH:
        return 0
    pairs = list(pairwise(lines))
    full = all(len(line.rstrip()) + 1 + len(after.split()[0]) > width for line, after in pairs)
    goes_on = any(after.lstrip()[0].islower() for _, after in pairs)
    return width if full and goes_on and not any(after[0] in " \t-*•" for _, after in pairs) else 0


def _wrap(text: str, before: str, width: int) -> str:
    breaks = _BREAK.findall(before)
    indent = before[: len(before) - len(before.lstrip())]
    lines = textwrap.wrap(text.strip(), width, initial_indent=indent, break_long_words=False, break_on_hyphens=False)
    tail = breaks[-1] if before.endswith(("\n", "\r")) else ""
    return breaks[0].join(lines) + tail
