"""What attention looked at in a picture: weights → `PictureMap`, plain data, → a PNG, SVG or PDF file.

Shapes: H heads, T tokens, K keys, Y X rows and columns, C channels.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.files import write_atomic
from regard.decode.classifier import ImageClassifier
from regard.layers.tap import watch
from regard.models.lrnet import LocalRelation
from regard.models.swin import Swin, attention_received
from regard.models.vit import ViT
from regard.view.draw import check_file, palette, save

__all__ = ["ImageMap", "Panel", "map_image_attention", "rollout", "to_file"]

MOST = 12  # heads that are drawn; more would be too small to see
SMALL = 64  # pixels: up to this side the squares that a model sees are drawn as squares
LONGEST = 20  # letters of a class that are drawn
VEIL = 0.62  # how much of the colours lies over the grey picture


@dataclass(frozen=True)
class Panel:
    """How much of the attention each place of a grid got, in parts of one."""

    title: str
    weights: list[list[float]]  # (Y, X)


@dataclass(frozen=True)
class ImageMap:
    """Where a model looked in a picture: all of it together if that can be said, and each head."""

    title: str
    guess: str  # the class it found; empty if it has learnt none
    probability: float
    picture: list[list[list[int]]]  # what it saw, (Y, X, C) bytes
    panels: list[Panel]

    @property
    def found(self) -> str:
        """The class and its probability, as a person reads them."""
        name = self.guess if len(self.guess) <= LONGEST else f"{self.guess[:LONGEST]}…"
        return f"{name} {self.probability:.1%}" if name else "no class learnt"

    def to_json(self) -> str:
        """The map as JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def map_image_attention(
    classifier: ImageClassifier,
    picture: str | Path | npt.NDArray[np.uint8],
    layer: int | None = None,
    head: int | None = None,
) -> ImageMap:
    """What attention looked at in a picture, head by head, while the model found its class.

    One layer, counted from 1, the last if not given; and one head, or all.  If the model has a class token, where that one
    looks; else how much of all looks each place gets.
    """
    model, image = classifier.model, classifier.run.model.image
    square = classifier.square(picture)
    top, left = ((side - image) // 2 for side in square.shape[:2])
    with watch(model) as seen, _arriving(model) as grids, torch.inference_mode():
        odds = model(classifier.read(square))[0].softmax(-1)
    looks = [(name, calls[0].float().cpu()) for name, calls in seen.items() if calls]
    if not looks:
        raise ValueError(
            f"{classifier.run.name} is a {classifier.run.family} without attention; there is nothing to show: "
            f"train one with 'model.attention=[2]', or a vit or a swin"
        )
    _check("layer", layer, len(looks), "this model")
    layer = layer or len(looks)
    name, weights = looks[layer - 1]
    maps = _places(model, name, weights, grids)  # (H, Y, X)
    _check("head", head, len(maps), f"layer {layer}")
    panels = [Panel(f"head {n}", one.tolist()) for n, one in enumerate(maps, 1) if head in (None, n)]
    if isinstance(model, ViT):  # whose layers all have the same tokens
        through = rollout([one[0] for _, one in looks[:layer]])  # (T, T)
        gathered = _places(model, name, through[None, None], grids)[0]
        panels.insert(0, Panel(f"rollout to layer {layer}", gathered.tolist()))
    whose = "where the class token looks" if _before(model) else "what all places look at"
    return ImageMap(
        title=f"{classifier.run.name}, layer {layer} of {len(looks)}: {whose}",
        guess="" if "classifier" in classifier.run.untrained.split(",") else classifier.labels[int(odds.argmax())],
        probability=float(odds.max()),
        picture=square[top : top + image, left : left + image].tolist(),
        panels=panels,
    )


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """How much of each token has reached each other through all layers, the residual paths counted as half.

    Abnar and Zuidema 2020, https://arxiv.org/abs/2005.00928: layers of (H, T, T) weights, the first first, → (T, T).
    """
    reached = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype)
    for weights in layers:
        step = (weights.mean(0) + torch.eye(len(reached), dtype=weights.dtype)) / 2  # (T, T)
        reached = step / step.sum(-1, keepdim=True) @ reached
    return reached


def _check(what: str, number: int | None, there: int, whose: str) -> None:
    if number is not None and not 1 <= number <= there:
        raise ValueError(f"no {what} {number}; {whose} has {what}s 1 to {there}")


def _before(model: nn.Module) -> int:
    """Tokens that stand before the grid: one if there is a class token."""
    return int(getattr(model, "token", None) is not None)


@contextmanager
def _arriving(model: nn.Module) -> Iterator[dict[str, tuple[int, int]]]:
    """Rows and columns of the grids that arrive where neighbourhoods are looked at, by the name of the module."""
    grids: dict[str, tuple[int, int]] = {}

    def note(name: str, part: nn.Module, given: tuple[Tensor, ...]) -> None:
        grids[name] = given[0].shape[2], given[0].shape[3]

    hooks = [part.register_forward_pre_hook(partial(note, name))
             for name, part in model.named_modules() if isinstance(part, LocalRelation)]  # fmt: skip
    try:
        yield grids
    finally:
        for hook in hooks:
            hook.remove()


def _places(model: nn.Module, name: str, weights: Tensor, grids: Mapping[str, tuple[int, int]]) -> Tensor:
    """The weights of one layer, on the grid of what is looked at: (H, Y, X), in parts of one."""
    part: Any = model.get_submodule(name)
    if isinstance(part, LocalRelation):  # each neighbourhood is added where it was taken
        got = F.fold(weights[0].transpose(1, 2), grids[name], part.kernel, padding=part.kernel // 2, stride=part.stride)
        return got[:, 0] / weights.shape[2]
    if isinstance(model, Swin):
        block: Any = model.get_submodule(name.removesuffix(".attn"))
        image = model.config.image
        grid = model.grids(image, image)[int(name.split(".")[1])]
        return attention_received(weights, block, *grid)[0] / math.prod(grid)
    got = weights[0, :, 0, 1:] if _before(model) else weights[0].mean(1)  # (H, K)
    return got.unflatten(1, (math.isqrt(got.shape[1]), -1))  # pictures are square, and so are their grids


def to_file(seen: ImageMap, file: Path) -> list[str]:
    """Draw the map as PNG, SVG or PDF, or write it as JSON, by the file's ending; returns what a reader should know."""
    check_file(file)
    if file.suffix.lower() == ".json":
        write_atomic(file, seen.to_json().encode() + b"\n")
        return []
    from matplotlib.figure import Figure

    heads = [panel for panel in seen.panels if panel.title.startswith("head")]
    panels = [panel for panel in seen.panels if panel not in heads[MOST:]]
    rows = max(1, round(math.sqrt((1 + len(panels)) / 1.7)))
    columns = -(-(1 + len(panels)) // rows)
    figure = Figure(figsize=(max(5, 0.2 + 2.2 * columns), 0.35 + 2.42 * rows), layout="constrained")
    figure.suptitle(seen.title, fontsize=9, color="#666666", parse_math=False)
    shown = np.array(seen.picture, np.uint8)  # (Y, X, C)
    grey = shown.mean(-1)  # (Y, X)
    high, wide = grey.shape
    smooth = "nearest" if high <= SMALL else "bilinear"
    for number in range(1, 2 + len(panels)):
        axes = figure.add_subplot(rows, columns, number)
        axes.set_axis_off()
        if number == 1:
            axes.set_title(seen.found, fontsize=11, fontweight="bold", parse_math=False)
            axes.imshow(grey if shown.shape[2] == 1 else shown, cmap="gray", vmin=0, vmax=255, interpolation=smooth)
            continue
        panel = panels[number - 2]
        weights = np.array(panel.weights)
        axes.set_title(f"{panel.title}: {_percent(weights.min())} to {_percent(weights.max())}", fontsize=9)
        axes.imshow(64 + 0.6 * grey, cmap="gray", vmin=0, vmax=255, interpolation=smooth)  # so that no colour drowns
        axes.imshow(weights, cmap=palette(), alpha=VEIL, interpolation=smooth,
                    extent=(-0.5, wide - 0.5, high - 0.5, -0.5))  # fmt: skip
    notes = save(figure, file)
    if len(heads) > MOST:
        notes.append(f"{MOST} of {len(heads)} heads are drawn; --head N draws another, a .json file holds all")
    return notes


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 or share < 1e-5 else f"{100 * share:.2g}%"
