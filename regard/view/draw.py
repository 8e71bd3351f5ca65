"""`AttentionMap` → a coloured grid in the terminal, or a PNG, SVG, PDF or JSON file."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.color import Color
from rich.style import Style
from rich.table import Table
from rich.text import Text

from regard.data.files import write_atomic
from regard.view.maps import AttentionMap

if TYPE_CHECKING:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

__all__ = ["VISIBLE", "check_file", "colour", "new_figure", "palette", "readable", "save_figure", "to_file", "to_terminal"]

# Dark to light: near-black violet, magenta, orange, pale yellow.
STOPS = ((13, 8, 40), (110, 30, 110), (220, 80, 60), (252, 180, 60), (250, 250, 190))
VISIBLE = 0.05  # the smallest weight whose percentage is printed


def colour(weight: float) -> tuple[int, int, int]:
    """A weight from 0 to 1 → red, green, blue."""
    position = min(max(weight, 0.0), 1.0) * (len(STOPS) - 1)
    low = min(int(position), len(STOPS) - 2)
    red, green, blue = (round(a + (b - a) * (position - low)) for a, b in zip(STOPS[low], STOPS[low + 1], strict=True))
    return red, green, blue


def to_terminal(attention: AttentionMap, width: int = 120) -> Table:
    """A grid for `rich.print`: a row for each query, a column for each key; headings are cut to make it at most `width` wide."""
    table = Table(title=attention.title, title_justify="left", title_style="dim", box=None, padding=0, pad_edge=False)
    labels, headings = [readable(name) for name in attention.rows], [readable(name) for name in attention.columns]
    label_width, full = max(map(len, labels)) + 1, [max(len(heading) + 2, 4) for heading in headings]
    widest = max(full)
    while widest > 3 and label_width + sum(min(wide, widest) for wide in full) > width:
        widest -= 1
    widths = [min(wide, widest) for wide in full]
    table.add_column("", justify="right", no_wrap=True, min_width=label_width)
    for heading, wide in zip(headings, widths, strict=True):
        table.add_column(Text(heading[: wide - 1].center(wide), style="bold"), no_wrap=True, min_width=wide)
    for label, weights in zip(labels, attention.weights, strict=True):
        cells = []
        for wide, weight in zip(widths, weights, strict=True):
            percent = f"{100 * weight:.0f}" if weight >= VISIBLE else ""
            ink = Color.from_rgb(0, 0, 0) if weight > 0.5 else Color.from_rgb(255, 255, 255)
            cells.append(Text(percent.center(wide), style=Style(color=ink, bgcolor=Color.from_rgb(*colour(weight)))))
        table.add_row(Text(f"{label} ", style="bold"), *cells)
    return table


def check_file(file: Path, option: str = "--out") -> None:
    """Refuse a file that cannot be drawn to, before the model runs."""
    if not file.parent.is_dir():
        raise ValueError(f"no folder {file.parent}; make it, or choose another {option}")
    if file.suffix.lower() not in (".png", ".svg", ".pdf", ".json"):
        raise ValueError(f"cannot draw {file.name}; give a name that ends in .png, .svg, .pdf or .json")


@contextmanager
def new_figure(width: float, height: float) -> Iterator["Figure"]:
    """A matplotlib figure, in inches, under matplotlib's own defaults; draw and save it inside the `with`.

    matplotlib reads a `matplotlibrc` of the current folder, which could name modules to import and programs to run.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        yield Figure(figsize=(width, height), layout="constrained")


def palette() -> "LinearSegmentedColormap":
    """The colours of `colour`, for matplotlib."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("regard", [tuple(c / 255 for c in stop) for stop in STOPS])


def save_figure(figure: "Figure", file: Path) -> list[str]:
    """Write a matplotlib figure; returns notes for the user."""
    content = BytesIO()
    with warnings.catch_warnings(record=True) as caught:  # matplotlib warns of each letter its font lacks
        warnings.simplefilter("always")
        figure.savefig(content, dpi=160, format=file.suffix[1:].lower())
    write_atomic(file, content.getvalue())
    boxes = any("missing from font" in str(warning.message) for warning in caught)
    return ["some letters are boxes: matplotlib's font lacks them; the terminal and .json show them"] if boxes else []


def to_file(attention: AttentionMap, file: Path) -> list[str]:
    """Draw the map as PNG, SVG or PDF, or write it as JSON, by the file's suffix; returns notes for the user."""
    check_file(file)
    if file.suffix.lower() == ".json":
        write_atomic(file, attention.to_json().encode() + b"\n")
        return []
    rows, columns = ([readable(name) for name in names] for names in (attention.rows, attention.columns))
    with new_figure(1.6 + 0.52 * len(columns), 1.3 + 0.42 * len(rows)) as figure:
        axes = figure.add_subplot()
        image = axes.imshow(attention.weights, cmap=palette(), vmin=0, vmax=1, aspect="auto")
        axes.set_xticks(range(len(columns)), columns, rotation=45, ha="left", rotation_mode="anchor", parse_math=False)
        axes.set_yticks(range(len(rows)), rows, parse_math=False)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_xlabel(attention.title, color="#666666", fontsize=9)
        for y, weights in enumerate(attention.weights):
            for x, weight in enumerate(weights):
                if weight >= VISIBLE:
                    ink = "black" if weight > 0.5 else "white"
                    axes.text(x, y, f"{100 * weight:.0f}", ha="center", va="center", fontsize=8, color=ink)
        figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02).outline.set_visible(False)
        return save_figure(figure, file)


def readable(token: str) -> str:
    """A token for a reader: the space before a word is dropped, a piece inside a word gets a +."""
    if token.startswith("▁"):
        return token[1:] or token
    return token if token.startswith("<") or not token[:1].isalnum() else f"+{token}"
