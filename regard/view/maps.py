"""Weights and labels → `AttentionMap`, plain data that any drawing can read.

Shapes: H heads, Q tokens said or looking, K tokens read.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.data.text.batches import pad
from regard.decode.reader import Reader
from regard.decode.translator import Translator
from regard.layers.tap import watch

__all__ = ["AttentionMap", "look"]


@dataclass(frozen=True)
class AttentionMap:
    """Where each row (a token that was said, or looks) looked among the columns (tokens that were read)."""

    title: str
    rows: list[str]
    columns: list[str]
    weights: list[list[float]]  # (Q, K), each row sums to one

    def to_json(self) -> str:
        """The map as JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def look(
    opened: Any, text: str, *, beam: int | None = None, layer: int | None = None, head: int | None = None
) -> AttentionMap:
    """What attention looked at: a translator's, while it translated a sentence; another model's, while it read a text.

    One layer and head, counted from 1; the mean over all of them if not given.
    """
    if not opened.tokenizer.encode([text])[0]:
        raise ValueError("an empty sentence has nothing to look at; give one with a word in it")
    if isinstance(opened, Translator):
        seen = _across(opened, text, beam)
    elif beam is None:
        seen = _within(opened, text)
    else:
        raise ValueError(f"beam {beam} is for translations; a {opened.run.family} is shown as it reads, without one")
    depth, heads = seen.weights.shape[:2]
    for what, number, there in (("layer", layer, depth), ("head", head, heads)):
        if number is not None and not 1 <= number <= there:
            raise ValueError(f"no {what} {number}; this model has {what}s 1 to {there}")
    label = ", ".join((f"layer {layer}" if layer else f"mean of {depth} layers",
                       f"head {head}" if head else f"mean of {heads} heads"))  # fmt: skip
    weights = seen.weights[slice(layer and layer - 1, layer), slice(head and head - 1, head)].mean((0, 1))  # (Q, K)
    return AttentionMap(f"{seen.kind}, {label}", seen.rows, seen.columns, weights[: len(seen.rows)].tolist())


class _Seen(NamedTuple):
    """The weights of all layers and heads (depth, H, Q, K), and what stands beside them."""

    kind: str
    weights: Tensor
    rows: list[str]
    columns: list[str]


def _across(translator: Translator, text: str, beam: int | None) -> _Seen:
    """Cross-attention.  A row is a token said; the look that chose it was made one step before, by the token before it."""
    special, model = translator.tokenizer.special, translator.model
    [source] = translator.encode([text])
    said = translator.translate([text], beam=beam)[0]
    target = translator.tokenizer.ids(said.tokens)
    device = next(model.parameters()).device
    with watch(model) as seen, torch.inference_mode():
        model(pad([source], special).to(device), torch.tensor([[special.bos, *target]], device=device))
    cross = [calls[0][0] for name, calls in seen.items() if name.startswith("decoder") and name.endswith("cross")]
    ended = len(target) < translator.limit(len(source))  # else it was cut before it said its end
    rows = translator.tokenizer.labels([*target, special.eos] if ended else target)
    return _Seen("cross-attention", torch.stack(cross), rows, translator.tokenizer.labels([*source, special.eos]))


def _within(opened: Any, text: str) -> _Seen:
    """Self-attention.  A row is a token that looks, a column one that is looked at."""
    special, model = opened.tokenizer.special, opened.model
    [ids] = opened.tokenizer.encode([text], parse_special=isinstance(opened, Reader))  # [MASK] may be among them
    ids = [special.bos, *ids, special.eos] if isinstance(opened, Reader) else ids
    if len(ids) > model.max_len:
        raise ValueError(f"the text has {len(ids):,} tokens; this model takes at most {model.max_len:,}: shorten it")
    with watch(model) as seen, torch.inference_mode():
        model(torch.tensor([ids], device=next(model.parameters()).device))
    tokens = opened.tokenizer.labels(ids)
    return _Seen("self-attention", torch.stack([calls[0][0] for calls in seen.values()]), tokens, tokens)
