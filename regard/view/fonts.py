"""Installed fonts that have the letters of a drawing: matplotlib draws a box for each letter its font lacks."""

import unicodedata
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["DEFAULT", "FoundFonts", "find_fonts", "missing_letters_note", "package_of", "shaping_note"]

DEFAULT = "DejaVu Sans"  # comes with matplotlib
CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH")
PLACEHOLDERS = ("Last Resort", "Adobe Blank")  # fonts whose glyphs are boxes
JOINING = ("ARABIC", "SYRIAC", "DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA", "TAMIL", "TELUGU", "KANNADA",
           "MALAYALAM", "SINHALA", "THAI", "LAO", "TIBETAN", "MYANMAR", "KHMER", "MONGOLIAN")  # fmt: skip


class FoundFonts(NamedTuple):
    """Families in the order in which a letter is looked for, and the letters that none of them has."""

    families: list[str]
    missing: str


def find_fonts(texts: Iterable[str]) -> FoundFonts:
    """The default font, and as few installed ones as have the letters that it lacks."""
    from matplotlib.font_manager import findfont

    letters = {letter for text in texts for letter in text if letter.isprintable() and not letter.isspace()}
    wanted = {ord(letter) for letter in letters} - _letters(findfont(DEFAULT))
    families = [DEFAULT]
    for family, file in _installed() if wanted else ():
        if has := wanted & _letters(file):
            families.append(family)
            wanted -= has
        if not wanted:
            break
    return FoundFonts(families, "".join(map(chr, sorted(wanted))))


@cache
def _installed() -> list[tuple[str, str]]:
    """Family and file of each upright font of regular weight; those of Noto first, sans before serif."""
    from matplotlib import font_manager

    manager = font_manager.fontManager
    known = {font.fname for font in manager.ttflist}
    for file in font_manager.findSystemFonts():  # matplotlib's list may be older than a font
        if file not in known:
            try:
                manager.addfont(file)
            except (OSError, RuntimeError, ValueError):  # a damaged font, or one of a kind that matplotlib does not read
                continue
    regular = [font for font in manager.ttflist if font.style == "normal" and font.weight in (400, "normal", "regular", "book")
               and not font.name.startswith(PLACEHOLDERS) and Path(font.fname).is_file()]  # fmt: skip

    def rank(font: font_manager.FontEntry) -> tuple[bool, bool, str]:
        return not font.name.startswith("Noto Sans"), "Serif" in font.name, font.name

    return [(font.name, font.fname) for font in sorted(regular, key=rank)]


@cache
def _letters(file: str) -> frozenset[int]:
    """The code points a font file has a glyph for."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(file).get_charmap())
    except (OSError, RuntimeError, ValueError):
        return frozenset()


def package_of(letters: str) -> str:
    """The Debian package of fonts for letters."""
    scripts = {_script(letter) for letter in letters}
    cjk = any(script.startswith(CJK) for script in scripts)
    return "fonts-noto-cjk" if cjk else "fonts-noto-core"


def _script(letter: str) -> str:
    return unicodedata.name(letter, "").split(" ")[0].split("-")[0]


def missing_letters_note(missing: str) -> str:
    """One line about the letters that are drawn as boxes."""
    shown = missing if len(missing) <= 8 else f"{missing[:8]}…"
    return (f"no installed font has {shown}, so they are drawn as boxes; install one, such as Debian's {package_of(missing)}, "
            f"or write .svg, which the viewer's fonts show")  # fmt: skip


def shaping_note(texts: Iterable[str]) -> str:
    """One line if this matplotlib draws the letters of joining scripts one by one; empty if it joins them, or there are none."""
    from matplotlib import ft2font

    if hasattr(ft2font, "__libraqm_version__"):  # from 3.11 on
        return ""
    if not any(_script(letter) in JOINING for text in texts for letter in text):
        return ""
    return "this matplotlib does not join letters of Arabic or Indic scripts; install matplotlib 3.11, or write .svg"
