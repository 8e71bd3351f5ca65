"""The Transformer of "Attention Is All You Need", Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, Figure 1.

                                     logits
                                       │ output (tied to the embeddings)
                              ┌────────┴────────┐
      ┌──────────────┐        │ mlp             │
      │ mlp          │ memory │ cross-attention │ × depth
      │ attention    ├───────▶│ causal attention│
      └──────┬───────┘ × depth└────────┬────────┘
          embed                     embed
          source                target so far

Shapes: B batch, S source and T target length, D width, V vocabulary.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, cast

from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model, require_divisible
from regard.data.text.tokenizer import PAD
from regard.layers.attention import Attention
from regard.layers.block import DecoderBlock, EncoderBlock
from regard.layers.embed import Embed, token_table
from regard.layers.linear import Linear
from regard.layers.masks import padding_mask
from regard.layers.mlp import ACTIVATIONS, MLP
from regard.layers.norm import PostNorm, PreNorm
from regard.layers.positions import LearnedPositions, SinusoidalPositions

__all__ = ["FAMILY", "SIZES", "Transformer", "TransformerConfig"]


@dataclass(frozen=True, config=STRICT)
class TransformerConfig:
    """The defaults are the base model, Table 3 of the paper."""

    vocab: int = 37_000
    dim: int = 512  # the paper's d_model
    depth: int = 6  # layers of the encoder, and of the decoder unless decoder_depth says otherwise
    heads: int = 8
    mlp_ratio: int = 4  # width of the mlp, as a multiple of dim
    dropout: float = 0.1  # after each sub-layer and on the embeddings, section 5.4
    attention_dropout: float = 0.0  # on the attention weights; the paper has none
    norm: Literal["pre", "post"] = "pre"  # the paper uses "post", which is harder to train
    positions: Literal["sinusoid", "learned"] = "sinusoid"
    max_len: int = 512  # tokens; a limit for learned positions, none for the sinusoid
    tied: bool = True  # one matrix for source, target and output, section 3.4; else three and an output bias
    output_bias: bool = False  # an output bias also if tied, as in Marian
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "relu"  # of the mlp; "silu" in most Marian models
    pad: int = PAD  # id of the padding token, which is masked
    decoder_depth: int = 0  # layers of the decoder; 0 = depth
    mlp_dim: int = 0  # width of the mlp; 0 = mlp_ratio · dim
    target_vocab: int = 0  # tokens of a vocabulary of its own for the target, apart from the source's; 0 = one for both

    def __post_init__(self) -> None:
        check_model(self, zero=("pad", "decoder_depth", "mlp_dim", "target_vocab"))
        require_divisible(self.dim, self.heads)


SIZES = {  # base and big are the paper's, Table 3; tiny and small are for small data
    "tiny": TransformerConfig(dim=128, depth=4, heads=4, mlp_ratio=2), "small": TransformerConfig(dim=256, depth=3, heads=4),
    "base": TransformerConfig(), "big": TransformerConfig(dim=1024, heads=16, dropout=0.3),
}  # fmt: skip


class Transformer(nn.Module):
    """Encoder and decoder; `forward` returns logits.  `decode.fast.decoder` decodes one token at a time."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = c = config
        self.max_len = c.max_len if c.positions == "learned" else math.inf  # tokens, including the start or end token
        residual = PreNorm if c.norm == "pre" else PostNorm
        positions = SinusoidalPositions if c.positions == "sinusoid" else LearnedPositions
        source = token_table(c.vocab, c.dim)
        target = source if c.tied and not c.target_vocab else token_table(c.target_vocab or c.vocab, c.dim)
        # The √D of section 3.4 compensates for the small initial values that a tied output layer needs.
        self.embed_source = Embed(source, positions(c.dim, c.max_len), c.dropout, scale=c.dim**0.5)
        self.embed_target = Embed(target, positions(c.dim, c.max_len), c.dropout, scale=c.dim**0.5)
        attention = partial(Attention, c.dim, c.heads, c.attention_dropout)
        mlp = partial(MLP, c.dim, c.mlp_dim or c.mlp_ratio * c.dim, ACTIVATIONS[c.activation])
        wrap = partial(residual, c.dim, c.dropout)
        self.encoder = nn.ModuleList(EncoderBlock(attention(), mlp(), wrap) for _ in range(c.depth))
        self.encoder_norm = residual.final_norm(c.dim)
        blocks = [DecoderBlock(attention(), attention(), mlp(), wrap) for _ in range(c.decoder_depth or c.depth)]
        self.decoder = cast(Sequence[DecoderBlock], nn.ModuleList(blocks))
        self.decoder_norm = residual.final_norm(c.dim)
        self.output = Linear(c.dim, c.target_vocab or c.vocab, bias=c.output_bias or not c.tied)
        if c.tied:
            self.output.weight = target.weight
        else:
            nn.init.xavier_uniform_(self.output.weight)
        if self.output.bias is not None:
            nn.init.zeros_(self.output.bias)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Source tokens (B, S) → memory (B, S, D), and the mask of its real tokens (B, 1, 1, S)."""
        mask = padding_mask(source, self.config.pad)
        x = self.embed_source(source)  # (B, S, D)
        for block in self.encoder:
            x = block(x, mask)
        return self.encoder_norm(x), mask

    def features(self, source: Tensor, target: Tensor) -> Tensor:
        """Input of the output layer: (B, S) and (B, T) → (B, T, D)."""
        memory, mask = self.encode(source)
        x = self.embed_target(target)  # (B, T, D)
        for block in self.decoder:  # every block attends to the encoder's last layer
            x = block(x, block.cross.keys_values(memory), mask)
        return self.decoder_norm(x)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of the token after each target token: (B, S) and (B, T) → (B, T, V)."""
        return self.output(self.features(source, target))


FAMILY = Family(TransformerConfig, SIZES, Transformer, "encoder-decoder")
