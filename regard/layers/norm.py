"""Where the norm stands around a sub-layer: before it, after the sum, or at the end of its branch.

Shapes: B batch, T tokens, D width.
"""

from collections.abc import Callable

from torch import Tensor, nn

from regard.layers.dropout import Dropout, DropPath

__all__ = ["Norm", "PostNorm", "PreNorm", "ResPostNorm"]

Norm = Callable[[int], nn.Module]  # builds the norm of a width


class PreNorm(nn.Module):
    """x + dropout(f(norm(x))): the residual path has no norm, so deep models and large learning rates are stable.

    x ─┬─ norm ─ f ─ dropout ─ + ─
       └───────────────────────┘

    The sum is not normalized, so a stack of these ends with one more norm.
    """

    final_norm = nn.LayerNorm

    def __init__(self, dim: int, dropout: float | DropPath, norm: Norm = nn.LayerNorm):
        super().__init__()
        self.norm, self.dropout = norm(dim), Dropout(dropout) if isinstance(dropout, float | int) else dropout

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Wrap the sub-layer f: (B, T, D) → (B, T, D)."""
        return self.dropout.add_residual(x, f(self.norm(x)))


class PostNorm(nn.Module):
    """norm(x + dropout(f(x))): the paper's order, section 5.4; it needs warm-up to train.

    x ─┬─ f ─ dropout ─ + ─ norm ─
       └────────────────┘
    """

    final_norm = nn.Identity  # the output of the last block is already normalized

    def __init__(self, dim: int, dropout: float | DropPath, norm: Norm = nn.LayerNorm):
        super().__init__()
        self.norm, self.dropout = norm(dim), Dropout(dropout) if isinstance(dropout, float | int) else dropout

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Wrap the sub-layer f: (B, T, D) → (B, T, D)."""
        return self.norm(self.dropout.add_residual(x, f(x)))


class ResPostNorm(nn.Module):
    """x + dropout(norm(f(x))): each branch is normalized, so activations stay small in deep and wide models.

    x ─┬─ f ─ norm ─ dropout ─ + ─
       └───────────────────────┘

    Section 3.2 of https://arxiv.org/abs/2111.09883.  A stack of these ends with one more norm.
    """

    final_norm = nn.LayerNorm

    def __init__(self, dim: int, dropout: float | DropPath, norm: Norm = nn.LayerNorm):
        super().__init__()
        self.norm, self.dropout = norm(dim), Dropout(dropout) if isinstance(dropout, float | int) else dropout

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Wrap the sub-layer f: (B, T, D) → (B, T, D)."""
        return self.dropout.add_residual(x, self.norm(f(x)))
