"""BERT: a stack of bidirectional blocks that predicts masked tokens.

Devlin et al. 2019, https://arxiv.org/abs/1810.04805

    masked-token logits      classes
            │ head              │ head
            │                 pooled: tanh of the first position
       ┌────┴───────────────────┴┐
       │ mlp                     │ × depth, post-norm
       │ attention               │
       └────────────┬────────────┘
                  norm
       tokens + positions + segments

Shapes: B batch, T tokens, D width, V vocabulary, C classes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal, cast

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model, require_divisible
from regard.layers.attention import Attention
from regard.layers.block import EncoderBlock
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.locality_init import init_local_heads
from regard.layers.mlp import ACTIVATIONS, MLP, Activation
from regard.layers.norm import Norm, PostNorm
from regard.layers.positions import LearnedPositions

__all__ = ["BERT", "FAMILY", "SIZES", "BERTConfig"]

SHARP = 3.4  # initially the heads of the first block give about a third of their weight to one neighbour


@dataclass(frozen=True, config=STRICT)
class BERTConfig:
    """The defaults are the base model, section 3 of the paper."""

    vocab: int = 30_522
    dim: int = 768
    depth: int = 12
    heads: int = 12
    mlp_ratio: int = 4  # width of the mlp, as a multiple of dim
    max_len: int = 512  # context length in tokens: each position has a learned vector
    segments: int = 2  # segment ids: first and second sentence
    classes: int = 0  # of a text, for fine-tuning; 0 = no classifier
    dropout: float = 0.1  # after each sub-layer and on the embeddings
    attention_dropout: float = 0.1  # on the attention weights
    mlp_dim: int = 0  # width of the mlp; 0 = mlp_ratio · dim
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "gelu"  # of the mlp and of the head for masked tokens
    eps: float = 1e-12  # of all norms, as in the released weights

    def __post_init__(self) -> None:
        check_model(self, zero=("mlp_dim", "classes"))
        require_divisible(self.dim, self.heads)


SIZES = {  # base and large: section 3; tiny to medium: Table 1 of https://arxiv.org/abs/1908.08962
    "tiny": BERTConfig(dim=128, depth=2, heads=2), "mini": BERTConfig(dim=256, depth=4, heads=4),
    "small": BERTConfig(dim=512, depth=4, heads=8), "medium": BERTConfig(dim=512, depth=8, heads=8),
    "base": BERTConfig(), "large": BERTConfig(dim=1024, depth=24, heads=16),
}  # fmt: skip


class LMHead(nn.Module):
    """From vectors to the logits of masked tokens: one more layer, then the tied embeddings and a bias."""

    def __init__(self, dim: int, table: nn.Embedding, activation: Activation, norm: Norm):
        super().__init__()
        self.transform, self.activation, self.norm = Linear(dim, dim), activation, norm(dim)
        self.output = Linear(dim, table.num_embeddings)
        self.output.weight = table.weight
        nn.init.zeros_(self.output.bias)

    def features(self, x: Tensor) -> Tensor:
        """Input of the output layer: (..., D) → (..., D)."""
        return self.norm(self.activation(self.transform(x)))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) → (..., V)."""
        return self.output(self.features(x))


class BERT(nn.Module):
    """`forward` returns the logits of masked tokens, `classify` those of the classes, `encode` the vectors."""

    def __init__(self, config: BERTConfig):
        super().__init__()
        self.config = c = config
        self.max_len = c.max_len  # context length in tokens
        self.tokens, self.segments = nn.Embedding(c.vocab, c.dim), nn.Embedding(c.segments, c.dim)
        self.positions = LearnedPositions(c.dim, c.max_len)
        norm, activation = partial(nn.LayerNorm, eps=c.eps), ACTIVATIONS[c.activation]
        self.norm, self.dropout = norm(c.dim), Dropout(c.dropout)
        attention = partial(Attention, c.dim, c.heads, c.attention_dropout)
        mlp = partial(MLP, c.dim, c.mlp_dim or c.mlp_ratio * c.dim, activation)
        wrap = partial(PostNorm, c.dim, c.dropout, norm)
        blocks = [EncoderBlock(attention(), mlp(), wrap) for _ in range(c.depth)]
        self.blocks = cast(Sequence[EncoderBlock], nn.ModuleList(blocks))
        self.pooler = Linear(c.dim, c.dim)
        self.lm_head = LMHead(c.dim, self.tokens, activation, norm)
        self.classifier = Linear(c.dim, c.classes) if c.classes else None
        for part in self.modules():  # as in the released code: N(0, 0.02)
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)
            if isinstance(part, nn.Linear):
                nn.init.zeros_(part.bias)
        offsets = [[offset] for distance in range(1, c.heads + 1) for offset in (-distance, distance)]
        tables = [self.tokens.weight, self.segments.weight]
        init_local_heads([self.blocks[0].attn], self.positions.table, tables, [c.max_len], offsets, SHARP, 0.02)

    def encode(self, tokens: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """A vector for each token: (B, T) → (B, T, D).  `mask` (B, 1, 1, T) marks real tokens; None = all."""
        segments = torch.zeros_like(tokens) if segments is None else segments
        x = self.tokens(tokens) + self.positions(0, tokens.shape[1]) + self.segments(segments)  # (B, T, D)
        x = self.dropout(self.norm(x))
        for block in self.blocks:
            x = block(x, mask)
        return x

    def pooled(self, x: Tensor) -> Tensor:
        """One vector for each text, from its first token: (B, T, D) → (B, D)."""
        return torch.tanh(self.pooler(x[:, 0]))

    def forward(self, tokens: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Logits of the original token at each position: (B, T) → (B, T, V)."""
        return self.lm_head(self.encode(tokens, mask, segments))

    def classify(self, tokens: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Logits of the classes of each text: (B, T) → (B, C)."""
        if self.classifier is None:
            raise ValueError("this model has no classes; train it with model.classes set")
        return self.classifier(self.dropout(self.pooled(self.encode(tokens, mask, segments))))


FAMILY = Family(BERTConfig, SIZES, BERT, "encoder")
