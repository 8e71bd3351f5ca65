"""Which columns of a table hold source and target, and whether its first row is a header."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["DEFAULT", "Columns", "choose_columns", "choose_languages", "column_names", "is_header", "language_name",
           "language_of", "parse_pair", "require_agreement"]  # fmt: skip

DEFAULT = "source,target"

_CODES = """
af am ar as az be bg bn br bs ca cs cy da de el en eo es et eu fa fi fil fo fr fy ga gd gl gu ha he hi hr ht
hu hy id ig is it ja jv ka kk km kn ko ku ky la lb ln lo lt lv mg mi mk ml mn mr ms mt my nb ne nl nn no oc or
pa pl ps pt ro ru rw sa sd si sk sl sm sn so sq sr st su sv sw ta te tg th ti tk tl tn tr ts tt ug uk ur uz vi
wo xh yi yo zh zu
"""
_LANGUAGES = """
afrikaans:af arabic:ar basque:eu bengali:bn bulgarian:bg catalan:ca chinese:zh croatian:hr czech:cs danish:da
dutch:nl english:en estonian:et finnish:fi french:fr galician:gl german:de greek:el gujarati:gu hebrew:he
hindi:hi hungarian:hu icelandic:is indonesian:id irish:ga italian:it japanese:ja korean:ko latin:la latvian:lv
lithuanian:lt malay:ms marathi:mr norwegian:no persian:fa polish:pl portuguese:pt punjabi:pa romanian:ro
russian:ru serbian:sr slovak:sk slovenian:sl spanish:es swahili:sw swedish:sv tamil:ta telugu:te thai:th
turkish:tr ukrainian:uk urdu:ur vietnamese:vi welsh:cy deutsch:de englisch:en französisch:fr italienisch:it
spanisch:es anglais:en français:fr allemand:de inglese:en italiano:it tedesco:de francese:fr español:es
inglés:en português:pt polski:pl русский:ru українська:uk čeština:cs nederlands:nl svenska:sv dansk:da
norsk:no suomi:fi magyar:hu türkçe:tr हिन्दी:hi 中文:zh 日本語:ja 한국어:ko
eng:en deu:de ger:de fra:fr fre:fr ita:it spa:es por:pt nld:nl dut:nl rus:ru hin:hi zho:zh chi:zh jpn:ja kor:ko ara:ar
pol:pl ces:cs cze:cs swe:sv dan:da fin:fi nor:no tur:tr ukr:uk ell:el gre:el heb:he hun:hu ron:ro rum:ro bul:bg hrv:hr
srp:sr slk:sk slo:sk slv:sl vie:vi tha:th ind:id est:et lav:lv lit:lt cat:ca eus:eu glg:gl ben:bn tam:ta tel:te urd:ur
fas:fa per:fa
"""
_NAMES = """
source target src tgt trg text texts label labels class classes category sentiment topic intent sentence sentence1 sentence2
sentences term terms translation translations original reference ref references input output utterance review comment
title question answer language lang source_text target_text source_language target_language source_lang
target_lang sourcetext targettext quelle ziel ausgangstext zieltext
"""
_CODE_OF = {code: code for code in _CODES.split()} | dict(name.split(":") for name in _LANGUAGES.split())
_NAME_OF = {code: name for name, code in reversed([pair.split(":") for pair in _LANGUAGES.split()])}  # the first is English
_NUMBERS = ("id", "no")  # more often the number of a row than Indonesian or Norwegian
_COLUMN_NAMES = frozenset(_NAMES.split())


class Columns(NamedTuple):
    """The columns of a table to read, and their names if it has a header row."""

    indexes: tuple[int, ...]  # source first
    header: tuple[str, ...] = ()


def column_names(columns: str) -> list[str]:
    """The parts of `data.columns`: names, numbers from 1, or keys with dots."""
    names = [name.strip() for name in columns.split(",")]
    if len(names) < 2 or not all(names):
        raise ValueError(f"data.columns is {columns!r}; wanted two keys such as 'source,target', or numbers such as 1,2")
    return names


def parse_pair(pair: str) -> tuple[str, str]:
    """The two languages of `data.pair`, source first."""
    parts = [part.strip().lower().replace("_", "-") for part in pair.split("-")]
    if len(parts) != 2 or not all(parts):
        raise ValueError(f"data.pair is {pair!r}; wanted two languages, such as en-de; with regions, data.columns=en,pt-br")
    return language_of(parts[0]) or parts[0], language_of(parts[1]) or parts[1]


def choose_languages(names: Sequence[str], pair: str, file: Path, lenient: bool = False) -> tuple[int, int] | None:
    """The indexes of the columns or keys in the languages of `pair`; None, if there are none and `lenient` allows it."""
    languages = [_language_of_key(name) for name in names]
    source, target = parse_pair(pair)
    if source in languages and target in languages:
        return languages.index(source), languages.index(target)
    if lenient:
        return None
    shown = ", ".join(repr(name[:30]) for name in names[:8])
    raise ValueError(f"data.pair={pair} is for files that name their languages; {file} has {shown}: leave data.pair out, or say "
                     "which columns are source and target, such as data.columns=1,2")  # fmt: skip


def require_agreement(names: Sequence[str], columns: str, pair: str, file: Path) -> None:
    """Refuse columns chosen by `data.columns` whose names are languages, but not those of `data.pair`."""
    languages = tuple(map(_language_of_key, names[:2]))
    if pair and languages and all(map(language_of, languages)) and languages != parse_pair(pair):
        raise ValueError(f"data.pair={pair} and data.columns={columns} choose different languages of {file}; give one of them")


def _language_of_key(name: str) -> str:
    """The language of a column, or of the last part of a nested key."""
    return language_of(name) or language_of(name.rpartition(".")[2]) or name.strip().casefold()


def choose_columns(first: Sequence[str], columns: str, file: Path, lenient: bool = False, pair: str = "") -> Columns:
    """Find the columns in the first row; with `lenient`, names that it lacks mean the first columns.

    `pair` chooses the columns of its languages, unless `columns` names others.
    """
    if pair and columns == DEFAULT:
        if both := choose_languages(first, pair, file, lenient):
            return Columns(both, tuple(first[index].strip() for index in both))
    elif pair and not lenient:
        found = choose_columns(first, columns, file)
        require_agreement(found.header, columns, pair, file)
        return found
    names, cells = column_names(columns), [cell.strip() for cell in first]
    lower = [cell.casefold() for cell in cells]
    if all(name.isdecimal() for name in names):
        indexes = tuple(int(name) - 1 for name in names)
        if min(indexes) < 0 or max(indexes) >= len(cells):
            raise ValueError(
                f"data.columns={columns} asks for column {max(indexes) + 1}; {file} has {len(cells)}, counted from 1"
            )
        chosen = tuple(cells[index] for index in indexes)
        return Columns(indexes, chosen if is_header(chosen) else ())
    if all(name.casefold() in lower for name in names):
        indexes = tuple(lower.index(name.casefold()) for name in names)
        return Columns(indexes, tuple(cells[index] for index in indexes))
    if columns != DEFAULT and not lenient:
        lacks = next(name for name in names if name.casefold() not in lower)
        shown = ", ".join(repr(cell[:30]) for cell in cells[:8])
        raise ValueError(f"{file} has no column {lacks!r}, its first row is {shown}; name two columns of its header row, or give "
                         "numbers, such as data.columns=1,2")  # fmt: skip
    return _guess_columns(cells)


def _guess_columns(cells: list[str]) -> Columns:
    """The first two columns, or those that a header row names as languages or texts: of "ID, English, German" the last two."""
    if is_header(cells[:2]) and not any(cell.casefold() in _NUMBERS for cell in cells[:2]):
        return Columns((0, 1), tuple(cells[:2]))
    for is_kind in (language_of, _is_name):
        named = [index for index, cell in enumerate(cells) if is_kind(cell) and cell.casefold() not in _NUMBERS]
        if len(named) > 1 and is_header([cells[index] for index in named[:2]]):
            return Columns((named[0], named[1]), (cells[named[0]], cells[named[1]]))
    return Columns((0, 1), tuple(cells) if len(cells) == 2 and is_header(cells) else ())


def is_header(cells: Sequence[str]) -> bool:
    """Whether these cells are names of columns: languages, their codes, or words such as source and label."""
    return len(cells) > 1 and len({cell.casefold() for cell in cells}) == len(cells) and all(map(_is_name, cells))


def _is_name(cell: str) -> bool:
    return _plain(cell).replace(" ", "_") in _COLUMN_NAMES or bool(language_of(cell))


def _plain(cell: str) -> str:
    return re.sub(r"\s*\([^)]*\)$", "", cell.strip().casefold())  # "English (US)"


def language_of(name: str) -> str:
    """The code of a language from its name or code, without a region: "en" for English and en-US; "" if it is neither."""
    word = _plain(name)
    return _CODE_OF.get(word) or _CODE_OF.get(code[1] if (code := re.match(r"([a-z]{2,3})[-_][a-z]{2,4}$", word)) else "", "")


def language_name(code: str) -> str:
    """The English name of a language, or its code if that is not known."""
    name = _NAME_OF.get(language_of(code))
    return name.title() if name else code
