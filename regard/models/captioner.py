"""Show, Attend and Tell: an LSTM writes a caption and looks at one part of the image for each word.

Xu et al. 2015, https://arxiv.org/abs/1502.03044, Figures 1 and 4

                   "a"       "dog"     "runs"
                    │ predict │         │
          h₀ ──────▶h₁───────▶h₂───────▶h₃        LSTM:     hₜ = update(yₜ₋₁, ẑₜ, hₜ₋₁)
           ╲ attend │ẑ₁ ╲     │ẑ₂ ╲     │ẑ₃       context:  ẑₜ = βₜ Σᵢ αₜᵢ aᵢ,  αₜ = softmax of score(hₜ₋₁, aᵢ), βₜ = σ(f(hₜ₋₁))
            ╲───────┤    ╲────┤    ╲────┤
       a₁  a₂  a₃ … aₛ                            encoder: the grid of features of any image model
       image

Soft attention mixes all places, hard attention samples one in training.

Shapes: B images, W captions or beams of each, R = B · W rows, S places of the grid, T tokens, D width of a place, E width of an
embedding, H width of the state, V vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model
from regard.layers.cache import KeysValues
from regard.layers.dropout import Dropout
from regard.layers.embed import token_table
from regard.layers.linear import Linear
from regard.layers.recurrent import LSTMCell
from regard.layers.recurrent_attention import CrossAttention, source_of_rows
from regard.layers.scores import Additive, RecurrentScore, Uniform
from regard.models.image_encoder import SMALL_RESNET, CaptionFeatures, ImageEncoder, encoder_table

__all__ = ["FAMILY", "SIZES", "Captioner", "CaptionerConfig", "CaptionerState"]


@dataclass(frozen=True, config=STRICT)
class CaptionerConfig:
    """The defaults are about those of the paper; its encoder was VGG-19, whose grid of 14 × 14 places has 512 channels."""

    encoder: dict[str, Any] = field(default_factory=lambda: {"family": "resnet", "size": "34"})  # the image model
    vocab: int = 10_000
    dim: int = 512  # width of the embeddings; the paper's m
    hidden: int = 1000  # width of the state; n
    align: int = 512  # hidden width of the additive score
    attention: Literal["soft", "hard", "uniform"] = "soft"  # uniform: the mean of all places, so no attention
    dropout: float = 0.5  # on the embeddings, the places and the readout
    penalty: float = 1.0  # weight of Σᵢ (1 - Σₜ αₜᵢ)², which makes a caption look at every place: equation 14
    entropy: float = 0.01  # weight of the entropy of the places that hard attention samples from: equation 11
    tied: bool = False  # one matrix for embeddings and output

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoder", encoder_table(self.encoder))  # all keys, so that a run says what it trained
        check_model(self, weights=("penalty", "entropy"))

    @property
    def image(self) -> int:
        """Side of the square image, in pixels."""
        return int(self.encoder["image"])

    @property
    def channels(self) -> int:
        """1 (grey) or 3 (red, green, blue)."""
        return int(self.encoder["channels"])


SIZES = {  # base is about the paper's; tiny is for small data
    "tiny": CaptionerConfig(encoder=SMALL_RESNET, dim=256, hidden=256, align=64, penalty=0.1, tied=True),
    "base": CaptionerConfig(),
}  # fmt: skip

Pick = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]  # (context, weights, places) → context, log-probability


def expected_place(context: Tensor, weights: Tensor, places: Tensor) -> tuple[Tensor, None]:
    """Soft attention: the mean of all places, by their weights."""
    return context, None


def sampled_place(context: Tensor, weights: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Hard attention: one place, sampled by its weight.  Weights (B, W, S), places (B, 1, S, D) → (B, W, D) and (B, W)."""
    place = torch.multinomial(weights.detach().flatten(0, 1), 1).view(*weights.shape[:2], 1)  # (B, W, 1)
    chosen = places[:, 0].gather(1, place.expand(-1, -1, places.shape[-1]))  # (B, W, D)
    return chosen, weights.gather(-1, place)[..., 0].clamp_min(1e-12).log()


class CaptionerState(NamedTuple):
    """What decoding carries from step to step; the W beams of an image share its places."""

    hidden: Tensor  # (R, H)
    cell: Tensor  # (R, H)
    places: KeysValues  # (B, 1, S, ·), (B, 1, S, D)

    def reorder(self, rows: Tensor) -> "CaptionerState":
        """Select rows: (R,), or (B, W) with the beams of one image in each line."""
        count, places = len(self.places.values), self.places
        image = source_of_rows(rows, len(self.hidden) // count, count)
        if image is not None:
            places = KeysValues(*(part.index_select(0, image) for part in places))
        hidden, cell = (part.index_select(0, rows.flatten()) for part in (self.hidden, self.cell))
        return CaptionerState(hidden, cell, places)


class Attended(NamedTuple):
    """Where one step looked."""

    context: Tensor  # (R, D)
    weights: Tensor  # (R, S)
    log_prob: Tensor | None  # (R,): of the sampled place


class Decoder(nn.Module):
    """One step in three stages: attend to the image, update the state, predict the next word."""

    def __init__(self, c: CaptionerConfig, width: int):
        super().__init__()
        score: RecurrentScore = Uniform() if c.attention == "uniform" else Additive(c.hidden, width, c.align)
        self.pick: Pick = sampled_place if c.attention == "hard" else expected_place
        self.initial = Linear(width, 2 * c.hidden)
        self.cross = CrossAttention(score)
        self.gate = Linear(c.hidden, 1)
        self.cell = LSTMCell(c.dim, c.hidden)
        self.context = Linear(width, 4 * c.hidden, bias=False)
        self.state_readout = Linear(c.hidden, c.dim)
        self.context_readout = Linear(width, c.dim, bias=False)

    def start(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """The state before the first word, from the mean of all places (B, S, D): state and cell (B, H)."""
        hidden, cell = torch.tanh(self.initial(places.mean(1))).chunk(2, -1)
        return hidden, cell

    def attend(self, hidden: Tensor, places: KeysValues) -> Attended:
        """Where to look: state (R, H) → the gated context, and how it was found."""
        states = hidden.unflatten(0, (len(places.values), -1))  # (B, W, H)
        context, weights = self.cross(states, places)  # (B, W, D), (B, W, S)
        context, log_prob = self.pick(context, weights, places.values) if self.training else (context, None)
        gated = torch.sigmoid(self.gate(hidden)) * context.flatten(0, 1)  # (R, D)
        return Attended(gated, weights.flatten(0, 1), None if log_prob is None else log_prob.flatten())

    def update(self, inputs: Tensor, context: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """The next state and cell, from the last word's input product (R, 4H), the context and those before: (R, H)."""
        return self.cell(inputs + self.context(context), hidden, cell)

    def predict(self, hidden: Tensor, context: Tensor, x: Tensor) -> Tensor:
        """Input of the output layer, equation 7, from state, context and last word (..., E): (..., E)."""
        return x + self.state_readout(hidden) + self.context_readout(context)


class Captioner(nn.Module):
    """Image encoder and LSTM; `forward` returns logits, `start` and `step` decode one word at a time."""

    baseline: Tensor

    def __init__(self, config: CaptionerConfig):
        super().__init__()
        self.config = c = config
        self.max_len = math.inf
        self.encoder = ImageEncoder(c.encoder)
        self.embed = token_table(c.vocab, c.dim)
        self.scale = c.dim**0.5  # embeddings are small enough for a tied output layer; an LSTM wants inputs of about one
        self.decoder = Decoder(c, self.encoder.width)
        self.output = Linear(c.dim, c.vocab)
        nn.init.zeros_(self.output.bias)
        if c.tied:
            self.output.weight = self.embed.weight
        self.dropout = Dropout(c.dropout)
        if c.attention == "hard":
            self.register_buffer("baseline", torch.zeros(()))  # mean log-likelihood of past captions, for REINFORCE

    def encode(self, image: Tensor) -> Tensor:
        """The places of each image: (B, C, height, width) → (B, S, D)."""
        return self.encoder(image)

    def start(self, image: Tensor) -> CaptionerState:
        """Read images (B, C, height, width) → the state before the first word."""
        places = self.dropout(self.encode(image))  # (B, S, D)
        return CaptionerState(*self.decoder.start(places), self.decoder.cross.keys_values(places))

    def step(self, token: Tensor, state: CaptionerState) -> tuple[Tensor, CaptionerState]:
        """The last word (R,) and the state before it → logits (R, V) of the next one and the state after it."""
        decoder, (hidden, cell, places) = self.decoder, state
        x = self.dropout(self.embed(token))  # (R, E)
        context = decoder.attend(hidden, places).context
        hidden, cell = decoder.update(decoder.cell.inputs(x * self.scale), context, hidden, cell)
        return self.output(self.dropout(decoder.predict(hidden, context, x))), CaptionerState(hidden, cell, places)

    def features(self, image: Tensor, target: Tensor) -> CaptionFeatures:
        """Input of the output layer, and where it looked: (B, C, height, width) and (R, T) → (R, T, E).

        Teacher forcing; the captions of an image follow each other.  Only attend and update are a loop.
        """
        decoder, state = self.decoder, self.start(image)
        rows = torch.arange(len(image), device=image.device).repeat_interleave(len(target) // len(image))
        hidden, cell, places = state.hidden[rows], state.cell[rows], state.places
        x = self.dropout(self.embed(target))  # (R, T, E)
        hiddens, looks = list[Tensor](), list[Attended]()
        for inputs in decoder.cell.inputs(x * self.scale).unbind(1):  # (R, 4H)
            look = decoder.attend(hidden, places)
            hidden, cell = decoder.update(inputs, look.context, hidden, cell)
            hiddens.append(hidden)
            looks.append(look)
        contexts = torch.stack([look.context for look in looks], 1)  # (R, T, D)
        weights = torch.stack([look.weights for look in looks], 1)  # (R, T, S)
        sampled = [look.log_prob for look in looks if look.log_prob is not None]
        features = self.dropout(decoder.predict(torch.stack(hiddens, 1), contexts, x))
        return CaptionFeatures(features, weights, torch.stack(sampled, 1) if sampled else None)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        """Logits of the word after each word: (B, C, height, width) and (R, T) → (R, T, V)."""
        return self.output(self.features(image, target).features)


FAMILY = Family(CaptionerConfig, SIZES, Captioner, "captioner")
