"""Attention, once.  Every model mixes values through `attend`; whatever differs is passed in.

Shapes: B batch, Q queries, K keys, D width, H heads, E = D / H width of one head; `...` is any batch, head or window dimensions.
"""

import math
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config import require_divisible
from regard.layers.cache import KeysValues
from regard.layers.linear import Linear, affine
from regard.layers.masks import causal_mask
from regard.layers.shapes import join_heads, split_heads
from regard.layers.tap import AttentionCall, Tap, note_memory, tap_of

__all__ = ["Attention", "CosineAttention", "QKVWithoutKeyBias", "attend", "attend_tapped"]

SHORT = 2048  # queries times keys up to which two plain products train faster on a CPU than the fused kernel

Score = Callable[[Tensor, Tensor], Tensor]  # queries (..., Q, E) and keys (..., K, E) → scores (..., Q, K)
Prepare = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # queries and keys (B, H, ·, E) → the same, to be compared
Project = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]  # tokens → queries, keys and values (B, H, ·, E)
Merge = Callable[[Tensor], Tensor]  # mixed values (B, H, Q, E) → tokens


def attend(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, score: Score | None = None,
           bias: Tensor | None = None, mask: Tensor | None = None, causal: bool = False, dropout: float = 0.0,
           need_weights: bool = False) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Mix the values by how well their keys match each query.

    q (..., Q, E), k and v (..., K, E); `bias` and `mask` broadcast to (..., Q, K).
    `score` replaces the scaled dot product; `scale` is 1/√E unless given.  A query with every key masked gets zeros,
    not NaN.  Weights are returned only if needed, as they were before dropout, so that each row sums to one.
    """
    causal = causal and q.shape[-2] > 1  # a single query is at the position of the last key and attends to all keys
    fused = score is None and not need_weights and not _is_short(q, k)  # the same numbers from one kernel
    if causal and (mask is not None or bias is not None or q.shape[-2] != k.shape[-2] or not fused):
        past = causal_mask(q.shape[-2], k.shape[-2], q.device)
        mask, causal = past if mask is None else mask & past, False
    if fused:
        return _fused(q, k, v, _additive_mask(bias, mask), causal, dropout, scale), None
    if score is None:
        scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)  # (..., Q, K)
    else:
        scores = score(q, k)  # (..., Q, K)
    scores = scores if bias is None else scores + bias
    if mask is None:
        weights = scores.softmax(-1)
    else:
        # The softmax of a row of -inf is NaN, and so is its gradient: such a row stays unmasked and is zeroed after.
        empty = ~mask.any(-1, keepdim=True)
        weights = scores.masked_fill(~(mask | empty), -math.inf).softmax(-1).masked_fill(empty, 0.0)
    return F.dropout(weights, dropout) @ v, weights if need_weights else None  # (..., Q, E), (..., Q, K)


def _is_short(q: Tensor, k: Tensor) -> bool:
    """Whether few scores are computed, and their gradients after them."""
    exact = q.dtype in (torch.float32, torch.float64)
    return exact and q.requires_grad and q.device.type == "cpu" and q.shape[-2] * k.shape[-2] <= SHORT


def attend_tapped(tap: Tap | None, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None,
                  score: Score | None = None, bias: Tensor | None = None, mask: Tensor | None = None,
                  causal: bool = False, dropout: float = 0.0, x: Tensor | None = None) -> Tensor:  # fmt: skip
    """`attend`, with all of it passed to `tap` if there is one, which may change the mixed values: → (..., Q, E).

    `x` is what the queries were computed from.
    """
    if tap is None:
        return attend(q, k, v, scale=scale, score=score, bias=bias, mask=mask, causal=causal, dropout=dropout)[0]
    if causal and q.shape[-2] > 1:  # the tap gets one mask
        past = causal_mask(q.shape[-2], k.shape[-2], q.device)
        mask = past if mask is None else mask & past
    mixed, weights = attend(q, k, v, scale=scale, score=score, bias=bias, mask=mask, dropout=dropout, need_weights=True)
    assert weights is not None
    factor = 1.0 if score is not None else q.shape[-1] ** -0.5 if scale is None else scale
    return tap(AttentionCall(q, k, v, weights, mixed, factor, score, bias, mask, x))


def _additive_mask(bias: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """One additive or boolean mask for the fused kernel."""
    if bias is None or mask is None:
        return mask if bias is None else bias
    return bias.masked_fill(~mask, -math.inf)


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float, scale: float | None) -> Tensor:
    """Torch's fused kernel, fast only for 4-D q, k, v and a 2-D or 4-D mask: other leading dimensions are folded into two."""
    if q.ndim == 4 and q.shape[:2] == k.shape[:2] == v.shape[:2] and (mask is None or mask.ndim == 4):
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale)
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])

    def fold(x: Tensor, lead: torch.Size) -> Tensor:
        x = x.expand(*lead, *x.shape[-2:])
        return x[(None,) * (4 - x.ndim)] if x.ndim < 4 else x.flatten(0, x.ndim - 4)  # 4-D

    if mask is not None and mask.ndim < 2:
        mask = mask.expand(1, -1)
    if mask is not None and mask.ndim > 2:
        mask = fold(mask, lead) if len(lead) > 2 else mask[(None,) * (4 - mask.ndim)]
    q, k, v = (fold(x, lead) for x in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale)
    return mixed.reshape(*lead, *mixed.shape[-2:])


class QKVWithoutKeyBias(nn.Module):
    """Queries, keys and values in one product, the keys without a bias, as in the released code of Swin V2.

    The key bias exists, because the published parameter counts include it, but it stays zero.
    """

    def __init__(self, dim: int, outputs: int, bias: bool = True):
        super().__init__()
        assert bias, "without any bias, `Linear` does the same"
        self.weight = nn.Parameter(torch.empty(outputs, dim))  # rows: queries, keys, values
        self.bias = nn.Parameter(torch.zeros(outputs))

    @property
    def effective_bias(self) -> Tensor:
        """The bias, with zeros for the keys."""
        query, key, value = self.bias.chunk(3)
        return torch.cat((query, torch.zeros_like(key), value))

    def rows(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Only outputs `start` to `stop` - 1: (..., D) → (..., stop - start)."""
        return affine(x, self.weight[start:stop], self.effective_bias[start:stop])

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) → (..., 3 · inner)."""
        return affine(x, self.weight, self.effective_bias)


class CosineAttention(nn.Module):
    """Scale queries and keys so that their dot product is their cosine times a learned inverse temperature per head.

    Equation 2 of https://arxiv.org/abs/2111.09883, where the temperature is at least 0.01.
    """

    def __init__(self, heads: int, max_scale: float = 100.0):
        super().__init__()
        self.temperature = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))  # its logarithm
        self.max_scale = max_scale

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, Q, E) and (B, H, K, E), each of the same shape."""
        scale = self.temperature.exp().clamp(max=self.max_scale)
        q, k = (x * (to / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)) for x, to in ((q, scale), (k, 1)))
        return q, k


class Attention(nn.Module):
    """Multi-head attention, Figure 2 of https://arxiv.org/abs/1706.03762.

    `attn(x)` is self-attention, `attn(x, attn.keys_values(memory))` cross-attention.  While something listens to it (see
    layers/tap.py), the explicit path runs instead of the fused kernel.
    """

    watchable: ClassVar[bool] = True

    def __init__(self, dim: int, heads: int, dropout: float = 0.0, *, width: int = 0, scale: float | None = None,
                 bias: bool = True, qkv_bias: bool | None = None,
                 project: type[Linear] | type[QKVWithoutKeyBias] = Linear, prepare: Prepare | None = None):  # fmt: skip
        """`width` is that of one head, by default dim / heads; `scale` multiplies the scores, by default 1/√width.

        `bias` is that of all products, `qkv_bias` that of queries, keys and values if it differs.
        `project` computes queries, keys and values; `prepare` changes queries and keys before they are compared.
        """
        super().__init__()
        if not width:
            require_divisible(dim, heads)
        self.heads, self.dropout, self.scale, self.prepare = heads, dropout, scale, prepare
        self.inner = heads * (width or dim // heads)  # width of all heads together
        self.qkv = project(dim, 3 * self.inner, bias if qkv_bias is None else qkv_bias)  # rows: queries, keys, values
        self.out = Linear(self.inner, dim, bias)
        nn.init.xavier_uniform_(self.qkv.weight)  # as one matrix: smaller by √2 than three; post-norm needs it
        nn.init.xavier_uniform_(self.out.weight)
        for layer in (self.qkv, self.out):
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def queries(self, x: Tensor) -> Tensor:
        """(B, Q, D) → (B, H, Q, E)."""
        [q] = split_heads(self.qkv.rows(x, 0, self.inner), self.heads)
        return q

    def keys_values(self, memory: Tensor) -> KeysValues:
        """(B, K, D) → keys and values (B, H, K, E)."""
        note_memory(self, memory)
        return KeysValues(*split_heads(self.qkv.rows(memory, self.inner, 3 * self.inner), self.heads, 2))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values in one product: (B, T, D) → 3 × (B, H, T, E)."""
        q, k, v = split_heads(self.qkv(x), self.heads, 3)
        return q, k, v

    def merge(self, mixed: Tensor) -> Tensor:
        """(B, H, Q, E) → (B, Q, D)."""
        return self.out(join_heads(mixed))

    def mix(self, x: Tensor, project: Project, merge: Merge, *, bias: Tensor | None = None, mask: Tensor | None = None,
            causal: bool = False, dropout: float = 0.0) -> Tensor:  # fmt: skip
        """Project, attend, merge.  `project` and `merge` decide how tokens are arranged: whole, windows, one step."""
        q, k, v = project(x)
        if self.prepare is not None:
            q, k = self.prepare(q, k)
        mixed = attend_tapped(tap_of(self), q, k, v, scale=self.scale, bias=bias, mask=mask, causal=causal, dropout=dropout, x=x)
        return merge(mixed)

    def forward(self, x: Tensor, memory: KeysValues | None = None, *, bias: Tensor | None = None,
                mask: Tensor | None = None, causal: bool = False) -> Tensor:  # fmt: skip
        """Each token of x (B, Q, D) attends to the memory, or to x itself; → (B, Q, D)."""
        project: Project = self.project if memory is None else lambda h: (self.queries(h), memory.keys, memory.values)
        dropout = self.dropout if self.training else 0.0
        return self.mix(x, project, self.merge, bias=bias, mask=mask, causal=causal, dropout=dropout)
