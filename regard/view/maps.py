"""Attention weights and their labels as `AttentionMap`, plain data to be drawn.

Shapes: H heads, Q queries, K keys, S source and T target tokens without start and end.
"""

import dataclasses
import json
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor, nn

from regard.data.text.batches import pad
from regard.layers.tap import attention_modules, watch
from regard.tasks.language_model import TextGenerator
from regard.tasks.load import TextPredictor
from regard.tasks.masked_lm import MaskedLM
from regard.tasks.text_classification import TextClassifier
from regard.tasks.text_embedding import TextEmbedder
from regard.tasks.translation import Translator

__all__ = ["AttentionMap", "cross_attention", "is_cross", "map_attention", "record_cross_attention", "require_index"]

Recorded = tuple[str, Tensor, list[str], list[str]]  # kind of attention, weights (depth, H, Q, K), labels of queries and keys


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


def map_attention(predictor: TextPredictor, text: str, *, beam: int | None = None, layer: int | None = None,
                  head: int | None = None) -> AttentionMap:  # fmt: skip
    """Map the cross-attention of a translation, or the self-attention of a model that encodes one text.

    `layer` and `head` count from 1; without them the map is the mean over all layers or heads.
    """
    kind, weights, rows, columns = _record(predictor, text, beam)
    depth, heads = weights.shape[:2]
    require_index("layer", layer, depth)
    require_index("head", head, heads)
    of_layer = f", layer {layer}" if layer else f", mean of {depth} layers" if depth > 1 else ""
    of_head = f", head {head}" if head else f", mean of {heads} heads" if heads > 1 else ""
    weights = weights[slice(layer and layer - 1, layer), slice(head and head - 1, head)].mean((0, 1))  # (Q, K)
    return AttentionMap(f"{kind}{of_layer}{of_head}", rows, columns, weights[: len(rows)].tolist())


def require_index(name: str, index: int | None, count: int, owner: str = "this model") -> None:
    """Check a layer or head that counts from 1."""
    if index is not None and not 1 <= index <= count:
        raise ValueError(f"no {name} {index}; {owner} has {name}s 1 to {count}")


@singledispatch
def _record(predictor: TextPredictor, text: str, beam: int | None) -> Recorded:
    """Run a predictor on a text and collect its attention."""
    raise ValueError(f"no attention of a {type(predictor).__name__} can be shown; use regard {' or '.join(predictor.VERBS)}")


def cross_attention(translator: Translator, source: list[int], target: list[int]) -> dict[str, Tensor]:
    """The cross-attention weights of each layer while the model reads a given target: (H, 1 + T, S + 1) by module name.

    Row 0 reads the start token and predicts the first target token; the last column is the source's end token.
    """
    special, device = translator.tokenizer.special, next(translator.model.parameters()).device
    ids = torch.tensor([[special.bos, *target]], device=device)
    found = record_cross_attention(translator.model, pad([source], special).to(device), ids)
    if not found:
        raise ValueError(f"a {translator.run.family} has no cross-attention: its decoder knows only the encoder's last state; "
                         f"use a model that attends to the source, such as bahdanau or transformer")  # fmt: skip
    return found


@torch.inference_mode()
def record_cross_attention(model: nn.Module, source: Tensor, target: Tensor) -> dict[str, Tensor]:
    """The cross-attention weights of each layer for one source and one target: (H, Q, K) by module name."""
    names = [name for name in attention_modules(model) if is_cross(name)]
    if not names:
        return {}
    with watch(model) as recorded:
        model(source, target)
    # A Transformer attends with all tokens in one call, a recurrent decoder with one token a call.
    return {name: torch.cat(recorded[name], -2)[0] for name in names}


def is_cross(name: str) -> bool:
    """A decoder's attention to the source: `decoder.3.cross` of a stack of blocks, `decoder.cross` of a single one."""
    first, *_, last = name.split(".")
    return first == "decoder" and last == "cross"


@_record.register
def _record_cross_attention(translator: Translator, text: str, beam: int | None) -> Recorded:
    """A row is an output token; its weights are those of the step that predicted it, whose query is the token before."""
    tokenizer, special = translator.tokenizer, translator.tokenizer.special
    [source] = _require_tokens(translator.encode([text]))
    [answer] = translator.translate([source], beam=beam)
    cross = list(cross_attention(translator, source, answer.ids).values())
    ended = len(answer.ids) < translator.max_answer(len(source))  # else the length limit cut it before its end token
    rows = tokenizer.display([*answer.ids, special.eos] if ended else answer.ids)
    return "cross-attention", torch.stack(cross), rows, tokenizer.display([*source, special.eos])


@_record.register
def _causal_attention(generator: TextGenerator, text: str, beam: int | None) -> Recorded:
    [ids] = _require_tokens(generator.tokenizer.encode([text]))
    return _record_self_attention(generator, ids, beam)


@_record.register(MaskedLM)
@_record.register(TextClassifier)
@_record.register(TextEmbedder)
def _encoder_attention(predictor: MaskedLM | TextClassifier | TextEmbedder, text: str, beam: int | None) -> Recorded:
    special = predictor.tokenizer.special
    [ids] = _require_tokens(predictor.tokenizer.encode([text], parse_special=True))  # [MASK] may be among them
    return _record_self_attention(predictor, [special.bos, *ids, special.eos], beam)


def _record_self_attention(predictor: TextPredictor, ids: list[int], beam: int | None) -> Recorded:
    """Rows and columns are the tokens of the text."""
    if beam is not None:
        raise ValueError(f"beam {beam} is for translations; the attention of a {predictor.run.family} needs no search")
    tokenizer, model = predictor.tokenizer, predictor.model
    context = int(model.max_len)  # type: ignore[arg-type]
    if len(ids) > context:
        raise ValueError(f"the text has {len(ids):,} tokens; the context length is {context:,} tokens: shorten it")
    with watch(model) as recorded, torch.inference_mode():
        model(torch.tensor([ids], device=next(model.parameters()).device))
    tokens = tokenizer.display(ids)
    return "self-attention", torch.stack([calls[0][0] for calls in recorded.values()]), tokens, tokens


def _require_tokens(encoded: list[list[int]]) -> list[list[int]]:
    if not encoded[0]:
        raise ValueError("an empty sentence has no attention to show; give one with a word in it")
    return encoded
