"""One layer of the encoder, one of the decoder: Figure 1 of https://arxiv.org/abs/1706.03762, left and right.

Shapes: B batch, T target and S source length, D width.
"""

from collections.abc import Callable

from torch import Tensor, nn

from regard.layers.attention import Attention
from regard.layers.cache import KeysValues
from regard.layers.mlp import MLP, GatedMLP
from regard.layers.norm import PostNorm, PreNorm

__all__ = ["DecoderBlock", "EncoderBlock"]

Wrap = Callable[[], PreNorm | PostNorm]  # builds the residual and norm around a sub-layer


class EncoderBlock(nn.Module):
    """x ─ self-attention ─ mlp ─ out, each wrapped in a residual and a norm.

    With `causal` a token attends only to itself and earlier tokens: the block of a GPT.
    """

    def __init__(self, attn: Attention, mlp: MLP | GatedMLP, wrap: Wrap, *, causal: bool = False):
        super().__init__()
        self.attn, self.attn_residual = attn, wrap()
        self.mlp, self.mlp_residual = mlp, wrap()
        self.causal = causal

    def forward(self, x: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        x = self.attn_residual(x, lambda h: self.attn(h, mask=mask, bias=bias, causal=self.causal))
        return self.mlp_residual(x, self.mlp)


class DecoderBlock(nn.Module):
    """x ─ causal self-attention ─ cross-attention ─ mlp ─ out, each wrapped in a residual and a norm."""

    def __init__(self, attn: Attention, cross: Attention, mlp: MLP | GatedMLP, wrap: Wrap):
        super().__init__()
        self.attn, self.attn_residual = attn, wrap()
        self.cross, self.cross_residual = cross, wrap()
        self.mlp, self.mlp_residual = mlp, wrap()

    def forward(self, x: Tensor, memory: KeysValues, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """All positions at once: (B, T, D) → (B, T, D).

        `memory` is the source, projected by this block's `cross.keys_values`; `bias` is for the self-attention.
        """
        x = self.attn_residual(x, lambda h: self.attn(h, bias=bias, causal=True))
        x = self.cross_residual(x, lambda h: self.cross(h, memory, mask=mask))
        return self.mlp_residual(x, self.mlp)
