"""Subtitles: numbers and times stay byte for byte; the lines of a cue are joined, translated and wrapped again."""

import re
import textwrap

from regard.data.documents.document import Document, decode_document

__all__ = ["read_srt"]

_TIME = r"\d+:\d{2}:\d{2}[,.]\d{1,3}[ \t]*-->[ \t]*\d+:\d{2}:\d{2}[,.]\d{1,3}[^\r\n]*"
_END = r"(?:\r\n|\n|\r(?!\n))"
# The line of times, then the lines up to an empty one, or up to the next line of times and the number before it.
_CUE = re.compile(
    rf"(?P<time>^{_TIME}{_END})(?P<text>(?:(?!(?:\d+[ \t]*{_END})?{_TIME})[^\r\n]*\S[^\r\n]*(?:{_END}|\Z))+)", re.MULTILINE
)
_SPEAKER = re.compile(r"(?:<[^<>]{0,40}>)*\s*[-–—]")
_BREAK = re.compile(r"\r\n|\n|\r")
WIDTH = 42  # characters of a line of subtitles


def read_srt(content: bytes) -> Document:
    """The text of each cue; a cue with a line that begins with a dash, after the first, is a dialogue and keeps its lines."""
    mark, text = decode_document(content)
    if not re.search(rf"^{_TIME}", text, re.MULTILINE):
        raise ValueError("has no line of times such as 00:00:01,000 --> 00:00:02,000; is it a subtitle file?")
    cues = list(_CUE.finditer(text))
    texts = []
    for cue in cues:
        lines = [line.strip() for line in _BREAK.split(cue["text"]) if line.strip()]
        texts.append(("\n" if _is_dialogue(lines) else " ").join(lines))

    def render(answers: list[str]) -> bytes:
        parts, at = [mark], 0
        for cue, answer in zip(cues, answers, strict=True):
            ending = _BREAK.search(cue["time"])
            newline = ending[0] if ending else "\n"
            last = _BREAK.search(cue["text"], len(cue["text"]) - 2) if len(cue["text"]) > 1 else None
            count = len([line for line in _BREAK.split(cue["text"]) if line.strip()])
            lines = _BREAK.split(answer) if "\n" in answer else _wrap(answer, count)
            body = newline.join(line for line in lines if line.strip())
            parts += [text[at : cue.start("text")], body, newline if last else ""]
            at = cue.end()
        return "".join([*parts, text[at:]]).encode()

    return Document(texts, render)


def _is_dialogue(lines: list[str]) -> bool:
    return any(_SPEAKER.match(line) for line in lines[1:])


def _wrap(text: str, count: int) -> list[str]:
    """Lines of about the same length: as many as before, more only if they would be too long."""
    rows = max(count if len(text) > WIDTH // 2 else 1, -(-len(text) // (2 * WIDTH)))
    for width in range(max(1, len(text) // rows), len(text) + 1):
        lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
        if len(lines) <= rows:
            return lines
    return [text]
