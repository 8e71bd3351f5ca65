"""Sequence to sequence: one LSTM reads the source into its last state, another generates the target from it.

Sutskever, Vinyals and Le 2014, https://arxiv.org/abs/1409.3215, Figure 1

                                 W    X    Y    Z  </s>
                                 │    │    │    │    │   output
      ┌────┐  ┌────┐  ┌────┐   ┌─┴─┐┌─┴─┐┌─┴─┐┌─┴─┐┌─┴─┐
      │LSTM├─▶│LSTM├─▶│LSTM├──▶│   ├▶   ├▶   ├▶   ├▶   │  × depth
      └─┬──┘  └─┬──┘  └─┬──┘   └─┬─┘└─┬─┘└─┬─┘└─┬─┘└─┬─┘
        C       B       A       <s>   W    X    Y    Z

All that the decoder knows of the source is one state of fixed size: the bottleneck that attention removes.

Shapes: B batch, S source and T target length, D width of the embeddings, H width of the state, L = depth, V vocabulary.
"""

import math

from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model
from regard.data.text.tokenizer import PAD
from regard.layers.dropout import Dropout
from regard.layers.embed import token_table
from regard.layers.linear import Linear
from regard.layers.recurrent import LSTM, LSTMState, reversing_index, run_unpadded

__all__ = ["FAMILY", "SIZES", "Seq2Seq", "Seq2SeqConfig"]


@dataclass(frozen=True, config=STRICT)
class Seq2SeqConfig:
    """The defaults are the paper's, section 3.4, but for the source vocabulary, which is twice as large there."""

    vocab: int = 80_000
    dim: int = 1000  # width of the embeddings
    hidden: int = 1000  # width of the state of one layer
    depth: int = 4  # layers of the encoder, and of the decoder
    reverse: bool = True  # read the source from its end, section 3.3
    dropout: float = 0.0  # on the embeddings, between the layers and before the output; the paper has none
    tied: bool = False  # one matrix for source, target and output, with a projection from H to D before it
    pad: int = PAD  # id of the padding token, which is not read

    def __post_init__(self) -> None:
        check_model(self, zero=("pad",))


SIZES = {  # base is the paper's; tiny is for small data and has the parameters of transformer-tiny
    "tiny": Seq2SeqConfig(dim=128, hidden=208, depth=2, dropout=0.2, tied=True), "base": Seq2SeqConfig(),
}  # fmt: skip


class Seq2Seq(nn.Module):
    """Encoder and decoder; `forward` returns logits, `start` and `step` decode one token at a time."""

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        self.config = c = config
        self.max_len = math.inf  # no limit on the number of tokens
        self.embed_source = token_table(c.vocab, c.dim)
        self.embed_target = self.embed_source if c.tied else token_table(c.vocab, c.dim)
        between = c.dropout if c.depth > 1 else 0.0
        self.encoder = LSTM(c.dim, c.hidden, c.depth, batch_first=True, dropout=between)
        self.decoder = LSTM(c.dim, c.hidden, c.depth, batch_first=True, dropout=between)
        self.decoder_projection = Linear(c.hidden, c.dim) if c.tied else nn.Identity()
        self.output = Linear(c.dim if c.tied else c.hidden, c.vocab)
        nn.init.zeros_(self.output.bias)
        if c.tied:
            self.output.weight = self.embed_source.weight
        # Embeddings are small enough for a tied output layer; an LSTM wants inputs of about one.
        self.scale = c.dim**0.5
        self.dropout = Dropout(c.dropout)

    def encode(self, source: Tensor) -> LSTMState:
        """Source tokens (B, S) → the last state of each layer."""
        lengths = (source != self.config.pad).sum(1)  # (B,)
        source = source.gather(1, reversing_index(lengths, source.shape[1])) if self.config.reverse else source
        _, (hidden, cell) = run_unpadded(self.encoder, self._embed(self.embed_source, source), lengths)
        return LSTMState(hidden.transpose(0, 1), cell.transpose(0, 1))  # (B, L, H)

    def features(self, source: Tensor, target: Tensor) -> Tensor:
        """Input of the output layer: (B, S) and (B, T) → (B, T, D), or (B, T, H) if it is not tied."""
        hidden, cell = (part.transpose(0, 1).contiguous() for part in self.encode(source))  # (L, B, H)
        outputs, _ = self.decoder(self._embed(self.embed_target, target), (hidden, cell))  # (B, T, H)
        return self.decoder_projection(self.dropout(outputs))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of the token after each target token: (B, S) and (B, T) → (B, T, V)."""
        return self.output(self.features(source, target))

    def start(self, source: Tensor) -> LSTMState:
        """Read the source (B, S) → the state before the first target token."""
        return self.encode(source)

    def step(self, token: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """The last token (B,) and the state before it → logits (B, V) of the next one and the state after it."""
        x, state = self.decoder.step(self._embed(self.embed_target, token), state)  # (B, H)
        return self.output(self.decoder_projection(x)), state

    def _embed(self, table: nn.Embedding, tokens: Tensor) -> Tensor:
        return self.dropout(table(tokens) * self.scale)


FAMILY = Family(Seq2SeqConfig, SIZES, Seq2Seq, "encoder-decoder")
