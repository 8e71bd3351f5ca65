"""Attention scores other than the dot product.

Shapes: Q queries, K keys, E width of one head; `...` is any batch or head dimensions.
"""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.linear import Linear

__all__ = ["Additive", "General", "Location", "RecurrentScore", "ScalarScore", "Uniform", "absolute_distance", "product",
           "squared_distance", "summed"]  # fmt: skip

ScalarScore = Callable[[Tensor, Tensor], Tensor]  # of scalar queries and keys


class RecurrentScore(Protocol):
    """A score of a decoder that attends once a time step: what depends on the keys alone is computed once, by `keys`."""

    def keys(self, memory: Tensor) -> Tensor:
        """Keys (..., K, E) → projected keys (..., K, ·)."""

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        """Queries (..., Q, E) and projected keys (..., K, ·) → scores (..., Q, K)."""


class Additive(nn.Module):
    """Bahdanau's score, one hidden layer: v · tanh(W q + U k), appendix A.1.2 of https://arxiv.org/abs/1409.0473."""

    def __init__(self, query: int, key: int, hidden: int):
        super().__init__()
        self.query = Linear(query, hidden, bias=False)
        self.key = Linear(key, hidden, bias=False)
        self.value = Linear(hidden, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """U k: (..., K, E) → (..., K, hidden)."""
        return self.key(memory)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Q (..., Q, E) and projected keys (..., K, hidden) → scores (..., Q, K)."""
        both = self.query(q).unsqueeze(-2) + k.unsqueeze(-3)  # (..., Q, K, hidden)
        return self.value(torch.tanh(both)).squeeze(-1)  # (..., Q, K)


class General(nn.Module):
    """Luong's bilinear score q · W k, section 3.1 of https://arxiv.org/abs/1508.04025."""

    def __init__(self, query: int, key: int):
        super().__init__()
        self.key = Linear(key, query, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """W k: (..., K, E) → (..., K, width of a query)."""
        return self.key(memory)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Q (..., Q, E) and projected keys (..., K, E) → scores (..., Q, K)."""
        return q @ k.transpose(-2, -1)


class Location(nn.Module):
    """Luong's location score W q: a score for each source position, from the query alone; equation 8 of the same paper."""

    def __init__(self, query: int, max_len: int):
        super().__init__()
        self.query = Linear(query, max_len, bias=False)
        self.max_len = max_len

    def keys(self, memory: Tensor) -> Tensor:
        """The keys themselves: only their number matters."""
        if memory.shape[-2] > self.max_len:
            raise ValueError(f"a source of {memory.shape[-2]} tokens, its end included; this location score was trained for "
                             f"{self.max_len} positions: split the sentence, or train with a larger model.max_len")  # fmt: skip
        return memory

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Q (..., Q, E) and keys (..., K, ·) → scores (..., Q, K)."""
        return self.query(q)[..., : k.shape[-2]]


class Uniform(nn.Module):
    """The same score for all keys: the mean of the values, so no attention."""

    def keys(self, memory: Tensor) -> Tensor:
        """One empty key for each position: (..., K, E) → (..., K, 0)."""
        return memory[..., :0]

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Q (..., Q, E) and keys (..., K, 0) → scores (..., Q, K)."""
        return q.new_zeros(*q.shape[:-1], k.shape[-2])


# Scores of scalars: equations 4 to 6 of https://arxiv.org/abs/1904.11491, where a query and a key are one number each.


def squared_distance(q: Tensor, k: Tensor) -> Tensor:
    """-(q - k)², of any shapes that broadcast."""
    q, k = torch.broadcast_tensors(q, k)
    return F.mse_loss(q, k, reduction="none").neg_()  # saves a pass over memory


def absolute_distance(q: Tensor, k: Tensor) -> Tensor:
    """-|q - k|, of any shapes that broadcast."""
    q, k = torch.broadcast_tensors(q, k)
    return F.l1_loss(q, k, reduction="none").neg_()


def product(q: Tensor, k: Tensor) -> Tensor:
    """The product q · k, of any shapes that broadcast."""
    return q * k


def summed(score: ScalarScore) -> Callable[[Tensor, Tensor], Tensor]:
    """The score of vectors as the sum over components: q (..., Q, E) and k (..., K, E) → scores (..., Q, K)."""
    return lambda q, k: score(q.unsqueeze(-2), k.unsqueeze(-3)).sum(-1)
