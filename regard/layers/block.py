"""One layer of the encoder, one of the decoder: Figure 1 of https://arxiv.org/abs/1706.03762, left and right.

Shapes: B batch, T target and S source length, D width, H heads, E width of one head.
"""

from torch import Tensor, nn

from regard.layers.attention import Attention, KeysValues
from regard.layers.mlp import MLP
from regard.layers.norm import NormFirst, NormLast

__all__ = ["DecoderBlock", "EncoderBlock"]


class EncoderBlock(nn.Module):
    """Look around, then think: x ─ self-attention ─ mlp ─ out, each wrapped in a residual and a norm."""

    def __init__(self, dim: int, heads: int, hidden: int, around: type[NormFirst] | type[NormLast],
                 dropout: float, attention_dropout: float = 0.0):  # fmt: skip
        super().__init__()
        self.attn, self.around_attn = Attention(dim, heads, attention_dropout), around(dim, dropout)
        self.mlp, self.around_mlp = MLP(dim, hidden), around(dim, dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        x = self.around_attn(x, lambda h: self.attn(h, self.attn.keys_values(h), mask=mask))
        return self.around_mlp(x, self.mlp)


class DecoderBlock(nn.Module):
    """Look back, look across, then think: x ─ causal self-attention ─ cross-attention ─ mlp ─ out."""

    def __init__(self, dim: int, heads: int, hidden: int, around: type[NormFirst] | type[NormLast],
                 dropout: float, attention_dropout: float = 0.0):  # fmt: skip
        super().__init__()
        self.attn, self.around_attn = Attention(dim, heads, attention_dropout), around(dim, dropout)
        self.cross, self.around_cross = Attention(dim, heads, attention_dropout), around(dim, dropout)
        self.mlp, self.around_mlp = MLP(dim, hidden), around(dim, dropout)

    def forward(
        self, x: Tensor, memory: KeysValues, mask: Tensor | None = None, past: KeysValues | None = None
    ) -> tuple[Tensor, KeysValues]:
        """(B, T, D) → (B, T, D), and the keys and values of all tokens so far, for the next step.

        `memory` is the source, already projected by this block's `cross.keys_values`.
        """

        def look_back(h: Tensor) -> Tensor:
            nonlocal past
            now = self.attn.keys_values(h)
            past = now if past is None else past.then(now)
            return self.attn(h, past, causal=True)

        x = self.around_attn(x, look_back)
        x = self.around_cross(x, lambda h: self.cross(h, memory, mask=mask))
        assert past is not None
        return self.around_mlp(x, self.mlp), past
