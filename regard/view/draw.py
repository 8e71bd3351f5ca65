"""`AttentionMap` → a coloured grid in the terminal or a notebook, or a PNG, SVG, PDF or JSON file."""

import html
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.style import Style
from rich.table import Table
from rich.text import Text

from regard.data.files import write_atomic
from regard.data.terminal import printable
from regard.view.fonts import find_fonts, missing_letters_note, shaping_note
from regard.view.scale import RGB, colour, ink, palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.view.maps import AttentionMap

__all__ = ["DRAWINGS", "MAPS", "VISIBLE", "Drawing", "check_file", "draw", "figure_bytes", "new_figure", "readable",
           "save_figure", "save_map", "to_file", "to_html", "to_terminal", "write_map"]  # fmt: skip

DRAWINGS = (".png", ".svg", ".pdf")
MAPS = (".html", *DRAWINGS, ".json")  # files that `regard show` writes; the page is made by `regard.web.export`
VISIBLE = 0.05  # the smallest weight whose percentage is printed
MASKED = "╱"  # of cells in the terminal that a query may not attend to
DPI = 160
LETTERS_PER_INCH = 14  # of a title of 9 points


class Drawing(NamedTuple):
    """A drawn file, and notes for the user."""

    content: bytes
    notes: list[str]


class Map(Protocol):
    """Anything that can be written as JSON."""

    def to_json(self) -> str: ...


MapT = TypeVar("MapT", bound=Map)
Draw = Callable[[MapT, str], Drawing]  # draws a map as png, svg or pdf


def to_terminal(attention: "AttentionMap", width: int = 120) -> Table:
    """A grid for `rich.print`: a row for each query, a column for each key; headings are cut to make it at most `width` wide."""
    table = Table(
        title=Text(printable(attention.title, keep="")),
        title_justify="left",
        title_style="dim",
        box=None,
        padding=0,
        pad_edge=False,
    )
    labels, headings = [readable(name) for name in attention.rows], [readable(name) for name in attention.columns]
    label_width, full = max(map(cell_len, labels)) + 1, [max(cell_len(heading) + 2, 4) for heading in headings]
    widest = max(full)
    while widest > 3 and label_width + sum(min(wide, widest) for wide in full) > width:
        widest -= 1
    widths = [min(wide, widest) for wide in full]
    table.add_column("", justify="right", no_wrap=True, min_width=label_width)
    for heading, wide in zip(headings, widths, strict=True):
        table.add_column(Text(_center(heading, wide), style="bold"), no_wrap=True, min_width=wide)
    for row, (label, weights) in enumerate(zip(labels, attention.weights, strict=True)):
        cells = []
        for column, (wide, weight) in enumerate(zip(widths, weights, strict=True)):
            if not attention.allows(row, column):
                cells.append(Text(MASKED * wide, style="bright_black"))
                continue
            paper, percent = colour(weight), f"{100 * weight:.0f}" if weight >= VISIBLE else ""
            style = Style(color=Color.from_rgb(*ink(paper)), bgcolor=Color.from_rgb(*paper))
            cells.append(Text(percent.center(wide), style=style))
        table.add_row(Text(f"{label} ", style="bold"), *cells)
    if attention.mask is not None:
        table.caption, table.caption_justify, table.caption_style = f"{MASKED} masked", "left", "dim"
    return table


def _center(heading: str, wide: int) -> str:
    """A heading in the middle of `wide` cells of the terminal, of which Chinese letters take two each."""
    cut = heading if cell_len(heading) < wide else set_cell_size(heading, wide - 1)
    left = (wide - cell_len(cut)) // 2 if cell_len(cut) % 2 == wide % 2 else (wide - cell_len(cut) + 1) // 2
    return set_cell_size(" " * left + cut, wide)


def to_html(attention: "AttentionMap") -> str:
    """A table for a notebook, with the percentage in each cell; all text is escaped."""
    head = "".join(f"<th {_style(padding='2px 6px')}>{_escape(readable(name))}</th>" for name in attention.columns)
    lines = list[str]()
    for row, (name, weights) in enumerate(zip(attention.rows, attention.weights, strict=True)):
        cells = [_cell(weight) if attention.allows(row, column) else _MASKED_CELL for column, weight in enumerate(weights)]
        lines.append(
            f"<tr><th {_style(text_align='right', padding='2px 6px')}>{_escape(readable(name))}</th>{''.join(cells)}</tr>"
        )
    masked = "; hatched cells are masked" if attention.mask is not None else ""
    caption = f"<caption {_style(caption_side='top', text_align='left')}>{_escape(attention.title)}, in %{masked}</caption>"
    return f"<table {_style(border_collapse='collapse')}>{caption}<tr><th></th>{head}</tr>{''.join(lines)}</table>"


def _style(**properties: str) -> str:
    return 'style="' + ";".join(f"{key.replace('_', '-')}:{value}" for key, value in properties.items()) + '"'


_HATCH = "repeating-linear-gradient(45deg,#ddd,#ddd 2px,#fff 2px,#fff 5px)"
_MASKED_CELL = f'<td {_style(background=_HATCH)} title="masked"></td>'


def _cell(weight: float) -> str:
    paper = colour(weight)
    percent = f"{100 * weight:.0f}" if weight >= VISIBLE else ""
    look = _style(background=_css(paper), color=_css(ink(paper)), text_align="center", padding="2px 6px")
    return f'<td {look} title="{100 * weight:.1f} %">{percent}</td>'


def _css(color: RGB) -> str:
    return "rgb({},{},{})".format(*color)


def _escape(text: str) -> str:
    return html.escape(printable(text, keep=""))


def check_file(file: Path, option: str = "--out", kinds: Sequence[str] = (*DRAWINGS, ".json"), why: str = "") -> None:
    """Refuse a file that cannot be written as one of these kinds, before the model runs; `why` may say more."""
    if not file.parent.is_dir():
        raise ValueError(f"no folder {file.parent}; make it, or choose another {option}")
    if file.suffix.lower() not in kinds:
        named = " or ".join((", ".join(kinds[:-1]), kinds[-1]) if len(kinds) > 1 else kinds)
        raise ValueError(f"cannot write {file.name}{why}; give a name that ends in {named}")


@contextmanager
def new_figure(width: float, height: float, texts: Iterable[str] = ()) -> Iterator["Figure"]:
    """A matplotlib figure, in inches, under matplotlib's own defaults; draw and save it inside the `with`.

    Its fonts are the default one and those with the letters of `texts`; text of an SVG file is text, not outlines.
    matplotlib reads a `matplotlibrc` of the current folder, which could name modules to import and programs to run.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        matplotlib.rcParams.update({"font.family": find_fonts(texts).families, "svg.fonttype": "none", "hatch.linewidth": 0.6})
        yield Figure(figsize=(width, height), layout="constrained")


def figure_bytes(figure: "Figure", kind: str, texts: Iterable[str] = ()) -> Drawing:
    """A matplotlib figure as png, svg or pdf; notes name letters of `texts` that cannot be drawn."""
    content, texts = BytesIO(), list(texts)
    with warnings.catch_warnings(record=True) as caught:  # matplotlib warns of each letter its font lacks
        warnings.simplefilter("always")
        figure.savefig(content, dpi=DPI, format=kind)
    missing = find_fonts(texts).missing
    notes = [missing_letters_note(missing)] if missing else []
    if not missing and any("missing from" in str(warning.message) for warning in caught):
        notes = ["some letters are boxes: matplotlib's font lacks them; the terminal, .svg and .json show them"]
    if joins := shaping_note(texts):
        notes.append(joins)
    return Drawing(content.getvalue(), [] if kind == "svg" else notes)  # the viewer of an SVG file has its own fonts


def save_figure(figure: "Figure", file: Path, texts: Iterable[str] = ()) -> list[str]:
    """Write a matplotlib figure; returns notes for the user, also on letters of `texts` that cannot be drawn."""
    content, notes = figure_bytes(figure, file.suffix[1:].lower(), texts)
    write_atomic(file, content)
    return notes


def write_map(attention: MapT, file: Path, draw: "Draw[MapT]") -> list[str]:
    """Draw a map as PNG, SVG or PDF, or write it as JSON, by the file's suffix; returns notes for the user."""
    check_file(file)
    kind = file.suffix[1:].lower()
    content, notes = Drawing(attention.to_json().encode() + b"\n", []) if kind == "json" else draw(attention, kind)
    write_atomic(file, content)
    return notes


def save_map(attention: MapT, file: str | Path, draw: "Draw[MapT]") -> Path:
    """`write_map` for Python: notes are warnings; returns the path."""
    if not isinstance(file, str | Path):
        raise ValueError(f"a file of type {type(file).__name__}; give a name that ends in .png, .svg, .pdf or .json")
    path = Path(file)
    if path.suffix.lower() == ".html":
        raise ValueError(f"{path.name} is a page with all layers and heads, not this map alone; use "
                         f"regard.export_page(run, input, {path.name!r})")  # fmt: skip
    for note in write_map(attention, path, draw):
        warnings.warn(note, stacklevel=3)
    return path


def to_file(attention: "AttentionMap", file: Path) -> list[str]:
    """Draw the map as PNG, SVG or PDF, or write it as JSON, by the file's suffix; returns notes for the user."""
    return write_map(attention, file, draw)


def draw(attention: "AttentionMap", kind: str) -> Drawing:
    """The map as a drawing: percentages in the cells, and a colour bar in percent."""
    from matplotlib.patches import Rectangle

    rows, columns = ([readable(name) for name in names] for names in (attention.rows, attention.columns))
    texts = [*rows, *columns, attention.title]
    with new_figure(1.6 + 0.52 * len(columns), 1.3 + 0.42 * len(rows), texts) as figure:
        axes = figure.add_subplot()
        percents = [[100 * weight for weight in weights] for weights in attention.weights]
        image = axes.imshow(percents, cmap=palette(), vmin=0, vmax=100, aspect="auto")
        axes.set_xticks(range(len(columns)), columns, rotation=45, ha="left", rotation_mode="anchor", parse_math=False)
        axes.set_yticks(range(len(rows)), rows, parse_math=False)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        masked = "; hatched: masked" if attention.mask is not None else ""
        title = textwrap.fill(attention.title + masked, max(24, int((0.8 + 0.52 * len(columns)) * LETTERS_PER_INCH)))
        axes.set_xlabel(title, color="#666666", fontsize=9, parse_math=False)
        for y, weights in enumerate(attention.weights):
            for x, weight in enumerate(weights):
                if not attention.allows(y, x):
                    cell = Rectangle(
                        (x - 0.5, y - 0.5), 1, 1, facecolor="#f2f2f2", edgecolor="#bbbbbb", hatch="////", linewidth=0
                    )
                    axes.add_patch(cell)
                elif weight >= VISIBLE:
                    shade = tuple(c / 255 for c in ink(colour(weight)))
                    axes.text(x, y, f"{100 * weight:.0f}", ha="center", va="center", fontsize=8, color=shade)
        bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02, format=lambda percent, _: f"{percent:.0f} %")
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8)
        return figure_bytes(figure, kind, texts)


def readable(token: str) -> str:
    """A token for a reader: the space before a word is dropped, a piece inside a word gets a +."""
    token = printable(token, keep="")
    if token.startswith("▁"):
        return token[1:] or token
    return token if token.startswith("<") or not token[:1].isalnum() else f"+{token}"
