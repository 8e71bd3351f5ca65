"""Plots of measured values, as data; drawn as SVG for the report, or in characters for the terminal."""

import math
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = ["Curves", "Heatmap", "to_svg", "to_text"]

Points = Sequence[tuple[float, float]]
BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH, HEIGHT = 5.2, 3.0  # inches, of which an SVG has 72 units each
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
    """A matrix as colours; `x`, `y` and `z` are the labels of columns, rows and colours, with units."""

    title: str
    x: str
    y: str
    values: Tensor  # (rows, columns)
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    z: str = ""


def to_text(plot: Curves | Heatmap, width: int = 60) -> str:
    """The plot in characters: a row of blocks for each line, or for each row of a matrix."""
    if isinstance(plot, Heatmap):
        rows = plot.values.tolist()
        names = list(plot.rows) or [str(index) for index in range(len(rows))]
        low, high = _extremes(rows)
        drawn = [f"  {name:>16.16}  {_blocks(row, low, high, width)}" for name, row in zip(names, rows, strict=True)]
        what = f"{plot.z} from" if plot.z else "from"
        return "\n".join([f"  {plot.title}: {what} {low:.3g} to {high:.3g}; rows: {plot.y}, columns: {plot.x}", *drawn])
    scale = (lambda y: math.log10(max(y, 1e-12))) if plot.log_y else float
    heights = {name: [scale(y) for _, y in points] for name, points in plot.lines.items()}
    low, high = _extremes(list(heights.values()))  # one scale for all lines
    drawn = [
        f"  {name:>24.24}  {_blocks(heights[name], low, high, width)}  {points[0][1]:.3g} … {points[-1][1]:.3g}"
        for name, points in plot.lines.items()
    ]
    xs = [x for points in plot.lines.values() for x, _ in points]
    return "\n".join([f"  {plot.title}: {plot.y}; {plot.x} from {min(xs):.4g} to {max(xs):.4g}", *drawn])


def to_svg(plot: Curves | Heatmap) -> str:
    """The plot as an SVG element whose text has the colour of the page around it."""
    from io import StringIO

    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.fonttype": "none", "svg.hashsalt": str(plot),  # no two plots of a page share an id
        "font.family": "sans-serif", "font.size": 10, "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK,
        "xtick.color": INK, "ytick.color": INK,
    }  # fmt: skip
    with rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser draws the text, with fonts that have it
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        axes.set(title=textwrap.fill(plot.title, 50), xlabel=plot.x, ylabel=textwrap.fill(plot.y, 30))
        if isinstance(plot, Heatmap):
            _draw_heatmap(plot, figure, axes)
        else:
            _draw_curves(plot, figure, axes)
        written = StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # the same in every plot, and nothing refers to them
    text = re.sub(r"font-family: [^;\"]+", "font-family: inherit", text).replace(INK, "currentColor")
    label = f"{plot.title}: {plot.y}, {plot.x}"
    return f'<svg role="img" aria-label="{escape(label)}"{text[len("<svg") :]}'


def _draw_heatmap(plot: Heatmap, figure: "Figure", axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    values = plot.values.float().numpy()
    lowest = min(0.0, float(values.min())) if values.min() == values.max() else None
    image = axes.imshow(values, cmap="cividis", aspect="auto", interpolation="nearest", vmin=lowest)
    figure.colorbar(image, ax=axes, label=plot.z)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if plot.columns:
        axes.set_xticks(range(len(plot.columns)), plot.columns, rotation=40, ha="right")
    if plot.rows:
        axes.set_yticks(range(len(plot.rows)), plot.rows)


def _draw_curves(plot: Curves, figure: "Figure", axes: "Axes") -> None:
    for (name, points), colour in zip(plot.lines.items(), COLOURS * len(plot.lines), strict=False):
        marker = "o" if len(points) < 25 else ""
        axes.plot(*zip(*points, strict=True), marker=marker, markersize=3, color=colour, label=name)
    axes.spines[["top", "right"]].set_visible(False)
    xs, ys = zip(*(place for points in plot.lines.values() for place in points), strict=True)
    if plot.log_x:
        axes.set_xscale("log")
        _set_log_ticks(axes.xaxis, xs)
    if plot.log_y:
        axes.set_yscale("log")
        _set_log_ticks(axes.yaxis, ys)
    if len(plot.lines) > 1:  # below the plot, where it hides no line
        columns = 2 if max(map(len, plot.lines)) <= 28 else 1
        figure.set_figheight(HEIGHT + 0.2 * math.ceil(len(plot.lines) / columns))
        figure.legend(loc="outside lower center", ncols=columns, frameon=False)


def _set_log_ticks(axis: "Axis", values: Sequence[float]) -> None:
    """Plain numbers between the powers of ten, if these would be few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_minor_formatter(NullFormatter())
    if max(values) < min(1000 * min(values), 1e7):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(values) > 10 * min(values) else (1, 1.5, 2, 3, 4, 5, 7)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}" if value < 1000 else f"{value:,.0f}"))


def _extremes(rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The least and the largest finite value."""
    values = [value for row in rows for value in row if math.isfinite(value)] or [0.0]
    return min(values), max(values)


def _blocks(values: Sequence[float], low: float, high: float, width: int) -> str:
    """A block for each value, or for every n-th if there are more than `width`; a blank for what is not finite."""
    step = max(1, -(-len(values) // width))
    span = high - low or 1.0
    return "".join(BLOCKS[min(7, int(8 * (value - low) / span))] if math.isfinite(value) else " " for value in values[::step])
