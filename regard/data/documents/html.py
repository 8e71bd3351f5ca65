"""Web pages: all markup stays byte for byte; the text of each block is translated, with the inline tags inside it.

Text in script, style, pre, code and the like, and in elements with translate="no", is not translated; `alt` and `title` are.
"""

import html
import re
from html.parser import HTMLParser
from typing import Literal, NamedTuple

from regard.data.documents.document import Document, decode_document
from regard.data.documents.inline import Mark, from_tags, to_tags

__all__ = ["read_html"]

INLINE = frozenset(["a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font",
                    "i", "img", "ins", "label", "mark", "q", "ruby", "s", "small", "span", "strike", "strong",
                    "sub", "sup", "time", "tt", "u", "wbr"])  # fmt: skip
VOID = frozenset(["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"])
CODE = frozenset(["code", "kbd", "samp", "var"])  # not translated, but inside a sentence
SKIPPED = frozenset(["script", "style", "pre", "textarea", "svg", "math", "template", "object", "iframe", "canvas", "noscript"])
MAX_OPEN = 500  # characters < in a row, without a >
# the marked sections that HTMLParser knows; it fails at others, such as <![x]>
_MARKED_SECTION = re.compile(r"(?i)<!\[(?:temp|cdata|ignore|include|rcdata|if|else|endif)(?![-_.a-z0-9])")
_ATTRIBUTE = re.compile(r"""(?i)(?<=\s)(?:alt|title)\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)')""")


_Kind = Literal["text", "open", "close", "empty", "other"]


class _Event(NamedTuple):
    kind: _Kind
    name: str
    start: int
    kept: bool  # translate="no"


class _Tokens(HTMLParser):
    """Where texts and tags start."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=False)
        self.events: list[_Event] = []
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self.feed(text)
        self.close()
        self.events.append(_Event("other", "", len(text), False))

    def _add(self, kind: _Kind, name: str = "", kept: bool = False) -> None:
        line, column = self.getpos()
        self.events.append(_Event(kind, name, self._lines[line - 1] + column, kept))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kept = any((name == "translate" and value == "no") or (name == "class" and "notranslate" in (value or "").split())
                   for name, value in attrs)  # fmt: skip
        self._add("empty" if tag in VOID else "open", tag, kept)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add("empty", tag)

    def handle_endtag(self, tag: str) -> None:
        self._add("close", tag)

    def handle_data(self, data: str) -> None:
        self._add("text")

    def handle_entityref(self, name: str) -> None:
        self._add("text")

    def handle_charref(self, name: str) -> None:
        self._add("text")

    def handle_comment(self, data: str) -> None:
        self._add("empty", "!")

    def handle_decl(self, decl: str) -> None:
        self._add("other")

    def handle_pi(self, data: str) -> None:
        self._add("other")

    def unknown_decl(self, data: str) -> None:
        self._add("other")

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """An unknown one is a comment, as in browsers."""
        if _MARKED_SECTION.match(self.rawdata, i):
            return super().parse_marked_section(i, report)
        return self.parse_bogus_comment(i)


class _Part(NamedTuple):
    """A stretch of the page: text, an inline mark, or anything else."""

    kind: _Kind
    name: str
    raw: str


class _Block(NamedTuple):
    """Parts first to last of a page are one block of text; `tags` are the tags of its inline marks."""

    first: int
    last: int
    tags: list[str]


class _Attribute(NamedTuple):
    part: int
    start: int
    end: int


def read_html(content: bytes) -> Document:
    """The text of each block and of alt and title attributes."""
    mark, page = decode_document(content)
    if max(stretch.count("<") for stretch in page.split(">")) > MAX_OPEN:  # the parser would look for the end of each of them
        raise ValueError(f"has over {MAX_OPEN:,} characters < without a > after them; is it a web page?")
    parts = _parts(page)
    blocks, texts = list[_Block | _Attribute](), list[str]()
    start = 0
    for end, part in enumerate([*parts, _Part("other", "", "")]):
        if part.kind == "other":
            _add_block(parts, start, end, blocks, texts)
            start = end + 1
        if part.kind in ("open", "empty", "other") and part.raw.startswith("<") and part.name not in (*CODE, "!", "kept"):
            for found in _ATTRIBUTE.finditer(part.raw):
                group = 1 if found[1] is not None else 2
                if any(character.isalpha() for character in found[group]):
                    blocks.append(_Attribute(end, *found.span(group)))
                    texts.append(html.unescape(found[group]))

    def render(answers: list[str]) -> bytes:
        raws, written = [part.raw for part in parts], [part.raw for part in parts]
        found = list(zip(blocks, answers, strict=True))
        for block, answer in reversed(found):  # attributes from the last, so that positions stay
            if isinstance(block, _Attribute):
                raw = raws[block.part]
                raws[block.part] = written[block.part] = raw[: block.start] + html.escape(answer) + raw[block.end :]
        for block, answer in found:
            if isinstance(block, _Block):
                marks = [n for n in range(block.first, block.last) if parts[n].kind != "text"]
                pieces = from_tags(answer, block.tags)
                text = "".join(
                    raws[marks[piece]] if isinstance(piece, int) else html.escape(piece, quote=False) for piece in pieces
                )
                head, tail = parts[block.first].raw, parts[block.last - 1].raw
                before, after = head[: len(head) - len(head.lstrip())], tail[len(tail.rstrip()) :]
                written[block.first] = before + text + after
                written[block.first + 1 : block.last] = [""] * (block.last - block.first - 1)
        return "".join([mark, *written]).encode()

    return Document(texts, render)


def _add_block(parts: list[_Part], start: int, end: int, blocks: list[_Block | _Attribute], texts: list[str]) -> None:
    """Add the text of parts start to end as a block, without the marks around it, if it has a letter."""
    spoken = [n for n in range(start, end) if parts[n].kind == "text" and parts[n].raw.strip()]
    if not spoken:
        return
    first, last = spoken[0], spoken[-1] + 1
    inside = [
        Mark(part.kind, part.name) if part.kind in ("open", "close", "empty") else re.sub(r"\s+", " ", html.unescape(part.raw))
        for part in parts[first:last]
    ]  # fmt: skip
    text, tags = to_tags(inside)
    if any(character.isalpha() for part in inside if isinstance(part, str) for character in part):
        blocks.append(_Block(first, last, tags))
        texts.append(text.strip())


def _parts(page: str) -> list[_Part]:
    """The page in pieces; what is not translated is one piece with its tags."""
    events = _Tokens(page).events
    found = list[tuple[_Kind, str, int]]()  # kind, name and start of each part; it ends where the next one starts
    skipped, depth = "", 0  # inside an element that is not translated, and how many of its name are open
    if events[0].start:
        found.append(("other", "", 0))
    for event in events[:-1]:
        if skipped:
            depth += (event.kind == "open" and event.name == skipped) - (event.kind == "close" and event.name == skipped)
            skipped = skipped if depth else ""
        elif event.kind == "open" and (event.name in SKIPPED or event.name in CODE or event.kept):
            inline = event.name in CODE or event.name in INLINE
            found.append(("empty" if inline else "other", "kept", event.start))
            skipped, depth = event.name, 1
        elif event.kind == "text":
            if not found or found[-1][0] != "text":
                found.append(("text", "", event.start))
        elif event.name in INLINE or event.name == "!":
            found.append((event.kind, event.name, event.start))
        else:
            found.append(("other", event.name, event.start))
    ends = [*(start for _, _, start in found[1:]), len(page)]
    return [_Part(kind, name, page[start:end]) for (kind, name, start), end in zip(found, ends, strict=False)]
