"""GPT: a stack of causal blocks that predicts the next token.

Radford et al. 2018 and 2019 (GPT-2), https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf

              logits
                │ output (tied to the embeddings, unless `tied` is false)
              norm
       ┌────────┴────────┐
       │ mlp             │ × depth
       │ causal attention│
       └────────┬────────┘
         tokens + positions

Shapes: B batch, T tokens, D width, V vocabulary.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, cast

from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model, require_divisible
from regard.layers.attention import Attention
from regard.layers.block import EncoderBlock
from regard.layers.embed import Embed
from regard.layers.linear import Linear
from regard.layers.mlp import ACTIVATIONS, MLP
from regard.layers.norm import PreNorm
from regard.layers.positions import LearnedPositions

__all__ = ["FAMILY", "GPT", "SIZES", "GPTConfig"]


@dataclass(frozen=True, config=STRICT)
class GPTConfig:
    """The defaults are the smallest GPT-2, Table 2 of the paper."""

    vocab: int = 50_257
    dim: int = 768
    depth: int = 12
    heads: int = 12
    mlp_ratio: int = 4  # width of the mlp, as a multiple of dim
    max_len: int = 1024  # context length in tokens: each position has a learned vector
    dropout: float = 0.1  # after each sub-layer and on the embeddings
    attention_dropout: float = 0.1  # on the attention weights
    mlp_dim: int = 0  # width of the mlp; 0 = mlp_ratio · dim
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "gelu_tanh"  # of the mlp; "gelu" is the exact one
    eps: float = 1e-5  # of all norms
    tied: bool = True  # one matrix for tokens and output

    def __post_init__(self) -> None:
        check_model(self, zero=("mlp_dim",))
        require_divisible(self.dim, self.heads)


SIZES = {  # Table 2 of the paper names them by parameter count: 117 M (124 by count), 345 M, 762 M, 1542 M
    "tiny": GPTConfig(dim=128, depth=4, heads=4, max_len=256, dropout=0.0, attention_dropout=0.0),
    "small": GPTConfig(), "medium": GPTConfig(dim=1024, depth=24, heads=16),
    "large": GPTConfig(dim=1280, depth=36, heads=20), "xl": GPTConfig(dim=1600, depth=48, heads=25),
}  # fmt: skip


class GPT(nn.Module):
    """`forward` returns logits.  `decode.fast.decoder` decodes one token at a time."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = c = config
        self.max_len = c.max_len  # context length in tokens
        self.embed = Embed(nn.Embedding(c.vocab, c.dim), LearnedPositions(c.dim, c.max_len), c.dropout)
        norm = partial(nn.LayerNorm, eps=c.eps)
        attention, wrap = partial(Attention, c.dim, c.heads, c.attention_dropout), partial(PreNorm, c.dim, c.dropout, norm)
        mlp = partial(MLP, c.dim, c.mlp_dim or c.mlp_ratio * c.dim, ACTIVATIONS[c.activation])
        blocks = [EncoderBlock(attention(), mlp(), wrap, causal=True) for _ in range(c.depth)]
        self.blocks = cast(Sequence[EncoderBlock], nn.ModuleList(blocks))
        self.final_norm = norm(c.dim)
        self.output = Linear(c.dim, c.vocab, bias=False)
        if c.tied:
            self.output.weight = self.embed.tokens.weight
        for part in self.modules():  # section 2.3: N(0, 0.02), and smaller on the residual path
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)
        for name, weight in self.named_parameters():
            if name.endswith(("attn.out.weight", "mlp.down.weight")):
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * c.depth))

    def features(self, tokens: Tensor) -> Tensor:
        """Input of the output layer: (B, T) → (B, T, D)."""
        x = self.embed(tokens)  # (B, T, D)
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the token after each token: (B, T) → (B, T, V).  Padding at the end has no effect before it."""
        return self.output(self.features(tokens))


FAMILY = Family(GPTConfig, SIZES, GPT, "decoder")
