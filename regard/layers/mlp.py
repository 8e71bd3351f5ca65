"""The position-wise network between attentions.

Shapes: B batch, T tokens, R rows, D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.layers.linear import Linear

__all__ = ["MLP"]


class MLP(nn.Module):
    """max(0, x W₁ + b₁) W₂ + b₂, equation 2 of https://arxiv.org/abs/1706.03762; each token by itself."""

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.up, self.down = Linear(dim, hidden), Linear(hidden, dim)
        for layer in (self.up, self.down):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        return self.at_hand()(x.flatten(0, -2)).view_as(x)

    def at_hand(self) -> Callable[[Tensor], Tensor]:
        """The same as a plain function with its weights at hand: (R, D) → (R, D)."""
        up, down = self.up.at_hand(), self.down.at_hand()
        return lambda x: down(torch.relu_(up(x)))  # in place: a product of two matrices is read by nobody else
