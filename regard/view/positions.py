"""How a model knows positions, as data and as a file: tables of vectors and their similarity, or biases by distance.

Shapes: T positions, D width, H heads, L distances, M side of a window, Y X rows and columns of a grid.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from regard.layers.biases import (
    BucketedPositionBias,
    ContinuousPositionBias,
    DecomposedPositionBias,
    GeometricPrior,
    RelativePositionBias,
)
from regard.layers.positions import LearnedGridPositions, LearnedPositions, SinusoidalDistances, SinusoidalPositions
from regard.layers.tap import HasModel
from regard.models import FAMILIES, load_model, preset
from regard.shipped import find_run
from regard.view.draw import Drawing, figure_bytes, new_figure, save_map, write_map
from regard.view.maps import require_index
from regard.view.scale import LESS_TO_MORE, palette

__all__ = ["PositionMap", "PositionPanel", "draw", "load_for_positions", "map_positions", "to_file"]

MAX_LENGTH = 2048  # positions that are drawn
MAX_HEADS = 12  # panels of two-dimensional biases
LARGEST = 150_000_000  # parameters of a model by name, which is built only for its positions
TILED = 16  # largest side of a grid whose similarities are drawn as small maps


@dataclass(frozen=True)
class PositionPanel:
    """One heat map."""

    title: str
    across: str  # what the columns are
    down: str  # what the rows are
    values: list[list[float]]
    kind: Literal["table", "similarity", "bias"]  # similarities are from -1 to 1
    first: tuple[float, float] = (0, 0)  # number of the first column and row
    tile: int = 0  # side of the small maps of which the values consist, if they do

    def __repr__(self) -> str:
        return f"PositionPanel({self.title!r}, {len(self.values)} × {len(self.values[0])} values)"


@dataclass(frozen=True)
class PositionMap:
    """How a model knows positions."""

    title: str
    panels: list[PositionPanel]

    def __repr__(self) -> str:
        return f"PositionMap({self.title!r}, {len(self.panels)} panels)"

    def _repr_png_(self) -> bytes:
        return draw(self, "png").content

    def to_json(self) -> str:
        """The map as JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    def save(self, file: str | Path) -> Path:
        """Draw it as .png, .svg or .pdf, or write .json; returns the path."""
        return save_map(self, file, draw)


def load_for_positions(model: str | Path) -> tuple[str, nn.Module]:
    """The name and the model of a run folder, or of a size such as transformer-base, which is untrained."""
    path = find_run(model)
    if path.is_dir():
        return path.resolve().name, load_model(path)
    model = str(model)
    family, config = preset(model)
    if hasattr(config, "depth"):  # such models have one table for all layers
        config = dataclasses.replace(config, depth=1)
    with torch.device("meta"):
        count = sum(p.numel() for p in FAMILIES[family].build(config).parameters())
    if count > LARGEST:
        raise ValueError(f"one layer of {model} has {count:,} parameters, and up to {LARGEST:,} are built to be drawn; "
                         f"give a smaller size, or a run folder")  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model, FAMILIES[family].build(config)


@torch.inference_mode()
def map_positions(model: nn.Module | HasModel | str | Path, name: str = "", *, length: int = 64,
                  layer: int | None = None) -> PositionMap:  # fmt: skip
    """Map the position embeddings of a model, and its relative position biases.

    The model is a torch module, a run folder, a size such as transformer-base, or what `regard.load` returns.

    `length` positions of a text are drawn, or distances up to that.  Of models with a bias in each layer, `layer` is drawn,
    counted from 1, by default the first.
    """
    if isinstance(model, str | Path):
        found, model = load_for_positions(model)
        name = name or found
    elif not isinstance(model, nn.Module):
        model = getattr(model, "model", model)
    if not isinstance(model, nn.Module):
        raise ValueError(f"a model of type {type(model).__name__}; wanted a run folder, a torch module, or what regard.load "
                         f"returns")  # fmt: skip
    if not hasattr(length, "__index__"):
        raise ValueError(f"length {length!r} of type {type(length).__name__}; give a whole number")
    if not 2 <= length <= MAX_LENGTH:
        raise ValueError(f"length {length}; use 2 to {MAX_LENGTH:,} positions")
    parts = [(path, part) for path, part in model.named_modules() if _panels.dispatch(type(part)) is not _panels.dispatch(object)]
    biases = [part for part in parts if isinstance(part[1], RelativePositionBias | ContinuousPositionBias | GeometricPrior)]
    if biases:
        require_index("layer", layer, len(biases))
        parts = [part for part in parts if part not in biases or part is biases[(layer or 1) - 1]]
    elif layer is not None:
        raise ValueError(f"layer {layer}; all layers of this model share its positions, leave it out")
    of_layer = f", layer {layer or 1} of {len(biases)}" if biases else ""
    panels, tables = list[PositionPanel](), list[Tensor]()
    for path, part in parts:
        table = getattr(part, "table", None)
        if isinstance(table, Tensor) and any(table.shape == other.shape and torch.equal(table, other) for other in tables):
            continue  # the encoder's and the decoder's sinusoids are the same
        tables += [table] if isinstance(table, Tensor) else []
        panels += _panels(part, path.split(".")[0], length)
    if not panels:
        raise ValueError(
            f"{name or 'this model'} has no position embeddings or biases: recurrence or convolutions carry the order"
        )
    return PositionMap(f"positions of {name or type(model).__name__}{of_layer}", panels)


@singledispatch
def _panels(part: nn.Module, path: str, length: int) -> Iterator[PositionPanel]:
    """The heat maps of one part of a model."""
    raise NotImplementedError


def _table(title: str, table: Tensor, down: str = "position", first: int = 0) -> Iterator[PositionPanel]:
    """Vectors (T, D) by dimension, and the cosine of each pair."""
    yield PositionPanel(f"{title}: value of each dimension", "dimension", down, table.tolist(), "table", (0, first))
    yield PositionPanel("cosine similarity", down, down, _cosine(table).tolist(), "similarity", (first, first))


def _cosine(table: Tensor) -> Tensor:
    unit = table.float() / table.float().norm(dim=-1, keepdim=True).clamp_min(1e-12)
    return unit @ unit.T


@_panels.register
def _(part: SinusoidalPositions, path: str, length: int) -> Iterator[PositionPanel]:
    return _table("sinusoids", part(0, length))


@_panels.register
def _(part: LearnedPositions, path: str, length: int) -> Iterator[PositionPanel]:
    which = {"embed_source": " of the source", "embed_target": " of the target"}.get(path, "")
    return _table(f"learned positions{which}", part(0, min(length, len(part.table))))


@_panels.register
def _(part: SinusoidalDistances, path: str, length: int) -> Iterator[PositionPanel]:
    return _table("sinusoids of the distance", part(length).flip(0), "distance from key to query", 1 - length)


@_panels.register
def _(part: LearnedGridPositions, path: str, length: int) -> Iterator[PositionPanel]:
    """The similarity of a grid's positions as in figure 7 of https://arxiv.org/abs/2010.11929: a small map for each."""
    grid = part.table[part.before :]
    yield PositionPanel("learned positions of patches, row by row: value of each dimension", "dimension", "patch", grid.tolist(),
                        "table")  # fmt: skip
    cosine, side = _cosine(grid), part.side
    if side <= TILED:
        tiles = cosine.view(side, side, side, side).permute(0, 2, 1, 3).reshape(side**2, side**2)
        yield PositionPanel("cosine similarity of each patch (a small map) with all", "column of the patch", "row of the patch",
                            tiles.tolist(), "similarity", tile=side)  # fmt: skip
    else:
        yield PositionPanel("cosine similarity", "patch", "patch", cosine.tolist(), "similarity")


@_panels.register
def _(part: BucketedPositionBias, path: str, length: int) -> Iterator[PositionPanel]:
    """T5: by head and by distance; keys after the query are to the right."""
    side = "encoder" if part.bidirectional else "decoder"
    last = length if part.bidirectional else 0
    keys = torch.arange(-length, last + 1)
    bias = part(torch.zeros(1, dtype=torch.long), keys)[0, :, 0]  # (H, L)
    yield PositionPanel(f"bias of the {side}", "key - query, in tokens", "head", bias.tolist(), "bias", (-length, 1))


@_panels.register
def _(part: RelativePositionBias, path: str, length: int) -> Iterator[PositionPanel]:
    return _offsets(part(part.window)[0], part.window)


@_panels.register
def _(part: ContinuousPositionBias, path: str, length: int) -> Iterator[PositionPanel]:
    window = part.max_distance + 1
    return _offsets(part(window)[0], window)


def _offsets(bias: Tensor, window: int) -> Iterator[PositionPanel]:
    """Biases of all pairs of a window (H, M · M, M · M) → one map of offsets key - query for each head."""
    pairs = bias.unflatten(1, (window, window)).unflatten(
        3, (window, window)
    )  # (H, query row, query column, key row, key column)
    table = bias.new_zeros(len(bias), 2 * window - 1, 2 * window - 1)
    for row in (0, window - 1):
        for column in (0, window - 1):  # seen from the four corners, keys are at all offsets
            top, left = window - 1 - row, window - 1 - column
            table[:, top : top + window, left : left + window] = pairs[:, row, column]
    for head, values in enumerate(table[:MAX_HEADS].tolist(), 1):
        yield PositionPanel(
            f"bias, head {head}", "key - query, columns", "key - query, rows", values, "bias", (1 - window, 1 - window)
        )


@_panels.register
def _(part: GeometricPrior, path: str, length: int) -> Iterator[PositionPanel]:
    reach = part.kernel // 2
    for head, values in enumerate(part().unflatten(1, (part.kernel, -1))[:MAX_HEADS].tolist(), 1):
        yield PositionPanel(f"bias, head {head}", "key - query, columns", "key - query, rows", values, "bias", (-reach, -reach))


@_panels.register
def _(part: DecomposedPositionBias, path: str, length: int) -> Iterator[PositionPanel]:
    """MViT V2: the bias is the product of these vectors with the query."""
    first = -(len(part.rows) // 2)
    for axis, table in (("rows", part.rows), ("columns", part.columns)):
        title = f"vectors of distances in {axis}, {path}"
        yield PositionPanel(title, "dimension", f"query - key, {axis}", table.tolist(), "table", (0, first))


def to_file(positions: PositionMap, file: Path) -> list[str]:
    """Draw the map as PNG, SVG or PDF, or write it as JSON, by the file's suffix; returns notes for the user."""
    return write_map(positions, file, draw)


def draw(positions: PositionMap, kind: str) -> Drawing:
    """Heat maps side by side; zero is nearly white, and each has a colour bar."""
    panels = positions.panels[: 2 * MAX_HEADS]
    columns = len(panels) if len(panels) <= 3 else 2 if len(panels) == 4 else 4
    rows = -(-len(panels) // columns)
    wide, high = (4.6, 3.6) if columns <= 2 else (3.3, 2.9)
    biases = [torch.tensor(panel.values).abs().max() for panel in panels if panel.kind == "bias"]  # on one scale
    flat = all(
        len(panel.values) < 20 and panel.kind == "bias" and len(panel.values[0]) > 2 * len(panel.values) for panel in panels
    )
    wide, high, columns, rows = (8.0, 2.4, 1, len(panels)) if flat else (wide, high, columns, rows)
    with new_figure(wide * columns, high * rows + 0.3, [positions.title]) as figure:
        figure.suptitle(positions.title, fontsize=10, parse_math=False)
        for index, panel in enumerate(panels, 1):
            axes = figure.add_subplot(rows, columns, index)
            of_panel = max(biases) if panel.kind == "bias" else torch.tensor(panel.values).abs().max()
            most = 1.0 if panel.kind == "similarity" else max(1e-12, float(of_panel))
            (left, top), high_, wide_ = panel.first, len(panel.values), len(panel.values[0])
            even = panel.kind == "similarity" or (panel.kind == "bias" and high_ == wide_)
            square: Literal["equal", "auto"] = "equal" if even else "auto"
            extent = (left - 0.5, left + wide_ - 0.5, top + high_ - 0.5, top - 0.5)
            drawn = axes.imshow(panel.values, cmap=palette(LESS_TO_MORE), vmin=-most, vmax=most, aspect=square,
                                interpolation="nearest", extent=extent)  # fmt: skip
            axes.set_title(panel.title, fontsize=9, parse_math=False)
            axes.set_xlabel(panel.across, fontsize=8)
            axes.set_ylabel(panel.down, fontsize=8)
            axes.tick_params(labelsize=7)
            axes.locator_params(integer=True)
            if panel.tile:
                for line in range(panel.tile, len(panel.values), panel.tile):
                    axes.axhline(line - 0.5, color="white", linewidth=1.5)
                    axes.axvline(line - 0.5, color="white", linewidth=1.5)
                middles = [panel.tile * n + (panel.tile - 1) / 2 for n in range(panel.tile)]
                numbers = [str(n) for n in range(1, panel.tile + 1)]
                axes.set_xticks(middles, numbers)
                axes.set_yticks(middles, numbers)
            bar = figure.colorbar(drawn, ax=axes, fraction=0.046, pad=0.02)
            bar.outline.set_visible(False)
            bar.ax.tick_params(labelsize=7)
        return figure_bytes(figure, kind, [positions.title])
