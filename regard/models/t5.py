"""T5: encoder and decoder; every task maps a text to a text.

Raffel et al. 2020, https://arxiv.org/abs/1910.10683; v1.1 and Flan-T5 have a gated mlp and an untied output layer,
https://arxiv.org/abs/2002.05202.

                                     logits
                                       │ output
      ┌──────────────┐        ┌────────┴────────┐
      │ mlp          │ memory │ mlp             │
      │ attention    ├───────▶│ cross-attention │ × depth, pre-norm, no biases
      └──────┬───────┘ × depth│ causal attention│
          tokens              └────────┬────────┘
                                    tokens         positions are a bias added to the attention scores

Shapes: B batch, S source and T target length, D width, H heads, V vocabulary.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, cast

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model
from regard.data.text.tokenizer import PAD
from regard.layers.attention import Attention
from regard.layers.biases import BucketedPositionBias
from regard.layers.block import DecoderBlock, EncoderBlock
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.masks import padding_mask
from regard.layers.mlp import ACTIVATIONS, MLP, GatedMLP
from regard.layers.norm import PreNorm

__all__ = ["FAMILY", "SIZES", "T5", "T5Config"]


@dataclass(frozen=True, config=STRICT)
class T5Config:
    """The defaults are the base model, section 3.1.1 of the paper."""

    vocab: int = 32_128
    dim: int = 768
    depth: int = 12  # layers of the encoder, and of the decoder unless decoder_depth says otherwise
    heads: int = 12
    head_dim: int = 64  # width of one head; heads · head_dim may differ from dim
    mlp_dim: int = 3072  # width of the mlp
    gated: bool = False  # v1.1: half of the mlp gates the other half
    tied: bool = True  # one matrix for tokens and output; v1.1 has two
    buckets: int = 32  # number of distance buckets
    max_distance: int = 128  # all distances from here on share the last bucket
    dropout: float = 0.1  # after each sub-layer and on the embeddings
    attention_dropout: float = 0.1  # on the attention weights
    pad: int = PAD  # id of the padding token, which is masked
    decoder_depth: int = 0  # layers of the decoder; 0 = depth
    activation: Literal["auto", "relu", "gelu", "gelu_tanh", "silu"] = "auto"  # of the mlp; auto: relu, gelu_tanh if gated
    eps: float = 1e-6  # of all norms

    def __post_init__(self) -> None:
        if self.buckets < 4 or self.buckets % 4:
            raise ValueError(f"buckets is {self.buckets}; use a multiple of 4")
        if self.max_distance <= self.buckets:
            raise ValueError(f"max_distance is {self.max_distance}; use more than the {self.buckets} buckets")
        check_model(self, zero=("pad", "decoder_depth"))


_V11 = partial(T5Config, gated=True, tied=False)
SIZES = {  # small to large: section 3.1.1 and 3.6 of the paper; v1.1: its released configurations
    "tiny": T5Config(dim=128, depth=2, heads=4, head_dim=32, mlp_dim=512),
    "small": T5Config(dim=512, depth=6, heads=8, mlp_dim=2048), "base": T5Config(),
    "large": T5Config(dim=1024, depth=24, heads=16, mlp_dim=4096),
    "3b": T5Config(dim=1024, depth=24, heads=32, head_dim=128, mlp_dim=16_384),
    "11b": T5Config(dim=1024, depth=24, heads=128, head_dim=128, mlp_dim=65_536),
    "v1.1-small": _V11(dim=512, depth=8, heads=6, mlp_dim=1024), "v1.1-base": _V11(mlp_dim=2048),
    "v1.1-large": _V11(dim=1024, depth=24, heads=16, mlp_dim=2816),
    "v1.1-xl": _V11(dim=2048, depth=24, heads=32, mlp_dim=5120),
    "v1.1-xxl": _V11(dim=4096, depth=24, heads=64, mlp_dim=10_240),
}  # fmt: skip


class T5(nn.Module):
    """Encoder and decoder; `forward` returns logits.  `decode.fast.decoder` decodes one token at a time."""

    max_len = math.inf  # tokens: relative positions have no limit

    def __init__(self, config: T5Config):
        super().__init__()
        self.config = c = config
        self.tokens, self.dropout = nn.Embedding(c.vocab, c.dim), Dropout(c.dropout)
        attention = partial(Attention, c.dim, c.heads, c.attention_dropout, width=c.head_dim, scale=1.0, bias=False)
        activation = ACTIVATIONS[("gelu_tanh" if c.gated else "relu") if c.activation == "auto" else c.activation]
        mlp = partial(GatedMLP if c.gated else MLP, c.dim, c.mlp_dim, activation, bias=False)
        norm = partial(nn.RMSNorm, eps=c.eps)
        wrap = partial(PreNorm, c.dim, c.dropout, norm)
        self.encoder = nn.ModuleList(EncoderBlock(attention(), mlp(), wrap) for _ in range(c.depth))
        self.encoder_bias = BucketedPositionBias(c.heads, c.buckets, c.max_distance, bidirectional=True)
        self.encoder_norm = norm(c.dim)
        blocks = [DecoderBlock(attention(), attention(), mlp(), wrap) for _ in range(c.decoder_depth or c.depth)]
        self.decoder = cast(Sequence[DecoderBlock], nn.ModuleList(blocks))
        self.decoder_bias = BucketedPositionBias(c.heads, c.buckets, c.max_distance, bidirectional=False)
        self.decoder_norm = norm(c.dim)
        self.output = Linear(c.dim, c.vocab, bias=False)
        # A tied table is large for an output layer, so the features are scaled down.
        self.output_scale = c.dim**-0.5 if c.tied else 1.0
        if c.tied:
            self.output.weight = self.tokens.weight
        # Initial values of the released code: each product keeps the scale of its input.
        nn.init.normal_(self.tokens.weight)
        if not c.tied:
            nn.init.normal_(self.output.weight, std=c.dim**-0.5)
        for part in self.modules():
            if isinstance(part, Attention):
                q, k, v = part.qkv.weight.detach().chunk(3)
                nn.init.normal_(q, std=(c.dim * c.head_dim) ** -0.5)  # small, because scores are not scaled
                nn.init.normal_(k, std=c.dim**-0.5)
                nn.init.normal_(v, std=c.dim**-0.5)
                nn.init.normal_(part.out.weight, std=part.inner**-0.5)
            elif isinstance(part, MLP | GatedMLP):
                nn.init.normal_(part.up.weight, std=c.dim**-0.5)
                nn.init.normal_(part.down.weight, std=c.mlp_dim**-0.5)
            elif isinstance(part, BucketedPositionBias):
                nn.init.normal_(part.table.weight, std=c.dim**-0.5)

    def encode(self, source: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Source tokens (B, S) → memory (B, S, D), and the mask of its real tokens (B, 1, 1, S), by default by padding."""
        mask = padding_mask(source, self.config.pad) if mask is None else mask
        positions = torch.arange(source.shape[1], device=source.device)
        bias, x = self.encoder_bias(positions, positions), self.dropout(self.tokens(source))  # (1, H, S, S), (B, S, D)
        for block in self.encoder:
            x = block(x, mask, bias)
        return self.dropout(self.encoder_norm(x)), mask

    def features(self, source: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Input of the output layer: (B, S) and (B, T) → (B, T, D)."""
        memory, mask = self.encode(source, mask)
        positions = torch.arange(target.shape[1], device=target.device)
        bias, x = self.decoder_bias(positions, positions), self.dropout(self.tokens(target))  # (1, H, T, T), (B, T, D)
        for block in self.decoder:
            x = block(x, block.cross.keys_values(memory), mask, bias)
        return self.dropout(self.decoder_norm(x)) * self.output_scale

    def forward(self, source: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of the token after each target token: (B, S) and (B, T) → (B, T, V)."""
        return self.output(self.features(source, target, mask))


FAMILY = Family(T5Config, SIZES, T5, "encoder-decoder")
