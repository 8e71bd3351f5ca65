"""How alike a query and a key are, where the answer is not a dot product.

Shapes: Q queries, K keys, E width of one head; `...` is any batch or head dimensions.
"""

import torch
from torch import Tensor, nn

__all__ = ["Additive"]


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
