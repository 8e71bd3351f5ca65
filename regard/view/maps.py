"""Attention weights and their labels as `AttentionMap`, plain data to be drawn.

Shapes: H heads, Q queries, K keys, S source and T target tokens without start and end.
"""

import dataclasses
import json
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn

from regard.data.text.batches import pad
from regard.layers.masks import causal_mask
from regard.layers.tap import watch
from regard.tasks.language_model import TextGenerator
from regard.tasks.masked_lm import MaskedLM
from regard.tasks.predictors import TextPredictor
from regard.tasks.text_classification import TextClassifier
from regard.tasks.text_embedding import TextEmbedder
from regard.tasks.translation import Translator
from regard.view.draw import draw, save_map, to_html

__all__ = ["AttentionMap", "Which", "check_which", "cross_attention", "is_cross", "map_attention",
           "record_cross_attention", "require_index", "require_tokens", "self_attention"]  # fmt: skip

Which = Literal["encoder", "decoder", "cross"]


class Recorded(NamedTuple):
    """The attention of all layers, and what its queries and keys are called."""

    kind: str
    weights: Tensor  # (depth, H, Q, K)
    rows: list[str]  # queries
    columns: list[str]  # keys
    causal: bool = False  # whether a query may not attend to later keys


@dataclass(frozen=True)
class AttentionMap:
    """How much each row (a query token) attends to each column (a key token)."""

    title: str
    rows: list[str]
    columns: list[str]
    weights: list[list[float]]  # (Q, K), each row sums to one
    mask: list[list[bool]] | None = None  # (Q, K), True: may attend; None: all may

    def __repr__(self) -> str:
        return f"AttentionMap({self.title!r}, {len(self.rows)} × {len(self.columns)} tokens)"

    def _repr_html_(self) -> str:
        return to_html(self)

    def _repr_png_(self) -> bytes:
        return draw(self, "png").content

    def allows(self, row: int, column: int) -> bool:
        """Whether this query may attend to this key."""
        return self.mask is None or self.mask[row][column]

    def to_json(self) -> str:
        """The map as JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    def save(self, file: str | Path) -> Path:
        """Draw it as .png, .svg or .pdf, or write .json; returns the path."""
        return save_map(self, file, draw)


def map_attention(predictor: TextPredictor, text: str, *, which: Which | None = None, beam: int | None = None,
                  layer: int | None = None, head: int | None = None) -> AttentionMap:  # fmt: skip
    """Map the attention of a translator, or the self-attention of a model that encodes one text.

    Of a translator, `which` is "cross" (the default), or the self-attention of the "encoder" or of the "decoder", which reads the
    answer.  `layer` and `head` count from 1; without them the map is the mean over all layers or heads.
    """
    check_which(which)
    kind, weights, rows, columns, causal = _record(predictor, text, beam, which)
    depth, heads = weights.shape[:2]
    require_index("layer", layer, depth)
    require_index("head", head, heads)
    of_layer = f", layer {layer}" if layer else f", mean of {depth} layers" if depth > 1 else ""
    of_head = f", head {head}" if head else f", mean of {heads} heads" if heads > 1 else ""
    weights = weights[slice(layer and layer - 1, layer), slice(head and head - 1, head)].mean((0, 1))  # (Q, K)
    mask = causal_mask(len(rows), len(columns)).tolist() if causal else None
    return AttentionMap(f"{kind}{of_layer}{of_head}", rows, columns, weights[: len(rows)].tolist(), mask)


def check_which(which: str | None) -> Which | None:
    """Refuse a name that is none of the three attentions."""
    if which is not None and which not in get_args(Which):
        raise ValueError(f"which {which!r}; use {', '.join(get_args(Which)[:-1])} or {get_args(Which)[-1]}")
    return cast(Which | None, which)


def require_index(name: str, index: int | None, count: int, owner: str = "this model") -> None:
    """Check a layer or head that counts from 1."""
    if index is not None and (not hasattr(index, "__index__") or isinstance(index, bool)):
        raise ValueError(f"{name} {index!r} of type {type(index).__name__}; give a whole number, from 1")
    if index is not None and not 1 <= index <= count:
        raise ValueError(f"no {name} {index}; {owner} has {name}s 1 to {count}")


@singledispatch
def _record(predictor: TextPredictor, text: str, beam: int | None, which: Which | None) -> Recorded:
    """Run a predictor on a text and collect its attention."""
    raise ValueError(f"no attention of a {type(predictor).__name__} can be shown; use regard {' or '.join(predictor.VERBS)}")


def cross_attention(translator: Translator, source: list[int], target: list[int]) -> dict[str, Tensor]:
    """The cross-attention weights of each layer while the model reads a given target: (H, 1 + T, S + 1) by module name.

    Row 0 reads the start token and predicts the first target token; the last column is the source's end token.
    """
    special, device = translator.tokenizer.special, next(translator.model.parameters()).device
    ids = torch.tensor([[translator.answer_tokenizer.special.bos, *target]], device=device)
    found = record_cross_attention(translator.model, pad([source], special).to(device), ids)
    if not found:
        raise ValueError(f"a {translator.run.family} has no cross-attention: its decoder knows only the encoder's last state; "
                         f"use a model that attends to the source, such as bahdanau or transformer")  # fmt: skip
    return found


@torch.inference_mode()
def record_cross_attention(model: nn.Module, source: Tensor, target: Tensor) -> dict[str, Tensor]:
    """The cross-attention weights of each layer for one source and one target: (H, Q, K) by module name."""
    with watch(model) as recorded:
        model(source, target)
    # A Transformer attends with all tokens in one call, a recurrent decoder with one token a call.
    return {name: torch.cat(calls, -2)[0] for name, calls in recorded.items() if is_cross(name) and calls}


@torch.inference_mode()
def self_attention(translator: Translator, source: list[int], target: list[int], side: Literal["encoder", "decoder"]) -> Tensor:
    """The self-attention weights of one side of a translator while it reads a given target: (depth, H, Q, K).

    Queries and keys are the source tokens with the end token, or the start token with the target tokens.
    """
    special, device = translator.tokenizer.special, next(translator.model.parameters()).device
    ids = torch.tensor([[translator.answer_tokenizer.special.bos, *target]], device=device)
    with watch(translator.model) as recorded:
        translator.model(pad([source], special).to(device), ids)
    found = [calls[0][0] for name, calls in recorded.items() if name.startswith(f"{side}.") and not is_cross(name) and calls]
    if not found:
        other = "use which='cross', or" if any(map(is_cross, recorded)) else "use"
        raise ValueError(f"the {side} of a {translator.run.family} is recurrent and has no self-attention; {other} a model such "
                         f"as transformer or t5")  # fmt: skip
    return torch.stack(found)


def is_cross(name: str) -> bool:
    """A decoder's attention to the source: `decoder.3.cross` of a stack of blocks, `decoder.cross` of a single one."""
    first, *_, last = name.split(".")
    return first == "decoder" and last == "cross"


@_record.register
def _record_translation(translator: Translator, text: str, beam: int | None, which: Which | None) -> Recorded:
    """A row of cross-attention is an output token; its weights are those of the step that predicted it.

    A row of self-attention is the token that is read.
    """
    [source] = require_tokens(translator.encode([text]))
    columns = translator.tokenizer.display([*source, translator.tokenizer.special.eos])
    if which == "encoder":
        if beam is not None:
            raise ValueError(f"beam {beam} is for the answer; the encoder's attention needs no search, leave it out")
        return Recorded("self-attention of the encoder", self_attention(translator, source, [], "encoder"), columns, columns)
    [answer] = translator.translate([source], beam=beam)
    tokenizer, special = translator.answer_tokenizer, translator.answer_tokenizer.special
    if which == "decoder":
        read = tokenizer.display([special.bos, *answer.ids])
        weights = self_attention(translator, source, answer.ids, "decoder")
        return Recorded("masked self-attention of the decoder", weights, read, read, causal=True)
    cross = list(cross_attention(translator, source, answer.ids).values())
    ended = len(answer.ids) < translator.max_answer(len(source))  # else the length limit cut it before its end token
    rows = tokenizer.display([*answer.ids, special.eos] if ended else answer.ids)
    return Recorded("cross-attention", torch.stack(cross), rows, columns)


@_record.register
def _causal_attention(generator: TextGenerator, text: str, beam: int | None, which: Which | None) -> Recorded:
    [ids] = require_tokens(generator.tokenizer.encode([text]))
    return _record_self_attention(generator, [*generator.tokenizer.prompt_start, *ids], beam, which)._replace(causal=True)


@_record.register(MaskedLM)
@_record.register(TextClassifier)
@_record.register(TextEmbedder)
def _encoder_attention(predictor: MaskedLM | TextClassifier | TextEmbedder, text: str, beam: int | None,
                       which: Which | None) -> Recorded:  # fmt: skip
    special = predictor.tokenizer.special
    [ids] = require_tokens(predictor.tokenizer.encode([text], parse_special=True))  # [MASK] may be among them
    return _record_self_attention(predictor, [special.bos, *ids, special.eos], beam, which)


def _record_self_attention(predictor: TextPredictor, ids: list[int], beam: int | None, which: Which | None) -> Recorded:
    """Rows and columns are the tokens of the text."""
    if beam is not None:
        raise ValueError(f"beam {beam} is for translations; the attention of a {predictor.run.family} needs no search")
    if which is not None:
        raise ValueError(f"which {which!r} is for translators; a {predictor.run.family} has one stack of self-attention: "
                         f"leave it out")  # fmt: skip
    tokenizer, model = predictor.tokenizer, predictor.model
    context = int(model.max_len)  # type: ignore[arg-type]
    if len(ids) > context:
        raise ValueError(f"the text has {len(ids):,} tokens; the context length is {context:,} tokens: shorten it")
    with watch(model) as recorded, torch.inference_mode():
        model(torch.tensor([ids], device=next(model.parameters()).device))
    tokens = tokenizer.display(ids)
    return Recorded("self-attention", torch.stack([calls[0][0] for calls in recorded.values() if calls]), tokens, tokens)


def require_tokens(encoded: list[list[int]]) -> list[list[int]]:
    """Refuse a text without a token."""
    if not encoded[0]:
        raise ValueError("an empty sentence has no attention to show; give one with a word in it")
    return encoded
