"""The numbers of softmax(Q Kᵀ / √d + mask) V, stage by stage: of one head of a recorded layer, or of the lecture's six words.

Shapes: Q queries, K keys, E width of one head, D width of a token; N windows, R side of a neighbourhood.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from regard.layers.attention import Attention, CosineAttention, attend
from regard.layers.positions import sinusoid
from regard.layers.scores import Additive, General, Location, Uniform, absolute_distance, product, squared_distance
from regard.layers.shapes import to_neighborhoods
from regard.layers.tap import AttentionCall, attention_modules, has_positions, record_calls, without_positions
from regard.models.lrnet import LocalRelation
from regard.view.record import AttentionLayer, Axis, Record
from regard.view.words import piece_labels

__all__ = ["LECTURE_WORDS", "MAX_KEYS", "MAX_QUERIES", "AttentionSteps", "Formula", "attention_steps", "axis_labels",
           "lecture_steps", "shuffle_words", "source_axis"]  # fmt: skip

Formula = Literal["dot", "cosine", "additive", "general", "location", "uniform", "squared", "absolute", "product"]

LECTURE_WORDS = ("YOUR", "CAT", "IS", "A", "LOVELY", "CAT")  # the notes' sentence, of width 512 and one head
LECTURE_DIM = 512
LECTURE_STD = 0.2  # of the embeddings: small, so that the weights are as mixed as those in the notes' table
LECTURE_SEED = 6

MAX_QUERIES = 64  # around the chosen one
MAX_KEYS = 1024  # those with the most weight; the softmax needs all of them, so few layers have more


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """One head: `weights` are softmax(scale · scores + bias), masked keys left out, and `output` is weights · v.

    `scores` compares q and k by the formula, before the scale: for "additive" vector · tanh(q + k), for "location" q itself, for
    "squared", "absolute" and "product" of one number each -(q - k)², -|q - k| and q k, for the others q · k.
    """

    title: str
    formula: Formula
    scale: float
    queries: list[str]  # labels of the rows of q
    keys: list[str]  # labels of the rows of k and v
    chosen: int  # the row of q that was asked for
    query_positions: list[int]  # of the rows of q on the layer's axis; -1 for padding
    key_positions: list[int]
    same_tokens: bool  # whether queries and keys are the same tokens of a text, so that a causal mask has a meaning
    x: Tensor | None  # (Q, D): what q was computed from; None if there is no such row for each query
    memory: Tensor | None  # (K, D): what k and v were computed from, if not from x
    q: Tensor  # (Q, E)
    k: Tensor  # (K, E)
    v: Tensor  # (K, ·)
    scores: Tensor  # (Q, K)
    bias: Tensor | None  # (Q, K): of positions
    mask: Tensor | None  # (Q, K), True where a query may attend; None: everywhere
    weights: Tensor  # (Q, K)
    output: Tensor  # (Q, ·)
    vector: Tensor | None = None  # (1, E): of the additive score
    notes: list[str] = field(default_factory=list)
    has_positions: bool = True  # whether the model has position embeddings or biases


@torch.inference_mode()
def attention_steps(model: nn.Module, record: Record, layer: int, head: int, query: int = 0, *, positions: bool = True,
                    shuffle: int | None = None) -> AttentionSteps:  # fmt: skip
    """The numbers of a head, counted from 0, around one of its queries, from one more pass over the input and its answer.

    Without `positions` their embeddings and biases are zeros in the whole model; `shuffle` is a seed by which the words of the
    source change places.
    """
    if not 0 <= layer < len(record.layers):
        raise ValueError(f"no layer {layer}; this input has layers 0 to {len(record.layers) - 1}")
    found = record.layers[layer]
    if not 0 <= head < found.heads:
        raise ValueError(f"no head {head}; {found.title} has heads 0 to {found.heads - 1}")
    axes, source = record.axes, None
    if shuffle is not None:
        source, axes = shuffled_source(record, shuffle)
    if not 0 <= query < axes[found.queries].size:
        raise ValueError(f"no query {query}; {found.title} has queries 0 to {axes[found.queries].size - 1}")
    with ExitStack() as stack:
        if not positions:
            stack.enter_context(without_positions(model))
        calls = stack.enter_context(record_calls(model, found.name))
        record.rerun.logprobs(source)
    if not calls:
        raise ValueError(f"{found.title} was not used for this input")
    part = attention_modules(model)[found.name]
    steps = _steps_of_call(part, _joined(calls), found, axes, head, query)
    return replace(steps, has_positions=has_positions(model))


def source_axis(record: Record) -> str:
    """The name of the axis that the words of the input are on."""
    if not record.rerun.source:
        raise ValueError("the input of this model is not text; its words can be neither shuffled nor left out")
    return "source" if "source" in record.axes else "tokens"


def shuffled_source(record: Record, seed: int) -> tuple[list[int], dict[str, Axis]]:
    """The token ids of the input with its words in another order, and the axes with their labels moved too."""
    name, ids = source_axis(record), record.rerun.source
    axis = record.axes[name]
    order = shuffle_words(axis, len(ids), seed)
    named = piece_labels(axis)
    labels = [named[i] for i in order] + named[len(ids) :]
    return [ids[i] for i in order], record.axes | {name: Axis(axis.kind, axis.size, labels, special=axis.special)}


def shuffle_words(axis: Axis, count: int, seed: int) -> list[int]:
    """The first `count` positions of an axis in the order that they get when whole words are shuffled by a seed.

    Special tokens stay in their places.  The order is another one if there are two words or more.
    """
    words = [range(word.start, min(word.end, count)) for word in axis.words if word.start < count]
    fixed = [any(position in axis.special for position in word) for word in words]
    movable = [word for word, stays in zip(words, fixed, strict=True) if not stays]
    moved = iter([movable[i] for i in _another_order(len(movable), seed)])
    return [position for word, stays in zip(words, fixed, strict=True) for position in (word if stays else next(moved))]


def _another_order(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    order = list(range(count))
    while count > 1 and order == sorted(order):
        order = torch.randperm(count, generator=generator).tolist()
    return order


def axis_labels(axis: Axis) -> list[str]:
    """A short label of each position: the token, "row, column" of a place, or the time of a frame."""
    if axis.kind == "grid" and axis.grid is not None:
        rows, columns = axis.grid
        before = axis.labels[: axis.size - rows * columns] or ["[CLS]"] * (axis.size - rows * columns)
        return [*before, *(f"{row},{column}" for row in range(1, rows + 1) for column in range(1, columns + 1))]
    if axis.kind == "frames" and axis.times:
        return [f"{time:.2f} s" for time in axis.times]
    return piece_labels(axis) or [str(position + 1) for position in range(axis.size)]


def _joined(calls: list[AttentionCall]) -> AttentionCall:
    """One call: a recurrent decoder makes one for each time step, with the same keys."""
    if len(calls) == 1 or any(call.q.shape[-2] != 1 or call.k.shape != calls[0].k.shape for call in calls):
        return calls[-1]
    first, join = calls[0], lambda parts: torch.cat(parts, -2)
    states = [call.x for call in calls if call.x is not None]
    return AttentionCall(join([call.q for call in calls]), first.k, first.v, join([call.weights for call in calls]),
                         join([call.mixed for call in calls]), first.scale, first.score, first.bias, first.mask,
                         join(states) if len(states) == len(calls) else None, first.memory)  # fmt: skip


def _steps_of_call(part: nn.Module, call: AttentionCall, layer: AttentionLayer, axes: dict[str, Axis], head: int,
                   query: int) -> AttentionSteps:  # fmt: skip
    # The batch row or window that holds the query, and where its queries and keys are.
    row, at = 0, query
    queries, keys = torch.arange(call.q.shape[-2]), torch.arange(call.k.shape[-2])
    if layer.windows is not None:
        where = (layer.windows.queries == query).nonzero()
        row, at = where[0].tolist()
        queries, keys = layer.windows.queries[row], layer.windows.keys[row]
    neighbourhood = isinstance(part, LocalRelation)  # windows of one query each are a dimension after the heads

    def pick(x: Tensor) -> Tensor:
        return x[0, head, row] if neighbourhood else x[row, head]

    q, k, v, output = (pick(x).float() for x in (call.q, call.k, call.v, call.mixed))
    shape = (*call.q.shape[:-1], call.k.shape[-2])
    weights = pick(call.weights.reshape(shape))
    bias, mask = (None if x is None else pick(x.expand(shape)) for x in (call.bias, call.mask))
    mask = None if mask is None or bool(mask.all()) else mask
    x, memory, notes = _inputs(part, call, row, len(q), len(k))

    # The score, as it is written in its paper.
    formula, vector, scale = _formula(part, call), None, call.scale
    if formula == "cosine":  # the queries were multiplied by the inverse temperature
        scale = float(q.norm(dim=-1).mean())
        q = q / scale
    if formula == "additive" and isinstance(call.score, Additive):
        q, vector = call.score.query(q), call.score.value.weight
    if formula == "location" and isinstance(call.score, Location):
        q = call.score.query(q)[:, : len(k)]
    scores = _scores(formula, q, k, vector)

    # Not more than a page can show.
    top = max(0, min(at - MAX_QUERIES // 2, len(q) - MAX_QUERIES))
    rows, columns = slice(top, top + MAX_QUERIES), torch.arange(len(k))
    if len(q) > MAX_QUERIES:
        notes.append(f"{MAX_QUERIES} of {len(q):,} queries are shown, around the chosen one")
    if len(k) > MAX_KEYS:
        columns = weights[at].topk(MAX_KEYS).indices.sort().values
        notes.append(f"{MAX_KEYS:,} of {len(k):,} keys are shown, those with the most weight")
    labels = axis_labels(axes[layer.queries]), axis_labels(axes[layer.keys])

    def part_of(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[rows][:, columns]

    query_positions, key_positions = queries[rows].tolist(), keys[columns].tolist()
    return AttentionSteps(
        layer.title, formula, scale,
        [labels[0][i] if i >= 0 else "padding" for i in query_positions],
        [labels[1][i] if i >= 0 else "padding" for i in key_positions],
        at - top, query_positions, key_positions, layer.queries == layer.keys and axes[layer.queries].kind == "tokens",
        None if x is None else x[rows], None if memory is None else memory[columns], q[rows], k[columns], v[columns],
        scores[rows][:, columns], part_of(bias), part_of(mask), weights[rows][:, columns], output[rows], vector, notes,
    )  # fmt: skip


def _inputs(
    part: nn.Module, call: AttentionCall, row: int, queries: int, keys: int
) -> tuple[Tensor | None, Tensor | None, list[str]]:
    """The tokens that queries (Q, D) and keys (K, D) were computed from, None where there is no one-to-one, and a note if so."""
    x, memory = call.x, call.memory
    if isinstance(part, LocalRelation) and x is not None:
        around = to_neighborhoods(x, 1, part.kernel, part.stride)[0, 0, row]  # (R · R, C)
        return around[len(around) // 2][None], around, []
    x = None if x is None else x[row]
    memory = None if memory is None else memory[row]
    if x is not None and len(x) != queries:
        return None, None, [f"queries and keys are pooled from a finer grid of {len(x):,} patches"]
    pooled = memory is None and x is not None and len(x) != keys
    return x, memory, [f"keys and values are pooled from the {queries:,} patches"] if pooled else []


def _formula(part: nn.Module, call: AttentionCall) -> Formula:
    if isinstance(part, LocalRelation):
        names: dict[object, Formula] = {squared_distance: "squared", absolute_distance: "absolute", product: "product"}
        return names[part.score]
    if isinstance(call.score, Additive):
        return "additive"
    if isinstance(call.score, Location):
        return "location"
    if isinstance(call.score, Uniform):
        return "uniform"
    if isinstance(call.score, General):
        return "general"
    return "cosine" if isinstance(part, Attention) and isinstance(part.prepare, CosineAttention) else "dot"


def _scores(formula: Formula, q: Tensor, k: Tensor, vector: Tensor | None) -> Tensor:
    """(Q, E) and (K, E) → (Q, K)."""
    if formula == "additive":
        assert vector is not None
        return torch.tanh(q[:, None] + k) @ vector[0]
    if formula in ("squared", "absolute"):
        distance = (q[:, None] - k).sum(-1)
        return -distance.square() if formula == "squared" else -distance.abs()
    if formula == "uniform":
        return q.new_zeros(len(q), len(k))
    return q if formula == "location" else q @ k.T


@torch.inference_mode()
def lecture_steps(*, positions: bool = True, shuffle: int | None = None) -> AttentionSteps:
    """The lecture's example: six words of width 512, one head, and Q, K and V are the input itself, as in the notes.

    Embeddings are random but fixed, and both CATs have the same; positions are sinusoids, added.
    """
    order = list(range(len(LECTURE_WORDS))) if shuffle is None else _another_order(len(LECTURE_WORDS), shuffle)
    words = [LECTURE_WORDS[i] for i in order]
    known = sorted(set(LECTURE_WORDS))
    generator = torch.Generator().manual_seed(LECTURE_SEED)
    table = LECTURE_STD * torch.randn(len(known), LECTURE_DIM, generator=generator)
    x = table[[known.index(word) for word in words]]  # (6, 512)
    if positions:
        x = x + sinusoid(len(words), LECTURE_DIM)
    output, weights = attend(x, x, x, need_weights=True)
    assert weights is not None
    at = list(range(len(words)))
    return AttentionSteps(" ".join(LECTURE_WORDS), "dot", LECTURE_DIM**-0.5, words, words, 0, at, at, True, x, None,
                          x, x, x, x @ x.T, None, None, weights, output)  # fmt: skip
