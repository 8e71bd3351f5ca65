"""Attention over an image, as data and as a file.  Shapes: H heads, T tokens, K keys, Y X rows and columns, C channels."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from functools import singledispatch
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.image.io import ImageLike
from regard.layers.tap import watch
from regard.models.lrnet import LocalRelation, LRNet
from regard.models.resnet import ResNet
from regard.models.swin import Block, Swin, attention_received, plan_windows
from regard.tasks.image_classification import ImageClassifier
from regard.view.class_activation import class_activation, evidence
from regard.view.draw import Drawing, save_map, write_map
from regard.view.maps import require_index
from regard.view.panels import Overlay, Windows, draw_panels
from regard.view.picture import Region, picture_of, read_picture
from regard.view.record import rollout
from regard.view.scale import preference_note, ratios
from regard.view.source import describe_source, name_of

__all__ = ["ImageMap", "Panel", "draw", "map_image_attention", "model_pixels", "to_file"]

MAX_HEADS = 12  # more would be too small to see
MAX_NAME = 20  # letters of a class name
ELSEWHERE = 0.95  # from this fraction of attention on the class token a panel has no colours: what is left says little


@dataclass(frozen=True)
class Panel:
    """The fraction of the attention that each position of a grid receives."""

    title: str
    weights: list[list[float]]  # (Y, X)

    def __repr__(self) -> str:
        return f"Panel({self.title!r}, {len(self.weights)} × {len(self.weights[0])} cells)"


@dataclass(frozen=True)
class ImageMap:
    """Where a model attends in an image: the rollout over layers, if the model allows one, and each head."""

    title: str
    prediction: str  # the most likely class; empty if the classifier is untrained
    probability: float
    image: list[list[list[int]]]  # the model's input, (Y, X, C) bytes
    panels: list[Panel]
    region: list[float] = field(default_factory=lambda: [*Region()])  # top, left, bottom, right: fractions of the picture
    windows: list[list[float]] | None = None  # where Swin's windows end: rows and columns, as fractions of the model's input
    picture: npt.NDArray[np.uint8] | None = field(default=None, compare=False)  # the user's own, (Y, X, 3); not in JSON
    uniform: list[list[float]] | None = None  # (Y, X): what each position gets of uniform attention, if padding makes it uneven
    source: str = field(default="", compare=False)  # the image's file, and how long the model was trained

    def __repr__(self) -> str:
        return f"ImageMap({self.title!r}, {self.caption!r}, {len(self.panels)} panels)"

    def _repr_png_(self) -> bytes:
        return draw(self, "png").content

    @property
    def caption(self) -> str:
        """The predicted class and its probability."""
        name = self.prediction if len(self.prediction) <= MAX_NAME else f"{self.prediction[:MAX_NAME]}…"
        return f"{name} {self.probability:.1%}" if name else "untrained classifier"

    def to_json(self) -> str:
        """The map as JSON."""
        fields = dataclasses.asdict(dataclasses.replace(self, picture=None))
        del fields["picture"]
        return json.dumps(fields, ensure_ascii=False)

    def save(self, file: str | Path) -> Path:
        """Draw it as .png, .svg or .pdf, or write .json; returns the path."""
        return save_map(self, file, draw)


def map_image_attention(classifier: ImageClassifier, image: ImageLike, layer: int | None = None,
                        head: int | None = None) -> ImageMap:  # fmt: skip
    """Map the attention of an image classifier over an image, head by head.

    `layer` and `head` count from 1; without them, the last layer and all heads.  A model with a class token is shown by the
    weights of that token, another one by the mean over all queries.
    """
    model, side = classifier.model, classifier.run.model.image
    square = classifier.square(image)
    with watch(model) as recorded, torch.inference_mode():
        probabilities = model(classifier.to_input(square))[0].softmax(-1)
    layers = [(name, calls[0].float().cpu()) for name, calls in recorded.items() if calls]
    titled, source = f"{name_of(classifier)} ({classifier.run.family})", describe_source(classifier, image)
    if not layers and isinstance(model, ResNet) and classifier.trained:
        if layer is not None or head is not None:
            option = "--head" if layer is None else "--layer" if head is None else "--layer and --head"
            raise ValueError(f"a class activation map has no layers or heads; leave {option} out")
        label = int(probabilities.argmax())
        shares = evidence(class_activation(model, classifier.to_input(square), label)).float().cpu()
        name, title = classifier.labels[label], f"{titled}: class activation map (no attention), {_cells(shares)}"
        picture = read_picture(image, classifier.run.data, classifier.run.model)
        return ImageMap(title, name, float(probabilities.max()), model_pixels(square, side).tolist(),
                        [Panel("evidence for its class", shares.tolist())], [*picture.region], None, picture.pixels,
                        source=source)  # fmt: skip
    if not layers:
        raise ValueError(f"{classifier.run.name} is a {classifier.run.family} without attention; there is nothing to show: "
                         f"train one with 'model.attention=[2]', or a vit or a swin")  # fmt: skip
    require_index("layer", layer, len(layers))
    layer = layer or len(layers)
    name, weights = layers[layer - 1]
    maps = _to_grid(model, name, weights)  # (H, Y, X)
    require_index("head", head, len(maps), f"layer {layer}")
    panels = [Panel(f"head {n}", grid.tolist()) for n, grid in enumerate(maps, 1) if head in (None, n)]
    if hasattr(model, "blocks") and all(w.shape == (1, w.shape[1], weights.shape[-1], weights.shape[-1]) for _, w in layers):
        # every layer attends among the same tokens
        through = rollout([weights[0] for _, weights in layers[:layer]])  # (T, T)
        panels.insert(0, Panel(f"rollout to layer {layer}", _to_grid(model, name, through[None, None])[0].tolist()))
    queries = "attention of the class token" if _has_class_token(model) else "mean attention of all positions"
    windows, how = _windows(model, name)
    title = f"{titled}, layer {layer} of {len(layers)}: {queries}{how}, {_cells(maps)}"
    picture = read_picture(image, classifier.run.data, classifier.run.model)
    prediction = classifier.labels[int(probabilities.argmax())] if classifier.trained else ""
    return ImageMap(title, prediction, float(probabilities.max()), model_pixels(square, side).tolist(), panels,
                    [*picture.region], windows and [*windows], picture.pixels, _uniform(model, name, weights),
                    source)  # fmt: skip


def _cells(grid: Tensor) -> str:
    rows, columns = grid.shape[-2:]
    return "one cell" if rows * columns == 1 else f"{rows} × {columns} cells"


def _uniform(model: nn.Module, name: str, weights: Tensor) -> list[list[float]] | None:
    """What each position receives if all queries of a Swin block attend evenly: less in windows that are partly padding."""
    if not isinstance(model, Swin):
        return None
    block, side = cast(Block, model.get_submodule(name.removesuffix(".attn"))), model.config.image
    grid = model.grids(side, side)[int(name.split(".")[1])]
    window, shift = block.fit(block.window, block.shift, *grid)
    if not any(cells % window for cells in grid):
        return None
    mask = plan_windows(*grid, window, shift, weights.device).mask  # (N, 1, M · M, M · M)
    even = torch.ones_like(weights[:, :1]) if mask is None else mask.to(weights.dtype)
    received = attention_received(even / even.sum(-1, keepdim=True), block, *grid)[0, 0]  # (Y, X)
    return (received / math.prod(grid)).tolist()


def _windows(model: nn.Module, name: str) -> tuple[Windows | None, str]:
    """Where the windows of a Swin block end, and words for the title."""
    if not isinstance(model, Swin):
        return None, ""
    block, side = cast(Block, model.get_submodule(name.removesuffix(".attn"))), model.config.image
    rows, columns = model.grids(side, side)[int(name.split(".")[1])]
    window, shift = block.fit(block.window, block.shift, rows, columns)
    ends = [[end / cells for end in range(shift or window, cells, window)] for cells in (rows, columns)]
    return Windows(*ends), f", windows of {window} × {window}" + (f" shifted by {shift}" if shift else "")


def model_pixels(square: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """The pixels of a square that a model reads, its middle: (S, S, C) → (side, side, C)."""
    top, left = ((length - side) // 2 for length in square.shape[:2])
    return square[top : top + side, left : left + side]


def _has_class_token(model: nn.Module) -> bool:
    return getattr(model, "token", None) is not None


@singledispatch
def _to_grid(model: nn.Module, name: str, weights: Tensor) -> Tensor:
    """The weights of one layer on the grid of its keys: (H, Y, X), as fractions of one."""
    received = weights[0, :, 0, 1:] if _has_class_token(model) else weights[0].mean(1)  # (H, K)
    return received.unflatten(1, (math.isqrt(received.shape[1]), -1))  # images are square, and so are their grids


@_to_grid.register
def _(model: LRNet, name: str, weights: Tensor) -> Tensor:
    """Add each neighbourhood where it was taken."""
    layer, side = cast(LocalRelation, model.get_submodule(name)), model.input_sides(model.config.image)[name]
    received = F.fold(weights[0].transpose(1, 2), (side, side), layer.kernel, padding=layer.kernel // 2, stride=layer.stride)
    return received[:, 0] / weights.shape[2]


@_to_grid.register
def _(model: Swin, name: str, weights: Tensor) -> Tensor:
    """Put the windows back in place."""
    block, side = cast(Block, model.get_submodule(name.removesuffix(".attn"))), model.config.image
    grid = model.grids(side, side)[int(name.split(".")[1])]
    return attention_received(weights, block, *grid)[0] / math.prod(grid)


def to_file(attention: ImageMap, file: Path) -> list[str]:
    """Draw the map as PNG, SVG or PDF, or write it as JSON, by the file's suffix; returns notes for the user."""
    return write_map(attention, file, draw)


def draw(attention: ImageMap, kind: str) -> Drawing:
    """The user's picture with the predicted class, then each head over the part that the model saw."""
    heads = [panel for panel in attention.panels if panel.title.startswith("head")]
    panels = [panel for panel in attention.panels if panel not in heads[MAX_HEADS:]]
    overlays = [Overlay(panel.title, _note(panel, attention.uniform), _ratios(panel, attention.uniform)) for panel in panels]
    picture = picture_of(attention.image, attention.picture, attention.region)
    windows = Windows(*attention.windows) if attention.windows else None
    content, notes = draw_panels(attention.title, attention.caption, picture, overlays, kind, windows=windows,
                                 subtitle=attention.source)  # fmt: skip
    if len(heads) > MAX_HEADS:
        notes.append(f"{MAX_HEADS} of {len(heads)} heads are drawn; --head N draws another, a .json file holds all")
    return Drawing(content, notes)


def _elsewhere(panel: Panel) -> float:
    return 1 - float(np.sum(panel.weights))


def _ratios(panel: Panel, uniform: list[list[float]] | None) -> npt.NDArray[np.float64]:
    """Multiples of uniform attention; not a number, which has no colour, if nearly nothing of it is on the image."""
    found = ratios(panel.weights, uniform)
    return np.full_like(found, np.nan) if _elsewhere(panel) >= ELSEWHERE else found


def _note(panel: Panel, uniform: list[list[float]] | None) -> str:
    """How much the panel's attention prefers some places, and how much of it is not on the image."""
    elsewhere = _elsewhere(panel)
    on_token = f"{elsewhere:.0%} on the class token" if elsewhere >= 0.005 else ""
    if elsewhere >= ELSEWHERE:
        return on_token
    one = np.size(panel.weights) == 1
    preference = "one cell: a larger model.image shows more" if one else preference_note(panel.weights, uniform)
    return f"{preference}, {on_token}" if on_token else preference
