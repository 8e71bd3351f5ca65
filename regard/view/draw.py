"""`AttentionMap` → a coloured grid in the terminal, or a PNG or SVG file."""

from pathlib import Path

from rich.color import Color
from rich.style import Style
from rich.table import Table
from rich.text import Text

from regard.view.maps import AttentionMap

__all__ = ["to_file", "to_terminal"]

# Dark to light through one hue and back to another: near-black violet, magenta, orange, pale yellow.
STOPS = ((13, 8, 40), (110, 30, 110), (220, 80, 60), (252, 180, 60), (250, 250, 190))


def colour(weight: float) -> tuple[int, int, int]:
    """A weight from 0 to 1 → red, green, blue."""
    place = min(max(weight, 0.0), 1.0) * (len(STOPS) - 1)
    low = min(int(place), len(STOPS) - 2)
    red, green, blue = (round(a + (b - a) * (place - low)) for a, b in zip(STOPS[low], STOPS[low + 1], strict=True))
    return red, green, blue


def to_terminal(seen: AttentionMap) -> Table:
    """A grid for `rich.print`: a row for each token said, a column for each token read, percent in the cells."""
    table = Table(
        title=seen.title,
        title_justify="left",
        title_style="dim",
        box=None,
        padding=0,
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("", justify="right")
    for name in seen.columns:
        table.add_column(Text(f" {_plain(name)} ", style="bold"), justify="center", no_wrap=True, min_width=4)
    for name, weights in zip(seen.rows, seen.weights, strict=True):
        cells = []
        for column, weight in zip(seen.columns, weights, strict=True):
            width = max(4, len(_plain(column)) + 2)
            percent = f"{100 * weight:.0f}" if weight >= 0.05 else ""
            ink = Color.from_rgb(0, 0, 0) if weight > 0.5 else Color.from_rgb(255, 255, 255)
            cells.append(Text(percent.center(width), style=Style(color=ink, bgcolor=Color.from_rgb(*colour(weight)))))
        table.add_row(Text(f"{_plain(name)} ", style="bold"), *cells)
    return table


def to_file(seen: AttentionMap, file: Path) -> None:
    """Draw the map as PNG, SVG or PDF, or write it as JSON, by the file's ending."""
    if file.suffix.lower() == ".json":
        file.write_text(seen.to_json() + "\n", encoding="utf-8")
        return
    if file.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"cannot draw {file.name}; give a name that ends in .png, .svg, .pdf or .json")
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    wide, high = len(seen.columns), len(seen.rows)
    figure = Figure(figsize=(1.6 + 0.52 * wide, 1.3 + 0.42 * high), layout="constrained")
    axes = figure.add_subplot()
    palette = LinearSegmentedColormap.from_list("regard", [tuple(c / 255 for c in stop) for stop in STOPS])
    image = axes.imshow(seen.weights, cmap=palette, vmin=0, vmax=1, aspect="auto")
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
    figure.savefig(file, dpi=160)


def _plain(token: str) -> str:
    """A token as a person reads it: the space before a word is not shown, a piece inside a word is marked with +."""
    return (
        token[1:]
        if token.startswith("▁")
        else token
        if token.startswith("<") or not token[:1].isalnum()
        else f"+{token}"
    )
