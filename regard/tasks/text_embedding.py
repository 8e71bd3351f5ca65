"""Texts → vectors: what every text encoder can do, whatever it was trained for.

Shapes: B texts, T tokens, D width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from regard.config import Run
from regard.data.text.tokenizer import Tokenizer, to_ids
from regard.layers.masks import padding_mask

__all__ = ["Prediction", "TextEmbedder", "TextEncoder", "encoded_batches"]


class Prediction(NamedTuple):
    """A predicted word or class, and its probability."""

    text: str
    probability: float


class EncoderPredictor(Protocol):
    """A predictor with a text encoder; each of them encodes and embeds texts as `TextEmbedder` does."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def run(self) -> Run: ...
    @property
    def max_len(self) -> int: ...
    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...


class TextEncoder(Protocol):
    """What predictors of this kind ask of a model."""

    max_len: float  # context length

    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """A vector for each token: (B, T) → (B, T, D)."""


def encoded_batches(predictor: EncoderPredictor, texts: Sequence[str] | Sequence[list[int]],
                    progress: Callable[[int], None]) -> Iterator[tuple[list[int], Tensor, Tensor]]:  # fmt: skip
    """Texts, or their ids, of similar length together: their rows, tokens (B, T) and mask; too long texts are truncated."""
    special, size = predictor.tokenizer.special, predictor.run.decode.batch_size
    limit, device = predictor.max_len, next(predictor.model.parameters()).device
    ids = [row[:limit] for row in to_ids(texts, predictor.encode)]
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    for first in range(0, len(order), size):
        rows = order[first : first + size]
        lines = [[special.bos, *ids[row], special.eos] for row in rows]
        length = len(lines[-1])
        tokens = torch.tensor([line + [-1] * (length - len(line)) for line in lines], device=device)  # (B, T)
        mask = padding_mask(tokens, -1)
        yield rows, tokens.masked_fill(tokens == -1, special.pad), mask
        progress(first + len(rows))


@dataclass(frozen=True)
class TextEmbedder:
    """A text encoder with its tokenizer."""

    VERBS: ClassVar = ("embed",)  # of the command line
    INPUT: ClassVar = "text"
    HINTS: ClassVar = {
        "fill": ", or train it to predict masked words: regard train wikitext-bert init=THIS_FOLDER",
        "classify": ", or train it on classes: regard train sst2 init=THIS_FOLDER",
    }

    model: nn.Module
    tokenizer: Tokenizer
    run: Run

    @property
    def max_len(self: "EncoderPredictor") -> int:
        """The most tokens of a text, without start and end; longer ones are truncated."""
        return min(int(self.model.max_len) - 2, self.run.data.max_len)  # type: ignore[arg-type]

    def encode(self: "EncoderPredictor", texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, without start and end."""
        if isinstance(texts, str):
            raise ValueError("a list of texts is wanted, not one string; put it in brackets")
        return self.tokenizer.encode(texts)

    @torch.inference_mode()
    def embed(self: "EncoderPredictor", texts: Sequence[str] | Sequence[list[int]],
              progress: Callable[[int], None] = lambda done: None) -> Tensor:  # fmt: skip
        """A unit vector for each text, the mean of its tokens' vectors: (B, D).  Similar texts have a large inner product."""
        vectors = torch.zeros(len(texts), self.run.model.dim)
        for rows, tokens, mask in encoded_batches(self, texts, progress):
            real = mask[:, 0, 0, :, None]  # (B, T, 1)
            mean = (self.model.encode(tokens, mask) * real).sum(1) / real.sum(1)  # type: ignore[operator]
            vectors[rows] = torch.nn.functional.normalize(mean).cpu()
        return vectors
