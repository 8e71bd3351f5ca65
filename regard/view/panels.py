"""A picture once plain and once for each map over it, all on one scale relative to uniform attention.

Shapes: Y X rows and columns.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.view.draw import Drawing, figure_bytes, new_figure
from regard.view.picture import Picture, Region, shrink
from regard.view.scale import LESS_TO_MORE, TIMES, add_ratio_bar, levels, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["CAPTION_LINE", "GAP", "HEADER", "OPACITY", "PANEL", "TITLE", "Overlay", "Windows", "draw_panels", "panel_size"]

PANEL, GAP, TITLE, CAPTION_LINE, HEADER, BAR = 2.4, 0.14, 0.5, 0.19, 0.34, 0.95  # inches
LETTER, LARGE_LETTER, NOTE_LINE = 0.064, 0.086, 0.14  # inches: widths of letters of a note, of a title, height of a note's line
TITLE_LINE = 0.15  # inches: height of a line of the drawing's title
MAX_COLUMNS = 6  # pictures in a row
ONE_ROW = 4  # up to this number of pictures there is one row
MAX_ASPECT = 2.5  # of a panel: a longer picture is shown around the region that the model saw
PIXELATED = 64  # up to this side, in pixels, pictures are drawn without smoothing
PANEL_PIXELS = 480  # of the picture below a map
OPACITY = 0.66  # of the colours over the grey picture
PALE, CONTRAST = 110, 0.55  # of the grey picture: darkest level, and range of levels
FLAT = "#d0d0d0"  # of places without a ratio
OUTSIDE = 0.75  # how much a part of the picture that the model did not see is whitened


class Overlay(NamedTuple):
    """A map over a picture."""

    title: str
    note: str  # below the title
    ratios: npt.NDArray[np.float64]  # (Y, X) multiples of uniform attention; where not a number, grey


class Windows(NamedTuple):
    """Where the windows of a block end, as fractions of the height and width of the model's input."""

    rows: list[float]
    columns: list[float]


class View(NamedTuple):
    """A picture as it is drawn: cut to a bounded aspect ratio, and the region in it."""

    pixels: npt.NDArray[np.uint8]
    region: Region
    width: float  # inches
    height: float


def panel_size(rows: int, columns: int) -> tuple[float, float]:
    """Width and height in inches of a picture of this shape: all shapes have the same area."""
    aspect = min(MAX_ASPECT, max(1 / MAX_ASPECT, columns / rows))
    return PANEL * math.sqrt(aspect), PANEL / math.sqrt(aspect)


def _view(picture: Picture) -> View:
    """Cut a very long picture to the part around the region that the model saw."""
    (rows, columns), region = picture.pixels.shape[:2], picture.region
    kept_rows, kept_columns = min(rows, math.ceil(MAX_ASPECT * columns)), min(columns, math.ceil(MAX_ASPECT * rows))
    top = min(max(0, round((region.top + region.bottom) / 2 * rows - kept_rows / 2)), rows - kept_rows)
    left = min(max(0, round((region.left + region.right) / 2 * columns - kept_columns / 2)), columns - kept_columns)
    place = Region((region.top * rows - top) / kept_rows, (region.left * columns - left) / kept_columns,
                  (region.bottom * rows - top) / kept_rows, (region.right * columns - left) / kept_columns)  # fmt: skip
    pixels = picture.pixels[top : top + kept_rows, left : left + kept_columns]
    return View(pixels, place, *panel_size(kept_rows, kept_columns))


def draw_panels(title: str, caption: str, picture: Picture, overlays: Sequence[Overlay], kind: str, *, smooth: bool = False,
                windows: Windows | None = None, subtitle: str = "") -> Drawing:  # fmt: skip
    """Draw the picture with its caption, then each map over it, as png, svg or pdf; one legend serves all maps."""
    view, texts = _view(picture), [title, subtitle, caption, *(overlay.title for overlay in overlays)]
    lines = textwrap.wrap(caption, max(8, int(view.width / LARGE_LETTER))) or [""]
    notes = [textwrap.wrap(overlay.note, max(8, int(view.width / LETTER))) or [""] for overlay in overlays]
    count, columns = 1 + len(overlays), _columns(1 + len(overlays), view)
    note_lines = max(map(len, notes), default=1)
    rows, above = -(-count // columns), TITLE + NOTE_LINE * (note_lines - 1)
    width = GAP + (view.width + GAP) * columns + (BAR if overlays else 0)
    titles = [line for text in (title, subtitle) for line in textwrap.wrap(text, max(24, int((width - 2 * GAP) / LETTER)))]
    header = HEADER + TITLE_LINE * max(0, len(titles) - 1) + max(above, CAPTION_LINE * len(lines) + 0.12)
    height = header + (view.height + above) * rows - above + GAP
    with new_figure(width, height, texts) as figure:
        figure.suppressComposite = True  # else an SVG or PDF file gets one large image of all panels, slowly
        axes = figure.add_axes((0, 0, 1, 1))  # in inches from the top left; axes for each panel would take seconds
        axes.set_axis_off()
        axes.text(GAP, GAP, "\n".join(titles), va="top", fontsize=9, color="#666666", parse_math=False)
        grey, colours = _pale(view), palette(LESS_TO_MORE).with_extremes(bad=FLAT)
        for index in range(count):
            left, top = GAP + (view.width + GAP) * (index % columns), header + (view.height + above) * (index // columns)
            whole = (left, left + view.width, top + view.height, top)
            middle = left + view.width / 2
            if index == 0:
                axes.text(middle, top - 0.07, "\n".join(lines), ha="center", va="bottom", fontsize=10, fontweight="bold",
                          parse_math=False)  # fmt: skip
                axes.imshow(view.pixels, interpolation=_interpolation(view.pixels), extent=whole)
                _outline(axes, view, whole)
                continue
            overlay = overlays[index - 1]
            note, most = "\n".join(notes[index - 1]), max(4, int((view.width + GAP) / LARGE_LETTER))
            name = overlay.title if len(overlay.title) <= most else f"{overlay.title[: most - 1]}…"
            at = top - 0.07 - NOTE_LINE * note_lines  # the same in all panels of a row
            axes.text(middle, at - 0.02, name, ha="center", va="bottom", fontsize=11, parse_math=False)
            axes.text(middle, at, note, ha="center", va="top", fontsize=8, color="#666666", parse_math=False)
            axes.imshow(grey, cmap="gray", vmin=0, vmax=255, interpolation=_interpolation(grey), extent=whole)
            place = _place(view, whole)
            drawn = axes.imshow(levels(overlay.ratios), cmap=colours, vmin=-math.log2(TIMES), vmax=math.log2(TIMES),
                                alpha=OPACITY, interpolation="bilinear" if smooth else "nearest", extent=place)  # fmt: skip
            _draw_windows(axes, windows, place)
            _outline(axes, view, whole)
        axes.set(xlim=(0, width), ylim=(height, 0))
        if overlays:
            at = GAP + (view.width + GAP) * columns
            tall = min(view.height, PANEL)
            place = (at / width, 1 - (header + tall) / height, 0.13 / width, tall / height)
            add_ratio_bar(figure, drawn, figure.add_axes(place))
        return figure_bytes(figure, kind, texts)


def _columns(count: int, view: View) -> int:
    """How many pictures make a row: about as many as make the drawing as wide as a screen, with few gaps in the last row."""
    wanted = math.ceil(math.sqrt(1.7 * count * view.height / view.width))
    if count <= ONE_ROW or wanted >= MAX_COLUMNS:
        return min(count, MAX_COLUMNS)
    return min(wanted, wanted + 1, key=lambda columns: -count % columns)


def _interpolation(pixels: npt.NDArray[np.generic]) -> str:
    return "nearest" if max(pixels.shape[:2]) <= PIXELATED else "antialiased"


def _pale(view: View) -> npt.NDArray[np.float64]:
    """The picture in light grey, for colours to stand out; lighter still outside the region that the model saw."""
    grey = PALE + CONTRAST * shrink(view.pixels, PANEL_PIXELS).mean(-1)  # (Y, X)
    rows, columns = grey.shape
    outside = np.ones_like(grey, dtype=bool)
    top, left, bottom, right = view.region
    outside[round(top * rows) : round(bottom * rows), round(left * columns) : round(right * columns)] = False
    return np.where(outside, 255 - (255 - grey) * (1 - OUTSIDE), grey)


def _place(view: View, whole: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    """Where the region that the model saw is: left, right, bottom, top in inches."""
    left, right, bottom, top = whole
    region = view.region
    return (left + region.left * (right - left), left + region.right * (right - left),
            top + region.bottom * (bottom - top), top + region.top * (bottom - top))  # fmt: skip


def _outline(axes: "Axes", view: View, whole: tuple[float, float, float, float]) -> None:
    """A frame around the region that the model saw, unless it saw the whole picture."""
    from matplotlib.patches import Rectangle

    if view.region.top <= 0.001 and view.region.left <= 0.001 and view.region.bottom >= 0.999 and view.region.right >= 0.999:
        return
    left, right, bottom, top = _place(view, whole)
    for color, style in (("white", "solid"), ("black", (0, (4, 4)))):  # seen on dark and on light pictures
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=color, linestyle=style,
                                 linewidth=1))  # fmt: skip


def _draw_windows(axes: "Axes", windows: Windows | None, place: tuple[float, float, float, float]) -> None:
    left, right, bottom, top = place
    for at in windows.columns if windows else ():
        axes.plot([left + at * (right - left)] * 2, [bottom, top], color="black", linewidth=0.9)
    for at in windows.rows if windows else ():
        axes.plot([left, right], [top + at * (bottom - top)] * 2, color="black", linewidth=0.9)
