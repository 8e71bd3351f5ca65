"""Plots of measured values, as data; drawn as SVG for the report, or in characters for the terminal."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["Curves", "Heatmap", "to_svg", "to_text"]

Points = Sequence[tuple[float, float]]
BLOCKS = "▁▂▃▄▅▆▇█"
INK = "#010203"  # replaced by the text colour of the page, light or dark
COLOURS = ("#3b6fd4", "#c2571a", "#2a8f6a", "#9a4fb5", "#8a7a1f", "#c0395e")  # readable on white and on near-black


@dataclass(frozen=True)
class Curves:
    """Lines over one axis; `x` and `y` are the labels of the axes, with units."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Points]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Heatmap:
    """A matrix as colours."""

    title: str
    x: str
    y: str
    values: Tensor  # (rows, columns)
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()


def to_text(plot: Curves | Heatmap, width: int = 60) -> str:
    """The plot in characters: a row of blocks for each line, or for each row of a matrix."""
    if isinstance(plot, Heatmap):
        rows = [[float(value) for value in row] for row in plot.values]
        names = list(plot.rows) or [str(index) for index in range(len(rows))]
        low, high = min(map(min, rows)), max(map(max, rows))
        drawn = [f"  {name:>16.16}  {_blocks(row, low, high, width)}" for name, row in zip(names, rows, strict=True)]
        return "\n".join([f"  {plot.title}: rows {plot.y}, columns {plot.x}, {low:.3g} to {high:.3g}", *drawn])
    scale = (lambda y: math.log10(max(y, 1e-12))) if plot.log_y else float
    heights = {name: [scale(y) for _, y in points] for name, points in plot.lines.items()}
    low, high = min(map(min, heights.values())), max(map(max, heights.values()))  # one scale for all lines
    drawn = [
        f"  {name:>24.24}  {_blocks(heights[name], low, high, width)}  {points[0][1]:.3g} … {points[-1][1]:.3g}"
        for name, points in plot.lines.items()
    ]
    xs = [x for points in plot.lines.values() for x, _ in points]
    return "\n".join([f"  {plot.title}: {plot.y}, for {plot.x} from {min(xs):.4g} to {max(xs):.4g}", *drawn])


def to_svg(plot: Curves | Heatmap) -> str:
    """The plot as an SVG element whose text has the colour of the page around it."""
    from io import StringIO

    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "regard", "font.size": 9, "text.color": INK,
             "axes.edgecolor": INK,
             "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "font.family": "sans-serif"}  # fmt: skip
    with rc_context(style):
        figure = Figure(figsize=(5.2, 3.0), layout="constrained")
        axes = figure.add_subplot()
        axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
        if isinstance(plot, Heatmap):
            image = axes.imshow(plot.values.float().numpy(), cmap="cividis", aspect="auto", interpolation="nearest")
            figure.colorbar(image, ax=axes)
            if plot.columns:
                axes.set_xticks(range(len(plot.columns)), plot.columns, rotation=40, ha="right")
            if plot.rows:
                axes.set_yticks(range(len(plot.rows)), plot.rows)
        else:
            for (name, points), colour in zip(plot.lines.items(), COLOURS * len(plot.lines), strict=False):
                axes.plot(
                    *zip(*points, strict=True), marker="o" if len(points) < 25 else "", markersize=3, color=colour, label=name
                )
            if plot.log_x:
                axes.set_xscale("log")
            if plot.log_y:
                axes.set_yscale("log")
            axes.spines[["top", "right"]].set_visible(False)
            if len(plot.lines) > 1:
                axes.legend(frameon=False)
        written = StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return re.sub(r"font-family: [^;\"]+", "font-family: inherit", text).replace(INK, "currentColor")


def _blocks(values: Sequence[float], low: float, high: float, width: int) -> str:
    step = max(1, -(-len(values) // width))
    span = high - low or 1.0
    return "".join(BLOCKS[min(7, int(8 * (value - low) / span))] for value in values[::step])
