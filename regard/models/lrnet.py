"""LR-Net: a ResNet whose 3 × 3 convolutions are replaced by attention to the neighbourhood.

Hu et al. 2019, Local Relation Networks, https://arxiv.org/abs/1904.11491

              classes
                 │ head
         mean of all positions
       ┌─────────┴─────────┐
       │ 1 × 1             │
       │ local relation    │ each position attends to the 7 × 7 around it
       │ 1 × 1             │ × depth, × 4 stages
       └─────────┬─────────┘
       1 × 1, local relation, max pool
                 │
               image

A convolution weighs neighbours by their offset alone, local relation also by their similarity.  A query and a key are scalars,
and 8 channels share the attention weights: each such group is a head.

Shapes: B batch, C channels, H heads, E channels of one head, R side of a neighbourhood, S stride, Y X rows and columns of
queries.
"""

import math
from dataclasses import field, replace
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model, require_min
from regard.layers.attention import attend_tapped
from regard.layers.biases import GeometricPrior
from regard.layers.conv import ConvNorm, Residual, batch_norm
from regard.layers.dropout import drop_path_rates
from regard.layers.linear import Linear
from regard.layers.local_attention import LocalAttention, ShiftedLayout
from regard.layers.masks import neighborhood_mask
from regard.layers.scores import ScalarScore, absolute_distance, product, squared_distance, summed
from regard.layers.shapes import check_channels, from_neighborhoods, to_neighborhoods
from regard.layers.tap import Tap, tap_of

__all__ = ["FAMILY", "SIZES", "LRNet", "LRNetConfig", "LocalRelation"]

SCORES: dict[str, ScalarScore] = {"squared": squared_distance, "absolute": absolute_distance, "product": product}


@dataclass(frozen=True, config=STRICT)
class LRNetConfig:
    """The defaults are LR-Net-50, Table 2 of the paper, with the repeats of ResNet-50."""

    image: int = 224  # side of the square image, in pixels
    channels: int = 3
    stem: Literal["imagenet", "cifar"] = "imagenet"  # downsamples by 4, or keeps the size
    dim: int = 64  # channels after the stem
    dims: list[int] = field(default_factory=lambda: [256, 512, 1024, 2048])  # channels after each stage
    widths: list[int] = field(default_factory=lambda: [100, 200, 400, 800])  # channels of its local relations
    depths: list[int] = field(default_factory=lambda: [3, 4, 6, 3])  # blocks of each stage
    kernel: int = 7  # side of a neighbourhood
    channels_per_head: int = 8  # channels that share attention weights; the last head may have fewer
    score: Literal["squared", "absolute", "product"] = "squared"  # similarity of query and key, section 3.2
    classes: int = 1000
    drop_path: float = 0.0  # fraction of examples that skip the last block; rises linearly from 0 at the first

    def __post_init__(self) -> None:
        check_model(self)
        if not self.kernel % 2:
            raise ValueError(f"kernel {self.kernel} has no centre; use {self.kernel - 1} or {self.kernel + 1}")
        if not len(self.dims) == len(self.widths) == len(self.depths) >= 1:
            raise ValueError(f"dims has {len(self.dims)} stages, widths {len(self.widths)} and depths {len(self.depths)}; "
                             f"give one number per stage in each")  # fmt: skip
        for dim, width, depth in zip(self.dims, self.widths, self.depths, strict=True):
            require_min(1, dims=dim, widths=width, depths=depth)


SIZES = {  # section 4.1
    "26": LRNetConfig(depths=[2, 2, 2, 2]),
    "50": LRNetConfig(),
    "small": LRNetConfig(image=32, stem="cifar", dim=16, dims=[64, 128, 256], widths=[16, 32, 64], depths=[2, 2, 2],
                         classes=10),  # ours, for images of 32 × 32 pixels
}  # fmt: skip


class LocalRelation(nn.Module):
    """Each position attends to its neighbourhood: section 3 of the paper.

    The weight of neighbour p for position p' is the softmax of score(q(p'), k(p)) + prior(p - p').  While it is watched, the
    neighbourhoods are gathered and go through `attend`; else `LocalAttention` computes the same without gathering.
    """

    watchable: ClassVar[bool] = True  # by `watch`

    def __init__(self, inputs: int, outputs: int, kernel: int, channels_per_head: int, score: ScalarScore, stride: int = 1):
        super().__init__()
        self.kernel, self.score, self.stride = kernel, score, stride
        self.heads = -(-outputs // channels_per_head)
        self.padding = self.heads * channels_per_head - outputs  # zero channels that complete the last head
        self.value = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.query_key = nn.Conv2d(outputs, 2 * self.heads, 1)
        self.prior = GeometricPrior(self.heads, kernel)
        nn.init.kaiming_normal_(self.value.weight, nonlinearity="relu")
        nn.init.normal_(self.query_key.weight, std=outputs**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, Y · S, X · S) → (B, C, Y, X)."""
        v = self.value(x)  # (B, C, Y · S, X · S)
        q, k = self.query_key(v).chunk(2, 1)  # (B, H, Y · S, X · S)
        q = q[:, :, :: self.stride, :: self.stride]  # (B, H, Y, X)
        rows, columns = x.shape[2:]
        mask = neighborhood_mask(rows, columns, self.kernel, self.stride, x.device)  # (Y · X, R · R)
        padded = F.pad(v, (0, 0, 0, 0, 0, self.padding)) if self.padding else v  # (B, H · E, Y · S, X · S)
        tap = tap_of(self)
        mixed = self.shift(q, k, padded, mask) if tap is None else self.gather(q, k, padded, mask, tap, x)
        return mixed[:, : v.shape[1]]

    def shift(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Attention by shifting, without gathering: (B, H · E, Y, X)."""
        layout = ShiftedLayout(self.kernel, self.stride, *q.shape[2:])
        outside = torch.zeros_like(mask.T, dtype=q.dtype).masked_fill_(~mask.T, -math.inf)[:, None]  # (R · R, 1, Y · X)
        bias, v = self.prior().T[..., None], v.unflatten(1, (self.heads, -1))  # (R · R, H, 1), (B, H, E, ...)
        return LocalAttention.apply(q[:, :, None], k[:, :, None], v, bias, outside, layout, self.score).flatten(1, 2)

    def gather(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, tap: Tap, x: Tensor) -> Tensor:
        """The same through `attend`, one query to a neighbourhood of keys."""
        rows = q.shape[2]
        q = q.flatten(2)[..., None, None]  # (B, H, Y · X, 1, 1)
        k = to_neighborhoods(k, self.heads, self.kernel, self.stride)  # (B, H, Y · X, R · R, 1)
        v = to_neighborhoods(v, self.heads, self.kernel, self.stride)  # (B, H, Y · X, R · R, E)
        bias, mask = self.prior()[:, None, None], mask[:, None]  # (H, 1, 1, R · R), (Y · X, 1, R · R)
        mixed = attend_tapped(lambda call: tap(replace(call, weights=call.weights.squeeze(3))), q, k, v,
                              score=summed(self.score), bias=bias, mask=mask, x=x)  # (B, H, Y · X, 1, E)  # fmt: skip
        return from_neighborhoods(mixed, rows)


class LRNet(nn.Module):
    """`forward` returns class logits, `encode` the feature map of the last stage."""

    def __init__(self, config: LRNetConfig):
        super().__init__()
        self.config = c = config
        relate = partial(LocalRelation, kernel=c.kernel, channels_per_head=c.channels_per_head, score=SCORES[c.score])
        downsample, relu = c.stem == "imagenet", partial(nn.ReLU, inplace=True)
        self.stem = nn.Sequential(relate(c.channels, c.dim, stride=2 if downsample else 1), batch_norm(c.dim), relu(),
                                  nn.MaxPool2d(3, 2, 1) if downsample else nn.Identity())  # fmt: skip
        rates = iter(drop_path_rates(c.drop_path, sum(c.depths)))
        self.stages, inputs = nn.Sequential(), c.dim
        for index, (dim, width, depth) in enumerate(zip(c.dims, c.widths, c.depths, strict=True)):
            stage = nn.Sequential()
            for i in range(depth):
                stride = 2 if i == 0 and index else 1  # every stage but the first halves the grid
                body = nn.Sequential(ConvNorm(inputs, width), relu(), relate(width, width, stride=stride), batch_norm(width),
                                     relu(), ConvNorm(width, dim))  # fmt: skip
                stage.append(Residual(body, inputs, dim, stride, next(rates)))
                inputs = dim
            self.stages.append(stage)
        self.classifier = Linear(inputs, c.classes)

    def input_sides(self, side: int) -> dict[str, int]:
        """The side of the input of each `LocalRelation` for square images of `side` pixels, by module name."""
        sides = dict[str, int]()
        for name, part in self.named_modules():
            if isinstance(part, LocalRelation):
                sides[name] = side
                side = -(-side // part.stride)
            elif isinstance(part, nn.MaxPool2d):
                side = -(-side // 2)
        return sides

    def encode(self, x: Tensor) -> Tensor:
        """Feature map of the last stage: (B, C, ...) → (B, D, Y, X)."""
        check_channels(x, self.config.channels)
        return self.stages(self.stem(x))  # (B, D, Y, X)

    def forward(self, x: Tensor) -> Tensor:
        """Class logits: (B, C, ...) → (B, classes)."""
        return self.classifier(self.encode(x).mean((2, 3)))


FAMILY = Family(LRNetConfig, SIZES, LRNet, "image-encoder")
