"""The position-wise feed-forward network between attentions.  Shapes: B batch, T tokens, D width."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.dropout import Dropout
from regard.layers.linear import Activation, Linear

__all__ = ["ACTIVATIONS", "MLP", "Activation", "GatedMLP", "gelu", "gelu_tanh"]

gelu: Activation = F.gelu  # x Φ(x), https://arxiv.org/abs/1606.08415
gelu_tanh: Activation = partial(F.gelu, approximate="tanh")  # its approximation, used by GPT-2 and T5 v1.1
ACTIVATIONS: dict[str, Activation] = {"relu": torch.relu_, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": F.silu}  # by config key


class MLP(nn.Module):
    """max(0, x W₁ + b₁) W₂ + b₂, equation 2 of https://arxiv.org/abs/1706.03762; another activation may replace max."""

    def __init__(self, dim: int, hidden: int, activation: Activation = torch.relu_, bias: bool = True, dropout: float = 0.0):
        """`dropout` is that of the hidden layer."""
        super().__init__()
        self.dropout = Dropout(dropout)
        self.up, self.down, self.activation = Linear(dim, hidden, bias), Linear(hidden, dim, bias), activation
        for layer in (self.up, self.down):
            nn.init.xavier_uniform_(layer.weight)
            if bias:
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        hidden = self.up(x.flatten(0, -2), self.activation)  # the activation may work in place
        return self.down(self.dropout(hidden)).view_as(x)


class GatedMLP(nn.Module):
    """(activation(x W) ⊙ x V) W₂, https://arxiv.org/abs/2002.05202: half of the hidden layer gates the other half."""

    def __init__(self, dim: int, hidden: int, activation: Activation = gelu_tanh, bias: bool = False):
        super().__init__()
        self.up, self.down, self.activation = Linear(dim, 2 * hidden, bias), Linear(hidden, dim, bias), activation
        for layer in (self.up, self.down):
            nn.init.xavier_uniform_(layer.weight)
            if bias:
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        gate, value = self.up.rows(x).chunk(2, -1)  # rows of `up`: the gate, then the values it scales
        return self.down.rows(self.activation(gate) * value)
