"""Parameters, FLOPs, bytes: the lectures' arithmetic, for any config, without allocating a single weight.

Shapes: H heads, Q queries, K keys; `...` is any batch or window dimensions.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.config import build
from regard.layers.positions import LearnedPositions
from regard.layers.tap import watch
from regard.models import FAMILIES

__all__ = ["ImageCost", "Part", "changed", "cost", "image_cost"]

FLOAT = 4  # bytes of a float32


class Part(NamedTuple):
    """What one part of a model costs for one sentence pair, one text or one picture."""

    name: str
    parameters: int
    flops: int  # of a forward pass; a product of (a, b) and (b, c) matrices counts 2abc
    bytes: int  # of the weights
    score_bytes: int  # of the attention scores, if they were all held at once; the fused kernel never does


def cost(family: str, config: Any, source: int, target: int) -> list[Part]:
    """Count a model part by part; the last row is the whole.

    For a source and a target of so many tokens, for a text of `source` tokens if the model reads but one, or for one picture.
    The model runs on torch's meta device, which knows shapes and no numbers; torch counts the products.
    """
    if hasattr(config, "image"):
        return image_cost(family, config).parts
    with torch.device("meta"):
        model = FAMILIES[family].build(config).eval().requires_grad_(False)
        read, said = torch.ones(1, source, dtype=torch.long), torch.ones(1, target, dtype=torch.long)
    with torch.no_grad(), torch.device("meta"):  # a table of positions may grow on the way
        rows = _sides(model, read, said) if hasattr(model, "decoder") else _stack(model, read)
    return _summed(rows)


class ImageCost(NamedTuple):
    """What a model of pictures costs for one of them."""

    image: int  # side of the picture, in pixels
    tokens: int  # that look, in its first attention; 0 if it has none
    entries: int  # of the scores of one head, in the layer that has most
    parts: list[Part]  # the last one is the whole

    @property
    def whole(self) -> Part:
        """All parts together."""
        return self.parts[-1]

    @property
    def entry_bytes(self) -> int:
        """Of those entries."""
        return FLOAT * self.entries


def changed(name: str, family: str, config: Any, values: Mapping[str, Any]) -> Any:
    """The config of a model with other values for some keys, checked; `name` is for what is said of a wrong one."""
    base = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return build(name, FAMILIES[family].config, values, base)


def image_cost(family: str, config: Any) -> ImageCost:
    """Count a model of pictures part by part, for one picture of the size its config names.

    It runs on the meta device and is watched meanwhile: the shapes of the weights that each attention hands out say how many
    tokens look, and at how many.  So windows, pooled keys and neighbourhoods are counted as they are, and ragged edges with
    what fills them up.  What is not a product (norms, softmax, a score that is a distance) counts no FLOPs.
    """
    with torch.device("meta"):
        model = FAMILIES[family].build(config).eval().requires_grad_(False)
        read = torch.empty(1, config.channels, config.image, config.image)
        if FAMILIES[family].tasks == ("pixels",):
            read = torch.ones(1, config.image**2, dtype=torch.long)
    with torch.no_grad(), torch.device("meta"):
        with watch(model) as seen, FlopCounterMode(display=False) as counter:
            model(read)
        flops = counter.get_flop_counts()
        rows = _stack(model.gpt, read) if hasattr(model, "gpt") else _children(model, flops, seen)
    calls = [weights for each in seen.values() for weights in each]  # (..., H, Q, K)
    return ImageCost(
        image=config.image,
        tokens=_entries(calls[0]) // calls[0].shape[-1] if calls else 0,
        entries=max(map(_entries, calls), default=0),
        parts=_summed(rows),
    )


Row = tuple[str, int, int, int]  # name, parameters, FLOPs, bytes of the scores


def _summed(rows: list[Row]) -> list[Part]:
    """The parts, and all of them together."""
    whole: Any = ("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))
    return [
        Part(name, parameters, flops, FLOAT * parameters, scores) for name, parameters, flops, scores in (*rows, whole)
    ]


def _sides(model: Any, read: Tensor, said: Tensor) -> list[Row]:
    """An encoder and a decoder."""
    c, s, t = model.config, read.shape[1], said.shape[1]
    whole, encoder = _flops(lambda: model(read, said)), _flops(lambda: model.encode(read))
    features = model.features(read, said)
    out = _flops(lambda: model.output(features))
    encoding = _weights(*(part for name, part in model.named_children() if name.startswith("encoder")))
    decoding = _weights(*(part for name, part in model.named_children() if name.startswith("decoder")))
    own = {} if _tied(model) else _weights(model.output)
    tables = {key: n for key, n in _weights(model).items() if key not in encoding | decoding | own}
    scores = c.depth * c.heads * FLOAT
    return [
        ("embeddings", sum(tables.values()), 0, 0),
        ("encoder", sum(encoding.values()), encoder, scores * s * s),
        ("decoder", sum(decoding.values()), whole - encoder - out, scores * t * (t + s)),
        ("output" + (" (tied)" if not own else ""), sum(own.values()), out, 0),
    ]


def _stack(model: Any, read: Tensor) -> list[Row]:
    """One stack of blocks."""
    c, s = model.config, read.shape[1]
    blocks = _weights(model.blocks)
    whole = _flops(lambda: model(read))
    x = torch.empty(1, s, c.dim)
    inside = _flops(lambda: [block(x) for block in model.blocks])
    tables = _weights(*(part for part in model.modules() if isinstance(part, nn.Embedding | LearnedPositions)))
    rest = {key: n for key, n in _weights(model).items() if key not in blocks | tables}
    return [
        ("embeddings", sum(tables.values()), 0, 0),
        ("blocks", sum(blocks.values()), inside, c.depth * c.heads * FLOAT * s * s),
        ("output (tied)", sum(rest.values()), whole - inside, 0),
    ]


def _children(model: nn.Module, flops: Mapping[str, Mapping[Any, int]], seen: Mapping[str, list[Tensor]]) -> list[Row]:
    """The parts that stand in the model's figure, and in the last row what belongs to none of them, such as a class token."""

    def inside(name: str, part: nn.Module) -> int:
        if name in flops:
            return sum(flops[name].values())
        return sum(inside(f"{name}.{key}", child) for key, child in part.named_children())  # a list is never called

    root = type(model).__name__
    rows = [
        (
            name,
            sum(_weights(part).values()),
            inside(f"{root}.{name}", part),
            FLOAT * sum(one.numel() for key, calls in seen.items() if key.startswith(f"{name}.") for one in calls),
        )
        for name, part in model.named_children()
    ]
    whole = (
        sum(_weights(model).values()),
        inside(root, model),
        FLOAT * sum(one.numel() for calls in seen.values() for one in calls),
    )
    rest = [total - sum(column) for total, column in zip(whole, list(zip(*rows, strict=True))[1:], strict=True)]
    return [row for row in (*rows, ("the rest", *rest)) if any(row[1:])]


def _entries(weights: Tensor) -> int:
    """Of one head, in all windows: (..., H, Q, K) → a number."""
    return weights.numel() // weights.shape[-3]


def _flops(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def _weights(*modules: nn.Module) -> dict[int, int]:
    """Sizes of all weights, one that is shared once."""
    return {id(p): p.numel() for module in modules for p in module.parameters()}


def _tied(model: Any) -> bool:
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    return id(model.output.weight) in tables
