"""Translation memories (TMX), streamed.

A unit (`tu`) has a variant (`tuv`) for each language, with the text in `seg`.  Regional variants count as their language: en-US
is en.  Tags inside a text stand for formatting codes and are dropped.  No entity is expanded and no file is fetched: a document
that declares entities is refused.

https://www.gala-global.org/tmx-14b
"""

import html
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from regard.data.files import MAX_LINE, gzip_errors, open_bytes
from regard.data.text.columns import language_of, parse_pair, require_agreement
from regard.data.text.rows import ALL, BadRow, ReadNotes, Row

__all__ = ["read_tmx"]

CHUNK = 1 << 16  # bytes parsed at once
MAX_TOKEN = 1 << 22  # bytes of one tag or comment, which the parser keeps in memory
MAX_VARIANTS = 1000  # of one unit
MAX_LANGUAGES = 1000  # of a file, counted to choose two
NAMED = 5  # other languages that are reported
CODES = frozenset(("bpt", "ept", "it", "ph", "ut"))  # their content is formatting, not text


class _Units:
    """Handlers of the parser: they collect the languages and texts of each unit."""

    def __init__(self, file: Path):
        self.file = file
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
        self.root = self.source_language = ""

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self.root = self.root or name
        if self._inside_code or (self._parts is not None and name in CODES):
            self._inside_code += 1
        elif name == "header":
            self.source_language = attributes.get("srclang") or ""
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
        raise ValueError(f"{self.file} declares XML entities, which regard does not expand; remove the declarations")


def read_tmx(file: Path, columns: str, pair: str, notes: ReadNotes) -> Iterator[Row | BadRow]:
    """Stream the texts of two languages: of `pair` or `columns` ("en-de", "en,de"), else those that `_choose` finds."""
    languages, others = _languages(columns, pair, file), ""
    if languages is None:
        about = file.stat()
        languages, others = _choose(file, about.st_size, about.st_mtime_ns)
    for line, variants in _read_units(_Units(file)):
        if languages is None:
            yield BadRow(line, "is a unit of one language", "wanted two, such as en and de", ALL)
            continue
        notes.columns[str(file)] = f"{languages[0]} to {languages[1]}{others}"
        notes.names[str(file)] = languages
        sources, targets = ([text for language, text in variants if _matches(language, wanted)] for wanted in languages)
        if sources and targets:
            yield (sources[0], *targets)
        else:
            lacks = languages[0] if not sources else languages[1]
            has = ", ".join(dict.fromkeys(language for language, _ in variants)) or "no text"
            yield BadRow(line, f"is a unit without {lacks}", f"it has {has}; choose languages with data.pair=en-de", ALL)


class _Choice(NamedTuple):
    languages: tuple[str, str] | None  # source and target; None, if no unit has two
    others: str  # what to report of the other languages


@lru_cache(maxsize=256)  # the file is read several times before training
def _choose(file: Path, size: int, modified: int) -> _Choice:
    """The language that the header calls the source (else the first of the first unit), and the one most units have with it."""
    units, counts, first = _Units(file), Counter[str](), ""
    together: dict[str, Counter[str]] = {}  # of the header's language and the first one: units that have another, too
    for _, variants in _read_units(units):
        found = list(dict.fromkeys(_code(language) for language, _ in variants))
        counts.update(found if len(counts) < MAX_LANGUAGES else [language for language in found if language in counts])
        if len(found) < 2:
            continue
        first = first or found[0]
        for source in {first, _source_language(units)}.intersection(found):
            together.setdefault(source, Counter()).update(
                language for language in found if language != source and counts[language]
            )
    source = named if (named := _source_language(units)) in together else first
    if not source:
        return _Choice(None, "")
    target = together[source].most_common(1)[0][0]
    rest = [(language, count) for language, count in counts.most_common() if language not in (source, target)]
    shown = ", ".join(f"{language} ({count:,} unit{'s' * (count > 1)})" for language, count in rest[:NAMED])
    more = f" and {len(rest) - NAMED} more" if len(rest) > NAMED else ""
    return _Choice((source, target), f"; also {shown}{more}; choose with data.pair={source}-{rest[0][0]}" if rest else "")


def _source_language(units: _Units) -> str:
    return _code(units.source_language.lower().replace("_", "-"))


def _read_units(units: _Units) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    file, fed = units.file, 0
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
    return language == wanted if "-" in wanted else _code(language) == _code(wanted)


def _code(language: str) -> str:
    """The code of a language without its region: "en" of en-us, of eng and of english."""
    base = language.split("-")[0]
    return language_of(base) or base
