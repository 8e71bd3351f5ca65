"""Attention over an image in its place: on the grid of positions, whatever windows or neighbourhoods a model uses.

Swin's windows are put where they are in the image, the cyclic shift undone, and LR-Net's neighbourhoods around their queries.

Shapes: H heads, Q queries, K keys, N windows, M side of a window, R side of a neighbourhood, Y X rows and columns.
"""

import math
from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from regard.layers.masks import neighborhood_mask
from regard.models.lrnet import LocalRelation, LRNet
from regard.models.swin import Block, Swin, plan_windows
from regard.view.record import Axis, Windows
from regard.view.record_layers import Placed

__all__ = ["Grid", "OnGrid", "Places", "on_grids", "padding_note", "place_layers", "place_on_grid", "square_grid"]


class Grid(NamedTuple):
    """Places of an image, and the tokens before them."""

    rows: int
    columns: int
    before: int = 0

    @property
    def axis(self) -> Axis:
        """As an axis of a record."""
        labels = ["class token"] * self.before
        return Axis("grid", self.before + self.rows * self.columns, labels, grid=(self.rows, self.columns),
                    special=list(range(self.before)))  # fmt: skip


class OnGrid(NamedTuple):
    """One layer: its weights (H, Q, K), or (N, H, Q, K) of windows, and where its queries and keys are."""

    weights: Tensor
    queries: Grid
    keys: Grid
    windows: Windows | None = None
    detail: str = ""


@singledispatch
def place_on_grid(model: nn.Module, name: str, weights: Tensor) -> OnGrid:
    """Put the weights of one module of an image model, as `watch` has them, in their places."""
    before = int(getattr(model, "token", None) is not None)
    queries, keys = (square_grid(length, before) for length in weights.shape[-2:])
    return OnGrid(weights[0], queries, keys)


def square_grid(tokens: int, before: int) -> Grid:
    """The grid of this many tokens, of which some are before it."""
    side = math.isqrt(tokens - before)  # images are square, and so are their grids
    return Grid(side, side, before)


@place_on_grid.register
def _(model: LRNet, name: str, weights: Tensor) -> OnGrid:
    """Each query has a window of its own, the neighbourhood around it: weights (1, H, Y · X, R · R)."""
    layer, side = cast(LocalRelation, model.get_submodule(name)), model.input_sides(model.config.image)[name]
    queries = -(-side // layer.stride)
    down = torch.arange(layer.kernel) - layer.kernel // 2
    offsets = (down[:, None] * side + down).flatten()  # (R · R,): from a query to its neighbours
    middle = torch.arange(0, side, layer.stride)
    keys = (middle[:, None] * side + middle).flatten()[:, None] + offsets  # (Y · X, R · R)
    keys = keys.masked_fill(~neighborhood_mask(side, side, layer.kernel, layer.stride), -1)
    windows = Windows(torch.arange(len(keys))[:, None], keys, (queries**2, side**2))
    return OnGrid(weights[0].transpose(0, 1)[:, :, None], Grid(queries, queries), Grid(side, side), windows,
                   f" to {layer.kernel} × {layer.kernel} neighbours")  # fmt: skip


@place_on_grid.register
def _(model: Swin, name: str, weights: Tensor) -> OnGrid:
    """Windows of the padded and shifted grid, by the positions of the grid as it is: weights (N, H, M · M, M · M)."""
    block, side = cast(Block, model.get_submodule(name.removesuffix(".attn"))), model.config.image
    rows, columns = model.grids(side, side)[int(name.split(".")[1])]
    window, shift = block.fit(block.window, block.shift, rows, columns)
    padded = -(-columns // window) * window  # columns
    order = plan_windows(rows, columns, window, shift, torch.device("cpu")).order
    y, x = order // padded, order % padded
    places = (y * columns + x).masked_fill((y >= rows) | (x >= columns), -1).view(-1, window**2)  # (N, M · M)
    detail = f" in windows of {window} × {window}" + (f", shifted by {shift}" if shift else "")
    grid = Grid(rows, columns)
    return OnGrid(weights, grid, grid, Windows(places, places, (rows * columns, rows * columns)), detail)


class Places(NamedTuple):
    """The grids of a record by the names of their axes, the finest first: image, image1, image2, …"""

    names: dict[Grid, str]

    @classmethod
    def of(cls, grids: Sequence[Grid]) -> "Places":
        """Names for all grids."""
        ordered = sorted(set(grids), key=lambda grid: (-grid.rows * grid.columns, grid.before))
        return cls({grid: f"image{n or ''}" for n, grid in enumerate(ordered)})

    @property
    def axes(self) -> dict[str, Axis]:
        """The axes of the record."""
        return {name: grid.axis for grid, name in self.names.items()}


def on_grids(net: nn.Module, recorded: Mapping[str, Sequence[Tensor]], prefix: str = "") -> dict[str, OnGrid]:
    """All modules of an image model that `watch` has recorded, in their places; `prefix` is before the model's own names."""
    return {
        name: place_on_grid(net, name.removeprefix(prefix), calls[0].float().cpu()) for name, calls in recorded.items() if calls
    }


def place_layers(found: Mapping[str, OnGrid], places: Places, stack: str = "") -> list[Placed]:
    """The layers of an image model."""
    return [
        Placed(name, "self", stack, places.names[part.queries], places.names[part.keys], part.weights, part.windows, part.detail)
        for name, part in found.items()
    ]


def padding_note(found: Mapping[str, OnGrid]) -> list[str]:
    """What the user should know if windows hold padding."""
    padded = any(part.windows is not None and part.queries == part.keys and bool((part.windows.queries < 0).any())
                 for part in found.values())  # fmt: skip
    return ["Swin's windows do not tile this grid, so its edge is padded; the attention that the edge gives to padding is not "
            "shown, and its rows sum to less than 1"] if padded else []  # fmt: skip
