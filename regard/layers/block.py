"""One layer of the encoder, one of the decoder: Figure 1 of https://arxiv.org/abs/1706.03762, left and right.

Shapes: B batch, T target and S source length, W beams, K keys, D width, H heads, E width of one head.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.layers.attention import Attention
from regard.layers.cache import Cache, KeysValues
from regard.layers.mlp import MLP, GatedMLP
from regard.layers.norm import PostNorm, PreNorm
from regard.layers.shapes import join_heads, join_rows, split_heads, split_rows, stack_rows

__all__ = ["BlockStep", "CrossStep", "DecoderBlock", "EncoderBlock"]

Wrap = Callable[[], PreNorm | PostNorm]  # makes what goes around a sub-layer

# (x, beams, past, seen, bias) → x one place further, and the past
BlockStep = Callable[[Tensor, int, Cache, Tensor | None, Tensor | None], tuple[Tensor, Cache]]
# (x, beams, memory, its mask, past, seen, bias) → x one place further, and the past
CrossStep = Callable[
    [Tensor, int, KeysValues, Tensor | None, Cache, Tensor | None, Tensor | None], tuple[Tensor, Cache]
]


class EncoderBlock(nn.Module):
    """Look around, then think: x ─ self-attention ─ mlp ─ out, each wrapped in a residual and a norm.

    With `causal` a token looks only at itself and back: the block of a GPT.
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

    def read(self, x: Tensor) -> tuple[Tensor, Cache]:
        """The same without a mask, and the keys and values for steps that follow."""
        past = Cache()

        def look(h: Tensor) -> Tensor:
            nonlocal past
            q, k, v = split_heads(self.attn.qkv(h), self.attn.heads, 3)
            past = past.add(torch.stack((k, v)))
            return self.attn.out(join_heads(self.attn.look(q, KeysValues(k, v), causal=self.causal)))

        x = self.attn_residual(x, look)
        return self.mlp_residual(x, self.mlp), past

    def at_hand(self) -> BlockStep:
        """The block for one place at a time, as a plain function that has all it needs at hand and drops nothing.

        It takes W beams of each sentence one place further: (B · W, D) → (B · W, D), and the past with this place in it.
        `seen` (B, 1, W, K) says which keys of the past are a beam's own; without it, all are.
        """
        look_back, mlp = _look_back(self.attn), self.mlp.at_hand()
        attn_residual, mlp_residual = self.attn_residual.at_hand(), self.mlp_residual.at_hand()

        def step(x: Tensor, beams: int, past: Cache, seen: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Cache]:
            def look(h: Tensor) -> Tensor:
                nonlocal past
                mixed, past = look_back(h, beams, past, seen, bias)
                return mixed

            x = attn_residual(x, look)
            return mlp_residual(x, mlp), past

        return step


class DecoderBlock(nn.Module):
    """Look back, look across, then think: x ─ causal self-attention ─ cross-attention ─ mlp ─ out."""

    def __init__(self, attn: Attention, cross: Attention, mlp: MLP | GatedMLP, wrap: Wrap):
        super().__init__()
        self.attn, self.attn_residual = attn, wrap()
        self.cross, self.cross_residual = cross, wrap()
        self.mlp, self.mlp_residual = mlp, wrap()

    def forward(self, x: Tensor, memory: KeysValues, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """All places at once: (B, T, D) → (B, T, D).

        `memory` is the source, already projected by this block's `cross.keys_values`; `bias` is for looking back.
        """
        x = self.attn_residual(x, lambda h: self.attn(h, bias=bias, causal=True))
        x = self.cross_residual(x, lambda h: self.cross(h, memory, mask=mask))
        return self.mlp_residual(x, self.mlp)

    def at_hand(self) -> CrossStep:
        """The block for one place at a time, as `EncoderBlock.at_hand`, that also looks at a memory."""
        look_back, mlp = _look_back(self.attn), self.mlp.at_hand()
        cross, query, out = self.cross, self.cross.qkv.at_hand(0, self.cross.inner), self.cross.out.at_hand()
        attn_residual, cross_residual, mlp_residual = (
            around.at_hand() for around in (self.attn_residual, self.cross_residual, self.mlp_residual)
        )

        def step(
            x: Tensor, beams: int, memory: KeysValues, mask: Tensor | None, past: Cache, seen: Tensor | None,
            bias: Tensor | None,
        ) -> tuple[Tensor, Cache]:  # fmt: skip
            def look(h: Tensor) -> Tensor:
                nonlocal past
                mixed, past = look_back(h, beams, past, seen, bias)
                return mixed

            def look_across(h: Tensor) -> Tensor:
                q = split_rows(query(h), beams, cross.heads)  # (B, H, W, E)
                mixed = cross.look(q, memory, mask=mask)
                return out(join_rows(mixed))  # (B · W, D)

            x = attn_residual(x, look)
            x = cross_residual(x, look_across)
            return mlp_residual(x, mlp), past

        return step


def _look_back(attn: Attention) -> Callable[..., tuple[Tensor, Cache]]:
    """Self-attention of one more place, as a plain function: rows (B · W, D) → (B · W, D), and the past with it."""
    qkv, out, heads = attn.qkv.at_hand(), attn.out.at_hand(), attn.heads

    def look_back(h: Tensor, beams: int, past: Cache, seen: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Cache]:
        parts = stack_rows(qkv(h), beams, heads, 3)  # (3, B, H, W, E)
        past = past.add(parts[1:])
        mixed = attn.look(parts[0], past.all(), mask=seen, bias=bias)  # (B, H, W, E)
        return out(join_rows(mixed)), past  # (B · W, D)

    return look_back
