"""BERT: a stack of blocks that look both ways, and guess the tokens that were hidden.

Devlin et al. 2019, https://arxiv.org/abs/1810.04805

    masked-token logits      classes
            │ head              │ head
            │                 pooled: tanh of the first place
       ┌────┴───────────────────┴┐
       │ mlp                     │ × depth, norm last
       │ attention               │
       └────────────┬────────────┘
                  norm
       tokens + places + segments

Shapes: B batch, T tokens, D width, V vocabulary, C classes.
"""

from functools import partial
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, require_divisible, require_fraction, require_min
from regard.layers.attention import Attention
from regard.layers.block import EncoderBlock
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.locality_init import init_local_heads
from regard.layers.mlp import MLP, gelu
from regard.layers.norm import PostNorm
from regard.layers.positions import LearnedPositions

__all__ = ["BERT", "SIZES", "BERTConfig"]

EPS = 1e-12  # of all its norms; the weights that are about were trained with it
SHARP = 3.4  # how clearly the first heads look at a neighbour before training: about a third of their weight


@dataclass(frozen=True, config=STRICT)
class BERTConfig:
    """The defaults are the base model, section 3 of the paper."""

    vocab: int = 30_522
    dim: int = 768
    depth: int = 12
    heads: int = 12
    mlp_ratio: int = 4  # the mlp is this many times as wide
    max_len: int = 512  # tokens: there is a learned vector for each place
    segments: int = 2  # kinds of sentence: the first, the second
    classes: int = 0  # of a sentence, for fine-tuning; 0 = no such head
    dropout: float = 0.1  # after each sub-layer and on the embeddings
    attention_dropout: float = 0.1  # on the weights
    mlp_dim: int = 0  # width of the mlp, if it is no multiple of the model's; 0 = widen times that

    def __post_init__(self) -> None:
        require_min(
            1,
            vocab=self.vocab,
            dim=self.dim,
            depth=self.depth,
            heads=self.heads,
            mlp_ratio=self.mlp_ratio,
            max_len=self.max_len,
            segments=self.segments,
        )
        require_min(0, mlp_dim=self.mlp_dim, classes=self.classes)
        require_divisible(self.dim, self.heads)
        require_fraction(dropout=self.dropout, attention_dropout=self.attention_dropout)


SIZES = {  # base and large: section 3; tiny to medium: Table 1 of https://arxiv.org/abs/1908.08962
    "tiny": BERTConfig(dim=128, depth=2, heads=2),
    "mini": BERTConfig(dim=256, depth=4, heads=4),
    "small": BERTConfig(dim=512, depth=4, heads=8),
    "medium": BERTConfig(dim=512, depth=8, heads=8),
    "base": BERTConfig(),
    "large": BERTConfig(dim=1024, depth=24, heads=16),
}


class LMHead(nn.Module):
    """From vectors to the logits of hidden tokens: one more layer, then the embeddings again, and a bias."""

    def __init__(self, dim: int, table: nn.Embedding):
        super().__init__()
        self.transform, self.norm = Linear(dim, dim), nn.LayerNorm(dim, eps=EPS)
        self.output = Linear(dim, table.num_embeddings)
        self.output.weight = table.weight
        nn.init.zeros_(self.output.bias)

    def features(self, x: Tensor) -> Tensor:
        """What the output layer reads: (..., D) → (..., D)."""
        return self.norm(gelu(self.transform(x)))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) → (..., V)."""
        return self.output(self.features(x))


class BERT(nn.Module):
    """`forward` returns the logits of hidden tokens, `classify` those of a sentence's class, `encode` the vectors."""

    def __init__(self, config: BERTConfig):
        super().__init__()
        self.config = c = config
        self.tokens, self.segments = nn.Embedding(c.vocab, c.dim), nn.Embedding(c.segments, c.dim)
        self.positions = LearnedPositions(c.dim, c.max_len)
        self.norm, self.dropout = nn.LayerNorm(c.dim, eps=EPS), Dropout(c.dropout)
        attention = partial(Attention, c.dim, c.heads, c.attention_dropout)
        mlp = partial(MLP, c.dim, c.mlp_dim or c.mlp_ratio * c.dim, gelu)
        wrap = partial(PostNorm, c.dim, c.dropout, partial(nn.LayerNorm, eps=EPS))
        self.blocks: Any = nn.ModuleList(EncoderBlock(attention(), mlp(), wrap) for _ in range(c.depth))
        self.pooler = Linear(c.dim, c.dim)
        self.lm_head = LMHead(c.dim, self.tokens)
        self.classifier = Linear(c.dim, c.classes) if c.classes else None
        for part in self.modules():  # appendix A.2 of the released code: N(0, 0.02)
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)
            if isinstance(part, nn.Linear):
                nn.init.zeros_(part.bias)
        back_and_ahead = [[steps] for distance in range(1, c.heads + 1) for steps in (-distance, distance)]
        first: Any = self.blocks[0].attn
        init_local_heads([first], self.positions.table, [self.tokens.weight, self.segments.weight], [c.max_len], back_and_ahead,
                     SHARP, 0.02)  # fmt: skip

    @property
    def max_len(self) -> int:
        """The most tokens a text may have."""
        return self.config.max_len

    def encode(self, tokens: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """A vector for each token: (B, T) → (B, T, D).  The mask (B, 1, 1, T) is of real tokens; None = all."""
        kinds = torch.zeros_like(tokens) if segments is None else segments
        x = self.tokens(tokens) + self.positions(0, tokens.shape[1]) + self.segments(kinds)  # (B, T, D)
        x = self.dropout(self.norm(x))
        for block in self.blocks:
            x = block(x, mask)
        return x

    def pooled(self, x: Tensor) -> Tensor:
        """One vector for each text, from that of its first token: (B, T, D) → (B, D)."""
        return torch.tanh(self.pooler(x[:, 0]))

    def forward(self, tokens: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Logits of what stands, or stood, at each place: (B, T) → (B, T, V)."""
        return self.lm_head(self.encode(tokens, mask, segments))

    def classify(self, tokens: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Logits of the classes of each text: (B, T) → (B, C)."""
        if self.classifier is None:
            raise ValueError("this model has no classes; train it with model.classes set")
        return self.classifier(self.dropout(self.pooled(self.encode(tokens, mask, segments))))
