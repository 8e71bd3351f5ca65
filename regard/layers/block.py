"""One layer of the encoder, one of the decoder: Figure 1 of https://arxiv.org/abs/1706.03762, left and right.

Shapes: B batch, T target and S source length, W beams, K keys, D width, H heads, E width of one head.
"""

from collections.abc import Callable

from torch import Tensor, nn

from regard.layers.attention import Attention
from regard.layers.cache import Cache, KeysValues
from regard.layers.mlp import MLP
from regard.layers.norm import NormFirst, NormLast
from regard.layers.shapes import join_rows, split_rows, stack_rows

__all__ = ["BlockStep", "DecoderBlock", "EncoderBlock"]

# (x, beams, memory, its mask, past, seen) → x one place further, and the past
BlockStep = Callable[[Tensor, int, KeysValues, Tensor | None, Cache, Tensor | None], tuple[Tensor, Cache]]


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

    def at_hand(self) -> BlockStep:
        """The block for one place at a time, as a plain function that has its weights at hand and drops nothing.

        It takes W beams of each sentence one place further: (B · W, D) → (B · W, D), and the past with this place in it.
        `seen` (B, 1, W, K) says which keys of the past are a beam's own; without it, all are.
        """
        attn, qkv, out = self.attn, self.attn.qkv.at_hand(), self.attn.out.at_hand()
        cross, query, cross_out = self.cross, self.cross.qkv.at_hand(0, self.cross.dim), self.cross.out.at_hand()
        around_attn, around_cross = self.around_attn.at_hand(), self.around_cross.at_hand()
        mlp, around_mlp = self.mlp.at_hand(), self.around_mlp.at_hand()

        def step(
            x: Tensor, beams: int, memory: KeysValues, mask: Tensor | None, past: Cache, seen: Tensor | None
        ) -> tuple[Tensor, Cache]:
            def look_back(h: Tensor) -> Tensor:
                nonlocal past
                parts = stack_rows(qkv(h), beams, attn.heads, 3)  # (3, B, H, W, E)
                past = past.add(parts[1:])
                mixed = attn.look(parts[0], past.all(), mask=seen)  # (B, H, W, E)
                return out(join_rows(mixed))  # (B · W, D)

            def look_across(h: Tensor) -> Tensor:
                q = split_rows(query(h), beams, cross.heads)  # (B, H, W, E)
                mixed = cross.look(q, memory, mask=mask)
                return cross_out(join_rows(mixed))  # (B · W, D)

            x = around_attn(x, look_back)
            x = around_cross(x, look_across)
            return around_mlp(x, mlp), past

        return step
