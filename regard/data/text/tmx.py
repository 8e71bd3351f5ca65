"""Translation memories (TMX), streamed.

A unit (`tu`) has a variant (`tuv`) for each language, with the text in `seg`.  Regional variants count as their language: en-US
is en.  Tags inside a text stand for formatting codes and are dropped.  No entity is expanded and no file is fetched: a document
that declares entities is refused.

https://www.gala-global.org/tmx-14b
"""

import html
from collections.abc import Iterator
from pathlib import Path
from xml.parsers import expat

from regard.data.files import MAX_LINE, gzip_errors, open_bytes
from regard.data.text.columns import language_of, parse_pair, require_agreement
from regard.data.text.rows import ALL, BadRow, ReadNotes, Row

__all__ = ["read_tmx"]

CHUNK = 1 << 16  # bytes parsed at once
MAX_TOKEN = 1 << 22  # bytes of one tag or comment, which the parser keeps in memory
MAX_VARIANTS = 1000  # of one unit
CODES = frozenset(("bpt", "ept", "it", "ph", "ut"))  # their content is formatting, not text


class _Units:
    """Handlers of the parser: they collect the languages and texts of each unit."""

    def __init__(self, file: Path):
        self._file = file
        self.units: list[tuple[int, list[tuple[str, str]]]] = []  # complete ones: line, (language, text) of each variant
        self.parser = expat.ParserCreate(namespace_separator=None)
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.EntityDeclHandler = self._entity
        self.parser.SkippedEntityHandler = self._skipped
        self._variants: list[tuple[str, str]] = []
        self._language, self._line, self._size = "", 0, 0
        self._parts: list[str] | None = None  # texts of the current seg
        self._inside_code = 0
        self.root = ""

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self.root = self.root or name
        if self._inside_code or (self._parts is not None and name in CODES):
            self._inside_code += 1
        elif name == "tu":
            self._variants, self._line = [], self.parser.CurrentLineNumber
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg":
            self._parts, self._size = [], 0

    def _end(self, name: str) -> None:
        if self._inside_code:
            self._inside_code -= 1
        elif name == "seg" and self._parts is not None:
            if len(self._variants) < MAX_VARIANTS:
                text = "".join(self._parts) if self._size <= MAX_LINE else ""
                self._variants.append((self._language.lower().replace("_", "-"), text))
            self._parts = None
        elif name == "tu":
            self.units.append((self._line, self._variants))

    def _text(self, text: str) -> None:
        if self._parts is not None and not self._inside_code:
            self._size += len(text)
            if self._size <= MAX_LINE:
                self._parts.append(text)

    def _skipped(self, name: str, is_parameter: bool) -> None:
        if not is_parameter:
            self._text(html.unescape(f"&{name};"))

    def _entity(self, *_: object) -> None:
        raise ValueError(f"{self._file} declares XML entities, which regard does not expand; remove the declarations")


def read_tmx(file: Path, columns: str, pair: str, notes: ReadNotes) -> Iterator[Row | BadRow]:
    """Stream the texts of two languages: of `pair` or `columns` ("en-de", "en,de"), else the first two found."""
    languages: tuple[str, str] | None = _languages(columns, pair, file)
    for line, variants in _read_units(file):
        if languages is None:
            found = list(dict.fromkeys(language.split("-")[0] for language, _ in variants))
            if len(found) < 2:
                yield BadRow(line, "is a unit of one language", "wanted two, such as en and de", ALL)
                continue
            languages = (found[0], found[1])
        notes.columns[str(file)] = f"{languages[0]} to {languages[1]}"
        notes.names[str(file)] = languages
        sources, targets = ([text for language, text in variants if _matches(language, wanted)] for wanted in languages)
        if sources and targets:
            yield (sources[0], *targets)
        else:
            lacks = languages[0] if not sources else languages[1]
            has = ", ".join(dict.fromkeys(language for language, _ in variants)) or "no text"
            yield BadRow(line, f"is a unit without {lacks}", f"it has {has}; choose languages with data.pair=en-de", ALL)


def _read_units(file: Path) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    units, fed = _Units(file), 0
    try:
        with gzip_errors(file), open_bytes(file) as stream:
            while chunk := stream.read(CHUNK):
                units.parser.Parse(chunk, False)
                fed += len(chunk)
                if fed - max(units.parser.CurrentByteIndex, 0) > MAX_TOKEN:
                    raise ValueError(f"{file} has a tag of over {MAX_TOKEN:,} bytes; give a TMX file")
                yield from units.units
                units.units.clear()
            units.parser.Parse(b"", True)
    except expat.ExpatError as error:
        why = f"{expat.ErrorString(error.code)}, line {error.lineno}"
        raise ValueError(f"{file} is not well-formed XML ({why}); export it again") from None
    yield from units.units
    if units.root != "tmx":
        raise ValueError(f"{file} is XML of the type {units.root!r}; wanted a translation memory, <tmx>: export it as TMX")


def _languages(columns: str, pair: str, file: Path) -> tuple[str, str] | None:
    """The languages asked for; names of columns that are no languages are meant for other files."""
    parts = [part.strip().lower().replace("_", "-") for part in columns.split(",")]
    if len(parts) == 2 and all(map(language_of, parts)):
        require_agreement(parts, columns, pair, file)
        first, second = (part if "-" in part else language_of(part) for part in parts)
        return first, second
    return parse_pair(pair) if pair else None


def _matches(language: str, wanted: str) -> bool:
    return language == wanted if "-" in wanted else language.split("-")[0] == wanted
