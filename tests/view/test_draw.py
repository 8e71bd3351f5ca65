"""An attention map in the terminal and in files."""

import io
import json
from xml.etree import ElementTree

import pytest
from PIL import Image
from rich.console import Console

from regard.view.draw import STOPS, colour, to_file, to_terminal
from regard.view.maps import AttentionMap

MAP = AttentionMap(
    "cross-attention, layer 2, head 1",
    ["▁ein", "▁Hund", "lich", ".", "</s>"],
    ["▁a", "▁dog", "</s>"],
    [[0.98, 0.01, 0.01], [0.1, 0.73, 0.17], [0.2, 0.45, 0.35], [0.0, 0.0, 1.0], [0.04, 0.06, 0.9]],
)


def printed(attention: AttentionMap, **how) -> str:
    out = io.StringIO()
    Console(file=out, width=100, **how).print(to_terminal(attention))
    return out.getvalue()


def test_the_terminal_grid_has_all_labels_and_the_percentages():
    title, _, grid = printed(MAP).partition("head 1")  # the title may take two lines
    _, head, *rows = grid.rstrip().splitlines()
    assert " ".join(title.split()) == "cross-attention, layer 2,"
    assert head.split() == ["a", "dog", "</s>"]
    assert [row.split() for row in rows] == [
        ["ein", "98"], ["Hund", "10", "73", "17"], ["+lich", "20", "45", "35"], [".", "100"], ["</s>", "6", "90"],
    ]  # fmt: skip


def test_cells_of_the_terminal_are_coloured_by_weight():
    red, green, blue = colour(0.98)
    out = printed(MAP, force_terminal=True, color_system="truecolor")
    assert f"48;2;{red};{green};{blue}" in out


def test_brackets_in_a_token_are_text_not_markup():
    attention = AttentionMap("t", ["▁[bold]"], ["▁[/red]"], [[1.0]])
    out = printed(attention)
    assert "[bold]" in out
    assert "[/red]" in out


def test_colours_run_from_dark_to_light_and_stay_in_range():
    assert colour(0.0) == colour(-1.0) == STOPS[0]
    assert colour(1.0) == colour(2.0) == STOPS[-1]
    assert colour(0.25) == STOPS[1]
    light = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (colour(i / 50) for i in range(51))]
    assert light == sorted(light)


def test_a_png_opens_and_grows_with_the_map(tmp_path):
    to_file(MAP, tmp_path / "map.png")
    wide = AttentionMap("t", MAP.rows, MAP.columns * 4, [row * 4 for row in MAP.weights])
    to_file(wide, tmp_path / "wide.png")
    with Image.open(tmp_path / "map.png") as small, Image.open(tmp_path / "wide.png") as large:
        assert small.format == "PNG"
        assert 300 < small.width < 1200
        assert 300 < small.height < 1200
        assert large.width > small.width + 9 * 50
        assert large.height == small.height
        colours = {pixel for _, pixel in small.convert("RGB").getcolors(1 << 20)}
    assert any(all(abs(a - b) < 8 for a, b in zip(pixel, STOPS[0], strict=True)) for pixel in colours)
    assert any(all(abs(a - b) < 8 for a, b in zip(pixel, STOPS[-1], strict=True)) for pixel in colours)


def test_an_svg_is_xml_and_a_pdf_is_a_pdf(tmp_path):
    to_file(MAP, tmp_path / "map.svg")
    to_file(MAP, tmp_path / "map.pdf")
    root = ElementTree.parse(tmp_path / "map.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "Hund" in (tmp_path / "map.svg").read_text(encoding="utf-8")
    assert (tmp_path / "map.pdf").read_bytes().startswith(b"%PDF-")


def test_a_json_file_round_trips(tmp_path):
    to_file(MAP, tmp_path / "map.json")
    assert AttentionMap(**json.loads((tmp_path / "map.json").read_text(encoding="utf-8"))) == MAP


@pytest.mark.parametrize("name", ["map.bmp", "map", "map.txt"])
def test_an_unknown_suffix_is_refused_and_writes_nothing(tmp_path, name):
    with pytest.raises(ValueError, match=rf"cannot draw {name}; give a name that ends in \.png, \.svg, \.pdf or \.json"):
        to_file(MAP, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_dollar_signs_in_a_token_are_not_parsed_as_math(tmp_path):
    to_file(AttentionMap("t", [r"▁$\nothing$"], ["▁$5$"], [[1.0]]), tmp_path / "map.png")
