"""T5: encoder and decoder, every task a text that asks and a text that answers.

Raffel et al. 2020, https://arxiv.org/abs/1910.10683; v1.1 and Flan-T5 have a gated mlp and an output layer of their own,
https://arxiv.org/abs/2002.05202.

                                     logits
                                       │ output
      ┌──────────────┐        ┌────────┴────────┐
      │ mlp          │ memory │ mlp             │
      │ attention    ├───────▶│ cross-attention │ × depth, norm first, no bias anywhere
      └──────┬───────┘ × depth│ causal attention│
          tokens              └────────┬────────┘
                                    tokens         where a token stands is a number added to its scores

Shapes: B batch, S source and T target length, W beams, K keys, D width, H heads, E width of one head, V vocabulary.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, require_fraction, require_min
from regard.data.text.tokenizer import PAD
from regard.layers.attention import Attention
from regard.layers.biases import BucketedPositionBias
from regard.layers.block import CrossStep, DecoderBlock, EncoderBlock
from regard.layers.cache import Cache, KeysValues
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.masks import padding_mask
from regard.layers.mlp import MLP, GatedMLP
from regard.layers.norm import PreNorm
from regard.layers.past import Past

__all__ = ["SIZES", "T5", "T5Config"]


@dataclass(frozen=True, config=STRICT)
class T5Config:
    """The defaults are the base model, section 3.1.1 of the paper."""

    vocab: int = 32_128
    dim: int = 768
    depth: int = 12  # layers of the encoder, and of the decoder
    heads: int = 12
    head_dim: int = 64  # of one head; all heads together need not be as wide as the model
    mlp_dim: int = 3072  # width of the mlp
    gated: bool = False  # v1.1: a half of the mlp decides what passes of the other
    tied: bool = True  # one matrix for tokens and output; v1.1 has two
    buckets: int = 32  # distances are put into so many
    max_distance: int = 128  # distances from here on are all one
    dropout: float = 0.1  # after each sub-layer and on the embeddings
    attention_dropout: float = 0.1  # on the weights
    pad: int = PAD  # the token that fills up a short source and is not looked at

    def __post_init__(self) -> None:
        require_min(
            1,
            vocab=self.vocab,
            dim=self.dim,
            depth=self.depth,
            heads=self.heads,
            head_dim=self.head_dim,
            mlp_dim=self.mlp_dim,
        )
        require_min(0, pad=self.pad)
        if self.buckets < 4 or self.buckets % 4:
            raise ValueError(f"buckets is {self.buckets}; use a multiple of 4")
        if self.max_distance <= self.buckets:
            raise ValueError(f"furthest is {self.max_distance}; use more than the {self.buckets} buckets")
        require_fraction(dropout=self.dropout, attention_dropout=self.attention_dropout)


_V11: dict[str, Any] = {"gated": True, "tied": False}
SIZES = {  # small to large: section 3.1.1 and 3.6 of the paper; v1.1: its released configurations
    "tiny": T5Config(dim=128, depth=2, heads=4, head_dim=32, mlp_dim=512),
    "small": T5Config(dim=512, depth=6, heads=8, mlp_dim=2048),
    "base": T5Config(),
    "large": T5Config(dim=1024, depth=24, heads=16, mlp_dim=4096),
    "3b": T5Config(dim=1024, depth=24, heads=32, head_dim=128, mlp_dim=16_384),
    "11b": T5Config(dim=1024, depth=24, heads=128, head_dim=128, mlp_dim=65_536),
    "v1.1-small": T5Config(dim=512, depth=8, heads=6, mlp_dim=1024, **_V11),
    "v1.1-base": T5Config(mlp_dim=2048, **_V11),
    "v1.1-large": T5Config(dim=1024, depth=24, heads=16, mlp_dim=2816, **_V11),
    "v1.1-xl": T5Config(dim=2048, depth=24, heads=32, mlp_dim=5120, **_V11),
    "v1.1-xxl": T5Config(dim=4096, depth=24, heads=64, mlp_dim=10_240, **_V11),
}


class Stack(NamedTuple):
    """The decoder as plain functions with their weights at hand."""

    blocks: tuple[CrossStep, ...]
    end: Callable[[Tensor], Tensor]
    output: Callable[[Tensor], Tensor]


class State(NamedTuple):
    """What decoding carries from step to step: B sentences with W beams each, and so B · W rows."""

    memory: tuple[KeysValues, ...]  # the source, projected once for each decoder block
    mask: Tensor | None  # (B, 1, 1, S): the source's real tokens; None = all
    past: Past
    places: Tensor  # (K,): where each key of the past stands
    stack: Stack

    def reorder(self, rows: Tensor) -> "State":
        """The same for other rows: (R,), or (B, W) with the rows of one sentence in each line."""
        memory, mask = self.memory, self.mask
        past, sentence = self.past.reorder(rows)
        if sentence is not None:
            memory = tuple(KeysValues(*(x.index_select(0, sentence) for x in part)) for part in memory)
            mask = None if mask is None else mask.index_select(0, sentence)
        return State(memory, mask, past, self.places, self.stack)


class T5(nn.Module):
    """Encoder and decoder; `forward` returns logits, `start` and `step` decode one token at a time."""

    max_len = math.inf  # tokens: distances beyond the furthest are alike

    def __init__(self, config: T5Config):
        super().__init__()
        self.config = c = config
        self.tokens, self.dropout = nn.Embedding(c.vocab, c.dim), Dropout(c.dropout)
        attention = partial(Attention, c.dim, c.heads, c.attention_dropout, width=c.head_dim, scale=1.0, bias=False)
        mlp = partial(GatedMLP, c.dim, c.mlp_dim) if c.gated else partial(MLP, c.dim, c.mlp_dim, bias=False)
        norm = partial(nn.RMSNorm, eps=1e-6)
        wrap = partial(PreNorm, c.dim, c.dropout, norm)
        self.encoder = nn.ModuleList(EncoderBlock(attention(), mlp(), wrap) for _ in range(c.depth))
        self.encoder_bias = BucketedPositionBias(c.heads, c.buckets, c.max_distance, bidirectional=True)
        self.encoder_norm = norm(c.dim)
        self.decoder: Any = nn.ModuleList(DecoderBlock(attention(), attention(), mlp(), wrap) for _ in range(c.depth))
        self.decoder_bias = BucketedPositionBias(c.heads, c.buckets, c.max_distance, bidirectional=False)
        self.decoder_norm = norm(c.dim)
        self.output = Linear(c.dim, c.vocab, bias=False)
        # A table that serves as both is large for an output layer: what it reads is made smaller instead.
        self.shrink = c.dim**-0.5 if c.tied else 1.0
        if c.tied:
            self.output.weight = self.tokens.weight
        self._begin()

    def _begin(self) -> None:
        """Start values of the released code: each product keeps the size of what it is given."""
        c = self.config
        nn.init.normal_(self.tokens.weight)
        if not c.tied:
            nn.init.normal_(self.output.weight, std=c.dim**-0.5)
        for part in self.modules():
            if isinstance(part, Attention):
                q, k, v = part.qkv.weight.detach().chunk(3)
                nn.init.normal_(
                    q, std=(c.dim * c.head_dim) ** -0.5
                )  # the scores are not scaled, so the queries are small
                nn.init.normal_(k, std=c.dim**-0.5)
                nn.init.normal_(v, std=c.dim**-0.5)
                nn.init.normal_(part.out.weight, std=part.inner**-0.5)
            elif isinstance(part, MLP | GatedMLP):
                nn.init.normal_(part.up.weight, std=c.dim**-0.5)
                nn.init.normal_(part.down.weight, std=c.mlp_dim**-0.5)
            elif isinstance(part, BucketedPositionBias):
                nn.init.normal_(part.table.weight, std=c.dim**-0.5)

    def encode(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """Source tokens (B, S) → memory (B, S, D).  The mask (B, 1, 1, S) is of real tokens; None = all but padding."""
        mask = self._real(source, mask)
        places = torch.arange(source.shape[1], device=source.device)
        bias, x = self.encoder_bias(places, places), self.dropout(self.tokens(source))  # (1, H, S, S), (B, S, D)
        for block in self.encoder:
            x = block(x, mask, bias)
        return self.dropout(self.encoder_norm(x))

    def _real(self, source: Tensor, mask: Tensor | None) -> Tensor:
        """The mask given, or that of all that is not padding: (B, 1, 1, S)."""
        return padding_mask(source, self.config.pad) if mask is None else mask

    def features(self, source: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """What the output layer reads: (B, S) and (B, T) → (B, T, D)."""
        mask = self._real(source, mask)
        memory = self.encode(source, mask)
        places = torch.arange(target.shape[1], device=target.device)
        bias, x = self.decoder_bias(places, places), self.dropout(self.tokens(target))  # (1, H, T, T), (B, T, D)
        for block in self.decoder:
            x = block(x, block.cross.keys_values(memory), mask, bias)
        return self.dropout(self.decoder_norm(x)) * self.shrink

    def forward(self, source: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of the token after each target token: (B, S) and (B, T) → (B, T, V)."""
        return self.output(self.features(source, target, mask))

    def start(self, source: Tensor, mask: Tensor | None = None) -> State:
        """Read the source (B, S) once; cross keys and values are projected here and never again."""
        mask = self._real(source, mask)
        memory = self.encode(source, mask)
        padded = not mask.all()  # if not, each step is the quicker for it
        end, output = self.decoder_norm, self.output.at_hand()
        stack = Stack(tuple(block.at_hand() for block in self.decoder), end, output)
        ready = tuple(block.cross.keys_values(memory) for block in self.decoder)
        past = Past(tuple(Cache() for _ in self.decoder), len(source))
        return State(ready, mask if padded else None, past, source.new_empty(0), stack)

    def step(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        """One token further: token (B · W,) → logits (B · W, V) and the state after it."""
        memory, mask, past, places, stack = state
        places = torch.cat((places, places.new_full((past.beams,), past.place)))
        bias = self.decoder_bias(places[-1:], places)  # (1, H, 1, K)
        seen, now = past.next_seen, []
        x = self.tokens(token)  # (B · W, D)
        for block, memory_of_one, before in zip(stack.blocks, memory, past.blocks, strict=True):
            x, after = block(x, past.beams, memory_of_one, mask, before, seen, bias)
            now.append(after)
        past = Past(tuple(now), past.sentences, seen, past.beams, past.place + 1)
        return stack.output(stack.end(x) * self.shrink), State(memory, mask, past, places, stack)
