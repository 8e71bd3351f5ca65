"""Fonts that have the letters of a drawing; a font of one letter is made for the test, so no installed font matters."""

import warnings

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager, ft2font
from PIL import Image

from regard.view import fonts
from regard.view.draw import to_file
from regard.view.fonts import DEFAULT, find_fonts, missing_letters_note, package_of, shaping_note
from regard.view.maps import AttentionMap

LETTER = "\ua9d0"  # a Javanese digit, which matplotlib's font lacks


def make_font(file, letter: str, family: str = "Single Letter") -> None:
    """A font whose only glyph is a large square."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 900), (900, 900), (900, 0)):
        pen.lineTo(corner)
    pen.closePath()
    square, empty = pen.glyph(), TTGlyphPen(None).glyph()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", "square"])
    builder.setupCharacterMap({ord(letter): "square"})
    builder.setupGlyf({".notdef": empty, "square": square})
    builder.setupHorizontalMetrics({".notdef": (500, 0), "square": (1000, 0)})
    builder.setupHorizontalHeader(ascent=900, descent=-100)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2(usWeightClass=400)
    builder.setupPost()
    builder.save(file)


@pytest.fixture
def only_default(monkeypatch):
    """A machine without other fonts than matplotlib's."""
    monkeypatch.setattr(fonts, "_installed", list)


@pytest.fixture
def one_font(monkeypatch, tmp_path):
    """A machine with matplotlib's fonts and one more."""
    make_font(tmp_path / "one.ttf", LETTER)
    manager = font_manager.fontManager
    before = list(manager.ttflist)
    manager.addfont(tmp_path / "one.ttf")
    monkeypatch.setattr(fonts, "_installed", lambda: [("Single Letter", str(tmp_path / "one.ttf"))])
    yield
    manager.ttflist[:] = before


@pytest.mark.parametrize("text", ["größe", "Ελλάδα", "мир", "سلام", "</s>", "▁"])
def test_latin_greek_cyrillic_and_arabic_need_no_other_font(only_default, text):
    assert find_fonts([text]) == ([DEFAULT], "")


def test_a_font_with_the_missing_letter_is_added(one_font):
    assert find_fonts(["abc"]).families == [DEFAULT]
    assert find_fonts(["abc", LETTER]) == ([DEFAULT, "Single Letter"], "")


def test_a_letter_of_another_font_is_drawn_by_it(one_font, tmp_path):
    attention = AttentionMap("t", [f"▁{LETTER}"], ["▁a"], [[0.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert to_file(attention, tmp_path / "map.png") == []
    with Image.open(tmp_path / "map.png") as drawn:
        grey = drawn.convert("L")
        left = grey.crop((0, grey.height // 3, 60, 2 * grey.height // 3))
    assert sum(left.histogram()[:60]) > 80  # the label is a filled square


def test_the_note_names_letters_without_a_font_and_a_package_that_has_them(only_default, tmp_path):
    hindi, chinese = AttentionMap("t", ["▁हिन्दी"], ["▁a"], [[1.0]]), AttentionMap("t", ["▁你好"], ["▁a"], [[1.0]])
    [note] = to_file(hindi, tmp_path / "map.png")
    assert note.startswith("no installed font has दनह")
    assert note.endswith(
        "drawn as boxes; install one, such as Debian's fonts-noto-core, or write .svg, which the viewer's fonts show"
    )
    [note] = to_file(chinese, tmp_path / "map.pdf")
    assert "fonts-noto-cjk" in note
    assert to_file(hindi, tmp_path / "map.svg") == []
    assert "हिन्दी" in (tmp_path / "map.svg").read_text(encoding="utf-8")


def test_save_warns_of_letters_without_a_font(only_default, tmp_path):
    with pytest.warns(UserWarning, match="no installed font has"):
        AttentionMap("t", ["▁你好"], ["▁a"], [[1.0]]).save(tmp_path / "map.png")


def test_the_note_about_many_letters_is_short():
    assert len(missing_letters_note("字" * 300)) < 200


def test_placeholder_fonts_do_not_count():
    assert not any(family.startswith("Last Resort") for family, _ in fonts._installed())


def test_packages_by_script():
    assert package_of("हि") == "fonts-noto-core"
    assert package_of("ا") == "fonts-noto-core"
    assert {package_of(letter) for letter in "字あカ한"} == {"fonts-noto-cjk"}


def test_an_old_matplotlib_is_said_not_to_join_letters(monkeypatch):
    monkeypatch.delattr(ft2font, "__libraqm_version__", raising=False)
    assert "does not join letters" in shaping_note(["हिन्दी"])
    assert "does not join letters" in shaping_note(["سلام"])
    assert shaping_note(["größe 你好 мир"]) == ""
    monkeypatch.setattr(ft2font, "__libraqm_version__", "0.10", raising=False)
    assert shaping_note(["हिन्दी"]) == ""
