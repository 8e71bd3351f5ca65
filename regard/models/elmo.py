"""ELMo: a forward and a backward LSTM language model whose layers together are contextual word vectors.

Peters et al. 2018, https://arxiv.org/abs/1802.05365

       contextual vector of each word
    γ Σ softmax(w)_j · norm(layer_j)  ScalarMix
       ├──────────────┐
     next           previous word     one output layer for both
       │              │
     LSTM →         ← LSTM            × depth, the input of each layer but the first is added to its output
       └──────┬───────┘
            word                      a character CNN, or an embedding

Shapes: B batch, T words, C characters of a word, D width of a vector, which is two directions of D / 2, N filters, V vocabulary,
L layers with the words themselves.
"""

import math
import warnings
from dataclasses import field
from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model, require_min
from regard.data.text.characters import ALPHABET
from regard.layers.dropout import Dropout
from regard.layers.recurrent import reversing_index

__all__ = ["FAMILY", "SIZES", "CharacterCNN", "ELMo", "ELMoConfig", "LSTMStack", "ScalarMix"]

# torch says it for every LSTM with a projection on a CPU; there is nothing a user could do about it
warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")


@dataclass(frozen=True, config=STRICT)
class ELMoConfig:
    """The defaults are the model of the paper, section 3.4."""

    vocab: int = 793_471
    inputs: Literal["characters", "tokens"] = "characters"  # a word is read as its characters, or has a vector of its own
    dim: int = 1024  # width of a vector: half of it from each direction
    cells: int = 4096  # of each LSTM; more than dim / 2 are projected to dim / 2 at every step
    depth: int = 2
    characters: int = 50  # most characters of a word, with its start and end; the rest of a longer word is not read
    character_dim: int = 16
    filters: list[int] = field(default_factory=lambda: [32, 32, 64, 128, 256, 512, 1024])  # of 1, 2, 3, … characters
    highways: int = 2  # highway layers after the filters
    output_vocab: int = 0  # most tokens to predict: the first of the vocabulary, the others as unknown; 0 = all
    dropout: float = 0.1  # on the input of each layer, and of the output layer

    def __post_init__(self) -> None:
        check_model(self, zero=("output_vocab", "highways"))
        require_min(3, characters=self.characters)
        if self.dim % 2:
            raise ValueError(f"dim is {self.dim}; use an even number: half of a vector is from each direction")
        if self.cells < self.dim // 2:
            raise ValueError(f"cells is {self.cells}, less than half of dim, {self.dim // 2}, which an LSTM gives; use more")
        if not self.filters or min(self.filters) < 1:
            raise ValueError(f"filters is {self.filters}; give the number of filters of 1, 2, 3, … characters, each 1 or more")
        if len(self.filters) > self.characters:
            raise ValueError(f"filters of up to {len(self.filters)} characters, words of {self.characters}; use fewer filters")


SIZES = {  # base, medium and small: the released models; mini: for one CPU core
    "base": ELMoConfig(), "medium": ELMoConfig(dim=512, cells=2048, highways=1),
    "small": ELMoConfig(dim=256, cells=1024, highways=1),
    "mini": ELMoConfig(output_vocab=5000, dim=256, cells=128, characters=18, filters=[32, 32, 64, 128], highways=1),
}  # fmt: skip


class Highway(nn.Module):
    """A gate g mixes a layer with its input: g · relu(W x + b) + (1 - g) · x, https://arxiv.org/abs/1505.00387."""

    def __init__(self, dim: int):
        super().__init__()
        self.layer, self.gate = nn.Linear(dim, dim), nn.Linear(dim, dim)
        nn.init.constant_(self.gate.bias, -2.0)  # mostly the input at first

    def forward(self, x: Tensor) -> Tensor:
        """(..., N) → (..., N)."""
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.layer(x)) + (1 - gate) * x


class CharacterCNN(nn.Module):
    """A word from its characters: the maximum of each filter over the word, highway layers, a projection."""

    def __init__(self, c: ELMoConfig):
        super().__init__()
        total = sum(c.filters)
        self.characters = nn.Embedding(ALPHABET, c.character_dim)
        self.filters = nn.ModuleList(nn.Conv1d(c.character_dim, n, width) for width, n in enumerate(c.filters, 1))
        self.highways = nn.Sequential(*(Highway(total) for _ in range(c.highways)))
        self.project = nn.Linear(total, c.dim // 2)

    def forward(self, characters: Tensor) -> Tensor:
        """(B, T, C) → (B, T, D / 2)."""
        x = self.characters(characters.flatten(0, 1)).transpose(1, 2)  # (B · T, E, C)
        best = torch.cat([torch.relu(conv(x).amax(-1)) for conv in self.filters], -1)  # (B · T, N)
        return self.project(self.highways(best)).unflatten(0, characters.shape[:2])


class LSTMStack(nn.Module):
    """The LSTMs of one direction, one on top of the other."""

    def __init__(self, c: ELMoConfig):
        super().__init__()
        dim = c.dim // 2
        projected = dim if c.cells > dim else 0
        lstms = (nn.LSTM(dim, c.cells, batch_first=True, proj_size=projected) for _ in range(c.depth))
        self.lstms, self.dropout = nn.ModuleList(lstms), Dropout(c.dropout)

    def forward(self, x: Tensor) -> list[Tensor]:
        """The states of each layer, from the first word on: (B, T, D / 2) → depth times (B, T, D / 2)."""
        first, *others = self.lstms
        layers = [first(self.dropout(x))[0]]
        for lstm in others:
            layers.append(layers[-1] + lstm(self.dropout(layers[-1]))[0])
        return layers


class ScalarMix(nn.Module):
    """Equation 1: γ Σ softmax(w)_j · layer_j.

    A language model does not train w and γ; a model that reads the vectors does.  Until then all layers weigh the same.
    """

    def __init__(self, layers: int):
        super().__init__()
        self.weights, self.gamma = nn.Parameter(torch.zeros(layers)), nn.Parameter(torch.ones(()))

    def forward(self, layers: Tensor) -> Tensor:
        """(L, ...) → (...)."""
        return self.gamma * torch.tensordot(self.weights.softmax(0), layers, 1)


class ELMo(nn.Module):
    """`forward` returns the logits of the next and of the previous word, `encode` the contextual vectors.

    Words are token ids (B, T), or with `inputs = "characters"` character ids (B, T, C), see `data/text/characters.py`.
    """

    max_len = math.inf  # an LSTM reads texts of any length

    def __init__(self, config: ELMoConfig):
        super().__init__()
        self.config = c = config
        by_character = c.inputs == "characters"
        self.word_shape = (c.characters,) if by_character else ()  # of one word of the input
        self.inputs = CharacterCNN(c) if by_character else nn.Embedding(c.vocab, c.dim // 2)
        self.forward_lstms, self.backward_lstms = LSTMStack(c), LSTMStack(c)
        self.norm, self.mix = nn.LayerNorm(c.dim, elementwise_affine=False), ScalarMix(c.depth + 1)
        self.dropout = Dropout(c.dropout)
        self.output = nn.Linear(c.dim // 2, min(c.output_vocab or c.vocab, c.vocab))

    def _directions(self, words: Tensor, mask: Tensor | None) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The words, and the states of each layer of both directions, all (B, T, D / 2)."""
        x = self.inputs(words)  # (B, T, D / 2)
        batch, length = words.shape[:2]
        lengths = torch.full((batch,), length, device=x.device) if mask is None else mask[:, 0, 0].sum(1)  # (B,)
        index = reversing_index(lengths, length)[..., None].expand_as(x)
        backward = self.backward_lstms(x.gather(1, index))
        return x, self.forward_lstms(x), [states.gather(1, index) for states in backward]

    def features(self, words: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What the output layer reads to predict the next word, and the previous one: twice (B, T, D / 2)."""
        _, forward, backward = self._directions(words, mask)
        return self.dropout(forward[-1]), self.dropout(backward[-1])

    def forward(self, words: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits of the next word and of the previous word at each position: twice (B, T, V)."""
        following, preceding = self.features(words, mask)
        return self.output(following), self.output(preceding)

    def layers(self, words: Tensor, mask: Tensor | None = None) -> Tensor:
        """The vectors of each layer, the first that of the word itself, twice: (L, B, T, D)."""
        x, forward, backward = self._directions(words, mask)
        return torch.stack([torch.cat(pair, -1) for pair in zip((x, *forward), (x, *backward), strict=True)])

    def encode(self, words: Tensor, mask: Tensor | None = None) -> Tensor:
        """A contextual vector for each word: (B, T, D).  `mask` (B, 1, 1, T) marks real words; None = all.

        Layers are normalized before they are mixed, section 3.2: else the words themselves, several times as large as the
        states of the LSTMs, would outweigh their context.
        """
        return self.mix(self.norm(self.layers(words, mask)))


FAMILY = Family(ELMoConfig, SIZES, ELMo, "bidirectional-lm")
