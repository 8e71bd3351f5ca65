"""The parts of a record that several kinds of predictors share: layers from what `watch` collects, items of the answer, titles.

Shapes: H heads, Q queries, K keys, T tokens of the answer, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard.data.text.tokenizer import Tokenizer
from regard.decode.search import Observer
from regard.tasks.observer import SentenceObserver, TextObserver
from regard.tasks.origin import Loaded
from regard.view.maps import is_cross
from regard.view.record import Answer, AnswerItem, AttentionKind, AttentionLayer, InputLike, RecordOptions, Windows
from regard.view.source import few_steps, name_of
from regard.view.words import label_tokens

__all__ = ["Placed", "class_answer", "first_notes", "follow_tokens", "gather_log_probs", "joined_calls", "mean_weights",
           "place_decoder", "refuse_source", "require_no_search", "require_text", "title_layers", "title_of",
           "title_record", "token_items"]  # fmt: skip

CLASSES = 5  # that are named

KINDS: dict[AttentionKind, str] = {"self": "self-attention", "masked": "masked self-attention", "cross": "cross-attention"}


@dataclass(frozen=True, eq=False)
class Placed:
    """The weights of one module, with its axes, before it has a title."""

    name: str
    kind: AttentionKind
    stack: str
    queries: str
    keys: str
    weights: Tensor  # (H, Q, K), or (N, H, Q, K) of windows
    windows: Windows | None = None
    detail: str = ""  # for the title, such as the size of the windows


def title_layers(placed: Sequence[Placed]) -> list[AttentionLayer]:
    """The layers of a record: numbered within their stack, by kind."""
    counts: dict[tuple[str, AttentionKind], int] = {}
    layers = list[AttentionLayer]()
    for part in placed:
        number = counts[part.stack, part.kind] = counts.get((part.stack, part.kind), 0) + 1
        numbered = any(step.isdigit() for step in part.name.split("."))  # a recurrent decoder has one attention
        where = " ".join(word for word in (part.stack, f"layer {number}" if numbered else "") if word)
        title = f"{where}, {KINDS[part.kind]}{part.detail}"
        axes = part.queries, part.keys
        layers.append(AttentionLayer(part.name, title, part.kind, part.stack, *axes, part.weights, part.windows))
    return layers


def joined_calls(recorded: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    """The weights of one example by module, all its calls together: (H, Q, K).

    A Transformer attends with all tokens in one call, a recurrent decoder with one token a call.
    """
    return {name: torch.cat(list(calls), -2)[0].float().cpu() for name, calls in recorded.items() if calls}


def place_decoder(weights: Mapping[str, Tensor], memory: str) -> list[Placed]:
    """The layers of an encoder-decoder whose cross-attention looks at the axis `memory`."""
    placed = list[Placed]()
    for name, each in weights.items():
        if is_cross(name):
            placed.append(Placed(name, "cross", "decoder", "answer", memory, each))
        elif name.startswith("decoder."):
            placed.append(Placed(name, "masked", "decoder", "read", "read", each))
        else:
            placed.append(Placed(name, "self", "encoder", memory, memory, each))
    return placed


def mean_weights(layers: Sequence[AttentionLayer]) -> Tensor:
    """The mean of all heads of all layers, which may have different numbers of heads: (Q, K)."""
    return torch.stack([layer.weights.mean(0) for layer in layers]).mean(0)


def title_of(layers: Sequence[AttentionLayer]) -> str:
    """What the mean of these layers is called: "cross-attention, mean of 3 layers and 4 heads"."""
    depth, heads = len(layers), layers[0].heads
    counts = " and ".join([f"{depth} layers"] * (depth > 1) + [f"{heads} heads"] * (heads > 1))
    return KINDS[layers[0].kind] + (f", mean of {counts}" if counts else "")


def require_text(predictor: Loaded, what: InputLike, name: str) -> str:
    """The text of an input, or an error."""
    if not isinstance(what, str):
        raise ValueError(f"{name or predictor.run.name} reads text, and got {type(what).__name__}; give one sentence as a string")
    return what


def require_no_search(family: str, options: RecordOptions) -> None:
    """Refuse options of a search where there is none."""
    for key, value in (("beam", options.beam), ("tokens", options.tokens), ("temperature", options.temperature)):
        if value is not None:
            raise ValueError(f"{key} {value} is for models that write their answer token by token; a {family} does not, leave it "
                             f"out")  # fmt: skip


def token_items(tokenizer: Tokenizer, ids: Sequence[int], log_probs: Tensor) -> list[AnswerItem]:
    """The tokens of an answer with their probabilities, each in a row of its own."""
    pairs = zip(label_tokens(tokenizer, ids), log_probs.exp().tolist(), strict=True)
    return [AnswerItem(label, p, row) for row, (label, p) in enumerate(pairs)]


def gather_log_probs(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Of logits (T, V), the log-probability of the token that each row predicts: (T,)."""
    wanted = torch.tensor(ids, device=logits.device)[:, None]
    return logits.float().log_softmax(-1).gather(1, wanted)[:, 0].cpu()


def class_answer(names: Sequence[str], log_probs: Tensor, target: list[int] | None = None) -> tuple[Answer, list[int]]:
    """The classes in `target`, by default the most likely, as an answer, and their numbers; log-probabilities (classes,)."""
    classes = log_probs.topk(min(CLASSES, len(names))).indices.tolist() if target is None else target
    items = [AnswerItem(names[n], float(log_probs[n].exp()), 0) for n in classes]  # all are of one row
    return Answer("class", items[0].text, items, float(log_probs[classes[0]])), classes


def follow_tokens(observer: TextObserver | None, decode: Callable[[list[int]], str]) -> list[Observer | None]:
    """The observer of a search for one answer, whose text so far is decoded only if someone reads it."""
    if observer is None:
        return [None]
    show = observer.partial
    return [SentenceObserver(observer, None if show is None else lambda tokens, done: show(decode(tokens)))]


def refuse_source(source: list[int] | None) -> None:
    """Refuse token ids where the input is not text."""
    if source is not None:
        raise ValueError(f"a source of {len(source)} tokens; this model reads no text, so no word can be left out: give None")


def title_record(predictor: Loaded, options: RecordOptions) -> str:
    """The run and its family."""
    return f"{options.name or name_of(predictor)} ({predictor.run.family})"


_NOTES: "WeakKeyDictionary[nn.Module, str]" = WeakKeyDictionary()


def first_notes(predictor: Loaded) -> list[str]:
    """What the user should know of any record of this run; its log is read once for each model."""
    if (note := _NOTES.get(predictor.model)) is None:
        note = _NOTES[predictor.model] = few_steps(predictor)
    return [note] if note else []
