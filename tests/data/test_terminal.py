"""Control characters of data never reach a terminal raw."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.terminal import printable


@pytest.mark.parametrize(("raw", "shown"), [
    ("\x1b[31mred", r"\x1b[31mred"),
    ("a\x00b\x07c\x7f", r"a\x00b\x07c\x7f"),
    ("\x9b2J", r"\x9b2J"),
    ("over\rwritten", r"over\x0dwritten"),
    ("user\u202egnp.exe", r"user\u202egnp.exe"),
    ("\u2066isolated\u2069", r"\u2066isolated\u2069"),
    ("caf\udce9.png", r"caf\udce9.png"),
    ("two\nlines\tand a tab", "two\nlines\tand a tab"),
    (r"C:\new [bold]", r"C:\new [bold]"),
    ("Zürich, 東京, नमस्ते, سلام, 👩‍🚀", "Zürich, 東京, नमस्ते, سلام, 👩‍🚀"),
])  # fmt: skip
def test_control_characters_are_shown_as_escapes_and_other_text_stays(raw, shown):
    assert printable(raw) == shown


def test_what_must_stay_on_one_line_does():
    assert printable("a\nb\tc", keep="") == r"a\x0ab\x09c"


def test_any_object_is_taken():
    assert printable(12) == "12"


@given(st.text(alphabet=st.characters(), max_size=50))
def test_the_result_has_no_control_character_and_can_be_encoded(text):
    shown = printable(text, keep="")
    shown.encode("utf-8")
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in shown)
    assert not any(unicodedata.bidirectional(c) in ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI") for c in shown)
    assert printable(shown, keep="") == shown
