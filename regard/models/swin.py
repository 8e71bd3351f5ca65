"""Swin V1 and V2: attention within windows, on a grid that gets coarser from stage to stage.

Liu et al. 2021, https://arxiv.org/abs/2103.14030, and 2022, https://arxiv.org/abs/2111.09883

               classes
                  │ head, of the mean of all positions
        ┌─────────┴─────────┐           ┌──┬──┐    ┌─┬──┬─┐
        │ blocks × depth    │           │  │  │    ├─┼──┼─┤
        │ patch merge       │ × stages  ├──┼──┤    │ │  │ │
        └─────────┬─────────┘           │  │  │    ├─┼──┼─┤
           patches of 4 × 4             └──┴──┘    └─┴──┴─┘
                                     odd blocks,  even blocks: shifted by half a window

A position attends only to its window, so the cost is linear in the size of the image.  Every second block shifts the windows,
so information crosses their borders.  A merge turns four positions into one, twice as wide.

Shapes: B batch, C channels, Y X rows and columns of a grid, N windows, M side of a window, D width, H heads, E width of one head.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import lru_cache, partial
from itertools import count
from typing import Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model, require_divisible, require_min
from regard.layers.attention import Attention, CosineAttention, QKVWithoutKeyBias
from regard.layers.biases import ContinuousPositionBias, RelativePositionBias
from regard.layers.dropout import Dropout, DropPath, drop_path_rates
from regard.layers.linear import Linear
from regard.layers.masks import window_mask
from regard.layers.mlp import MLP, gelu
from regard.layers.norm import PreNorm, ResPostNorm
from regard.layers.shapes import check_channels, to_patches, to_windows
from regard.layers.tap import tap_of

__all__ = ["FAMILY", "SIZES", "Block", "Swin", "SwinConfig", "attention_received", "plan_windows"]

CHUNK = 4096  # positions per pass through a stage at inference: more do not stay in the cache


@dataclass(frozen=True, config=STRICT)
class SwinConfig:
    """The defaults are Swin-T, section 3.3 of the paper."""

    image: int = 224  # side of the square image, in pixels
    patch: int = 4  # side of one patch, in pixels
    channels: int = 3
    dim: int = 96  # of the first stage; doubles with each stage
    depths: list[int] = field(default_factory=lambda: [2, 2, 6, 2])  # blocks of each stage
    heads: list[int] = field(default_factory=lambda: [3, 6, 12, 24])  # of each stage
    window: int = 7  # side of a window, in positions
    mlp_ratio: int = 4  # width of the mlp, as a multiple of dim
    classes: int = 1000
    version: Literal["v1", "v2"] = "v1"
    pretrained_windows: list[int] = field(default_factory=list)  # V2: window that scales the offsets of each stage
    dropout: float = 0.0  # on the embeddings, and before the classifier
    drop_path: float = 0.0  # fraction of examples that skip the last block; rises linearly from 0 at the first

    def __post_init__(self) -> None:
        check_model(self)
        require_min(1, stages=len(self.depths))
        if len(self.heads) != len(self.depths):
            raise ValueError(f"{len(self.depths)} depths and {len(self.heads)} heads; give one of each per stage")
        if self.pretrained_windows and (self.version == "v1" or len(self.pretrained_windows) != len(self.depths)):
            raise ValueError(f"pretrained_windows is {self.pretrained_windows}; give one per stage of a v2, or none")
        for low, key in ((1, "depths"), (1, "heads"), (0, "pretrained_windows")):
            require_min(low, **{f"{key}[{i}]": value for i, value in enumerate(getattr(self, key))})
        for i, heads in enumerate(self.heads):
            require_divisible(self.dim * 2**i, heads)

    def tiles(self, image: int) -> bool:
        """Whether patches, windows and merges divide an image of this side without padding."""
        side, rest = divmod(image, self.patch)
        for _ in self.depths:
            if rest or not side or (side > self.window and side % self.window):  # a smaller grid is one window
                return False
            side, rest = divmod(side, 2)
        return True

    @property
    def advice(self) -> str:
        """Advice to print before training; empty if windows tile the image."""
        if self.tiles(self.image):
            return ""
        windows = [n for n in range(self.window, 1, -1) if dataclasses.replace(self, window=n).tiles(self.image)]
        sides = [next(filter(self.tiles, range(self.image, 0, -1)), 0), next(filter(self.tiles, count(self.image)))]
        fits = [f"model.window={n}" for n in windows[:1]] + [f"model.image={side}" for side in sides if side]
        return (f"windows of {self.window} do not tile an image of {self.image} pixels, so its edges are padded; "
                f"use {' or '.join(fits)}")  # fmt: skip


_V2 = partial(SwinConfig, image=256, window=8, version="v2")
_DEEP = [2, 2, 18, 2]

SIZES = {  # section 3.3 of both papers; V2 as released for images of 256 pixels
    "tiny": SwinConfig(), "small": SwinConfig(depths=_DEEP),
    "base": SwinConfig(dim=128, heads=[4, 8, 16, 32], depths=_DEEP),
    "large": SwinConfig(dim=192, heads=[6, 12, 24, 48], depths=_DEEP),
    "v2-tiny": _V2(), "v2-small": _V2(depths=_DEEP), "v2-base": _V2(dim=128, heads=[4, 8, 16, 32], depths=_DEEP),
}  # fmt: skip


class WindowPlan(NamedTuple):
    """How a grid is partitioned into windows, as indices."""

    order: Tensor  # (N · M · M,): positions of the padded grid, in the order of the windows
    inverse: Tensor  # (Y · X,): index in `order` of each position of the grid
    mask: Tensor | None  # (N, 1, M · M, M · M): who may attend to whom; None: everyone within a window


@lru_cache(maxsize=64)
def plan_windows(rows: int, columns: int, window: int, shift: int, device: torch.device) -> WindowPlan:
    """Figure 4 of the paper, on the indices of the positions: pad right and below, roll up and left by `shift`, partition."""
    with torch.inference_mode(False):  # cached, and training may use it later
        height, width = (-(-side // window) * window for side in (rows, columns))
        grid = torch.arange(height * width, device=device).view(height, width)
        order = to_windows(grid.roll((-shift, -shift), (0, 1))[None, :, :, None], window).flatten()
        inverse = order.argsort().view(height, width)[:rows, :columns].flatten()
        mask = window_mask(height, width, window, shift, device)[:, None] if shift else None
        return WindowPlan(order, inverse, mask)


def pad_to_multiple(x: Tensor, side: int) -> Tensor:
    """Pad with zeros right and below until squares of this side tile the grid: (B, Y, X, D)."""
    down, right = -x.shape[1] % side, -x.shape[2] % side
    return F.pad(x, (0, 0, 0, right, 0, down)) if down or right else x


FitWindow = Callable[[int, int, int, int], tuple[int, int]]  # (window, shift, rows, columns) → window and shift to use


def shrink_window(window: int, shift: int, rows: int, columns: int) -> tuple[int, int]:
    """Limit the window to the grid; a window as large as the grid is not shifted."""
    side = min(rows, columns)
    return (window, shift) if window < side else (side, 0)


def keep_window(window: int, shift: int, rows: int, columns: int) -> tuple[int, int]:
    """Use the window of training on any grid."""
    return window, shift


class Block(nn.Module):
    """One layer with window attention.  V1 (here) has the norms first, V2 last in their branch.

    x ─┬─ norm ─ to windows ─ attention ─ to grid ─ + ─┬─ norm ─ mlp ─ + ─ out
       └────────────────────────────────────────────┘  └───────────────┘
    """

    def __init__(self, attn: Attention, bias: RelativePositionBias | ContinuousPositionBias, mlp: MLP,
                 wrap: Callable[[], PreNorm | ResPostNorm], window: int, shift: int, fit: FitWindow):  # fmt: skip
        super().__init__()
        self.attn, self.bias, self.attn_residual = attn, bias, wrap()
        self.mlp, self.mlp_residual = mlp, wrap()
        self.window, self.shift, self.fit = window, shift, fit

    def forward(self, x: Tensor) -> Tensor:
        """(B, Y, X, D) → (B, Y, X, D)."""
        x = self.attn_residual(x, self.attend_windows)
        return self.mlp_residual(x, self.mlp)

    def attend_windows(self, x: Tensor) -> Tensor:
        """Attention of each position within its window: (B, Y, X, D) → (B, Y, X, D)."""
        batch, rows, columns, dim = x.shape
        window, shift = self.fit(self.window, self.shift, rows, columns)
        order, inverse, mask = plan_windows(rows, columns, window, shift, x.device)
        mask = mask if mask is None or batch == 1 else mask.repeat(batch, 1, 1, 1)  # (B · N, 1, M · M, M · M)
        h = pad_to_multiple(x, window).flatten(1, 2).index_select(1, order)  # (B, N · M · M, D)
        h = self.attn(h.view(-1, window**2, dim), bias=self.bias(window), mask=mask)  # (B · N, M · M, D)
        return h.view(batch, -1, dim).index_select(1, inverse).view(x.shape)


class Stage(nn.Module):
    """Blocks on one grid; every stage but the first starts with a patch merge that halves the grid."""

    def __init__(self, merge: nn.Module | None, blocks: list[Block]):
        super().__init__()
        self.merge = merge
        self.blocks = cast(Sequence[Block], nn.ModuleList(blocks))

    def forward(self, x: Tensor) -> Tensor:
        """(B, Y, X, D) → the same, or (B, ⌈Y / 2⌉, ⌈X / 2⌉, 2 D)."""
        if self.merge is not None:
            x = pad_to_multiple(x, 2)
            squares = to_windows(x, 2).flatten(1)  # (B · ⌈Y / 2⌉ · ⌈X / 2⌉, 4 D)
            x = self.merge(squares).view(len(x), x.shape[1] // 2, x.shape[2] // 2, -1)
        watched = any(tap_of(block.attn) is not None for block in self.blocks)  # a tap gets the whole batch in one call
        if watched or torch.is_grad_enabled():
            return self._run(x)
        return torch.cat([self._run(images) for images in x.split(max(1, CHUNK // (x.shape[1] * x.shape[2])))])

    def _run(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def v1_stage(c: SwinConfig, i: int, rates: list[float]) -> Stage:
    """V1: a learned bias for each offset, norms first; windows shrink on a smaller grid."""
    dim, heads = c.dim * 2**i, c.heads[i]
    merge = nn.Sequential(OrderedDict(norm=nn.LayerNorm(2 * dim), reduce=Linear(2 * dim, dim, bias=False)))
    return Stage(merge if i else None, [
        Block(Attention(dim, heads), RelativePositionBias(heads, c.window), MLP(dim, c.mlp_ratio * dim, gelu),
              partial(PreNorm, dim, DropPath(rate)), c.window, n % 2 * (c.window // 2), shrink_window)
        for n, rate in enumerate(rates)
    ])  # fmt: skip


def v2_stage(c: SwinConfig, i: int, rates: list[float]) -> Stage:
    """V2: cosine attention, continuous position bias, norms last in their branch; windows fit the grid of training."""
    dim, heads, side = c.dim * 2**i, c.heads[i], max(1, c.image // c.patch // 2**i)
    merge = nn.Sequential(OrderedDict(reduce=Linear(2 * dim, dim, bias=False), norm=nn.LayerNorm(dim)))
    windows = [shrink_window(c.window, n % 2 * (c.window // 2), side, side) for n in range(len(rates))]
    measure = (c.pretrained_windows[i] if c.pretrained_windows else 0) or windows[0][0]
    return Stage(merge if i else None, [
        Block(Attention(dim, heads, scale=1.0, project=QKVWithoutKeyBias, prepare=CosineAttention(heads)),
              ContinuousPositionBias(heads, measure), MLP(dim, c.mlp_ratio * dim, gelu),
              partial(ResPostNorm, dim, DropPath(rate)), window, shift, keep_window)
        for rate, (window, shift) in zip(rates, windows, strict=True)
    ])  # fmt: skip


class Swin(nn.Module):
    """`forward` returns class logits, `encode` a vector for each position of the coarsest grid."""

    def __init__(self, config: SwinConfig):
        super().__init__()
        self.config = c = config
        self.embed, self.norm = Linear(c.channels * c.patch**2, c.dim), nn.LayerNorm(c.dim)
        self.dropout = Dropout(c.dropout)
        rates, stage = iter(drop_path_rates(c.drop_path, sum(c.depths))), {"v1": v1_stage, "v2": v2_stage}[c.version]
        stages = [stage(c, i, [next(rates) for _ in range(depth)]) for i, depth in enumerate(c.depths)]
        self.stages = cast(Sequence[Stage], nn.ModuleList(stages))
        width = c.dim * 2 ** (len(c.depths) - 1)
        self.final_norm, self.classifier = nn.LayerNorm(width), Linear(width, c.classes)
        for part in self.modules():
            if isinstance(part, nn.Linear | QKVWithoutKeyBias):
                nn.init.trunc_normal_(part.weight, std=0.02)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
            if isinstance(part, ResPostNorm):  # as in the released code, a block of V2 starts as the identity
                for p in part.norm.parameters():
                    nn.init.zeros_(p)

    def encode(self, x: Tensor) -> Tensor:
        """A vector for each position of the last stage: (B, C, height, width) → (B, Y, X, D)."""
        check_channels(x, self.config.channels)
        patch = self.config.patch
        x = F.pad(x, (0, -x.shape[3] % patch, 0, -x.shape[2] % patch))  # (B, C, Y · P, X · P)
        rows = x.shape[2] // patch
        x = self.dropout(self.norm(self.embed(to_patches(x, patch)))).unflatten(1, (rows, -1))  # (B, Y, X, D)
        for stage in self.stages:
            x = stage(x)  # (B, ⌈Y / 2⌉, ⌈X / 2⌉, 2 D), except the first
        return self.final_norm(x)

    def forward(self, x: Tensor) -> Tensor:
        """Class logits: (B, C, height, width) → (B, classes)."""
        return self.classifier(self.dropout(self.encode(x).mean((1, 2))))

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Rows and columns of the grid of each stage, for an image of this size in pixels."""
        sides = [self.config.patch * 2**i for i in range(len(self.stages))]
        return [(-(-height // side), -(-width // side)) for side in sides]


def attention_received(weights: Tensor, block: Block, rows: int, columns: int) -> Tensor:
    """Attention that each position receives from all others, on the grid, with mean 1: (B, H, Y, X).

    `weights` (B · N, H, M · M, M · M) are those of the block's `attn`, from `watch`.  Queries of the padding do not count.
    """
    window, shift = block.fit(block.window, block.shift, rows, columns)
    order, inverse, _ = plan_windows(rows, columns, window, shift, weights.device)
    real = torch.zeros(len(order), device=weights.device).index_fill(0, inverse, 1).view(-1, 1, window**2, 1)
    received = (weights.unflatten(0, (-1, len(real))) * real).sum(-2)  # (B, N, H, M · M)
    received = received.transpose(1, 2).flatten(2).index_select(2, inverse).unflatten(2, (rows, columns))  # (B, H, Y, X)
    return received / received.mean((2, 3), keepdim=True)


FAMILY = Family(SwinConfig, SIZES, Swin, "image-encoder")
