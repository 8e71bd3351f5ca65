"""One layer of the encoder, one of the decoder: Figure 1 of https://arxiv.org/abs/1706.03762, left and right.

Shapes: B batch, T target and S source length, W beams, K keys, D width, H heads, E width of one head.
"""

from torch import Tensor, nn

from regard.layers.attention import Attention
from regard.layers.cache import Cache, KeysValues
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
        x = self.around_attn(x, lambda h: self.attn(h, mask=mask))
        return self.around_mlp(x, self.mlp)


class DecoderBlock(nn.Module):
    """Look back, look across, then think: x ─ causal self-attention ─ cross-attention ─ mlp ─ out."""

    def __init__(self, dim: int, heads: int, hidden: int, around: type[NormFirst] | type[NormLast],
                 dropout: float, attention_dropout: float = 0.0):  # fmt: skip
        super().__init__()
        self.attn, self.around_attn = Attention(dim, heads, attention_dropout), around(dim, dropout)
        self.cross, self.around_cross = Attention(dim, heads, attention_dropout), around(dim, dropout)
        self.mlp, self.around_mlp = MLP(dim, hidden), around(dim, dropout)

    def forward(self, x: Tensor, memory: KeysValues, mask: Tensor | None = None) -> Tensor:
        """All places at once: (B, T, D) → (B, T, D).

        `memory` is the source, already projected by this block's `cross.keys_values`.
        """
        x = self.around_attn(x, lambda h: self.attn(h, causal=True))
        x = self.around_cross(x, lambda h: self.cross(h, memory, mask=mask))
        return self.around_mlp(x, self.mlp)

    def step(
        self, x: Tensor, memory: KeysValues, mask: Tensor, past: Cache, seen: Tensor | None
    ) -> tuple[Tensor, Cache]:
        """One place further, for W beams of each sentence: (B, W, D) → (B, W, D), and the past with this place in it.

        `seen` (B, 1, W, K) says which keys of the past are a beam's own; without it, all are.
        """

        def look_back(h: Tensor) -> Tensor:
            nonlocal past
            q, now = self.attn.all_three(h)
            past = past.add(now)
            return self.attn.look(q, past.all(), mask=seen)

        x = self.around_attn(x, look_back)
        x = self.around_cross(x, lambda h: self.cross(h, memory, mask=mask))
        return self.around_mlp(x, self.mlp), past
