"""MViT: a multiscale ViT.  Attention pools its queries, keys and values, so tokens get fewer and wider.

V1: Fan et al. 2021, https://arxiv.org/abs/2104.11227; V2: Li et al. 2022, https://arxiv.org/abs/2112.01526

              classes
                 │ head, of the mean of all tokens (V1: of the class token)
       ┌─────────┴─────────┐
       │  Y/8 · X/8 · 8 D  │ × depths[3]
       ├───────────────────┤
       │  Y/4 · X/4 · 4 D  │ × depths[2]    the first block of a stage pools its queries 2 × 2,
       ├───────────────────┤                and so outputs a quarter of the tokens
       │  Y/2 · X/2 · 2 D  │ × depths[1]
       ├───────────────────┤                all blocks pool keys and values, 4 × 4 in the first stage
       │   Y · X · D       │ × depths[0]
       └─────────┬─────────┘
              patches          that overlap: one convolution (V1: + positions)

Shapes: B batch, C channels, P pixels from patch to patch, Y X rows and columns of a grid, T = Y · X tokens (V1: one more),
Q queries, K keys, D width, H heads, E width of one head.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import field
from functools import partial
from typing import ClassVar, Literal, NamedTuple, cast

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model, require_divisible, require_min
from regard.layers.attention import attend_tapped
from regard.layers.biases import DecomposedPositionBias
from regard.layers.dropout import Dropout, DropPath, drop_path_rates
from regard.layers.linear import Linear
from regard.layers.positions import LearnedGridPositions
from regard.layers.shapes import check_channels, join_heads, split_heads, to_grid, to_tokens
from regard.layers.tap import tap_of

__all__ = ["FAMILY", "SIZES", "MViT", "MViTConfig"]

Grid = tuple[int, int]  # rows and columns
Norm = partial(nn.LayerNorm, eps=1e-6)  # as in the released weights


@dataclass(frozen=True, config=STRICT)
class MViTConfig:
    """The defaults are MViTv2-T, Table 1 of V2."""

    image: int = 224  # side of the square image, in pixels
    patch: int = 4  # pixels from one patch to the next
    kernel: int = 7  # side of one patch, in pixels: patches overlap
    channels: int = 3
    dim: int = 96  # of the first stage; doubles with each stage
    heads: int = 1  # of the first stage; doubles with each stage
    depths: list[int] = field(default_factory=lambda: [1, 2, 5, 2])  # blocks of each stage
    mlp_ratio: int = 4  # width of the mlp, as a multiple of dim
    stride: int = 4  # of keys and values in the first stage; halves with each stage, down to 1
    pooling: Literal["conv", "max"] = "conv"  # of queries, keys and values
    positions: Literal["relative", "added"] = "relative"  # a bias on the scores (V2), or added to the tokens (V1)
    residual: Literal["queries", "none"] = "queries"  # V2 pools the queries of all blocks and adds them to the output
    expand: Literal["attention", "mlp"] = "attention"  # where the width doubles: first attention or last mlp of a stage
    pool: Literal["mean", "token"] = "mean"  # input of the classifier: the mean of all tokens, or the class token
    classes: int = 1000
    dropout: float = 0.0  # before the classifier
    drop_path: float = 0.0  # fraction of examples that skip the last block; rises linearly from 0 at the first

    def __post_init__(self) -> None:
        check_model(self)
        require_min(1, **{"stages of depths": len(self.depths), **{f"depths[{i}]": n for i, n in enumerate(self.depths)}})
        require_divisible(self.dim, self.heads)
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel {self.kernel} has no centre; use {self.kernel - 1} or {self.kernel + 1}")
        if self.kernel == 1 and self.patch > 1:  # also a kernel of oneDNN that must not run: layers/conv.py
            raise ValueError(f"kernel 1 skips the pixels between patches {self.patch} apart; use 3 or more")
        if self.stride & (self.stride - 1):
            raise ValueError(f"stride {self.stride} cannot be halved down to 1; use 1, 2, 4 or another power of 2")
        self.check(self.image)

    def check(self, side: int) -> None:
        """Refuse a side that the strides do not divide."""
        unit = self.patch * max(2 ** (len(self.depths) - 1), self.stride)
        if side % unit:
            below = side // unit * unit
            sides = f"{below} or {below + unit}" if below else str(unit)
            raise ValueError(f"{len(self.depths)} stages on patches {self.patch} pixels apart, with keys of stride "
                             f"{self.stride}, do not tile an image of {side} pixels; use a side of {sides}")  # fmt: skip


SIZES = {  # Table 1 of V2, whose large model expands in the mlp, as released; MViT-B-16 of section 5 of V1
    "v2-tiny": MViTConfig(), "v2-small": MViTConfig(depths=[1, 2, 11, 2]), "v2-base": MViTConfig(depths=[2, 3, 16, 3]),
    "v2-large": MViTConfig(dim=144, heads=2, depths=[2, 6, 36, 4], expand="mlp"),
    "v2-huge": MViTConfig(dim=192, heads=3, depths=[4, 8, 60, 8]),
    "v1-base": MViTConfig(depths=[1, 2, 11, 2], positions="added", residual="none", expand="mlp", pool="token"),
}  # fmt: skip


class PoolPlan(NamedTuple):
    """Sizes and strides of one block."""

    dim: int  # width of the input
    inner: int  # width of the attention, all heads together
    out: int  # width of the output
    heads: int
    side: int  # of the input grid
    queries: int  # stride of the queries, and so of the output grid
    keys: int  # stride of keys and values


def plan_blocks(c: MViTConfig) -> list[PoolPlan]:
    """The plan of each block."""
    plans = []
    for stage, depth in enumerate(c.depths):
        dim, heads, keys = c.dim << stage, c.heads << stage, max(1, c.stride >> stage)
        for block in range(depth):
            first, last = stage > 0 and block == 0, stage + 1 < len(c.depths) and block + 1 == depth
            side = c.image // c.patch >> (stage - first)
            width = (dim >> first, dim, dim) if c.expand == "attention" else (dim, dim, dim << last)
            plans.append(PoolPlan(*width, heads, side, 1 + first, keys))
    return plans


class GridPool(nn.Module):
    """Pool the grid, then norm; the `before` tokens before the grid are not pooled."""

    def __init__(self, before: int, pool: nn.Module, norm: nn.Module):
        super().__init__()
        self.before, self.pool, self.norm = before, pool, norm

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """(..., T, D) → (..., pooled tokens, D)."""
        tokens = x.flatten(0, -3)  # heads, if any, join the batch
        coarse = to_tokens(self.pool(to_grid(tokens[:, self.before :], grid[0])))
        if self.before:
            coarse = torch.cat((tokens[:, : self.before], coarse), 1)
        return self.norm(coarse).unflatten(0, x.shape[:-2])


class NoPool(nn.Module):
    """Leave the grid as it is."""

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """(..., T, D) → (..., T, D)."""
        return x


def max_pool(stride: int, before: int) -> nn.Module:
    """Max pooling; stride 1 pools nothing."""
    return GridPool(before, nn.MaxPool2d(stride + 1, stride, stride // 2), nn.Identity()) if stride > 1 else NoPool()


def conv_pool(stride: int, before: int, width: int) -> nn.Module:
    """Depthwise 3 × 3 convolution."""
    return GridPool(before, nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False), Norm(width))


class PoolingAttention(nn.Module):
    """Attention between two pooled grids, Figure 3 of V1 and Figure 2 of V2.

               ┌─ q ─ pool ─┬───────────┐ V2
    x ─ linear ┼─ k ─ pool ─┼─ attend ─ + ─ linear ─ out
               └─ v ─ pool ─┘
    """

    watchable: ClassVar[bool] = True  # by `watch`

    def __init__(self, plan: PoolPlan, c: MViTConfig):
        super().__init__()
        self.heads, self.strides, self.residual = plan.heads, (plan.queries, plan.keys), c.residual == "queries"
        width, before = plan.inner // plan.heads, int(c.pool == "token")
        self.qkv = Linear(plan.dim, 3 * plan.inner)  # rows: queries, keys, values
        self.out = Linear(plan.inner, plan.inner)
        pool = partial(conv_pool, width=width) if c.pooling == "conv" else max_pool
        self.pool_q = pool(plan.queries, before) if self.residual or plan.queries > 1 else NoPool()
        self.pool_k, self.pool_v = pool(plan.keys, before), pool(plan.keys, before)
        finer = plan.side // min(self.strides)  # side of the finer grid
        self.bias = DecomposedPositionBias(width, finer, before) if c.positions == "relative" else None  # V2

    def pooled_grids(self, grid: Grid) -> tuple[Grid, Grid]:
        """Rows and columns of its queries (and so of its output) and of its keys, for tokens on this grid."""
        (rows, columns), (queries, keys) = grid, self.strides
        return (rows // queries, columns // queries), (rows // keys, columns // keys)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) → (B, Q, inner)."""
        q, k, v = split_heads(self.qkv(x), self.heads, 3)  # (B, H, T, E)
        q, k, v = self.pool_q(q, grid), self.pool_k(k, grid), self.pool_v(v, grid)  # (B, H, Q, E), (B, H, K, E) twice
        bias = None if self.bias is None else self.bias(q, *self.pooled_grids(grid))  # (B, H, Q, K)
        mixed = attend_tapped(tap_of(self), q, k, v, bias=bias, x=x)  # (B, H, Q, E)
        return self.out(join_heads(mixed + q if self.residual else mixed))  # (B, Q, inner)


class Block(nn.Module):
    """One layer, norm first.

    x ─┬─ norm ─┬─ attention ──── + ─┬─ norm ─┬─ mlp ───── + ─ out
       └────────┴─ expand ─ pool ─┘  └────────┴─ expand ───┘

    Where the grid gets coarser, the shortcut is pooled; where the width doubles, it is a linear layer of the normed x.
    """

    def __init__(self, plan: PoolPlan, c: MViTConfig, drop_path: float):
        super().__init__()
        self.norm1, self.attn = Norm(plan.dim), PoolingAttention(plan, c)
        self.expand1 = Linear(plan.dim, plan.inner) if plan.dim != plan.inner else None
        self.pool = max_pool(plan.queries, int(c.pool == "token"))
        self.norm2, hidden = Norm(plan.inner), c.mlp_ratio * plan.inner
        self.mlp = nn.Sequential(OrderedDict(up=Linear(plan.inner, hidden), gelu=nn.GELU(), down=Linear(hidden, plan.out)))
        self.expand2 = Linear(plan.inner, plan.out) if plan.inner != plan.out else None
        self.drop = DropPath(drop_path)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, T, D) → (B, Q, out)."""
        h = self.norm1(x)
        x = x if self.expand1 is None else self.expand1(h)  # (B, T, inner)
        x = self.drop.add_residual(self.pool(x, grid), self.attn(h, grid))  # (B, Q, inner)
        h = self.norm2(x)
        x = x if self.expand2 is None else self.expand2(h)  # (B, Q, out)
        return self.drop.add_residual(x, self.mlp(h))


class MViT(nn.Module):
    """`forward` returns class logits, `encode` a vector for each token of the coarsest grid."""

    def __init__(self, config: MViTConfig):
        super().__init__()
        self.config = c = config
        before, plans = int(c.pool == "token"), plan_blocks(c)
        self.embed = nn.Conv2d(c.channels, c.dim, c.kernel, c.patch, c.kernel // 2)
        self.token = nn.Parameter(torch.empty(1, 1, c.dim)) if before else None
        self.positions = LearnedGridPositions(c.dim, c.image // c.patch, before) if c.positions == "added" else None
        rates = drop_path_rates(c.drop_path, len(plans))
        blocks = nn.ModuleList(Block(plan, c, rate) for plan, rate in zip(plans, rates, strict=True))
        self.blocks = cast(Sequence[Block], blocks)
        self.final_norm, self.dropout = Norm(plans[-1].out), Dropout(c.dropout)
        self.classifier = Linear(plans[-1].out, c.classes)
        if self.token is not None:
            nn.init.trunc_normal_(self.token, std=0.02)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.trunc_normal_(part.weight, std=0.02)
                nn.init.zeros_(part.bias)

    def encode(self, x: Tensor) -> Tensor:
        """A vector for each token, a class token first: (B, C, Y · P, X · P) → (B, T, D)."""
        check_channels(x, self.config.channels)
        for side in x.shape[2:]:
            self.config.check(side)
        x = self.embed(x)  # (B, D, Y, X)
        grid = x.shape[2], x.shape[3]
        x = to_tokens(x)  # (B, Y · X, D)
        if self.token is not None:
            x = torch.cat((self.token.expand(len(x), -1, -1), x), 1)  # (B, T, D)
        if self.positions is not None:
            x = x + self.positions(*grid)
        for block in self.blocks:
            x = block(x, grid)  # (B, Q, out)
            grid, _ = block.attn.pooled_grids(grid)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Class logits: (B, C, Y · P, X · P) → (B, classes)."""
        x = self.final_norm(self.encode(x))
        return self.classifier(self.dropout(x.mean(1) if self.token is None else x[:, 0]))  # (B, classes)


FAMILY = Family(MViTConfig, SIZES, MViT, "image-encoder")
