"""Parameters, FLOPs, bytes: the lectures' arithmetic, for any config, without allocating a single weight."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.layers.positions import Learned
from regard.models import FAMILIES

__all__ = ["Part", "cost"]

FLOAT = 4  # bytes of a float32


class Part(NamedTuple):
    """What one part of a model costs for one sentence pair, or one text."""

    name: str
    parameters: int
    flops: int  # of a forward pass; a product of (a, b) and (b, c) matrices counts 2abc
    bytes: int  # of the weights
    score_bytes: int  # of the attention scores, if they were all held at once; the fused kernel never does


def cost(family: str, config: Any, source: int, target: int) -> list[Part]:
    """Count a model part by part; the last row is the whole.

    For a source and a target of so many tokens, or for a text of `source` tokens if the model reads but one.  The model runs
    on torch's meta device, which knows shapes and no numbers; torch counts the products.
    """
    with torch.device("meta"):
        model = FAMILIES[family].build(config).eval().requires_grad_(False)
        read, said = torch.ones(1, source, dtype=torch.long), torch.ones(1, target, dtype=torch.long)
    with torch.no_grad(), torch.device("meta"):  # a table of positions may grow on the way
        rows = _sides(model, read, said) if hasattr(model, "decoder") else _stack(model, read)
    rows.append(("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])))
    return [
        Part(name, parameters, flops, FLOAT * parameters, score_bytes) for name, parameters, flops, score_bytes in rows
    ]


Row = tuple[str, int, int, int]  # name, parameters, FLOPs, bytes of the scores


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
    tables = _weights(*(part for part in model.modules() if isinstance(part, nn.Embedding | Learned)))
    rest = {key: n for key, n in _weights(model).items() if key not in blocks | tables}
    return [
        ("embeddings", sum(tables.values()), 0, 0),
        ("blocks", sum(blocks.values()), inside, c.depth * c.heads * FLOAT * s * s),
        ("output (tied)", sum(rest.values()), whole - inside, 0),
    ]


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
