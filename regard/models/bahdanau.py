"""RNNsearch: a recurrent encoder-decoder whose decoder attends to the source at every step.

Bahdanau, Cho and Bengio 2015, https://arxiv.org/abs/1409.0473, Figure 1

                      y₁        y₂        y₃
                      │ predict │         │
          s₀ ────────▶s₁───────▶s₂───────▶s₃       decoder GRU:  sₜ = update(yₜ₋₁, cₜ, sₜ₋₁)
           ╲ attend   │c₁ ╲     │c₂ ╲     │c₃
            ╲─────────┤    ╲────┤    ╲────┤        context:      cₜ = Σₛ αₜₛ hₛ,  αₜ = softmax of score(sₜ₋₁, hₛ)
       h₁      h₂      h₃      h₄
      ⇄───────⇄───────⇄───────⇄                    encoder: a GRU from each side
       x₁      x₂      x₃      x₄

Shapes: B sentences, W beams, R = B · W rows, S source and T target length, D width of the embeddings, H width of a state,
V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model
from regard.data.text.tokenizer import PAD
from regard.layers.cache import KeysValues
from regard.layers.dropout import Dropout
from regard.layers.embed import token_table
from regard.layers.linear import Linear
from regard.layers.masks import padding_mask
from regard.layers.recurrent import GRUCell, run_unpadded
from regard.layers.recurrent_attention import CrossAttention, source_of_rows
from regard.layers.scores import Additive, General, Location, RecurrentScore

__all__ = ["FAMILY", "SIZES", "Bahdanau", "BahdanauConfig", "BahdanauState"]


@dataclass(frozen=True, config=STRICT)
class BahdanauConfig:
    """The defaults are RNNsearch, appendix A of the paper."""

    vocab: int = 30_000
    dim: int = 620  # width of the embeddings; the paper's m
    hidden: int = 1000  # width of the state of each GRU; n
    align: int = 1000  # hidden width of the additive score; n'
    readout: int = 500  # width of the maxout layer before the output; l
    score: Literal["additive", "general", "location"] = "additive"  # the others are of Luong et al. 2015
    max_len: int = 512  # source positions that a location score knows, end included; the others have no limit
    dropout: float = 0.0  # on the embeddings, the source states and the readout; the paper has none
    tied: bool = False  # one matrix for source, target and output, which needs readout = dim
    pad: int = PAD  # id of the padding token, which is not read

    def __post_init__(self) -> None:
        check_model(self, zero=("pad",))
        if self.tied and self.readout != self.dim:
            raise ValueError(f"a readout of width {self.readout} cannot be tied to embeddings of width {self.dim}; make them "
                             f"equal, or use tied=false")  # fmt: skip


SIZES = {  # base is the paper's; tiny is for small data and has the parameters of transformer-tiny
    "tiny": BahdanauConfig(dim=128, hidden=224, align=128, readout=128, dropout=0.3, tied=True),
    "base": BahdanauConfig(),
}  # fmt: skip


class BahdanauState(NamedTuple):
    """What decoding carries from step to step; the W beams of a sentence share its source."""

    hidden: Tensor  # (R, H)
    memory: KeysValues
    mask: Tensor  # (B, 1, 1, S): real tokens of the source

    def reorder(self, rows: Tensor) -> "BahdanauState":
        """Select rows: (R,), or (B, W) with the beams of one sentence in each line."""
        memory, mask = self.memory, self.mask
        source = source_of_rows(rows, len(self.hidden) // len(mask), len(mask))
        if source is not None:
            memory, mask = KeysValues(*(part.index_select(0, source) for part in memory)), mask.index_select(0, source)
        return BahdanauState(self.hidden.index_select(0, rows.flatten()), memory, mask)


class Decoder(nn.Module):
    """One step in three stages: attend to the source, update the state, predict the next token."""

    def __init__(self, c: BahdanauConfig):
        super().__init__()
        scores: dict[str, Callable[[], RecurrentScore]] = {
            "additive": lambda: Additive(c.hidden, 2 * c.hidden, c.align),
            "general": lambda: General(c.hidden, 2 * c.hidden),
            "location": lambda: Location(c.hidden, c.max_len),
        }
        self.initial = Linear(c.hidden, c.hidden)
        self.cross = CrossAttention(scores[c.score]())
        self.cell = GRUCell(c.dim, c.hidden)
        self.context = Linear(2 * c.hidden, 3 * c.hidden, bias=False)
        self.readout = Linear(c.hidden + 2 * c.hidden + c.dim, 2 * c.readout)

    def attend(self, hidden: Tensor, memory: KeysValues, mask: Tensor) -> Tensor:
        """Where to look: state (R, H) → context (R, 2H)."""
        contexts, _ = self.cross(hidden.unflatten(0, (len(mask), -1)), memory, mask)  # (B, W, 2H)
        return contexts.flatten(0, 1)

    def update(self, inputs: Tensor, context: Tensor, hidden: Tensor) -> Tensor:
        """The next state, from the last token's input product (R, 3H), the context and the state before: (R, H)."""
        return self.cell(inputs + self.context(context), hidden)

    def predict(self, hidden: Tensor, context: Tensor, x: Tensor) -> Tensor:
        """Input of the output layer, a maxout over pairs, from state, context and last token (..., D): (..., readout)."""
        both = self.readout(torch.cat((hidden, context, x), -1))  # (..., 2 · readout)
        return torch.maximum(*both.chunk(2, -1))


class Bahdanau(nn.Module):
    """Encoder and decoder; `forward` returns logits, `start` and `step` decode one token at a time."""

    def __init__(self, config: BahdanauConfig):
        super().__init__()
        self.config = c = config
        self.max_len = c.max_len if c.score == "location" else math.inf  # tokens, including the start or end token
        self.embed_source = token_table(c.vocab, c.dim)
        self.embed_target = self.embed_source if c.tied else token_table(c.vocab, c.dim)
        # Embeddings are small enough for a tied output layer; a GRU wants inputs of about one.
        self.scale = c.dim**0.5
        self.encoder = nn.GRU(c.dim, c.hidden, batch_first=True, bidirectional=True)
        self.decoder = Decoder(c)
        self.output = Linear(c.readout, c.vocab)
        nn.init.zeros_(self.output.bias)
        if c.tied:
            self.output.weight = self.embed_source.weight
        self.dropout = Dropout(c.dropout)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Source tokens (B, S) → states from both sides (B, S, 2H), and the mask of its real tokens (B, 1, 1, S)."""
        mask = padding_mask(source, self.config.pad)
        states, _ = run_unpadded(self.encoder, self._embed(self.embed_source, source), mask[:, 0, 0].sum(1))
        return states, mask

    def start(self, source: Tensor) -> BahdanauState:
        """Read the source (B, S) → the state before the first target token, from the backward GRU at the first token."""
        states, mask = self.encode(source)
        hidden = torch.tanh(self.decoder.initial(states[:, 0, self.config.hidden :]))  # (B, H)
        return BahdanauState(hidden, self.decoder.cross.keys_values(self.dropout(states)), mask)

    def step(self, token: Tensor, state: BahdanauState) -> tuple[Tensor, BahdanauState]:
        """The last token (R,) and the state before it → logits (R, V) of the next one and the state after it."""
        decoder, (hidden, memory, mask) = self.decoder, state
        x = self._embed(self.embed_target, token)  # (R, D)
        context = decoder.attend(hidden, memory, mask)
        hidden = decoder.update(decoder.cell.inputs(x), context, hidden)
        return self.output(decoder.predict(hidden, context, x)), BahdanauState(hidden, memory, mask)

    def features(self, source: Tensor, target: Tensor) -> Tensor:
        """Input of the output layer: (B, S) and (B, T) → (B, T, readout).

        Teacher forcing: only attend and update wait for the state before, so only they are a loop.
        """
        decoder, (hidden, memory, mask) = self.decoder, self.start(source)
        x = self._embed(self.embed_target, target)  # (B, T, D)
        hiddens, contexts = list[Tensor](), list[Tensor]()
        for inputs in decoder.cell.inputs(x).unbind(1):  # (B, 3H)
            context = decoder.attend(hidden, memory, mask)
            hidden = decoder.update(inputs, context, hidden)
            hiddens.append(hidden)
            contexts.append(context)
        return self.dropout(decoder.predict(torch.stack(hiddens, 1), torch.stack(contexts, 1), x))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of the token after each target token: (B, S) and (B, T) → (B, T, V)."""
        return self.output(self.features(source, target))

    def _embed(self, table: nn.Embedding, tokens: Tensor) -> Tensor:
        return self.dropout(table(tokens) * self.scale)


FAMILY = Family(BahdanauConfig, SIZES, Bahdanau, "encoder-decoder")
