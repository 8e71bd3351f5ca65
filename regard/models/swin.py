"""Swin: a Transformer that looks around in windows, on a grid that grows coarser from stage to stage; V1 and V2.

Liu et al. 2021, https://arxiv.org/abs/2103.14030, and 2022, https://arxiv.org/abs/2111.09883

               classes
                  │ head, of the mean of all places
        ┌─────────┴─────────┐           ┌──┬──┐    ┌─┬──┬─┐
        │ blocks × depth    │           │  │  │    ├─┼──┼─┤
        │ patch merge       │ × stages  ├──┼──┤    │ │  │ │
        └─────────┬─────────┘           │  │  │    ├─┼──┼─┤
           patches of 4 × 4             └──┴──┘    └─┴──┴─┘
                                     odd blocks,  even blocks: shifted by half a window

A place looks only at its window, so the cost grows with the picture, not with its square; as every second block cuts the grid
elsewhere, what one window knows reaches the next.  A merge makes one place of four, twice as wide.

Shapes: B batch, C channels, Y X rows and columns of a grid, N windows, M side of a window, D width, H heads, E width of one head.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import field
from functools import lru_cache, partial
from itertools import count
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, require_divisible, require_fraction, require_min
from regard.layers.attention import Attention, CosineAttention, QKVWithoutKeyBias
from regard.layers.biases import ContinuousPositionBias, RelativePositionBias
from regard.layers.dropout import Dropout, DropPath, drop_path_rates
from regard.layers.linear import Linear
from regard.layers.masks import window_mask
from regard.layers.mlp import MLP, gelu
from regard.layers.norm import PreNorm, ResPostNorm
from regard.layers.shapes import check_channels, to_patches, to_windows

__all__ = ["SIZES", "Block", "Swin", "SwinConfig", "attention_received", "cut"]

AT_ONCE = 4096  # places that go through a stage at once if nothing is learnt from them: more do not stay in the cache


@dataclass(frozen=True, config=STRICT)
class SwinConfig:
    """The defaults are Swin-T, section 3.3 of the paper."""

    image: int = 224  # side of the square picture, in pixels
    patch: int = 4  # side of one patch, in pixels
    channels: int = 3
    dim: int = 96  # of the first stage; each one after it is twice as wide
    depths: list[int] = field(default_factory=lambda: [2, 2, 6, 2])  # blocks of each stage
    heads: list[int] = field(default_factory=lambda: [3, 6, 12, 24])  # of each stage
    window: int = 7  # side of a window, in places
    mlp_ratio: int = 4  # the mlp is this many times as wide
    classes: int = 1000
    version: Literal["v1", "v2"] = "v1"
    pretrained_windows: list[int] = field(
        default_factory=list
    )  # V2: window by which each stage measures offsets; none: its own
    dropout: float = 0.0  # on the embeddings, and in front of the classes
    drop_path: float = 0.0  # share of examples for which the last block's branches are left out; less for those before

    def __post_init__(self) -> None:
        require_min(1, image=self.image, patch=self.patch, channels=self.channels, dim=self.dim, window=self.window,
                 mlp_ratio=self.mlp_ratio, classes=self.classes, stages=len(self.depths))  # fmt: skip
        require_fraction(dropout=self.dropout, drop_path=self.drop_path)
        if len(self.heads) != len(self.depths):
            raise ValueError(f"{len(self.depths)} depths and {len(self.heads)} heads; give one of each for every stage")
        if self.pretrained_windows and (self.version == "v1" or len(self.pretrained_windows) != len(self.depths)):
            raise ValueError(f"measures is {self.pretrained_windows}; give one window for every stage of a v2, or none")
        require_min(1, **{f"depths[{i}]": depth for i, depth in enumerate(self.depths)})
        require_min(1, **{f"heads[{i}]": heads for i, heads in enumerate(self.heads)})
        require_min(0, **{f"measures[{i}]": window for i, window in enumerate(self.pretrained_windows)})
        for i, heads in enumerate(self.heads):
            require_divisible(self.dim * 2**i, heads)

    def tiles(self, image: int) -> bool:
        """Whether patches, windows and merges divide a picture of so many pixels a side without rest."""
        side, rest = divmod(image, self.patch)
        for _ in self.depths:
            if rest or not side or (side > self.window and side % self.window):  # a smaller grid is one window
                return False
            side, rest = divmod(side, 2)
        return True

    @property
    def advice(self) -> str:
        """What is to be said before training, if anything."""
        if self.tiles(self.image):
            return ""
        windows = [n for n in range(self.window, 1, -1) if dataclasses.replace(self, window=n).tiles(self.image)]
        sides = [next(filter(self.tiles, range(self.image, 0, -1)), 0), next(filter(self.tiles, count(self.image)))]
        fits = [f"model.window={windows[0]}"] if windows else []
        fits += [f"model.image={side}" for side in sides if side]
        return (f"windows of {self.window} do not tile a picture of {self.image} pixels, so its edges are filled up; what tiles "
                f"is {' or '.join(fits)}")  # fmt: skip


_V2 = partial(SwinConfig, image=256, window=8, version="v2")
_DEEP: Any = {"depths": [2, 2, 18, 2]}

SIZES = {  # section 3.3 of both papers; V2's as released for pictures of 256 pixels
    "tiny": SwinConfig(),
    "small": SwinConfig(**_DEEP),
    "base": SwinConfig(dim=128, heads=[4, 8, 16, 32], **_DEEP),
    "large": SwinConfig(dim=192, heads=[6, 12, 24, 48], **_DEEP),
    "v2-tiny": _V2(),
    "v2-small": _V2(**_DEEP),
    "v2-base": _V2(dim=128, heads=[4, 8, 16, 32], **_DEEP),
}


class Cut(NamedTuple):
    """A grid cut into windows: which place goes where."""

    there: Tensor  # (N · M · M,): the places of the padded grid, in the order of the windows
    back: Tensor  # (Y · X,): where among those each place of the grid is
    mask: Tensor | None  # (N, 1, M · M, M · M): who may look at whom; None: all of a window


@lru_cache(maxsize=64)
def cut(rows: int, columns: int, window: int, shift: int, device: torch.device) -> Cut:
    """Figure 4 of the paper, drawn on the numbers of the places; the vectors then follow in one move.

    The grid is padded at the right and below until windows tile it, rolled up and left by the shift, and cut.
    """
    with torch.inference_mode(False):  # kept for later calls, of which some may learn
        down, across = (-(-side // window) * window for side in (rows, columns))
        grid = torch.arange(down * across, device=device).view(down, across)
        there = to_windows(grid.roll((-shift, -shift), (0, 1))[None, :, :, None], window).flatten()
        back = there.argsort().view(down, across)[:rows, :columns].flatten()
        mask = window_mask(down, across, window, shift, device)[:, None] if shift else None
        return Cut(there, back, mask)


def padded(x: Tensor, side: int) -> Tensor:
    """Zeros at the right and below, until squares of this side tile the grid: (B, Y, X, D)."""
    down, right = -x.shape[1] % side, -x.shape[2] % side
    return F.pad(x, (0, 0, 0, right, 0, down)) if down or right else x


Fit = Callable[[int, int, int, int], tuple[int, int]]  # (window, shift, rows, columns) → the window and shift to use


def shrunk(window: int, shift: int, rows: int, columns: int) -> tuple[int, int]:
    """No window is larger than the grid; one that is as large has nowhere to be shifted."""
    side = min(rows, columns)
    return (window, shift) if window < side else (side, 0)


def same(window: int, shift: int, rows: int, columns: int) -> tuple[int, int]:
    """Whatever the grid, the windows of training."""
    return window, shift


class Block(nn.Module):
    """Look around in the window, then think; in V1 (here) the norms stand first, in V2 last in their branch.

    x ─┬─ norm ─ cut ─ attention ─ put together ─ + ─┬─ norm ─ mlp ─ + ─ out
       └─────────────────────────────────────────────┘  └───────────────┘
    """

    def __init__(self, attn: Attention, bias: RelativePositionBias | ContinuousPositionBias, mlp: MLP,
                 wrap: Callable[[], PreNorm | ResPostNorm], window: int, shift: int, fit: Fit):  # fmt: skip
        super().__init__()
        self.attn, self.bias, self.attn_residual = attn, bias, wrap()
        self.mlp, self.mlp_residual = mlp, wrap()
        self.window, self.shift, self.fit = window, shift, fit

    def forward(self, x: Tensor) -> Tensor:
        """(B, Y, X, D) → (B, Y, X, D)."""
        x = self.attn_residual(x, self.look)
        return self.mlp_residual(x, self.mlp)

    def look(self, x: Tensor) -> Tensor:
        """Attention, each place within its window: (B, Y, X, D) → (B, Y, X, D)."""
        batch, rows, columns, dim = x.shape
        window, shift = self.fit(self.window, self.shift, rows, columns)
        there, back, mask = cut(rows, columns, window, shift, x.device)
        mask = mask if mask is None or batch == 1 else mask.repeat(batch, 1, 1, 1)  # (B · N, 1, M · M, M · M)
        h = padded(x, window).flatten(1, 2).index_select(1, there)  # (B, N · M · M, D)
        h = self.attn(h.view(-1, window**2, dim), bias=self.bias(window), mask=mask)  # (B · N, M · M, D)
        return h.view(batch, -1, dim).index_select(1, back).view(x.shape)


class Stage(nn.Module):
    """Blocks on one grid; all but the first begin with a merge, that makes the grid coarser."""

    def __init__(self, merge: nn.Module | None, blocks: list[Block]):
        super().__init__()
        self.merge = merge
        self.blocks: Any = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        """(B, Y, X, D) → the same, or (B, ⌈Y / 2⌉, ⌈X / 2⌉, 2 D)."""
        if self.merge is not None:
            x = padded(x, 2)
            squares = to_windows(x, 2).flatten(1)  # (B · ⌈Y / 2⌉ · ⌈X / 2⌉, 4 D)
            x = self.merge(squares).view(len(x), x.shape[1] // 2, x.shape[2] // 2, -1)
        watched = any(block.attn.tap is not None for block in self.blocks)  # who watches wants all in one call
        if watched or torch.is_grad_enabled():
            return self.blocks(x)
        return torch.cat([self.blocks(some) for some in x.split(max(1, AT_ONCE // (x.shape[1] * x.shape[2])))])


def v1_stage(c: SwinConfig, i: int, rates: list[float]) -> Stage:
    """A learned number for each offset, norms first; windows shrink on a grid that is smaller than they are."""
    dim, heads = c.dim * 2**i, c.heads[i]
    merge = nn.Sequential(OrderedDict(norm=nn.LayerNorm(2 * dim), reduce=Linear(2 * dim, dim, bias=False)))
    return Stage(merge if i else None, [
        Block(Attention(dim, heads), RelativePositionBias(heads, c.window), MLP(dim, c.mlp_ratio * dim, gelu),
              partial(PreNorm, dim, DropPath(rate)), c.window, n % 2 * (c.window // 2), shrunk)
        for n, rate in enumerate(rates)
    ])  # fmt: skip


def v2_stage(c: SwinConfig, i: int, rates: list[float]) -> Stage:
    """Cosines, a network that reads offsets, norms at the end of each branch; windows are fitted to the grid of training."""
    dim, heads, side = c.dim * 2**i, c.heads[i], max(1, c.image // c.patch // 2**i)
    merge = nn.Sequential(OrderedDict(reduce=Linear(2 * dim, dim, bias=False), norm=nn.LayerNorm(dim)))
    cuts = [shrunk(c.window, n % 2 * (c.window // 2), side, side) for n in range(len(rates))]
    return Stage(merge if i else None, [
        Block(Attention(dim, heads, scale=1.0, project=QKVWithoutKeyBias, prepare=CosineAttention(heads)),
              ContinuousPositionBias(heads, (c.pretrained_windows[i] if c.pretrained_windows else 0) or window), MLP(dim, c.mlp_ratio * dim, gelu),
              partial(ResPostNorm, dim, DropPath(rate)), window, shift, same)
        for rate, (window, shift) in zip(rates, cuts, strict=True)
    ])  # fmt: skip


class Swin(nn.Module):
    """`forward` returns the logits of the classes, `encode` a vector for each place of the coarsest grid."""

    def __init__(self, config: SwinConfig):
        super().__init__()
        self.config = c = config
        self.embed, self.norm = Linear(c.channels * c.patch**2, c.dim), nn.LayerNorm(c.dim)
        self.dropout = Dropout(c.dropout)
        rates, stage = iter(drop_path_rates(c.drop_path, sum(c.depths))), {"v1": v1_stage, "v2": v2_stage}[c.version]
        self.stages: Any = nn.ModuleList(
            stage(c, i, [next(rates) for _ in range(depth)]) for i, depth in enumerate(c.depths)
        )
        width = c.dim * 2 ** (len(c.depths) - 1)
        self.final_norm, self.classifier = nn.LayerNorm(width), Linear(width, c.classes)
        for part in self.modules():
            if isinstance(part, nn.Linear | QKVWithoutKeyBias):
                nn.init.trunc_normal_(part.weight, std=0.02)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
            if isinstance(part, ResPostNorm):  # as in the released code, a block of V2 begins by changing nothing
                for p in part.norm.parameters():
                    nn.init.zeros_(p)

    def encode(self, x: Tensor) -> Tensor:
        """A vector for each place of the last stage, of any picture: (B, C, rows, columns) → (B, Y, X, D)."""
        check_channels(x, self.config.channels)
        patch = self.config.patch
        x = F.pad(x, (0, -x.shape[3] % patch, 0, -x.shape[2] % patch))  # (B, C, Y · P, X · P)
        rows = x.shape[2] // patch
        x = self.dropout(self.norm(self.embed(to_patches(x, patch)))).unflatten(1, (rows, -1))  # (B, Y, X, D)
        for stage in self.stages:
            x = stage(x)  # (B, ⌈Y / 2⌉, ⌈X / 2⌉, 2 D), but for the first
        return self.final_norm(x)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the classes of each picture: (B, C, rows, columns) → (B, classes)."""
        return self.classifier(self.dropout(self.encode(x).mean((1, 2))))

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Rows and columns of each stage, for a picture of so many pixels."""
        sides = [self.config.patch * 2**i for i in range(len(self.stages))]
        return [(-(-height // side), -(-width // side)) for side in sides]


def attention_received(weights: Tensor, block: Block, rows: int, columns: int) -> Tensor:
    """How much attention each place of a grid got from all others, put back on the picture: → (B, H, Y, X), of mean 1.

    `weights` (B · N, H, M · M, M · M) are those of the block's `attn`, as `watch` sees them.  What padding asked is not counted.
    """
    window, shift = block.fit(block.window, block.shift, rows, columns)
    there, back, _ = cut(rows, columns, window, shift, weights.device)
    asked = torch.zeros(len(there), device=weights.device).index_fill(0, back, 1).view(-1, 1, window**2, 1)
    got = (weights.unflatten(0, (-1, len(asked))) * asked).sum(-2)  # (B, N, H, M · M)
    got = got.transpose(1, 2).flatten(2).index_select(2, back).unflatten(2, (rows, columns))  # (B, H, Y, X)
    return got / got.mean((2, 3), keepdim=True)
