"""Parameters, FLOPs and bytes of any config.  Shapes: H heads, Q queries, K keys; `...` is any batch or window dimensions."""

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
from regard.models.bahdanau import Bahdanau
from regard.models.bert import BERT
from regard.models.caption_transformer import CaptionTransformer
from regard.models.conformer import Conformer
from regard.models.elmo import ELMo
from regard.models.gpt import GPT
from regard.models.image_encoder import CaptionFeatures
from regard.models.seq2seq import Seq2Seq
from regard.models.t5 import T5
from regard.models.transformer import Transformer

__all__ = ["ImageCost", "Part", "changed", "cost", "image_cost"]

FLOAT = 4  # bytes of a float32


class Part(NamedTuple):
    """The cost of one part of a model for one sentence pair, one text, one recording or one image."""

    name: str
    parameters: int
    flops: int  # of a forward pass; a product of (a, b) and (b, c) matrices counts 2abc
    bytes: int  # of the weights
    score_bytes: int  # of all attention scores together; the fused kernel never stores them


class ImageCost(NamedTuple):
    """The cost of an image model for one image."""

    image: int  # side of the image, in pixels
    tokens: int  # queries of the first attention; 0 without attention
    entries: int  # scores of one head, in the layer with the most
    parts: list[Part]  # the last one is the whole

    @property
    def whole(self) -> Part:
        """All parts together."""
        return self.parts[-1]

    @property
    def entry_bytes(self) -> int:
        """Bytes of the `entries`."""
        return FLOAT * self.entries


def cost(family: str, config: Any, source: int, target: int) -> list[Part]:
    """Count a model part by part; the last part is the whole.

    An encoder-decoder is counted for a source and a target of these lengths in tokens, a model of one text for `source`
    tokens, a model of speech for `source` frames, an image model for one image, a caption model for one image and a caption
    of `target` tokens.  The model runs on torch's meta device, and torch counts the matrix products.
    """
    captions = FAMILIES[family].kind == "captioner"
    if hasattr(config, "image") and not captions:
        return image_cost(family, config).parts
    with torch.device("meta"):
        model = FAMILIES[family].build(config).eval().requires_grad_(False)
        sources, targets = (torch.ones(1, length, dtype=torch.long) for length in (source, target))
        sources = torch.empty(1, config.channels, config.image, config.image) if captions else sources
    with torch.no_grad(), torch.device("meta"):  # a table of positions may grow on the way
        if isinstance(model, ELMo):
            return _with_total(_count_called(model, torch.ones(1, source, *model.word_shape, dtype=torch.long)))
        if isinstance(model, Conformer):
            return _with_total(_count_speech(model, torch.empty(1, source, config.features), targets))
        pair = hasattr(model, "decoder")
        if not pair and not hasattr(model, "blocks"):  # word vectors: tables only, and a lookup has no products
            return _with_total([_part(f"{name} vectors", sum(_sizes(part).values())) for name, part in model.named_children()])
        return _with_total(_count_encoder_decoder(model, sources, targets) if pair else _count_blocks(model, sources))


def changed(name: str, family: str, config: Any, values: Mapping[str, Any]) -> Any:
    """The config of a model with some keys changed, checked; `name` is the table in error messages."""
    base = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return build(name, FAMILIES[family].config, values, base)


def image_cost(family: str, config: Any) -> ImageCost:
    """Count an image model part by part, for one image of its config's size.

    The model runs on the meta device.  The shapes of its attention weights give the numbers of queries and keys, so windows,
    pooled keys, neighbourhoods and padded edges are counted as they are.  Only matrix products count as FLOPs: not norms,
    softmax, or scores that are distances.
    """
    with torch.device("meta"):
        model = FAMILIES[family].build(config).eval().requires_grad_(False)
        gpt = hasattr(model, "gpt")  # which reads pixels as tokens
        pixels = torch.ones(1, config.image**2, dtype=torch.long)
        images = pixels if gpt else torch.empty(1, config.channels, config.image, config.image)
    with torch.no_grad(), torch.device("meta"):
        with watch(model) as recorded, FlopCounterMode(display=False) as counter:
            model(images)
        flops = {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}
        parts = _count_blocks(model.gpt, images) if gpt else _count_children(model, flops, recorded)
    calls = [weights for calls in recorded.values() for weights in calls]  # (..., H, Q, K)
    tokens = _head_entries(calls[0]) // calls[0].shape[-1] if calls else 0
    return ImageCost(config.image, tokens, max(map(_head_entries, calls), default=0), _with_total(parts))


def _part(name: str, parameters: int, flops: int = 0, score_bytes: int = 0) -> Part:
    return Part(name, parameters, flops, FLOAT * parameters, score_bytes)


def _with_total(parts: list[Part]) -> list[Part]:
    parameters, flops, _, scores = (sum(column) for column in zip(*(part[1:] for part in parts), strict=True))
    return [*parts, _part("all", parameters, flops, scores)]


def _count_encoder_decoder(model: Transformer | T5 | Seq2Seq | Bahdanau | CaptionTransformer, source: Tensor,
                           target: Tensor) -> list[Part]:  # fmt: skip
    whole, encoder = _flops(lambda: model(source, target)), _flops(lambda: model.encode(source))
    found = model.features(source, target)
    features = found.features if isinstance(found, CaptionFeatures) else found
    out = _flops(lambda: model.output(features))
    encoding = _sizes(*(part for name, part in model.named_children() if name.startswith("encoder")))
    decoding = _sizes(*(part for name, part in model.named_children() if name.startswith("decoder")))
    embedded = _sizes(*(part for part in model.modules() if isinstance(part, nn.Embedding)))
    tied = id(model.output.weight) in embedded
    own = {key: n for key, n in _sizes(model.output).items() if key not in embedded}  # of a tied layer, its bias
    tables = {key: n for key, n in _sizes(model).items() if key not in encoding | decoding | own}
    with watch(model) as recorded:
        model.features(source, target)
    scores = {
        side: FLOAT * sum(weights.numel() for name, calls in recorded.items() if name.startswith(side) for weights in calls)
        for side in ("encoder", "decoder")
    }
    return [
        _part("embeddings", sum(tables.values())),
        _part("encoder", sum(encoding.values()), encoder, scores["encoder"]),
        _part("decoder", sum(decoding.values()), whole - encoder - out, scores["decoder"]),
        _part("output (tied)" if tied else "output", sum(own.values()), out),
    ]


def _count_blocks(model: GPT | BERT, tokens: Tensor) -> list[Part]:
    c, s = model.config, tokens.shape[1]
    whole, x = _flops(lambda: model(tokens)), torch.empty(1, s, c.dim)
    inside = _flops(lambda: [block(x) for block in model.blocks])
    blocks = _sizes(*model.blocks)
    tables = _sizes(*(part for part in model.modules() if isinstance(part, nn.Embedding | LearnedPositions)))
    rest = {key: n for key, n in _sizes(model).items() if key not in blocks | tables}
    return [
        _part("embeddings", sum(tables.values())),
        _part("blocks", sum(blocks.values()), inside, c.depth * c.heads * FLOAT * s * s),
        _part("output (tied)", sum(rest.values()), whole - inside),
    ]


def _count_speech(model: Conformer, frames: Tensor, target: Tensor) -> list[Part]:
    memory, mask = model.encode(frames)
    subsample, encode = _flops(lambda: model.subsample(frames, None)), _flops(lambda: model.encode(frames))
    with watch(model) as recorded:
        model.encode(frames)
        if model.config.decoder_depth:
            model.features(memory, mask, target)
    scores = {
        side: FLOAT * sum(weights.numel() for name, calls in recorded.items() if name.startswith(side) for weights in calls)
        for side in ("encoder", "decoder")
    }
    parts = [
        _part("subsampling", sum(_sizes(model.subsample).values()), subsample),
        _part("encoder", sum(_sizes(*model.encoder).values()), encode - subsample, scores["encoder"]),
    ]
    if model.ctc is not None:
        parts.append(_part("ctc", sum(_sizes(model.ctc).values()), _flops(lambda: model.ctc_logits(memory))))
    if model.config.decoder_depth:
        features, decode = model.features(memory, mask, target), _flops(lambda: model.features(memory, mask, target))
        blocks = _sizes(*model.decoder, model.decoder_norm)
        parts += [
            _part("embeddings", sum(_sizes(model.embed_target).values())),
            _part("decoder", sum(blocks.values()), decode, scores["decoder"]),
            _part("output", sum(_sizes(model.output).values()), _flops(lambda: model.output(features))),
        ]
    return parts


def _count_called(model: nn.Module, inputs: Tensor) -> list[Part]:
    """The child modules of a model without attention."""
    with FlopCounterMode(display=False) as counter:
        model(inputs)
    return _count_children(model, {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}, {})


def _count_children(model: nn.Module, flops: Mapping[str, int], recorded: Mapping[str, list[Tensor]]) -> list[Part]:
    """The model's child modules, and `the rest`: parameters outside of them, such as a class token."""

    def flops_of(name: str, part: nn.Module) -> int:
        if name in flops:
            return flops[name]
        return sum(flops_of(f"{name}.{key}", child) for key, child in part.named_children())  # a list is never called

    def count(name: str, part: nn.Module, path: str, prefix: str) -> Part:
        scores = sum(weights.numel() for key, calls in recorded.items() if key.startswith(prefix) for weights in calls)
        return _part(name, sum(_sizes(part).values()), flops_of(path, part), FLOAT * scores)

    root = type(model).__name__
    parts = [count(name, part, f"{root}.{name}", f"{name}.") for name, part in model.named_children()]
    whole, counted = count("all", model, root, ""), _with_total(parts)[-1]
    rest = _part("the rest", whole.parameters - counted.parameters, whole.flops - counted.flops,
                 whole.score_bytes - counted.score_bytes)  # fmt: skip
    return [part for part in (*parts, rest) if any(part[1:])]


def _head_entries(weights: Tensor) -> int:
    """Scores of one head in all windows, of weights (..., H, Q, K)."""
    return weights.numel() // weights.shape[-3]


def _flops(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def _sizes(*modules: nn.Module) -> dict[int, int]:
    """Sizes of all weights by identity, so that a shared one counts once."""
    return {id(p): p.numel() for module in modules for p in module.parameters()}
