"""What if: a head, the attention of a layer or a word of the input is switched off, and the model answers again.

An attention weight says where a head looks, not whether it matters.  Here something is taken away, for this one input, and the
answer and its probability are measured again.

Shapes: T items of the answer.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.layers.tap import ablate
from regard.tasks.observer import TextObserver, require_wanted
from regard.view.attention_steps import source_axis
from regard.view.record import Answer, Record

__all__ = ["Ablation", "Importance", "Loss", "Scored", "ablate_record", "importance"]

SEARCHES = 8  # heads whose loss matters most, without which an answer is searched again
SECONDS = 20.0  # after which no further head is measured: a server answers nothing else meanwhile


@dataclass(frozen=True)
class Scored:
    """How probable the recorded answer is: in total, and each item of it."""

    logprob: float  # of all items; of classes, of the first
    probabilities: list[float]


@dataclass(frozen=True)
class Ablation:
    """The answer that the changed model gives, and the recorded answer's probability before and after the change."""

    answer: Answer
    base: Scored
    changed: Scored


@dataclass(frozen=True)
class Loss:
    """What the recorded answer loses without a head, or without all heads of a layer (`head` is None)."""

    layer: int
    head: int | None
    drop: float  # of the answer's log-probability, in nats; negative if the answer gets more probable
    answer: str | None = None  # what the model says instead; only searched for the largest drops


@dataclass(frozen=True)
class Importance:
    """The losses, largest first, and how many there would be if time had not run out."""

    base: Scored
    heads: list[Loss]
    layers: list[Loss]
    total: int


@torch.inference_mode()
def ablate_record(model: nn.Module, record: Record, *, heads: Sequence[tuple[int, int]] = (), layers: Collection[int] = (),
                  words: Sequence[tuple[int, int]] = (), observer: TextObserver | None = None) -> Ablation:  # fmt: skip
    """Switch off heads (layer, head), layers, and words of the source, positions `start` to `end` - 1; all counted from 0.

    A word is switched off by leaving its tokens out, so that later words move up; then the model never had it, also not through
    positions, recurrences or convolutions, in which a mask would leave a gap.  If the observer wants no answer any more,
    `Unwanted` is raised.
    """
    source = _without_words(record, words) if words else None
    base = _scored(record, record.rerun.logprobs())
    with ablate(model, _by_module(record, heads, layers)):
        changed = _scored(record, record.rerun.logprobs(source))
        require_wanted(observer)
        answer = record.rerun.answer(source, observer)
    require_wanted(observer)
    return Ablation(answer, base, changed)


@torch.inference_mode()
def importance(model: nn.Module, record: Record, *, searches: int = SEARCHES, seconds: float = SECONDS,
               observer: TextObserver | None = None) -> Importance:  # fmt: skip
    """Without each head in turn, and without each layer, how much less probable the recorded answer is.

    One forward pass for each.  For the largest drops the answer is searched again.  Layers come first, then the heads of those
    layers that matter most, so that the largest losses are known if time runs out.  If the observer wants no answer any more,
    `Unwanted` is raised.
    """
    started = time.monotonic()
    base = _scored(record, record.rerun.logprobs())
    total = sum(1 + (layer.heads if layer.heads > 1 else 0) for layer in record.layers)

    def measure(parts: Sequence[tuple[int, int | None]]) -> list[Loss]:
        """Largest loss first."""
        losses = list[Loss]()
        for index, head in parts:
            if time.monotonic() - started > seconds and (losses or head is not None):
                break
            require_wanted(observer)
            with ablate(model, _off(record, index, head)):
                without = _scored(record, record.rerun.logprobs())
            losses.append(Loss(index, head, base.logprob - without.logprob))
        return sorted(losses, key=lambda loss: -loss.drop)

    layers = measure([(index, None) for index in range(len(record.layers))])
    several = [loss.layer for loss in layers if record.layers[loss.layer].heads > 1]
    heads = measure([(index, head) for index in several for head in range(record.layers[index].heads)])
    heads, layers = (_searched(model, record, part, searches, started + seconds, observer) for part in (heads, layers))
    return Importance(base, heads, layers, total)


def _searched(model: nn.Module, record: Record, losses: list[Loss], count: int, until: float,
              observer: TextObserver | None) -> list[Loss]:  # fmt: skip
    """The answers without the first few."""
    found = list[Loss]()
    for loss in losses[:count]:
        if time.monotonic() > until:
            break
        with ablate(model, _off(record, loss.layer, loss.head)):
            found.append(Loss(loss.layer, loss.head, loss.drop, record.rerun.answer(observer=observer).text))
        require_wanted(observer)
    return found + losses[len(found) :]


def _off(record: Record, layer: int, head: int | None) -> Mapping[str, list[int] | None]:
    return _by_module(record, (), [layer]) if head is None else _by_module(record, [(layer, head)], ())


def _by_module(record: Record, heads: Sequence[tuple[int, int]], layers: Collection[int]) -> dict[str, list[int] | None]:
    """Heads and layers by the names of their modules, as `ablate` wants them."""
    off = dict[str, list[int] | None]()
    for layer in [*layers, *(layer for layer, _ in heads)]:
        if not 0 <= layer < len(record.layers):
            raise ValueError(f"no layer {layer}; this input has layers 0 to {len(record.layers) - 1}")
    for layer, head in heads:
        found = record.layers[layer]
        if not 0 <= head < found.heads:
            raise ValueError(f"no head {head}; {found.title} has heads 0 to {found.heads - 1}")
        off[found.name] = sorted({*(off.get(found.name) or ()), head})
    for layer in layers:
        off[record.layers[layer].name] = None
    return off


def _without_words(record: Record, words: Sequence[tuple[int, int]]) -> list[int]:
    """The source without some of its tokens."""
    axis, ids = record.axes[source_axis(record)], record.rerun.source
    gone = set[int]()
    for start, end in words:
        if not 0 <= start < end <= len(ids):
            raise ValueError(f"no word from token {start} to {end}; the input has tokens 0 to {len(ids) - 1}")
        gone.update(range(start, end))
    if fixed := gone & set(axis.special):
        raise ValueError(f"token {min(fixed)} ({axis.labels[min(fixed)]}) is no word and cannot be left out")
    left = [token for position, token in enumerate(ids) if position not in gone]
    if all(position in gone or position in axis.special for position in range(len(ids))):
        raise ValueError("no word of the input is left; keep at least one")
    return left


def _scored(record: Record, logprobs: Tensor) -> Scored:
    """Log-probabilities of the items (T,)."""
    values = logprobs.double()
    total = values[0] if record.answer.kind == "class" and len(values) else values.sum()
    return Scored(float(total), values.exp().tolist())
