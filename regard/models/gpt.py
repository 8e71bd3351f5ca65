"""GPT: a stack of blocks that look back, and guess the next token.

Radford et al. 2018 and 2019 (GPT-2), https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf

              logits
                │ output (tied to the embeddings)
              norm
       ┌────────┴────────┐
       │ mlp             │ × depth
       │ causal attention│
       └────────┬────────┘
         tokens + places

Shapes: B batch, S prompt and T text length, W beams, K keys, D width, H heads, V vocabulary.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, require_divisible, require_fraction, require_min
from regard.layers.attention import Attention
from regard.layers.block import BlockStep, EncoderBlock
from regard.layers.cache import Cache
from regard.layers.embed import Embed
from regard.layers.linear import Linear
from regard.layers.mlp import MLP, gelu_tanh
from regard.layers.norm import PreNorm
from regard.layers.past import Past
from regard.layers.positions import LearnedPositions

__all__ = ["GPT", "SIZES", "GPTConfig"]


@dataclass(frozen=True, config=STRICT)
class GPTConfig:
    """The defaults are the smallest GPT-2, Table 2 of the paper."""

    vocab: int = 50_257
    dim: int = 768
    depth: int = 12
    heads: int = 12
    mlp_ratio: int = 4  # the mlp is this many times as wide
    max_len: int = 1024  # tokens: there is a learned vector for each place
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
        )
        require_min(0, mlp_dim=self.mlp_dim)
        require_divisible(self.dim, self.heads)
        require_fraction(dropout=self.dropout, attention_dropout=self.attention_dropout)


SIZES = {  # Table 2 of the paper names them by their parameters: 117 M (124 by count), 345 M, 762 M, 1542 M
    "tiny": GPTConfig(dim=128, depth=4, heads=4, max_len=256, dropout=0.0, attention_dropout=0.0),
    "small": GPTConfig(),
    "medium": GPTConfig(dim=1024, depth=24, heads=16),
    "large": GPTConfig(dim=1280, depth=36, heads=20),
    "xl": GPTConfig(dim=1600, depth=48, heads=25),
}


class Stack(NamedTuple):
    """The model as plain functions with their weights at hand."""

    embed: Callable[[Tensor, int], Tensor]
    blocks: tuple[BlockStep, ...]
    end: Callable[[Tensor], Tensor]
    output: Callable[[Tensor], Tensor]


class State(NamedTuple):
    """What generation carries from step to step."""

    past: Past  # the text so far
    stack: Stack

    def reorder(self, rows: Tensor) -> "State":
        """The same for other rows: (R,), or (B, W) with the rows of one text in each line."""
        return State(self.past.reorder(rows)[0], self.stack)


class GPT(nn.Module):
    """`forward` returns logits; `start` reads all of a prompt but its last token, `step` goes on one token at a time."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = c = config
        self.embed = Embed(nn.Embedding(c.vocab, c.dim), LearnedPositions(c.dim, c.max_len), c.dropout)
        attention, wrap = partial(Attention, c.dim, c.heads, c.attention_dropout), partial(PreNorm, c.dim, c.dropout)
        mlp = partial(MLP, c.dim, c.mlp_dim or c.mlp_ratio * c.dim, gelu_tanh)
        self.blocks: Any = nn.ModuleList(EncoderBlock(attention(), mlp(), wrap, causal=True) for _ in range(c.depth))
        self.final_norm = nn.LayerNorm(c.dim)
        self.output = Linear(c.dim, c.vocab, bias=False)
        self.output.weight = self.embed.tokens.weight
        for part in self.modules():  # section 2.3: N(0, 0.02), and smaller where the residual path adds up
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)
        for name, weight in self.named_parameters():
            if name.endswith(("attn.out.weight", "mlp.down.weight")):
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * c.depth))

    @property
    def max_len(self) -> int:
        """The most tokens a text may have."""
        return self.config.max_len

    def features(self, tokens: Tensor) -> Tensor:
        """What the output layer reads: (B, T) → (B, T, D)."""
        x = self.embed(tokens)  # (B, T, D)
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the token after each token: (B, T) → (B, T, V).  Padding at the end changes nothing before it."""
        return self.output(self.features(tokens))

    def start(self, prompt: Tensor) -> State:
        """Read all tokens of the prompt (B, S) but the last, at once; the first step is given that one."""
        stack = Stack(
            self.embed.at_hand(),
            tuple(block.at_hand() for block in self.blocks),
            self.final_norm,
            self.output.at_hand(),
        )
        if prompt.shape[1] < 2:  # there is nothing before the first step
            return State(Past(tuple(Cache() for _ in self.blocks), len(prompt)), stack)
        x, past = self.embed(prompt[:, :-1]), []  # (B, S - 1, D)
        for block in self.blocks:
            x, now = block.read(x)
            past.append(now)
        return State(Past(tuple(past), len(prompt), place=x.shape[1]), stack)

    def step(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        """One token further: token (B · W,) → logits (B · W, V) and the state after it."""
        past, stack = state
        seen, now = past.next_seen, []
        x = stack.embed(token, past.place)  # (B · W, D)
        for block, before in zip(stack.blocks, past.blocks, strict=True):
            x, after = block(x, past.beams, before, seen, None)
            now.append(after)
        return stack.output(stack.end(x)), State(
            Past(tuple(now), past.sentences, seen, past.beams, past.place + 1), stack
        )
