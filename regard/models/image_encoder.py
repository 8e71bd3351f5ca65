"""Any image classifier of this package as an encoder: the grid of features before its head.

    image (B, C, height, width) ─▶ ResNet, LR-Net, ViT, Swin or MViT ─▶ tokens (B, S, D), row by row

Shapes: B images, C channels, S = Y · X tokens, and a class token before them if the model has one, D width.
"""

import dataclasses
from collections.abc import Mapping
from functools import singledispatch
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from regard.config import Family, build, nearest
from regard.layers.shapes import to_tokens
from regard.models import lrnet, mvit, resnet, swin, vit

__all__ = ["ENCODERS", "SMALL_RESNET", "CaptionFeatures", "ImageEncoder", "encoder_table"]

KIND = "image-encoder"
ENCODERS: dict[str, Family] = {
    "resnet": Family(resnet.ResNetConfig, resnet.SIZES, resnet.ResNet, KIND),
    "lrnet": Family(lrnet.LRNetConfig, lrnet.SIZES, lrnet.LRNet, KIND),
    "vit": Family(vit.ViTConfig, vit.SIZES, vit.ViT, KIND),
    "swin": Family(swin.SwinConfig, swin.SIZES, swin.Swin, KIND),
    "mvit": Family(mvit.MViTConfig, mvit.SIZES, mvit.MViT, KIND),
}

# The encoder of caption models for small data: a grid of 7 × 7 places.
SMALL_RESNET = {"family": "resnet", "image": 112, "dim": 48, "dims": [48, 96, 192], "depths": [2, 2, 2], "block": "basic"}


def encoder_table(values: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of an image model, from its family, perhaps a size, and the keys that differ; refuses what does not fit."""
    given = dict(values)
    name = given.pop("family", None)
    if name not in ENCODERS:
        raise ValueError(f"encoder.family is {name!r}{nearest(str(name), ENCODERS)}; image models are {', '.join(ENCODERS)}")
    family, size = ENCODERS[name], given.pop("size", None)
    if size is not None and size not in family.sizes:
        raise ValueError(f"encoder.size is {size!r}{nearest(str(size), family.sizes)}; sizes are {', '.join(family.sizes)}")
    base = family.config() if size is None else family.sizes[size]
    return {"family": name, **dataclasses.asdict(build("encoder", family.config, given, dataclasses.asdict(base)))}


class CaptionFeatures(NamedTuple):
    """What a caption model computes of images and the captions so far, with teacher forcing: R captions of T tokens."""

    features: Tensor  # (R, T, D): input of the output layer
    weights: Tensor | None = None  # (R, T, S): attention to each token of the image, if training looks at it
    log_prob: Tensor | None = None  # (R, T): of the place sampled by hard attention


class ImageEncoder(nn.Module):
    """An image model without its head; `width` is that of a token, `extra` the number of tokens before the grid."""

    def __init__(self, table: Mapping[str, Any]):
        super().__init__()
        family, values = table["family"], {key: value for key, value in table.items() if key != "family"}
        self.config: Any = build("encoder", ENCODERS[family].config, values)
        self.net: nn.Module = ENCODERS[family].build(self.config)
        self.width: int = cast(nn.Linear, self.net.classifier).in_features
        self.net.classifier = nn.Identity()
        self.extra = int(getattr(self.net, "token", None) is not None)
        with torch.device("meta"):
            net = ENCODERS[family].build(self.config)
            tokens = image_tokens(net, torch.empty(1, self.config.channels, self.config.image, self.config.image))
        self.tokens = tokens.shape[1]  # of an image of the config's size

    @property
    def shift(self) -> float:
        """How far the centre of a token's pixels is before the middle of its cell, in cells, by rows and by columns.

        A cell is one of the equal parts of the image.  Convolutions with odd kernels and padding on both sides keep token i of
        stride s centred on pixel s · i, the first pixel of its cell; patches are their cells.
        """
        stride = self.config.image / (self.tokens - self.extra) ** 0.5
        return 0.5 - 0.5 / stride if isinstance(self.net, resnet.ResNet | lrnet.LRNet) else 0.0

    def forward(self, image: Tensor) -> Tensor:
        """(B, C, height, width) → (B, S, D)."""
        return image_tokens(self.net, image)


@singledispatch
def image_tokens(net: nn.Module, image: Tensor) -> Tensor:
    """The features of an image model, normalized as its head would read them: (B, C, height, width) → (B, S, D)."""
    raise TypeError(f"{type(net).__name__} is no image model; use one of {', '.join(ENCODERS)}")


@image_tokens.register(resnet.ResNet)
@image_tokens.register(lrnet.LRNet)
def _(net: resnet.ResNet | lrnet.LRNet, image: Tensor) -> Tensor:
    return to_tokens(net.encode(image))


@image_tokens.register(vit.ViT)
@image_tokens.register(mvit.MViT)
def _(net: vit.ViT | mvit.MViT, image: Tensor) -> Tensor:
    return net.final_norm(net.encode(image))


@image_tokens.register(swin.Swin)
def _(net: swin.Swin, image: Tensor) -> Tensor:
    return net.encode(image).flatten(1, 2)
