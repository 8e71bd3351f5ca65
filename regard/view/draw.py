"""`AttentionMap` → a coloured grid in the terminal, or a PNG or SVG file."""

import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

from rich.color import Color
from rich.style import Style
from rich.table import Table
from rich.text import Text

from regard.data.files import write_atomic
from regard.view.maps import AttentionMap

__all__ = ["check_file", "palette", "save", "to_file", "to_terminal"]

# Dark to light through one hue and back to another: near-black violet, magenta, orange, pale yellow.
STOPS = ((13, 8, 40), (110, 30, 110), (220, 80, 60), (252, 180, 60), (250, 250, 190))


def colour(weight: float) -> tuple[int, int, int]:
    """A weight from 0 to 1 → red, green, blue."""
    place = min(max(weight, 0.0), 1.0) * (len(STOPS) - 1)
    low = min(int(place), len(STOPS) - 2)
    red, green, blue = (round(a + (b - a) * (place - low)) for a, b in zip(STOPS[low], STOPS[low + 1], strict=True))
    return red, green, blue


def to_terminal(seen: AttentionMap, width: int = 120) -> Table:
    """A grid for `rich.print`: a row for each token said, a column for each token read, percent in the cells.

    Headings are cut short where the grid would be wider than `width`.
    """
    table = Table(title=seen.title, title_justify="left", title_style="dim", box=None, padding=0, pad_edge=False)
    labels = [_plain(name) for name in seen.rows]
    side = max(map(len, labels)) + 1
    widest = max(max(len(_plain(name)) for name in seen.columns) + 2, 4)
    while widest > 3 and side + sum(min(max(len(_plain(name)) + 2, 4), widest) for name in seen.columns) > width:
        widest -= 1
    table.add_column("", justify="right", no_wrap=True, min_width=side)
    widths = []
    for name in seen.columns:
        widths.append(min(max(len(_plain(name)) + 2, 4), widest))
        heading = _plain(name)[: widths[-1] - 1].center(widths[-1])
        table.add_column(Text(heading, style="bold"), no_wrap=True, min_width=widths[-1])
    for label, weights in zip(labels, seen.weights, strict=True):
        cells = []
        for wide, weight in zip(widths, weights, strict=True):
            percent = f"{100 * weight:.0f}" if weight >= 0.05 else ""
            ink = Color.from_rgb(0, 0, 0) if weight > 0.5 else Color.from_rgb(255, 255, 255)
            cells.append(Text(percent.center(wide), style=Style(color=ink, bgcolor=Color.from_rgb(*colour(weight)))))
        table.add_row(Text(f"{label} ", style="bold"), *cells)
    return table


def check_file(file: Path) -> None:
    """Refuse a file that nothing can be drawn to, before anything is."""
    if not file.parent.is_dir():
        raise ValueError(f"no folder {file.parent}; make it, or choose another --out")
    if file.suffix.lower() not in (".png", ".svg", ".pdf", ".json"):
        raise ValueError(f"cannot draw {file.name}; give a name that ends in .png, .svg, .pdf or .json")


def palette() -> Any:
    """The colours of `colour`, for matplotlib."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("regard", [tuple(c / 255 for c in stop) for stop in STOPS])


def save(figure: Any, file: Path) -> list[str]:
    """Write a matplotlib figure; returns what a reader should know."""
    content = BytesIO()
    with warnings.catch_warnings(record=True) as said:  # matplotlib has a word for each letter it cannot draw
        warnings.simplefilter("always")
        figure.savefig(content, dpi=160, format=file.suffix[1:].lower())
    write_atomic(file, content.getvalue())
    boxes = any("missing from font" in str(warning.message) for warning in said)
    return ["some letters are boxes: matplotlib's font lacks them; the terminal and .json show them"] if boxes else []


def to_file(seen: AttentionMap, file: Path) -> list[str]:
    """Draw the map as PNG, SVG or PDF, or write it as JSON, by the file's ending; returns what a reader should know."""
    check_file(file)
    if file.suffix.lower() == ".json":
        write_atomic(file, seen.to_json().encode() + b"\n")
        return []
    from matplotlib.figure import Figure

    wide, high = len(seen.columns), len(seen.rows)
    figure = Figure(figsize=(1.6 + 0.52 * wide, 1.3 + 0.42 * high), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(seen.weights, cmap=palette(), vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(
        range(wide), [_plain(c) for c in seen.columns], rotation=45, ha="left", rotation_mode="anchor", parse_math=False
    )
    axes.set_yticks(range(high), [_plain(r) for r in seen.rows], parse_math=False)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel(seen.title, color="#666666", fontsize=9)
    for y, weights in enumerate(seen.weights):
        for x, weight in enumerate(weights):
            if weight >= 0.05:
                axes.text(
                    x,
                    y,
                    f"{100 * weight:.0f}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="black" if weight > 0.5 else "white",
                )
    scale = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02)
    scale.outline.set_visible(False)
    return save(figure, file)


def _plain(token: str) -> str:
    """A token as a person reads it: the space before a word is not shown, a piece inside a word is marked with +."""
    if token.startswith("▁"):
        return token[1:] or token
    return token if token.startswith("<") or not token[:1].isalnum() else f"+{token}"
