"""Attention weights with their labels as `AttentionMap`, plain data that any drawing can read.

Shapes: H heads, Q queries, K keys.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data.text.batches import pad
from regard.decode.reader import Reader
from regard.decode.translator import Translator
from regard.decode.writer import TextGenerator
from regard.layers.tap import watch

__all__ = ["AttentionMap", "map_attention", "require_index"]


@dataclass(frozen=True)
class AttentionMap:
    """How much each row (a query token) attends to each column (a key token)."""

    title: str
    rows: list[str]
    columns: list[str]
    weights: list[list[float]]  # (Q, K), each row sums to one

    def to_json(self) -> str:
        """The map as JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def map_attention(
    predictor: Translator | TextGenerator | Reader,
    text: str,
    *,
    beam: int | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> AttentionMap:
    """Map the cross-attention of a translation, or the self-attention of a model that encodes one text.

    `layer` and `head` count from 1; without them the map is the mean over all layers or heads.
    """
    if isinstance(predictor, Translator):
        recorded = _cross_attention(predictor, text, beam)
    elif beam is None:
        recorded = _self_attention(predictor, text)
    else:
        raise ValueError(f"beam {beam} is for translations; the attention of a {predictor.run.family} needs no search")
    depth, heads = recorded.weights.shape[:2]
    require_index("layer", layer, depth)
    require_index("head", head, heads)
    label = ", ".join((f"layer {layer}" if layer else f"mean of {depth} layers",
                       f"head {head}" if head else f"mean of {heads} heads"))  # fmt: skip
    weights = recorded.weights[slice(layer and layer - 1, layer), slice(head and head - 1, head)].mean((0, 1))  # (Q, K)
    rows, columns = recorded.rows, recorded.columns
    return AttentionMap(f"{recorded.kind}, {label}", rows, columns, weights[: len(rows)].tolist())


def require_index(name: str, index: int | None, count: int, owner: str = "this model") -> None:
    """Check a layer or head that counts from 1."""
    if index is not None and not 1 <= index <= count:
        raise ValueError(f"no {name} {index}; {owner} has {name}s 1 to {count}")


class _Recorded(NamedTuple):
    """The weights of all layers and heads (depth, H, Q, K) and the labels of queries and keys."""

    kind: str
    weights: Tensor
    rows: list[str]
    columns: list[str]


def _cross_attention(translator: Translator, text: str, beam: int | None) -> _Recorded:
    """A row is an output token; its weights are those of the step that predicted it, whose query is the token before."""
    tokenizer, model = translator.tokenizer, translator.model
    special, device = tokenizer.special, next(model.parameters()).device
    [source] = _require_tokens(translator.encode([text]))
    [answer] = translator.translate([source], beam=beam)
    with watch(model) as recorded, torch.inference_mode():
        model(pad([source], special).to(device), torch.tensor([[special.bos, *answer.ids]], device=device))
    cross = [calls[0][0] for name, calls in recorded.items() if name.startswith("decoder") and name.endswith("cross")]
    ended = len(answer.ids) < translator.limit(len(source))  # else the length limit cut it before its end token
    rows = tokenizer.labels([*answer.ids, special.eos] if ended else answer.ids)
    return _Recorded("cross-attention", torch.stack(cross), rows, tokenizer.labels([*source, special.eos]))


def _self_attention(predictor: TextGenerator | Reader, text: str) -> _Recorded:
    """Rows and columns are the tokens of the text."""
    tokenizer, model = predictor.tokenizer, predictor.model
    special, encoder = tokenizer.special, isinstance(predictor, Reader)
    [ids] = _require_tokens(tokenizer.encode([text], parse_special=encoder))  # [MASK] may be among them
    ids = [special.bos, *ids, special.eos] if encoder else ids
    if len(ids) > model.max_len:
        raise ValueError(
            f"the text has {len(ids):,} tokens; the context length is {model.max_len:,} tokens: shorten it"
        )
    with watch(model) as recorded, torch.inference_mode():
        model(torch.tensor([ids], device=next(model.parameters()).device))
    tokens = tokenizer.labels(ids)
    return _Recorded("self-attention", torch.stack([calls[0][0] for calls in recorded.values()]), tokens, tokens)


def _require_tokens(encoded: list[list[int]]) -> list[list[int]]:
    if not encoded[0]:
        raise ValueError("an empty sentence has no attention to show; give one with a word in it")
    return encoded
