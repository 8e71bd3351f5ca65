"""Plots as SVG and in characters."""

import re
from xml.etree import ElementTree

import pytest
import torch

from regard.verify.plots import INK, Curves, Heatmap, to_svg, to_text

CURVES = Curves("Cost", "tokens n", "FLOPs", {"attention": [(8, 10.0), (64, 700.0)], "RNN": [(8, 40.0), (64, 320.0)]}, True, True)
MAP = Heatmap("Weights", "key", "query", torch.tensor([[0.0, 1.0], [0.5, 0.5]]), ("the", "<cat>"), ("the", "cat"), z="weight")


def words_of(svg: str) -> set[str]:
    return {element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")}


@pytest.mark.parametrize(("plot", "words"), [
    (CURVES, {"Cost", "tokens n", "FLOPs", "attention", "RNN", "10", "50", "500"}),
    (MAP, {"Weights", "key", "query", "the", "<cat>", "cat", "weight"}),
])  # fmt: skip
def test_an_svg_has_every_label_and_the_colour_of_the_page(plot: Curves | Heatmap, words: set[str]):
    svg = to_svg(plot)
    assert words <= words_of(svg)
    assert "currentColor" in svg
    assert INK not in svg
    assert svg.startswith(f'<svg role="img" aria-label="{plot.title}: {plot.y}, {plot.x}"')


def test_the_same_plot_is_the_same_svg_and_two_plots_share_no_id():
    assert to_svg(CURVES) == to_svg(CURVES)
    other = Curves("Cost of another", CURVES.x, CURVES.y, CURVES.lines, True, True)
    first, second = (set(re.findall(r'id="([^"]+)"', to_svg(plot))) for plot in (CURVES, other))
    assert first
    assert not first & second


def test_a_label_longer_than_its_axis_is_broken_into_lines():
    svg = to_svg(Curves("T", "x", "largest distance from the value of the best key", {"a": [(0, 1.0), (1, 2.0)]}))
    assert {"largest distance from the", "value of the best key"} <= {word.strip() for word in words_of(svg)}


def test_letters_that_the_drawing_font_lacks_are_left_to_the_browser():
    svg = to_svg(Heatmap("Alignment", "English", "Hindi", torch.eye(2), ("खाना", "पसंद"), ("eat", "like")))
    assert {"खाना", "पसंद"} <= words_of(svg)


def test_text_plots_have_a_row_of_blocks_for_each_line():
    text = to_text(CURVES).splitlines()
    assert text[0] == "  Cost: FLOPs; tokens n from 8 to 64"
    assert [line.split() for line in text[1:]] == [["attention", "▁█", "10", "…", "700"], ["RNN", "▃▇", "40", "…", "320"]]
    text = to_text(MAP).splitlines()
    assert text[0] == "  Weights: weight from 0 to 1; rows: query, columns: key"
    assert [line.split() for line in text[1:]] == [["the", "▁█"], ["<cat>", "▅▅"]]


def test_what_is_not_finite_is_left_blank():
    lines = {"loss": [(0, 1.0), (1, float("nan")), (2, 2.0), (3, float("inf"))]}
    assert "▁ █ " in to_text(Curves("Diverged", "step", "loss", lines))
    assert "<svg" in to_svg(Curves("Diverged", "step", "loss", lines))
    assert "<svg" in to_svg(Heatmap("All the same", "x", "y", torch.ones(2, 2)))
    assert "▁▁" in to_text(Heatmap("Nothing", "x", "y", torch.full((1, 2), float("nan")))).replace("  ", "▁▁")
