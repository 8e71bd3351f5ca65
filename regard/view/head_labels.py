"""Which heads have found a simple pattern: the previous token, the same one, the next, a separator, the aligned word.

Clark et al. 2019, https://arxiv.org/abs/1906.04341, found such heads in BERT, and Voita et al. 2019,
https://arxiv.org/abs/1905.09418, in translators.

Shapes: H heads, Q queries, K keys, N windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.view.record import AttentionLayer, Axis, AxisKind, Record, Word

__all__ = ["CLEAR", "SHARE", "HeadLabel", "label_heads"]

SHARE = 0.5  # a label says what most queries do: no two positions can both have more than half of them
CLEAR = 1.5  # times uniform: a query whose strongest weight is less has no preference, and its strongest key is chance
NOUN: dict[AxisKind, str] = {"tokens": "token", "frames": "frame", "grid": "patch"}


@dataclass(frozen=True)
class HeadLabel:
    """What a head looks at, and the fraction of its queries whose strongest weight is there."""

    head: int  # counted from 0
    label: str
    share: float


@dataclass(frozen=True, eq=False)
class _Strongest:
    """The strongest key of each query, if the query prefers it clearly to the others."""

    query: Tensor  # (Q,): its position
    key: Tensor  # (H, Q): position of its strongest key
    clear: Tensor  # (H, Q)
    choice: Tensor  # (H, Q): whether there were two keys or more to choose from


def label_heads(layer: AttentionLayer, record: Record) -> list[HeadLabel]:
    """The label of each head that has one, the most frequent of its patterns; it needs a share of `SHARE`."""
    found = _strongest(layer)
    shares: dict[str, Tensor] = {}  # of each pattern (H,)
    queries, keys = record.axes[layer.queries], record.axes[layer.keys]
    if layer.queries == layer.keys:
        noun = NOUN[queries.kind]
        offsets = {"same": 0} if queries.kind == "grid" else {"previous": -1, "same": 0, "next": 1}  # a row ends a grid's order
        for name, offset in offsets.items():
            if layer.kind == "masked" and offset > 0:
                continue
            target = found.query + offset
            shares[f"{name} {noun}"] = _share(found, found.key == target, (target >= 0) & (target < keys.size))
    elif layer.kind == "cross" and queries.words and keys.words:
        shares["aligned word"] = _aligned_share(layer, record, queries, keys)
    if keys.special and len(keys.special) < keys.size:
        everywhere = torch.ones_like(found.query, dtype=torch.bool)
        label = "class token" if keys.kind == "grid" else "separator"
        shares[label] = _share(found, torch.isin(found.key, torch.tensor(keys.special)), everywhere)

    labels = list[HeadLabel]()
    for head in range(layer.heads):
        best = max(shares, key=lambda name: float(shares[name][head]), default="")
        if best and float(shares[best][head]) >= SHARE:
            labels.append(HeadLabel(head, best, float(shares[best][head])))
    return labels


def _strongest(layer: AttentionLayer) -> _Strongest:
    """Where each query looks most; windows are taken apart into their real queries."""
    if layer.windows is None:
        weights, query = layer.weights, torch.arange(layer.shape[0])
        value, key = weights.max(-1)  # (H, Q)
    else:
        window, place = (layer.windows.queries >= 0).nonzero(as_tuple=True)  # of each query
        query = layer.windows.queries[window, place]
        weights = layer.weights[window, :, place].transpose(0, 1)  # (H, Q, K)
        value, index = weights.max(-1)
        key = layer.windows.keys[window].expand(layer.heads, -1, -1).gather(2, index[..., None])[..., 0]
    allowed = (weights > 0).sum(-1)  # keys that are masked have no weight
    return _Strongest(query, key, value * allowed > CLEAR, allowed > 1)


def _share(found: _Strongest, hit: Tensor, possible: Tensor) -> Tensor:
    """The fraction of queries that look there, of those that could look there or elsewhere: (H,)."""
    counted = found.choice & possible
    return (hit & found.clear & counted).sum(-1) / counted.sum(-1).clamp_min(1)


def _aligned_share(layer: AttentionLayer, record: Record, queries: Axis, keys: Axis) -> Tensor:
    """The fraction of words of the answer for which a head looks most at the word that all heads together look at most: (H,).

    Special tokens are not words of the answer, nor what they are aligned with.  A single head would be compared with itself.
    """
    heads = sum(other.heads for other in record.layers if other.kind == "cross")
    answer, source = (_ordinary(axis) for axis in (queries, keys))
    if heads < 2 or len(source) < 2 or not answer or record.alignment_axes != (layer.queries, layer.keys):
        return torch.zeros(layer.heads)
    together = _by_words(_by_words(record.alignment, answer, -2), source, -1).argmax(-1)  # (answer words,)
    wanted = torch.tensor([keys.words.index(source[n]) for n in together.tolist()])
    weights = _by_words(_by_words(layer.weights, answer, -2), keys.words, -1)  # (H, answer words, source words)
    value, strongest = weights.max(-1)
    size = torch.tensor([word.end - word.start for word in answer])
    clear = value / size * len(keys.words) > CLEAR
    return ((strongest == wanted) & clear).sum(-1) / len(answer)


def _ordinary(axis: Axis) -> list[Word]:
    return [word for word in axis.words if word.start not in axis.special]


def _by_words(weights: Tensor, words: Sequence[Word], dim: int) -> Tensor:
    """Sum the weights of the tokens of each word along a dimension."""
    return torch.stack([weights.narrow(dim, word.start, word.end - word.start).sum(dim) for word in words], dim)
