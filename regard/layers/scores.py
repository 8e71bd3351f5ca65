"""Attention scores other than the dot product.

Shapes: Q queries, K keys, E width of one head; `...` is any batch or head dimensions.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Additive", "ScalarScore", "absolute_distance", "product", "squared_distance", "summed"]

ScalarScore = Callable[[Tensor, Tensor], Tensor]  # of scalar queries and keys


class Additive(nn.Module):
    """Bahdanau's score, one hidden layer: v · tanh(W q + U k), appendix A.1.2 of https://arxiv.org/abs/1409.0473."""

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.query = nn.Linear(dim, hidden, bias=False)
        self.key = nn.Linear(dim, hidden, bias=False)
        self.value = nn.Linear(hidden, 1, bias=False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Q (..., Q, E) and k (..., K, E) → scores (..., Q, K)."""
        both = self.query(q).unsqueeze(-2) + self.key(k).unsqueeze(-3)  # (..., Q, K, hidden)
        return self.value(torch.tanh(both)).squeeze(-1)  # (..., Q, K)


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
