"""How alike a query and a key are, where the answer is not a dot product.

Shapes: Q queries, K keys, E width of one head; `...` is any batch or head dimensions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Additive", "absolute_distance", "product", "squared_distance"]


class Additive(nn.Module):
    """Bahdanau's score, a small network of one hidden layer: v · tanh(W q + U k).

    Appendix A.1.2 of https://arxiv.org/abs/1409.0473.
    """

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.query = nn.Linear(dim, hidden, bias=False)
        self.key = nn.Linear(dim, hidden, bias=False)
        self.value = nn.Linear(hidden, 1, bias=False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Q (..., Q, E) and k (..., K, E) → scores (..., Q, K)."""
        both = self.query(q).unsqueeze(-2) + self.key(k).unsqueeze(-3)  # (..., Q, K, hidden)
        return self.value(torch.tanh(both)).squeeze(-1)  # (..., Q, K)


# Scores of short vectors, each number of a query with the same number of a key: equations 4 to 6 of
# https://arxiv.org/abs/1904.11491, q (..., Q, E) and k (..., K, E) → scores (..., Q, K).


def squared_distance(q: Tensor, k: Tensor) -> Tensor:
    """The nearer the better: -‖q - k‖²."""
    return _total(F.mse_loss(*_paired(q, k), reduction="none")).neg_()  # one pass over memory for both steps


def absolute_distance(q: Tensor, k: Tensor) -> Tensor:
    """The nearer the better, but far is not much worse than less far: -Σ |q - k|."""
    return _total(F.l1_loss(*_paired(q, k), reduction="none")).neg_()


def product(q: Tensor, k: Tensor) -> Tensor:
    """The dot product as it is, without a scale."""
    return _total(torch.mul(*_paired(q, k)))


def _paired(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Each query beside each key: twice (..., Q, K, E)."""
    return torch.broadcast_tensors(q.unsqueeze(-2), k.unsqueeze(-3))  # type: ignore[return-value]


def _total(x: Tensor) -> Tensor:
    """The sum over the width; the sum of a single number is that number, and needs no pass over memory."""
    return x.squeeze(-1) if x.shape[-1] == 1 else x.sum(-1)
