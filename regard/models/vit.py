"""ViT: a Transformer encoder on image patches, each a token.

Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929

              classes
                 │ head
       ┌─────────┴─────────┐   of the class token, or of the mean of all patches
       │ mlp               │
       │ attention         │ × depth, norm first
       └─────────┬─────────┘
    class token, patches + positions
                 │ one linear layer
       ┌──┬──┬──┐
       ├──┼──┼──┤ patches of P × P pixels, or of the output of a few convolutions
       └──┴──┴──┘

Shapes: B batch, C channels, P side of a patch, Y X rows and columns of patches, T = 1 + Y · X tokens, D width.
"""

from collections.abc import Sequence
from dataclasses import field
from functools import partial
from typing import Literal, cast

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model, require_divisible, require_min
from regard.layers.attention import Attention
from regard.layers.block import EncoderBlock
from regard.layers.conv import ConvNorm
from regard.layers.dropout import Dropout, DropPath, drop_path_rates
from regard.layers.linear import Linear
from regard.layers.locality_init import init_local_heads
from regard.layers.mlp import ACTIVATIONS, MLP
from regard.layers.norm import PreNorm
from regard.layers.positions import LearnedGridPositions
from regard.layers.shapes import check_channels, to_patches, to_tokens

__all__ = ["FAMILY", "SIZES", "ViT", "ViTConfig"]

NEIGHBOURS = ((0, 1), (0, -1), (1, 0), (-1, 0), (0, 0), (1, 1), (-1, -1), (1, -1), (-1, 1))  # offsets: rows, columns
SHARPNESS = 4.0  # of heads initialized to attend to neighbours: four fifths of their weight lies there


@dataclass(frozen=True, config=STRICT)
class ViTConfig:
    """The defaults are ViT-Base with patches of 16 pixels, Table 1 of the paper."""

    image: int = 224  # side of the square image, in pixels
    patch: int = 16  # side of one patch, in pixels
    channels: int = 3
    dim: int = 768
    depth: int = 12
    heads: int = 12
    mlp_ratio: int = 4  # width of the mlp, as a multiple of dim
    classes: int = 1000
    convs: list[int] = field(default_factory=list)  # channels of a convolutional stem; none: patches of pixels
    pool: Literal["token", "mean"] = "token"  # input of the classifier: the class token, or the mean of all patches
    dropout: float = 0.0  # on the embeddings, and before the classifier
    drop_path: float = 0.0  # fraction of examples that skip the last block; rises linearly from 0 at the first
    eps: float = 1e-12  # of all norms, as in the published weights
    qkv_bias: bool = True  # whether queries, keys and values have a bias
    mlp_dim: int = 0  # width of the mlp; 0 = mlp_ratio · dim
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "gelu"  # of the mlp

    def __post_init__(self) -> None:
        check_model(self, zero=("mlp_dim",))
        require_divisible(self.dim, self.heads)
        check_tiling(self.image, self.patch)
        if self.convs:
            require_min(1, convs=min(self.convs))
            if 2**self.halvings != self.patch or self.halvings > len(self.convs):
                raise ValueError(f"convs {self.convs}, each halving the image at most once, do not make patches of {self.patch} "
                                 f"pixels; use a patch of {' or '.join(str(2**n) for n in range(len(self.convs) + 1))}, "
                                 f"or 'model.convs=[]' for patches of pixels")  # fmt: skip

    @property
    def halvings(self) -> int:
        """Number of convolutions with stride 2."""
        return self.patch.bit_length() - 1


def check_tiling(image: int, patch: int) -> None:
    """Refuse a side that patches do not tile, and name the nearest ones that they do."""
    if image % patch:
        below = image // patch * patch
        sizes = f"{below} or {below + patch}" if below else str(patch)
        raise ValueError(f"patch {patch} does not tile an image of {image} pixels; use a side of {sizes}, or another patch")


SIZES = {  # base to huge: Table 1; tiny and small: Table 1 of https://arxiv.org/abs/2012.12877
    "tiny": ViTConfig(dim=192, heads=3), "small": ViTConfig(dim=384, heads=6), "base": ViTConfig(),
    "large": ViTConfig(dim=1024, depth=24, heads=16), "huge": ViTConfig(patch=14, dim=1280, depth=32, heads=16),
}  # fmt: skip


class Patches(nn.Module):
    """Patches of pixels, flattened."""

    def __init__(self, c: ViTConfig):
        super().__init__()
        self.patch, self.features = c.patch, c.channels * c.patch**2

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, Y · P, X · P) → (B, Y · X, C · P · P)."""
        return to_patches(x, self.patch)


class ConvStem(nn.Module):
    """3 × 3 convolutions, the last of stride 2: the hybrid of section 3.1, as small as in https://arxiv.org/abs/2106.14881."""

    def __init__(self, c: ViTConfig):
        super().__init__()
        self.features, layers = c.convs[-1], list[nn.Module]()
        for index, (inputs, outputs) in enumerate(zip([c.channels, *c.convs], c.convs, strict=False)):
            stride = 2 if index >= len(c.convs) - c.halvings else 1
            layers += [ConvNorm(inputs, outputs, 3, stride), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, Y · P, X · P) → (B, Y · X, features)."""
        return to_tokens(self.layers(x.contiguous(memory_format=torch.channels_last)))  # faster than channels first


class ViT(nn.Module):
    """`forward` returns class logits, `encode` a vector for each token."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = c = config
        self.patches = ConvStem(c) if c.convs else Patches(c)
        self.embed = Linear(self.patches.features, c.dim)
        self.token = nn.Parameter(torch.zeros(1, 1, c.dim)) if c.pool == "token" else None
        self.positions = LearnedGridPositions(c.dim, c.image // c.patch, before=int(c.pool == "token"))
        self.dropout = Dropout(c.dropout)
        attention, norm = partial(Attention, c.dim, c.heads, qkv_bias=c.qkv_bias), partial(nn.LayerNorm, eps=c.eps)
        mlp = partial(MLP, c.dim, c.mlp_dim or c.mlp_ratio * c.dim, ACTIVATIONS[c.activation])
        blocks = [EncoderBlock(attention(), mlp(), partial(PreNorm, c.dim, DropPath(rate), norm))
                  for rate in drop_path_rates(c.drop_path, c.depth)]  # fmt: skip
        self.blocks = cast(Sequence[EncoderBlock], nn.ModuleList(blocks))
        self.final_norm = norm(c.dim)
        self.classifier = Linear(c.dim, c.classes)
        # As in the released code: embeddings have the variance of the patches, and all classes are equally likely.
        nn.init.trunc_normal_(self.embed.weight, std=self.patches.features**-0.5)
        for weight in (self.embed.bias, self.classifier.weight, self.classifier.bias):
            nn.init.zeros_(weight)
        init_local_heads([block.attn for block in blocks], self.positions.table[self.positions.before :], [self.embed.weight.T],
                         [self.positions.side] * 2, NEIGHBOURS, SHARPNESS, 1.0)  # fmt: skip

    def encode(self, x: Tensor) -> Tensor:
        """A vector for each token, a class token first: (B, C, Y · P, X · P) → (B, T, D)."""
        check_channels(x, self.config.channels)
        for side in x.shape[2:]:
            check_tiling(side, self.config.patch)
        rows, columns = (side // self.config.patch for side in x.shape[2:])
        x = self.embed(self.patches(x))  # (B, Y · X, D)
        if self.token is not None:
            x = torch.cat((self.token.expand(len(x), -1, -1), x), 1)  # (B, T, D)
        x = self.dropout(x + self.positions(rows, columns))
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Class logits: (B, C, Y · P, X · P) → (B, classes)."""
        x = self.encode(x)
        if self.token is None:
            return self.classifier(self.dropout(self.final_norm(x).mean(1)))
        return self.classifier(self.dropout(self.final_norm(x[:, 0])))  # (B, classes)


FAMILY = Family(ViTConfig, SIZES, ViT, "image-encoder")
