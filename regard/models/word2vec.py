"""word2vec: one vector per word, such that a word's vector predicts the words around it (skip-gram with negative sampling).

Mikolov et al. 2013, https://arxiv.org/abs/1310.4546

    word ── input vector ─┐
                          ├─ inner product ─ sigmoid ─ is this word near that one?
   other ─ output vector ─┘

Equation 4: log σ(v'ₒ · v) for each pair in the text, and log σ(-v'ₙ · v) for `negatives` random words n.  The input vectors are
the result.

Shapes: C centres, K other words, D width; `...` is any batch dimensions.
"""

from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model

__all__ = ["FAMILY", "SIZES", "Word2Vec", "Word2VecConfig"]


@dataclass(frozen=True, config=STRICT)
class Word2VecConfig:
    """The defaults are those of the authors' program."""

    vocab: int = 30_000
    dim: int = 100
    window: int = 5  # farthest context word on either side; the reach of each window is drawn from 1 to this
    negatives: int = 5  # for each pair
    sample: float = 1e-3  # words more frequent than this are dropped from the text at random; 0 = none

    def __post_init__(self) -> None:
        check_model(self)


SIZES = {"base": Word2VecConfig(), "large": Word2VecConfig(vocab=692_000, dim=300, sample=1e-5)}  # large: section 3


class Word2Vec(nn.Module):
    """`forward` returns scores; the two tables are used by their names."""

    def __init__(self, config: Word2VecConfig):
        super().__init__()
        self.config = c = config
        self.input, self.output = nn.Embedding(c.vocab, c.dim), nn.Embedding(c.vocab, c.dim)
        nn.init.uniform_(self.input.weight, -0.5 / c.dim, 0.5 / c.dim)
        nn.init.zeros_(self.output.weight)

    def forward(self, centres: Tensor, others: Tensor) -> Tensor:
        """The logit that each other word is in the context of each centre: (..., C), (..., K) → (..., C, K)."""
        return self.input(centres) @ self.output(others).mT


FAMILY = Family(Word2VecConfig, SIZES, Word2Vec, "word-vectors")
