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

Shapes: B batch, S source and T target length, W beams, K keys, D width, H heads, E width of one head, V vocabulary.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, require_divisible, require_fraction, require_min
from regard.data.text.tokenizer import PAD
from regard.layers.attention import Attention
from regard.layers.block import CrossStep, DecoderBlock, EncoderBlock
from regard.layers.cache import Cache, KeysValues
from regard.layers.embed import Embed, token_table
from regard.layers.linear import Linear
from regard.layers.masks import padding_mask
from regard.layers.mlp import MLP, Activation
from regard.layers.norm import PostNorm, PreNorm
from regard.layers.past import Past
from regard.layers.positions import LearnedPositions, SinusoidalPositions

__all__ = ["SIZES", "Transformer", "TransformerConfig"]

ACTIVATIONS: dict[str, Activation] = {"relu": torch.relu_, "silu": F.silu}


@dataclass(frozen=True, config=STRICT)
class TransformerConfig:
    """The defaults are the base model, Table 3 of the paper."""

    vocab: int = 37_000
    dim: int = 512  # the paper's d_model
    depth: int = 6  # layers of the encoder, and of the decoder
    heads: int = 8
    mlp_ratio: int = 4  # the mlp is this many times as wide
    dropout: float = 0.1  # after each sub-layer and on the embeddings, section 5.4
    attention_dropout: float = 0.0  # on the weights; the paper has none
    norm: Literal["pre", "post"] = "pre"  # the paper is "last", and trains only with care
    positions: Literal["sinusoid", "learned"] = "sinusoid"
    max_len: int = 512  # tokens; a limit for learned positions, none for the sinusoid
    tied: bool = True  # one matrix for source, target and output, section 3.4; else three, and an output bias
    output_bias: bool = False  # an output bias even so, as Marian has it
    activation: Literal["relu", "silu"] = "relu"  # of the mlp; the paper's is "relu", most Marians' "silu"
    pad: int = PAD  # the token that fills up a short source and is not looked at

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
        require_min(0, pad=self.pad)
        require_divisible(self.dim, self.heads)
        require_fraction(dropout=self.dropout, attention_dropout=self.attention_dropout)


SIZES = {  # base and big are the paper's, Table 3; tiny and small are for small data
    "tiny": TransformerConfig(dim=128, depth=4, heads=4, mlp_ratio=2),
    "small": TransformerConfig(dim=256, depth=3, heads=4),
    "base": TransformerConfig(),
    "big": TransformerConfig(dim=1024, heads=16, dropout=0.3),
}


class Stack(NamedTuple):
    """The decoder as plain functions with their weights at hand."""

    embed: Callable[[Tensor, int], Tensor]
    blocks: tuple[CrossStep, ...]
    end: Callable[[Tensor], Tensor]
    output: Callable[[Tensor], Tensor]


class State(NamedTuple):
    """What decoding carries from step to step: B sentences with W beams each, and so B · W rows."""

    memory: tuple[KeysValues, ...]  # the source, projected once for each decoder block; all beams look at the same
    mask: Tensor | None  # (B, 1, 1, S): the source's real tokens; None = all
    past: Past  # the target so far
    stack: Stack  # the decoder

    def reorder(self, rows: Tensor) -> "State":
        """The same for other rows: (R,), or (B, W) with the rows of one sentence in each line."""
        memory, mask = self.memory, self.mask
        past, sentence = self.past.reorder(rows)
        if sentence is not None:
            memory = tuple(KeysValues(*(x.index_select(0, sentence) for x in part)) for part in memory)
            mask = None if mask is None else mask.index_select(0, sentence)
        return State(memory, mask, past, self.stack)


class Transformer(nn.Module):
    """Encoder and decoder; `forward` returns logits, `start` and `step` decode one token at a time."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = c = config
        around = PreNorm if c.norm == "pre" else PostNorm
        where = SinusoidalPositions if c.positions == "sinusoid" else LearnedPositions
        source = token_table(c.vocab, c.dim)
        target = source if c.tied else token_table(c.vocab, c.dim)
        # The √D of section 3.4 undoes the small start that lets the same matrix also be the output layer.
        self.embed_source = Embed(source, where(c.dim, c.max_len), c.dropout, scale=c.dim**0.5)
        self.embed_target = Embed(target, where(c.dim, c.max_len), c.dropout, scale=c.dim**0.5)
        attention = partial(Attention, c.dim, c.heads, c.attention_dropout)
        mlp, wrap = (
            partial(MLP, c.dim, c.mlp_ratio * c.dim, ACTIVATIONS[c.activation]),
            partial(around, c.dim, c.dropout),
        )
        self.encoder = nn.ModuleList(EncoderBlock(attention(), mlp(), wrap) for _ in range(c.depth))
        self.encoder_norm = around.final_norm(c.dim)
        self.decoder: Any = nn.ModuleList(DecoderBlock(attention(), attention(), mlp(), wrap) for _ in range(c.depth))
        self.decoder_norm = around.final_norm(c.dim)
        self.output = Linear(c.dim, c.vocab, bias=c.output_bias or not c.tied)
        if c.tied:
            self.output.weight = source.weight
        else:
            nn.init.xavier_uniform_(self.output.weight)
        if self.output.bias is not None:
            nn.init.zeros_(self.output.bias)

    @property
    def max_len(self) -> float:
        """The most tokens a sentence may have, start or end counted."""
        return self.config.max_len if self.config.positions == "learned" else math.inf

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Source tokens (B, S) → memory (B, S, D), and the mask of its real tokens (B, 1, 1, S)."""
        mask = padding_mask(source, self.config.pad)
        x = self.embed_source(source)  # (B, S, D)
        for block in self.encoder:
            x = block(x, mask)
        return self.encoder_norm(x), mask

    def features(self, source: Tensor, target: Tensor) -> Tensor:
        """What the output layer reads: (B, S) and (B, T) → (B, T, D).  All places at once, as in training."""
        memory, mask = self.encode(source)
        x = self.embed_target(target)  # (B, T, D)
        for block in self.decoder:  # every block reads the same memory: the encoder's last
            x = block(x, block.cross.keys_values(memory), mask)
        return self.decoder_norm(x)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of the token after each target token: (B, S) and (B, T) → (B, T, V)."""
        return self.output(self.features(source, target))

    def start(self, source: Tensor) -> State:
        """Read the source (B, S) once; cross keys and values are projected here and never again.

        The steps that follow call no module of the decoder, so hooks on its parts stay silent: `watch` looks inside.
        """
        memory, mask = self.encode(source)
        ready = tuple(block.cross.keys_values(memory) for block in self.decoder)
        padded = not mask.all()  # if not, each step is the quicker for it
        stack = Stack(
            self.embed_target.at_hand(),
            tuple(block.at_hand() for block in self.decoder),
            self.decoder_norm,
            self.output.at_hand(),
        )
        return State(ready, mask if padded else None, Past(tuple(Cache() for _ in self.decoder), len(source)), stack)

    def step(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        """One token further: token (B · W,) → logits (B · W, V) and the state after it."""
        memory, mask, past, stack = state
        seen, now = past.next_seen, []
        x = stack.embed(token, past.place)  # (B · W, D)
        for block, memory_of_one, before in zip(stack.blocks, memory, past.blocks, strict=True):
            x, after = block(x, past.beams, memory_of_one, mask, before, seen, None)
            now.append(after)
        past = Past(tuple(now), past.sentences, seen, past.beams, past.place + 1)
        return stack.output(stack.end(x)), State(memory, mask, past, stack)
