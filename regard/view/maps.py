"""Weights and labels → `AttentionMap`, plain data that any drawing can read.

Shapes: H heads, Q target tokens said, K source tokens read.
"""

import dataclasses
import json
from dataclasses import dataclass

import torch

from regard.data.batch import pad
from regard.data.tokenizer import BOS, EOS
from regard.decode.translator import Translator
from regard.layers.tap import watch

__all__ = ["AttentionMap", "look"]


@dataclass(frozen=True)
class AttentionMap:
    """Where each row (a token that was said) looked among the columns (tokens that were read)."""

    title: str
    rows: list[str]
    columns: list[str]
    weights: list[list[float]]  # (Q, K), each row sums to one

    def to_json(self) -> str:
        """The map as JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def look(
    translator: Translator, text: str, *, beam: int | None = None, layer: int | None = None, head: int | None = None
) -> AttentionMap:
    """Translate a sentence and keep what its cross-attention looked at.

    One decoder layer and head, counted from 1; the mean over all of them if not given.  A row is a token said; the look
    that chose it was made one step before, by the token before it.
    """
    [source] = translator.tokenizer.encode([text])
    if not source:
        raise ValueError("an empty sentence has nothing to look at; give one with a word in it")
    said = translator.translate([text], beam=beam)[0]
    target = translator.tokenizer.ids(said.tokens)
    model = translator.model
    device = next(model.parameters()).device
    with watch(model) as seen, torch.inference_mode():
        model(pad([source]).to(device), torch.tensor([[BOS, *target]], device=device))
    cross = [calls[0][0] for name, calls in seen.items() if name.startswith("decoder") and name.endswith("cross")]
    weights = torch.stack(cross)  # (depth, H, Q, K)
    for what, number, there in (("layer", layer, weights.shape[0]), ("head", head, weights.shape[1])):
        if number is not None and not 1 <= number <= there:
            raise ValueError(f"no {what} {number}; this model has {what}s 1 to {there}")
    label = ", ".join((f"layer {layer}" if layer else f"mean of {len(cross)} layers",
                       f"head {head}" if head else f"mean of {weights.shape[1]} heads"))  # fmt: skip
    weights = weights[slice(layer and layer - 1, layer), slice(head and head - 1, head)].mean((0, 1))  # (Q, K)
    ended = len(target) < translator.limit(len(source))  # else it was cut before it said its end
    rows = translator.tokenizer.tokens([*target, EOS] if ended else target)
    columns = translator.tokenizer.tokens([*source, EOS])
    return AttentionMap(f"cross-attention, {label}", rows, columns, weights[: len(rows)].tolist())
