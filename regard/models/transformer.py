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
from typing import Any, Literal, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT
from regard.data.tokenizer import PAD
from regard.layers.block import BlockStep, DecoderBlock, EncoderBlock
from regard.layers.cache import Cache, KeysValues
from regard.layers.embed import Embed, token_table
from regard.layers.linear import Linear
from regard.layers.masks import padding_mask
from regard.layers.norm import NormFirst, NormLast
from regard.layers.positions import Learned, Sinusoid

__all__ = ["SIZES", "Transformer", "TransformerConfig"]


@dataclass(frozen=True, config=STRICT)
class TransformerConfig:
    """The defaults are the base model, Table 3 of the paper."""

    vocab: int = 37_000
    dim: int = 512  # the paper's d_model
    depth: int = 6  # layers of the encoder, and of the decoder
    heads: int = 8
    widen: int = 4  # the mlp is this many times as wide
    dropout: float = 0.1  # after each sub-layer and on the embeddings, section 5.4
    attention_dropout: float = 0.0  # on the weights; the paper has none
    norm: Literal["first", "last"] = "first"  # the paper is "last", and trains only with care
    positions: Literal["sinusoid", "learned"] = "sinusoid"
    longest: int = 512  # tokens; a limit for learned positions, none for the sinusoid
    tied: bool = True  # one matrix for source, target and output, section 3.4; else three, and an output bias

    def __post_init__(self) -> None:
        for key in ("vocab", "dim", "depth", "heads", "widen", "longest"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; use 1 or more")
        if self.dim % self.heads:
            raise ValueError(f"width {self.dim} does not split into {self.heads} heads; use a multiple of {self.heads}")
        for key in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; use 0 or more and less than 1")


SIZES = {  # base and big are the paper's, Table 3; tiny and small are for small data
    "tiny": TransformerConfig(dim=128, depth=4, heads=4, widen=2),
    "small": TransformerConfig(dim=256, depth=3, heads=4),
    "base": TransformerConfig(),
    "big": TransformerConfig(dim=1024, heads=16, dropout=0.3),
}


class Stack(NamedTuple):
    """The decoder as plain functions with their weights at hand."""

    embed: Callable[[Tensor, int], Tensor]
    blocks: tuple[BlockStep, ...]
    end: Callable[[Tensor], Tensor]
    output: Callable[[Tensor], Tensor]


class State(NamedTuple):
    """What decoding carries from step to step: B sentences with W beams each, and so B · W rows.

    All beams of a sentence look at one memory, and at one past that holds the tokens of them all; `seen` says whose is
    whose.  Beams thus change places without a copy.
    """

    memory: tuple[KeysValues, ...]  # the source, projected once for each decoder block
    mask: Tensor | None  # (B, 1, 1, S): the source's real tokens; None = all
    past: tuple[Cache, ...]  # the target so far, for each decoder block
    stack: Stack  # the decoder
    seen: Tensor | None = None  # (B, 1, W, K): which keys of the past are a beam's own; None = all
    beams: int = 1
    place: int = 0  # of the next token

    def take(self, rows: Tensor) -> "State":
        """The same for other rows: (R,), or (B, W) with the rows of one sentence in each line."""
        rows = rows if rows.ndim == 2 else rows[:, None]
        sentence, parent = rows[:, 0] // self.beams, rows % self.beams
        memory, mask, past, seen = self.memory, self.mask, self.past, self.seen
        if not torch.equal(sentence, torch.arange(len(memory[0].keys), device=rows.device)):  # else nothing is copied
            memory = tuple(KeysValues(*(x.index_select(0, sentence) for x in part)) for part in memory)
            mask = None if mask is None else mask.index_select(0, sentence)
            past = tuple(part.take(sentence) for part in past)
            seen = None if seen is None else seen.index_select(0, sentence)
        if seen is None and rows.shape[1] > 1:
            seen = torch.ones(len(rows), 1, 1, past[0].used, dtype=torch.bool, device=rows.device)
        if seen is not None:
            seen = seen.gather(2, parent[:, None, :, None].expand(-1, -1, -1, seen.shape[-1]))
        return self._replace(memory=memory, mask=mask, past=past, seen=seen, beams=rows.shape[1])


class Transformer(nn.Module):
    """Encoder and decoder; `forward` returns logits, `start` and `step` decode one token at a time."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = c = config
        around = NormFirst if c.norm == "first" else NormLast
        where = Sinusoid if c.positions == "sinusoid" else Learned
        source = token_table(c.vocab, c.dim)
        target = source if c.tied else token_table(c.vocab, c.dim)
        self.embed_source = Embed(source, where(c.dim, c.longest), c.dropout)
        self.embed_target = Embed(target, where(c.dim, c.longest), c.dropout)
        shape = (c.dim, c.heads, c.widen * c.dim, around, c.dropout, c.attention_dropout)
        self.encoder = nn.ModuleList(EncoderBlock(*shape) for _ in range(c.depth))
        self.encoder_end = around.end(c.dim)
        self.decoder: Any = nn.ModuleList(DecoderBlock(*shape) for _ in range(c.depth))
        self.decoder_end = around.end(c.dim)
        self.output = Linear(c.dim, c.vocab, bias=not c.tied)
        if c.tied:
            self.output.weight = source.weight
        else:
            nn.init.xavier_uniform_(self.output.weight)
            nn.init.zeros_(self.output.bias)

    @property
    def longest(self) -> float:
        """The most tokens a sentence may have, start or end counted."""
        return self.config.longest if self.config.positions == "learned" else math.inf

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Source tokens (B, S) → memory (B, S, D), and the mask of its real tokens (B, 1, 1, S)."""
        mask = padding_mask(source, PAD)
        x = self.embed_source(source)  # (B, S, D)
        for block in self.encoder:
            x = block(x, mask)
        return self.encoder_end(x), mask

    def features(self, source: Tensor, target: Tensor) -> Tensor:
        """What the output layer reads: (B, S) and (B, T) → (B, T, D).  All places at once, as in training."""
        memory, mask = self.encode(source)
        x = self.embed_target(target)  # (B, T, D)
        for block in self.decoder:  # every block reads the same memory: the encoder's last
            x = block(x, block.cross.keys_values(memory), mask)
        return self.decoder_end(x)

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
            self.decoder_end,
            self.output.at_hand(),
        )
        return State(ready, mask if padded else None, tuple(Cache() for _ in self.decoder), stack)

    def step(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        """One token further: token (B · W,) → logits (B · W, V) and the state after it."""
        stack, seen, w = state.stack, state.seen, state.beams
        if seen is not None:  # each beam also sees its own new token
            own = torch.eye(w, dtype=torch.bool, device=token.device)
            seen = torch.cat((seen, own.expand(len(seen), 1, -1, -1)), -1)
        x = stack.embed(token, state.place)  # (B · W, D)
        past = []
        for block, memory, before in zip(stack.blocks, state.memory, state.past, strict=True):
            x, now = block(x, w, memory, state.mask, before, seen)
            past.append(now)
        return stack.output(stack.end(x)), state._replace(past=tuple(past), seen=seen, place=state.place + 1)
