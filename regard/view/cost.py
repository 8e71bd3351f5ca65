"""Parameters, FLOPs, bytes: the lectures' arithmetic, for any config, without allocating a single weight."""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from regard.models import FAMILIES

__all__ = ["Part", "cost"]

FLOAT = 4  # bytes of a float32


class Part(NamedTuple):
    """What one part of a model costs for one sentence pair."""

    name: str
    parameters: int
    flops: int  # of a forward pass; a product of (a, b) and (b, c) matrices counts 2abc
    bytes: int  # of the weights
    score_bytes: int  # of the attention scores, if they were all held at once; the fused kernel never does


def cost(family: str, config: Any, source: int, target: int) -> list[Part]:
    """Count a model part by part for a source and a target of so many tokens; the last row is the whole.

    The model runs on torch's meta device, which knows shapes and no numbers; torch counts the products.
    """
    with torch.device("meta"):
        model = FAMILIES[family].build(config).eval().requires_grad_(False)
        read, said = torch.ones(1, source, dtype=torch.long), torch.ones(1, target, dtype=torch.long)
    with torch.no_grad(), torch.device("meta"):  # a table of positions may grow on the way
        with FlopCounterMode(display=False) as whole:
            features = model.features(read, said)
            model.output(features)
        with FlopCounterMode(display=False) as encoding:
            model.encode(read)
        with FlopCounterMode(display=False) as output:
            model.output(features)
    all_of, encoder, out = (counter.get_total_flops() for counter in (whole, encoding, output))
    tables = {id(p): p.numel() for embed in (model.embed_source, model.embed_target) for p in embed.parameters()}
    own = [p for p in model.output.parameters() if id(p) not in tables]
    scores = config.depth * config.heads * FLOAT
    rows = [
        ("embeddings", sum(tables.values()), 0, 0),
        ("encoder", _count(model.encoder, model.encoder_end), encoder, scores * source * source),
        (
            "decoder",
            _count(model.decoder, model.decoder_end),
            all_of - encoder - out,
            scores * target * (target + source),
        ),
        ("output" + (" (tied)" if not own else ""), sum(p.numel() for p in own), out, 0),
    ]
    rows.append(("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])))
    return [
        Part(name, parameters, flops, FLOAT * parameters, score_bytes) for name, parameters, flops, score_bytes in rows
    ]


def _count(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())
