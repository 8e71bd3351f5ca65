"""A Transformer that describes images: GPT-2's decoder with cross-attention to the features of any image model.

The structure of Hugging Face's VisionEncoderDecoderModel, a ViT with a GPT-2, so that its checkpoints can be imported.  GPT-2:
https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf

                                         logits
                                           │ output (tied to the embeddings)
                                         norm
                                  ┌────────┴────────┐
      ┌──────────────┐            │ mlp             │
      │ ResNet, ViT, │   memory   │ cross-attention │ × depth, norm first
      │ Swin ...     ├───────────▶│ causal attention│
      └──────┬───────┘ projected, └────────┬────────┘
           image       if the widths   tokens + positions
                       differ

Shapes: B images, R = B · n captions, n of each image in order, S tokens of an image, T of a caption, D width, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import field
from functools import partial
from typing import Any, Literal, cast

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model, require_divisible
from regard.layers.attention import Attention
from regard.layers.block import DecoderBlock
from regard.layers.cache import KeysValues
from regard.layers.embed import Embed
from regard.layers.linear import Linear
from regard.layers.mlp import ACTIVATIONS, MLP
from regard.layers.norm import PreNorm
from regard.layers.positions import LearnedPositions
from regard.models.image_encoder import SMALL_RESNET, CaptionFeatures, ImageEncoder, encoder_table

__all__ = ["FAMILY", "SIZES", "CaptionTransformer", "CaptionTransformerConfig"]


@dataclass(frozen=True, config=STRICT)
class CaptionTransformerConfig:
    """The defaults are ViT-Base and the smallest GPT-2."""

    vocab: int = 50_257
    dim: int = 768  # of the decoder
    depth: int = 12
    heads: int = 12
    mlp_ratio: int = 4  # width of the mlp, as a multiple of dim
    max_len: int = 1024  # tokens of a caption: each position has a learned vector
    dropout: float = 0.1  # after each sub-layer of the decoder and on its embeddings
    attention_dropout: float = 0.1  # on the attention weights of the decoder
    mlp_dim: int = 0  # width of the mlp; 0 = mlp_ratio · dim
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "gelu_tanh"  # of the decoder's mlp; "gelu" is the exact one
    eps: float = 1e-5  # of the decoder's norms
    tied: bool = True  # one matrix for tokens and output
    encoder: dict[str, Any] = field(default_factory=lambda: {"family": "vit"})  # family, size and keys of an image model

    def __post_init__(self) -> None:
        check_model(self, zero=("mlp_dim",))
        require_divisible(self.dim, self.heads)
        object.__setattr__(self, "encoder", encoder_table(self.encoder))

    @property
    def image(self) -> int:
        """Side of the square image, in pixels."""
        return self.encoder["image"]

    @property
    def channels(self) -> int:
        """Channels of the image."""
        return self.encoder["channels"]


SIZES = {  # tiny is for small data; base has the sizes of nlpconnect/vit-gpt2-image-captioning
    "tiny": CaptionTransformerConfig(dim=192, depth=3, heads=6, max_len=128, encoder=SMALL_RESNET),
    "base": CaptionTransformerConfig(),
}  # fmt: skip


class CaptionTransformer(nn.Module):
    """`forward` returns logits.  `decode.fast.decoder` decodes one token at a time."""

    def __init__(self, config: CaptionTransformerConfig):
        super().__init__()
        self.config = c = config
        self.max_len = c.max_len  # tokens of a caption, including the start token
        self.encoder = ImageEncoder(c.encoder)
        self.encoder_projection = nn.Identity() if self.encoder.width == c.dim else Linear(self.encoder.width, c.dim)
        self.embed = Embed(nn.Embedding(c.vocab, c.dim), LearnedPositions(c.dim, c.max_len), c.dropout)
        norm = partial(nn.LayerNorm, eps=c.eps)
        attention, wrap = partial(Attention, c.dim, c.heads, c.attention_dropout), partial(PreNorm, c.dim, c.dropout, norm)
        mlp = partial(MLP, c.dim, c.mlp_dim or c.mlp_ratio * c.dim, ACTIVATIONS[c.activation])
        blocks = [DecoderBlock(attention(), attention(), mlp(), wrap) for _ in range(c.depth)]
        self.decoder = cast(Sequence[DecoderBlock], nn.ModuleList(blocks))
        self.decoder_norm = norm(c.dim)
        self.output = Linear(c.dim, c.vocab, bias=False)
        if c.tied:
            self.output.weight = self.embed.tokens.weight
        else:
            nn.init.normal_(self.output.weight, std=0.02)
        if isinstance(self.encoder_projection, Linear):
            nn.init.xavier_uniform_(self.encoder_projection.weight)
            nn.init.zeros_(self.encoder_projection.bias)
        nn.init.normal_(self.embed.tokens.weight, std=0.02)  # section 2.3 of GPT-2, as are the smaller weights below
        with torch.no_grad():
            for block in blocks:  # the three sub-layers of all blocks together add about as much as a single one would
                for layer in (block.attn.out, block.cross.out, block.mlp.down):
                    layer.weight.div_(math.sqrt(3 * c.depth))

    def encode(self, image: Tensor) -> Tensor:
        """The tokens of each image, as wide as the decoder: (B, C, height, width) → (B, S, D)."""
        return self.encoder_projection(self.encoder(image))

    def features(self, image: Tensor, target: Tensor) -> CaptionFeatures:
        """Input of the output layer: (B, C, height, width) and (R, T) → (R, T, D)."""
        captions, memory = captions_of_each(image, target), self.encode(image)
        x = self.embed(target)  # (R, T, D)
        for block in self.decoder:  # each projects an image once for all its captions
            projected = KeysValues(*(part.repeat_interleave(captions, 0) for part in block.cross.keys_values(memory)))
            x = block(x, projected)
        return CaptionFeatures(self.decoder_norm(x))

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        """Logits of the token after each target token: (B, C, height, width) and (R, T) → (R, T, V)."""
        return self.output(self.features(image, target).features)


def captions_of_each(image: Tensor, target: Tensor) -> int:
    """The number of captions of each image; refuses a number of captions that does not divide among the images."""
    if not len(image) or len(target) % len(image):
        raise ValueError(f"{len(target)} captions do not divide among {len(image)} images; give as many of each")
    return len(target) // len(image)


FAMILY = Family(CaptionTransformerConfig, SIZES, CaptionTransformer, "captioner")
