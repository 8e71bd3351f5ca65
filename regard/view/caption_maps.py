"""Where a caption model looks in an image for each word, as data, in the terminal and as a file.

Like Figure 5 of Show, Attend and Tell, https://arxiv.org/abs/1502.03044.

Shapes: H heads, T tokens of the caption, S tokens of the image, Y X rows and columns of their grid, C channels.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from rich.color import Color
from rich.style import Style
from rich.table import Table
from rich.text import Text
from torch import Tensor

from regard.data.image.io import ImageLike
from regard.data.image.shapes import Box
from regard.data.terminal import printable
from regard.data.text.tokenizer import Tokenizer
from regard.models.image_encoder import ImageEncoder
from regard.tasks.captioning import Caption, ImageCaptioner
from regard.view.draw import VISIBLE, Drawing, save_map, write_map
from regard.view.image_maps import Panel, model_pixels
from regard.view.maps import record_cross_attention, require_index
from regard.view.panels import Overlay, draw_panels
from regard.view.picture import Region, picture_of, read_picture
from regard.view.scale import has_preference, ink, preference_note, ratio_colour
from regard.view.source import describe_source, name_of

__all__ = ["CaptionMap", "attention_inside", "caption_weights", "draw", "map_caption", "to_file", "to_terminal", "upsample",
           "words_of_caption"]  # fmt: skip

MAX_WORDS = 60  # more would make a very large file
SMOOTH = 256  # pixels of a smooth map
CELLS = 10  # largest side of a grid in the terminal
CELL_WIDTH = 3  # characters
LARGE = 2  # times uniform attention: weights from there on are printed, also in a grid of many cells


@dataclass(frozen=True)
class CaptionMap:
    """Where a caption model looks in an image: one panel for each word, titled with the word."""

    title: str
    caption: str
    image: list[list[list[int]]]  # the model's input, (Y, X, C) bytes
    words: list[Panel]  # the weights of each sum to one
    shift: float = 0.0  # how far the centre of a token is before the middle of its cell, in cells
    region: list[float] = field(default_factory=lambda: [*Region()])  # top, left, bottom, right: fractions of the picture
    picture: npt.NDArray[np.uint8] | None = field(default=None, compare=False)  # the user's own, (Y, X, 3); not in JSON
    source: str = field(default="", compare=False)  # the image's file, and how long the model was trained

    def __repr__(self) -> str:
        return f"CaptionMap({self.title!r}, {self.caption!r}, {len(self.words)} words)"

    def _repr_png_(self) -> bytes:
        return draw(self, "png").content

    def to_json(self) -> str:
        """The map as JSON."""
        fields = dataclasses.asdict(dataclasses.replace(self, picture=None))
        del fields["picture"]
        return json.dumps(fields, ensure_ascii=False)

    def save(self, file: str | Path) -> Path:
        """Draw it as .png, .svg or .pdf, or write .json; returns the path."""
        return save_map(self, file, draw)


def map_caption(captioner: ImageCaptioner, image: ImageLike, *, beam: int | None = None,
                length_penalty: float | None = None, layer: int | None = None, head: int | None = None,
                caption: Caption | None = None) -> CaptionMap:  # fmt: skip
    """Caption an image, or take its caption, and map where the model looks for each word.

    `layer` and `head` count from 1; without them, the last layer and the mean of its heads.  The weights of a word of several
    tokens are the mean of theirs.  A class token of the encoder has no place in the image: its weight is left out,
    and the others are scaled to sum to one.
    """
    square = captioner.square(image)
    if caption is None:
        [caption] = captioner.caption([square], beam=beam, length_penalty=length_penalty)
    layers = caption_weights(captioner, square, caption.ids)  # of each layer (H, T, Y, X)
    depth, heads = len(layers), len(layers[0])
    require_index("layer", layer, depth)
    require_index("head", head, heads)
    weights = layers[(layer or depth) - 1][slice(head and head - 1, head)].mean(0)  # (T, Y, X)
    of_layer = f", layer {layer or depth} of {depth}" if depth > 1 else ""
    of_head = f", head {head}" if head else f", mean of {heads} heads" if heads > 1 else ""
    without = ", without the class token" if _encoder(captioner).extra else ""
    words = list[Panel]()
    for word, tokens in words_of_caption(captioner.tokenizer, caption.ids):
        grid = weights[tokens].mean(0)  # (Y, X)
        words.append(Panel(word, (grid / grid.sum().clamp_min(1e-12)).tolist()))
    title = f"{name_of(captioner)} ({captioner.run.family}): attention for each word{of_layer}{of_head}{without}"
    pixels = model_pixels(square, captioner.run.model.image).tolist()
    picture = read_picture(image, captioner.run.data, captioner.run.model)
    return CaptionMap(title, caption.text, pixels, words, _encoder(captioner).shift, [*picture.region], picture.pixels,
                      describe_source(captioner, image))  # fmt: skip


def caption_weights(captioner: ImageCaptioner, image: ImageLike, ids: Sequence[int]) -> list[Tensor]:
    """The attention over the image of the steps that predict the tokens of a given caption: (H, T, Y, X) for each layer.

    The caption is forced through the model, so it does not matter which search has found it.  The weights of a token sum to one,
    or to less if the encoder has a class token, which is left out.
    """
    start = captioner.tokenizer.special.bos
    x = captioner.to_input(image)
    target = torch.tensor([[start, *ids[:-1]]], device=x.device)  # the step that reads a token predicts the next one
    layers = list[Tensor]()
    for weights in record_cross_attention(captioner.model, x, target).values():
        places = weights[:, : len(ids), _encoder(captioner).extra :].float().cpu()  # (H, T, S)
        layers.append(places.unflatten(-1, (math.isqrt(places.shape[-1]), -1)))  # images are square, and so are their grids
    return layers


def _encoder(captioner: ImageCaptioner) -> ImageEncoder:
    return cast(ImageEncoder, captioner.model.encoder)


def words_of_caption(tokenizer: Tokenizer, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
    """The words of a caption, and the positions of the tokens of each; special tokens belong to no word."""
    words = tokenizer.decode(ids).split()
    positions: list[list[int]] = [[] for _ in words]
    before, spaces = "", list[int]()
    for position, token in enumerate(ids):
        if not words or token in tokenizer.special_ids:
            continue
        text = tokenizer.decode(ids[: position + 1]).strip()  # the words so far: right for every kind of tokenizer
        spaces.append(position)
        if text != before:  # a space belongs to the word after it
            positions[min(len(text.split()), len(words)) - 1] += spaces
            before, spaces = text, []
    return [(word, tokens) for word, tokens in zip(words, positions, strict=True) if tokens]


def upsample(weights: Tensor, side: int, shift: float = 0.0) -> Tensor:
    """The weights of a grid as a smooth map over an image: (Y, X) → (side, side), each the weight of a cell at that pixel.

    The centres of the cells are `shift` cells before their middles.
    """
    at = (2 * torch.arange(side, dtype=weights.dtype) + 1) / side - 1  # the middles of the pixels, from -1 to 1
    rows, columns = (at + 2 * shift / cells for cells in weights.shape)
    places = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1)  # (side, side, 2)
    smooth = F.grid_sample(weights[None, None], places[None], "bicubic", "border", align_corners=False)
    return smooth[0, 0].clamp(0, float(weights.max()))  # a cubic overshoots


def attention_inside(weights: Tensor, box: Box, side: int, grow: float = 0.0, shift: float = 0.0) -> float:
    """The fraction of the attention inside a box: each cell counts by the fraction of its area in the box.

    Weights (Y, X) over an image of `side` pixels; the box is first grown on all sides by `grow` times the side of a cell, and the
    cells are moved to their centres, `shift` cells up and to the left.
    """
    inside = list[Tensor]()
    for cells, low, high in zip(weights.shape, (box.top, box.left), (box.bottom, box.right), strict=True):
        wide = side / cells  # pixels
        edges = wide * (torch.arange(cells + 1, dtype=weights.dtype) - shift)
        overlap = edges[1:].clamp_max(high + grow * wide) - edges[:-1].clamp_min(low - grow * wide)
        inside.append(overlap.clamp_min(0) / wide)  # of each row, of each column
    return float((weights * torch.outer(*inside)).sum() / weights.sum())


def to_terminal(attention: CaptionMap, width: int = 120) -> Table:
    """Small grids for `rich.print`, one for each word, with the percentage in cells that have much of the attention.

    Colours are relative to uniform attention, as in a file.  Cells of a large grid are added up.
    """
    grids = [_small_grid(torch.tensor(word.weights)) for word in attention.words]
    wide = max(CELL_WIDTH * len(grid) for grid in grids) + 2
    columns = max(1, width // wide)
    table = Table(title=Text(printable(attention.title, keep="")), title_justify="left", title_style="dim", box=None,
                  padding=(0, 2, 1, 0), pad_edge=False, show_header=False)  # fmt: skip
    cells = [_to_text(word, grid) for word, grid in zip(attention.words, grids, strict=True)]
    for first in range(0, len(cells), columns):
        table.add_row(*cells[first : first + columns])
    return table


def _small_grid(weights: Tensor) -> Tensor:
    """Add up neighbouring cells of a grid (Y, X) until it has at most `CELLS` a side."""
    step = -(-len(weights) // CELLS)
    return F.avg_pool2d(weights[None], step, ceil_mode=True, divisor_override=1)[0]


def _to_text(word: Panel, grid: Tensor) -> Text:
    wide = CELL_WIDTH * grid.shape[1]
    title = printable(word.title, keep="")
    text = Text(title if len(title) <= wide else f"{title[: wide - 1]}…", style="bold", no_wrap=True)
    for row in grid.tolist():
        text.append("\n")
        for weight in row:
            percent = f"{100 * weight:.0f}" if weight >= min(VISIBLE, LARGE / grid.numel()) else ""
            paper = ratio_colour(weight * grid.numel())
            style = Style(color=Color.from_rgb(*ink(paper)), bgcolor=Color.from_rgb(*paper), bold=False)
            text.append(percent.center(CELL_WIDTH), style)
    text.append("\n" + ("" if has_preference(word.weights) else "no preference"[:wide]), Style(bold=False, dim=True))
    return text


def to_file(attention: CaptionMap, file: Path) -> list[str]:
    """Draw the image once for each word as PNG, SVG or PDF, or write JSON, by the file's suffix; returns notes for the user."""
    return write_map(attention, file, draw)


def draw(attention: CaptionMap, kind: str) -> Drawing:
    """The user's picture with its caption, then each word's map over the part that the model saw."""
    words = attention.words[:MAX_WORDS]
    overlays = [Overlay(word.title, preference_note(word.weights), _smooth(word, attention.shift)) for word in words]
    picture = picture_of(attention.image, attention.picture, attention.region)
    caption = attention.caption or "(an empty caption)"
    content, notes = draw_panels(attention.title, caption, picture, overlays, kind, smooth=True, subtitle=attention.source)
    if len(attention.words) > MAX_WORDS:
        notes.append(f"{MAX_WORDS} of {len(attention.words)} words are drawn; a .json file holds all")
    return Drawing(content, notes)


def _smooth(word: Panel, shift: float) -> npt.NDArray[np.float64]:
    """Multiples of uniform attention as a smooth map."""
    weights = torch.tensor(word.weights, dtype=torch.float64)
    return (upsample(weights, SMOOTH, shift) * weights.numel()).numpy()
