"""ResNet, and a ResNet with self-attention between its convolutions.

He et al. 2016, https://arxiv.org/abs/1512.03385; the attention as in Zhang et al. 2019 (SAGAN), https://arxiv.org/abs/1805.08318

              classes
                 │ head
         mean of all positions
       ┌─────────┴─────────┐
       │ + gate · attention│ after the chosen stages; the gate starts at 0
       │ residual × depth  │ × 4 stages, each halves the grid and doubles the channels
       └─────────┬─────────┘
                stem           7 × 7 convolution and max pool, or 3 × 3 for small images
                 │
               image

Shapes: B batch, C channels, D width of a stage, Y X rows and columns of the grid, H heads.
"""

from dataclasses import field
from functools import partial
from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model, require_divisible, require_max, require_min
from regard.layers.attention import Attention
from regard.layers.conv import ConvNorm, Residual
from regard.layers.dropout import drop_path_rates
from regard.layers.linear import Linear
from regard.layers.shapes import check_channels, to_grid, to_tokens

__all__ = ["FAMILY", "SIZES", "GatedAttention", "ResNet", "ResNetConfig"]

BOTTLENECK = 4  # output channels per channel of the bottleneck


@dataclass(frozen=True, config=STRICT)
class ResNetConfig:
    """The defaults are ResNet-50, Table 1 of the paper."""

    image: int = 224  # side of the square image, in pixels
    channels: int = 3
    stem: Literal["imagenet", "cifar"] = "imagenet"  # downsamples by 4, or keeps the size
    dim: int = 64  # channels after the stem
    dims: list[int] = field(default_factory=lambda: [256, 512, 1024, 2048])  # channels after each stage
    depths: list[int] = field(default_factory=lambda: [3, 4, 6, 3])  # blocks of each stage
    block: Literal["basic", "bottleneck"] = "bottleneck"  # left and right of Figure 5
    attention: list[int] = field(default_factory=list)  # stages that end in attention, counted from 1
    heads: int = 8
    classes: int = 1000
    drop_path: float = 0.0  # fraction of examples that skip the last block; rises linearly from 0 at the first

    def __post_init__(self) -> None:
        check_model(self)
        if len(self.dims) != len(self.depths) or not self.dims:
            raise ValueError(f"dims has {len(self.dims)} stages and depths {len(self.depths)}; give one number per stage in both")
        for dim, depth in zip(self.dims, self.depths, strict=True):
            require_min(1, dims=dim, depths=depth)
            if self.block == "bottleneck" and dim % BOTTLENECK:
                raise ValueError(f"width {dim} is not {BOTTLENECK} times a bottleneck; use a multiple of {BOTTLENECK}")
        for stage in self.attention:
            require_min(1, attention=stage)
            require_max(len(self.dims), attention=stage)
            require_divisible(self.dims[stage - 1] // 2, self.heads)


SMALL = partial(ResNetConfig, image=32, stem="cifar", dim=16, dims=[16, 32, 64], block="basic", classes=10)

SIZES = {  # Table 1; 20 to 56: section 4.2, for images of 32 × 32 pixels, but with projection shortcuts
    "18": ResNetConfig(dims=[64, 128, 256, 512], depths=[2, 2, 2, 2], block="basic"),
    "34": ResNetConfig(dims=[64, 128, 256, 512], depths=[3, 4, 6, 3], block="basic"),
    "50": ResNetConfig(), "101": ResNetConfig(depths=[3, 4, 23, 3]), "152": ResNetConfig(depths=[3, 8, 36, 3]),
    "attention-50": ResNetConfig(attention=[2, 3]),
    "20": SMALL(depths=[3, 3, 3]), "32": SMALL(depths=[5, 5, 5]), "44": SMALL(depths=[7, 7, 7]), "56": SMALL(depths=[9, 9, 9]),
    "attention-20": SMALL(depths=[3, 3, 3], attention=[2], heads=4),
}  # fmt: skip


class GatedAttention(nn.Module):
    """x + gate · attention(x), Figure 2 of https://arxiv.org/abs/1805.08318; the learned gate starts at 0.

    Queries, keys and values have half the width, as in section 3.3 of https://arxiv.org/abs/1711.07971.
    """

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.attn = Attention(dim, heads, width=dim // 2 // heads)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, Y, X) → (B, D, Y, X)."""
        mixed = self.attn(to_tokens(x))  # (B, Y · X, D)
        return x + self.gate * to_grid(mixed, x.shape[2])  # (B, D, Y, X)


def basic(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Two convolutions of 3 × 3."""
    return nn.Sequential(ConvNorm(inputs, outputs, 3, stride), nn.ReLU(inplace=True), ConvNorm(outputs, outputs, 3))


def bottleneck(inputs: int, outputs: int, stride: int) -> nn.Module:
    """1 × 1, 3 × 3 on a quarter of the channels, 1 × 1.  The 3 × 3 has the stride, as in all published weights."""
    dim = outputs // BOTTLENECK
    return nn.Sequential(ConvNorm(inputs, dim), nn.ReLU(inplace=True), ConvNorm(dim, dim, 3, stride),
                         nn.ReLU(inplace=True), ConvNorm(dim, outputs))  # fmt: skip


class ResNet(nn.Module):
    """`forward` returns class logits, `encode` the feature map of the last stage."""

    def __init__(self, config: ResNetConfig):
        super().__init__()
        self.config = c = config
        body = {"basic": basic, "bottleneck": bottleneck}[c.block]
        kernel, stride, pool = (7, 2, [nn.MaxPool2d(3, 2, 1)]) if c.stem == "imagenet" else (3, 1, [])
        self.stem = nn.Sequential(ConvNorm(c.channels, c.dim, kernel, stride), nn.ReLU(inplace=True), *pool)
        rates = iter(drop_path_rates(c.drop_path, sum(c.depths)))
        self.stages, self.attention, inputs = nn.ModuleList(), nn.ModuleList(), c.dim
        for index, (dim, depth) in enumerate(zip(c.dims, c.depths, strict=True), start=1):
            stage = nn.Sequential()
            for i in range(depth):
                stride = 2 if i == 0 and index > 1 else 1  # every stage but the first halves the grid
                stage.append(Residual(body(inputs, dim, stride), inputs, dim, stride, next(rates)))
                inputs = dim
            self.stages.append(stage)
            self.attention.append(GatedAttention(dim, c.heads) if index in c.attention else nn.Identity())
        self.classifier = Linear(inputs, c.classes)

    def encode(self, x: Tensor) -> Tensor:
        """Feature map of the last stage: (B, C, ...) → (B, D, Y, X)."""
        check_channels(x, self.config.channels)
        x = self.stem(x.contiguous(memory_format=torch.channels_last))  # a third faster than channels first
        for stage, attention in zip(self.stages, self.attention, strict=True):
            x = attention(stage(x))  # (B, D, Y, X)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Class logits: (B, C, ...) → (B, classes)."""
        return self.classifier(self.encode(x).mean((2, 3)))


FAMILY = Family(ResNetConfig, SIZES, ResNet, "image-encoder")
