"""Attention over an image, as data and as a file.  Shapes: H heads, T tokens, K keys, Y X rows and columns, C channels."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, singledispatch
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.files import write_atomic
from regard.layers.tap import watch
from regard.models.lrnet import LocalRelation, LRNet
from regard.models.resnet import ResNet
from regard.models.swin import Block, Swin, attention_received
from regard.tasks.image_classification import ImageClassifier
from regard.view.class_activation import class_activation, evidence
from regard.view.draw import check_file, new_figure, palette, save_figure
from regard.view.maps import require_index

__all__ = ["ImageMap", "Panel", "map_image_attention", "model_pixels", "rollout", "to_file"]

MAX_HEADS = 12  # more would be too small to see
PIXELATED = 64  # up to this side, in pixels, images are drawn without smoothing
MAX_NAME = 20  # letters of a class name
OPACITY = 0.62  # of the colours over the grey image


@dataclass(frozen=True)
class Panel:
    """The fraction of the attention that each position of a grid receives."""

    title: str
    weights: list[list[float]]  # (Y, X)


@dataclass(frozen=True)
class ImageMap:
    """Where a model attends in an image: the rollout over layers, if the model allows one, and each head."""

    title: str
    prediction: str  # the most likely class; empty if the classifier is untrained
    probability: float
    image: list[list[list[int]]]  # the model's input, (Y, X, C) bytes
    panels: list[Panel]

    @property
    def caption(self) -> str:
        """The predicted class and its probability."""
        name = self.prediction if len(self.prediction) <= MAX_NAME else f"{self.prediction[:MAX_NAME]}…"
        return f"{name} {self.probability:.1%}" if name else "untrained classifier"

    def to_json(self) -> str:
        """The map as JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def map_image_attention(classifier: ImageClassifier, image: str | Path | npt.NDArray[np.uint8], layer: int | None = None,
                        head: int | None = None) -> ImageMap:  # fmt: skip
    """Map the attention of an image classifier over its input, head by head.

    `layer` and `head` count from 1; without them, the last layer and all heads.  A model with a class token is shown by the
    weights of that token, another one by the mean over all queries.
    """
    model, side = classifier.model, classifier.run.model.image
    square = classifier.square(image)
    with watch(model) as recorded, _record_grids(model) as grids, torch.inference_mode():
        probabilities = model(classifier.to_input(square))[0].softmax(-1)
    layers = [(name, calls[0].float().cpu()) for name, calls in recorded.items() if calls]
    if not layers and isinstance(model, ResNet) and classifier.trained and not (layer or head):
        label = int(probabilities.argmax())
        shares = evidence(class_activation(model, classifier.to_input(square), label)).float().cpu()
        name, title = classifier.labels[label], f"{classifier.run.name}: class activation map, it has no attention"
        return ImageMap(title, name, float(probabilities.max()), model_pixels(square, side).tolist(),
                        [Panel("evidence for its class", shares.tolist())])  # fmt: skip
    if not layers:
        raise ValueError(f"{classifier.run.name} is a {classifier.run.family} without attention; there is nothing to show: "
                         f"train one with 'model.attention=[2]', or a vit or a swin")  # fmt: skip
    require_index("layer", layer, len(layers))
    layer = layer or len(layers)
    name, weights = layers[layer - 1]
    maps = _to_grid(model, name, weights, grids)  # (H, Y, X)
    require_index("head", head, len(maps), f"layer {layer}")
    panels = [Panel(f"head {n}", grid.tolist()) for n, grid in enumerate(maps, 1) if head in (None, n)]
    if hasattr(model, "blocks") and all(w.shape == (1, w.shape[1], weights.shape[-1], weights.shape[-1]) for _, w in layers):
        # every layer attends among the same tokens
        through = rollout([weights[0] for _, weights in layers[:layer]])  # (T, T)
        panels.insert(0, Panel(f"rollout to layer {layer}", _to_grid(model, name, through[None, None], grids)[0].tolist()))
    queries = "attention of the class token" if _has_class_token(model) else "mean attention of all positions"
    title = f"{classifier.run.name}, layer {layer} of {len(layers)}: {queries}"
    prediction = classifier.labels[int(probabilities.argmax())] if classifier.trained else ""
    return ImageMap(title, prediction, float(probabilities.max()), model_pixels(square, side).tolist(), panels)


def model_pixels(square: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """The pixels of a square that a model reads, its middle: (S, S, C) → (side, side, C)."""
    top, left = ((length - side) // 2 for length in square.shape[:2])
    return square[top : top + side, left : left + side]


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """Attention rollout: how much of each token reaches each other through all layers, residual paths counted as half.

    Abnar and Zuidema 2020, https://arxiv.org/abs/2005.00928: layers of (H, T, T) weights, the first first, → (T, T).
    """
    reached = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype)
    for weights in layers:
        step = (weights.mean(0) + torch.eye(len(reached), dtype=weights.dtype)) / 2  # (T, T)
        reached = step / step.sum(-1, keepdim=True) @ reached
    return reached


def _has_class_token(model: nn.Module) -> bool:
    return getattr(model, "token", None) is not None


@contextmanager
def _record_grids(model: nn.Module) -> Iterator[dict[str, tuple[int, int]]]:
    """Rows and columns of the input of each `LocalRelation`, by module name."""
    grids: dict[str, tuple[int, int]] = {}

    def record(name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        grids[name] = inputs[0].shape[2], inputs[0].shape[3]

    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, LocalRelation)]
    hooks = [module.register_forward_pre_hook(partial(record, name)) for name, module in layers]
    try:
        yield grids
    finally:
        for hook in hooks:
            hook.remove()


@singledispatch
def _to_grid(model: nn.Module, name: str, weights: Tensor, grids: Mapping[str, tuple[int, int]]) -> Tensor:
    """The weights of one layer on the grid of its keys: (H, Y, X), as fractions of one."""
    received = weights[0, :, 0, 1:] if _has_class_token(model) else weights[0].mean(1)  # (H, K)
    return received.unflatten(1, (math.isqrt(received.shape[1]), -1))  # images are square, and so are their grids


@_to_grid.register
def _(model: LRNet, name: str, weights: Tensor, grids: Mapping[str, tuple[int, int]]) -> Tensor:
    """Add each neighbourhood where it was taken."""
    layer = cast(LocalRelation, model.get_submodule(name))
    received = F.fold(weights[0].transpose(1, 2), grids[name], layer.kernel, padding=layer.kernel // 2, stride=layer.stride)
    return received[:, 0] / weights.shape[2]


@_to_grid.register
def _(model: Swin, name: str, weights: Tensor, grids: Mapping[str, tuple[int, int]]) -> Tensor:
    """Put the windows back in place."""
    block, side = cast(Block, model.get_submodule(name.removesuffix(".attn"))), model.config.image
    grid = model.grids(side, side)[int(name.split(".")[1])]
    return attention_received(weights, block, *grid)[0] / math.prod(grid)


def to_file(attention: ImageMap, file: Path) -> list[str]:
    """Draw the map as PNG, SVG or PDF, or write it as JSON, by the file's suffix; returns notes for the user."""
    check_file(file)
    if file.suffix.lower() == ".json":
        write_atomic(file, attention.to_json().encode() + b"\n")
        return []
    heads = [panel for panel in attention.panels if panel.title.startswith("head")]
    panels = [panel for panel in attention.panels if panel not in heads[MAX_HEADS:]]
    rows = max(1, round(math.sqrt((1 + len(panels)) / 1.7)))
    columns = -(-(1 + len(panels)) // rows)
    image = np.array(attention.image, np.uint8)  # (Y, X, C)
    grey = image.mean(-1)  # (Y, X)
    height, width = grey.shape
    smooth = "nearest" if height <= PIXELATED else "bilinear"
    with new_figure(max(5, 0.2 + 2.2 * columns), 0.35 + 2.42 * rows) as figure:
        figure.suptitle(attention.title, fontsize=9, color="#666666", parse_math=False)
        axes = figure.add_subplot(rows, columns, 1)
        axes.set_axis_off()
        axes.set_title(attention.caption, fontsize=11, fontweight="bold", parse_math=False)
        axes.imshow(grey if image.shape[2] == 1 else image, cmap="gray", vmin=0, vmax=255, interpolation=smooth)
        for index, panel in enumerate(panels, 2):
            axes = figure.add_subplot(rows, columns, index)
            axes.set_axis_off()
            weights = np.array(panel.weights)
            axes.set_title(f"{panel.title}: {_percent(weights.min())} to {_percent(weights.max())}", fontsize=9)
            axes.imshow(64 + 0.6 * grey, cmap="gray", vmin=0, vmax=255, interpolation=smooth)  # pale, below the colours
            axes.imshow(weights, cmap=palette(), alpha=OPACITY, interpolation=smooth,
                        extent=(-0.5, width - 0.5, height - 0.5, -0.5))  # fmt: skip
        notes = save_figure(figure, file)
    if len(heads) > MAX_HEADS:
        notes.append(f"{MAX_HEADS} of {len(heads)} heads are drawn; --head N draws another, a .json file holds all")
    return notes


def _percent(fraction: float) -> str:
    return f"{fraction:.0%}" if fraction >= 0.1 or fraction < 1e-5 else f"{100 * fraction:.2g}%"
