"""Which columns of a table hold source and target, and whether its first row is a header."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["DEFAULT", "Columns", "choose_columns", "column_names", "is_header"]

DEFAULT = "source,target"

_CODES = """
af am ar as az be bg bn br bs ca cs cy da de el en eo es et eu fa fi fil fo fr fy ga gd gl gu ha he hi hr ht
hu hy id ig is it ja jv ka kk km kn ko ku ky la lb ln lo lt lv mg mi mk ml mn mr ms mt my nb ne nl nn no oc or
pa pl ps pt ro ru rw sa sd si sk sl sm sn so sq sr st su sv sw ta te tg th ti tk tl tn tr ts tt ug uk ur uz vi
wo xh yi yo zh zu eng deu ger fra fre ita spa por nld dut rus hin zho chi jpn kor ara pol ces cze swe dan fin
nor tur ukr ell gre heb hun ron rum bul hrv srp slk slo slv vie tha ind est lav lit cat eus glg ben tam tel
urd fas per
"""
_LANGUAGES = """
afrikaans arabic basque bengali bulgarian catalan chinese croatian czech danish dutch english estonian finnish
french galician german greek gujarati hebrew hindi hungarian icelandic indonesian irish italian japanese
korean latin latvian lithuanian malay marathi norwegian persian polish portuguese punjabi romanian russian
serbian slovak slovenian spanish swahili swedish tamil telugu thai turkish ukrainian urdu vietnamese welsh
deutsch englisch französisch italienisch spanisch anglais français allemand inglese italiano tedesco francese
español inglés português polski русский українська čeština nederlands svenska dansk norsk suomi magyar türkçe
हिन्दी 中文 日本語 한국어
"""
_NAMES = """
source target src tgt trg text texts label labels class classes category sentiment topic intent sentence
sentences translation translations original reference ref references input output utterance review comment
title question answer language lang source_text target_text source_language target_language source_lang
target_lang sourcetext targettext quelle ziel ausgangstext zieltext
"""
_KNOWN = frozenset((_CODES + _LANGUAGES + _NAMES).split())


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


def choose_columns(first: Sequence[str], columns: str, file: Path, lenient: bool = False) -> Columns:
    """Find the columns in the first row; with `lenient`, names that it lacks mean the first columns."""
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
    return Columns((0, 1), tuple(cells[:2]) if is_header(cells[:2]) else ())


def is_header(cells: Sequence[str]) -> bool:
    """Whether these cells are names of columns: languages, their codes, or words such as source and label."""
    return len(cells) > 1 and len({cell.casefold() for cell in cells}) == len(cells) and all(map(_is_name, cells))


def _is_name(cell: str) -> bool:
    word = re.sub(r"\s*\([^)]*\)$", "", cell.strip().casefold())  # "English (US)"
    word = re.sub(r"[ _-]?\d$", "", word)  # "target 2"
    code = re.match(r"([a-z]{2,3})(?:[-_][a-z]{2,4})?$", word)  # "en", "en-US"
    return word.replace(" ", "_") in _KNOWN or bool(code and code[1] in _KNOWN)
