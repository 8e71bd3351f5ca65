"""An attention map in the terminal and in files."""

import io
import json
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from regard.view.draw import MASKED, to_file, to_html, to_terminal
from regard.view.maps import AttentionMap
from regard.view.scale import STOPS, colour

MAP = AttentionMap(
    "cross-attention, layer 2, head 1",
    ["▁ein", "▁Hund", "lich", ".", "</s>"],
    ["▁a", "▁dog", "</s>"],
    [[0.98, 0.01, 0.01], [0.1, 0.73, 0.17], [0.2, 0.45, 0.35], [0.0, 0.0, 1.0], [0.04, 0.06, 0.9]],
)


SVG = "{http://www.w3.org/2000/svg}"


def svg_texts(file) -> list[str]:
    return ["".join(node.itertext()).strip() for node in ElementTree.parse(file).iter(f"{SVG}text")]


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


def test_the_colour_bar_has_the_unit_of_the_cells(tmp_path):
    to_file(MAP, tmp_path / "map.svg")
    texts = svg_texts(tmp_path / "map.svg")
    assert {"0 %", "20 %", "100 %"} <= set(texts)
    assert {"98", "73"} <= set(texts)
    assert not {"0.2", "1.0"} & set(texts)


# -- masked cells


CAUSAL = AttentionMap("causal", ["▁a", "▁b", "▁c"], ["▁a", "▁b", "▁c"], [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.0, 0.5]],
                      [[True, False, False], [True, True, False], [True, True, True]])  # fmt: skip


def test_masked_cells_are_hatched_in_the_terminal_and_cells_of_weight_zero_are_not():
    *_, first, second, third, legend = printed(CAUSAL).rstrip().splitlines()
    assert [line.count(MASKED) for line in (first, second, third)] == [8, 4, 0]  # cells of four characters
    assert legend.strip() == f"{MASKED} masked"
    assert MASKED not in printed(MAP)


def test_masked_cells_are_hatched_in_a_file_and_cells_of_weight_zero_are_not(tmp_path):
    to_file(CAUSAL, tmp_path / "map.png")
    with Image.open(tmp_path / "map.png") as drawn:
        pixels = np.asarray(drawn.convert("RGB")).astype(int)
    dark = np.argwhere((abs(pixels - STOPS[0]) < 4).all(-1))
    light = np.argwhere((abs(pixels - STOPS[-1]) < 4).all(-1))
    grey = np.argwhere((pixels == 0xF2).all(-1))
    assert len(dark) > 1000
    assert len(light) > 1000
    assert len(grey) > 1000
    # grey is above and to the right of the diagonal, dark on and below it
    assert grey[:, 0].mean() < dark[:, 0].mean()
    assert grey[:, 1].mean() > light[:, 1].mean()
    hatch = np.argwhere((pixels == 0xBB).all(-1))
    assert len(hatch) > 200
    to_file(CAUSAL, tmp_path / "map.svg")
    assert any("hatched: masked" in text for text in svg_texts(tmp_path / "map.svg"))


def test_masked_cells_are_hatched_in_a_notebook():
    assert to_html(CAUSAL).count('title="masked"') == 3
    assert to_html(MAP).count('title="masked"') == 0


def test_a_padding_mask_is_drawn_too():
    padded = AttentionMap("t", ["▁a"], ["▁a", "<pad>"], [[1.0, 0.0]], [[True, False]])
    assert MASKED in printed(padded)


# -- notebooks


class Cells(HTMLParser):
    """The text of each cell, and the tags."""

    def __init__(self, page: str):
        super().__init__()
        self.cells, self.tags = list[str](), set[str]()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.cells.append(data)


def test_a_notebook_shows_a_table_of_all_tokens_with_their_percentages():
    page = Cells(MAP._repr_html_())
    assert page.tags == {"table", "caption", "tr", "th", "td"}
    assert page.cells[:4] == ["cross-attention, layer 2, head 1, in %", "a", "dog", "</s>"]
    assert page.cells[4:8] == ["ein", "98", "Hund", "10"]


def test_tokens_cannot_add_markup_to_a_notebook():
    attention = AttentionMap("<b>t", ["▁<script>alert(1)</script>"], ['▁"&\x1b['], [[1.0]])
    page = Cells(attention._repr_html_())
    assert page.tags == {"table", "caption", "tr", "th", "td"}
    assert "<script>alert(1)</script>" in page.cells
    assert "\x1b" not in attention._repr_html_()


def test_a_map_is_saved_and_its_repr_is_short(tmp_path):
    assert MAP.save(str(tmp_path / "map.png")) == tmp_path / "map.png"
    with Image.open(tmp_path / "map.png") as drawn, Image.open(io.BytesIO(MAP._repr_png_())) as shown:
        assert drawn.size == shown.size
    assert repr(MAP) == "AttentionMap('cross-attention, layer 2, head 1', 5 × 3 tokens)"
    with pytest.raises(ValueError, match="cannot write map"):
        MAP.save(tmp_path / "map.gif")


# -- files


def test_control_characters_of_a_token_do_not_reach_the_terminal():
    out = printed(AttentionMap("t\x1b[31m", ["▁a\x1b[2J"], ["▁b\x07\r"], [[1.0]]))
    assert not {"\x1b", "\x07", "\r"} & set(out)


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
    assert root.tag == f"{SVG}svg"
    assert {"Hund", "+lich", "dog", "</s>"} <= set(svg_texts(tmp_path / "map.svg"))  # text, not outlines of letters
    assert (tmp_path / "map.pdf").read_bytes().startswith(b"%PDF-")


def test_a_json_file_round_trips(tmp_path):
    to_file(MAP, tmp_path / "map.json")
    assert AttentionMap(**json.loads((tmp_path / "map.json").read_text(encoding="utf-8"))) == MAP


@pytest.mark.parametrize("name", ["map.bmp", "map", "map.txt"])
def test_an_unknown_suffix_is_refused_and_writes_nothing(tmp_path, name):
    with pytest.raises(ValueError, match=rf"cannot write {name}; give a name that ends in \.png, \.svg, \.pdf or \.json"):
        to_file(MAP, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_dollar_signs_in_a_token_are_not_parsed_as_math(tmp_path):
    to_file(AttentionMap("t", [r"▁$\nothing$"], ["▁$5$"], [[1.0]]), tmp_path / "map.png")
