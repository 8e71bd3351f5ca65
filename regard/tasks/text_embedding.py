"""Texts → vectors: what every text encoder can do, whatever it was trained for.

Shapes: B texts, T tokens, D width, N occurrences of a word, C characters of a word.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from regard.config import Run
from regard.data.text.characters import SpecialCharacterIds
from regard.data.text.tokenizer import SpecialTokens, Tokenizer, to_ids
from regard.tasks.origin import predictor_repr

__all__ = ["Occurrence", "Prediction", "TextEmbedder", "TextEncoder", "WordOccurrences", "encoded_batches", "find_word",
           "require_list", "require_top"]  # fmt: skip


class Prediction(NamedTuple):
    """A predicted word or class, and its probability."""

    text: str
    probability: float


def require_top(top: int) -> None:
    """Refuse a number of classes that is none."""
    if not hasattr(top, "__index__") or top < 1:
        raise ValueError(f"top {top!r}; ask for 1 or more classes")


class Occurrence(NamedTuple):
    """A word in a text."""

    text: int  # index of the text
    start: int  # its first character
    end: int  # the character after its last


class WordOccurrences(NamedTuple):
    """Each occurrence of a word, and its vector."""

    occurrences: list[Occurrence]
    vectors: Tensor  # (N, D)


class TextTokenizer(Protocol):
    """What predictors of this kind ask of a tokenizer; a token is an id, or the ids of its characters."""

    @property
    def special(self) -> SpecialTokens | SpecialCharacterIds: ...
    def encode(self, lines: Sequence[str]) -> list[list[Any]]: ...
    def offsets(self, lines: Sequence[str]) -> list[list[tuple[int, int]]]: ...


class EncoderPredictor(Protocol):
    """A predictor with a text encoder; each of them encodes and embeds texts as `TextEmbedder` does."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def tokenizer(self) -> TextTokenizer: ...
    @property
    def run(self) -> Run: ...
    @property
    def max_len(self) -> float: ...
    def encode(self, texts: Sequence[str]) -> list[list[Any]]: ...
    def embed_spans(self, texts: Sequence[str], places: "Sequence[Occurrence]", progress: Callable[[int], None] = ...,
                    first: int = ...) -> Tensor: ...  # fmt: skip


class TextEncoder(Protocol):
    """What predictors of this kind ask of a model."""

    max_len: float  # context length

    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """A vector for each token: (B, T) → (B, T, D)."""


def encoded_batches(predictor: EncoderPredictor, texts: Sequence[str] | Sequence[list[int]],
                    progress: Callable[[int], None]) -> Iterator[tuple[list[int], Tensor, Tensor]]:  # fmt: skip
    """Texts, or their ids, of similar length together: their rows, tokens (B, T) or (B, T, C), and mask (B, 1, 1, T).

    Too long texts are truncated.
    """
    special, size = predictor.tokenizer.special, predictor.run.decode.batch_size
    limit, device = predictor.max_len, next(predictor.model.parameters()).device
    ids = [row if len(row) <= limit else row[: int(limit)] for row in to_ids(texts, predictor.encode)]
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    for first in range(0, len(order), size):
        rows = order[first : first + size]
        lines = [[special.bos, *ids[row], special.eos] for row in rows]
        lengths = torch.tensor([len(line) for line in lines], device=device)
        longest = len(lines[-1])
        tokens = torch.tensor([line + [special.pad] * (longest - len(line)) for line in lines], device=device)  # (B, T)
        mask = torch.arange(longest, device=device) < lengths[:, None]  # (B, T): the text may contain pad tokens itself
        yield rows, tokens, mask[:, None, None]
        progress(first + len(rows))


@dataclass(frozen=True, repr=False)
class TextEmbedder:
    """A text encoder with its tokenizer."""

    VERBS: ClassVar = ("embed",)  # of the command line
    INPUT: ClassVar = "text"
    HINTS: ClassVar = {
        "fill": ", or train it to predict masked words: regard train wikitext-bert init=THIS_FOLDER",
        "classify": ", or train it on classes: regard train sst2 init=THIS_FOLDER",
    }

    __repr__ = predictor_repr

    model: nn.Module
    tokenizer: Tokenizer
    run: Run

    @property
    def max_len(self: "EncoderPredictor") -> float:
        """The most tokens of a text, without start and end; longer ones are truncated.  Infinity if the model has no limit."""
        context = float(self.model.max_len)  # type: ignore[arg-type]
        return context if math.isinf(context) else int(min(context - 2, self.run.data.max_len))

    def encode(self: "EncoderPredictor", texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, without start and end."""
        require_list(texts)
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

    def embed_word(self: "EncoderPredictor", texts: Sequence[str], word: str,
                   progress: Callable[[int], None] = lambda done: None, first: int = 1) -> WordOccurrences:  # fmt: skip
        """A unit vector for each occurrence of a word, in its context: the mean of its tokens' vectors.

        Upper and lower case are the same word.  Error messages number the texts, from `first` on.
        """
        places = find_word(word, texts, first)
        return WordOccurrences(places, self.embed_spans(texts, places, progress, first))

    @torch.inference_mode()
    def embed_spans(self: "EncoderPredictor", texts: Sequence[str], places: Sequence[Occurrence],
                    progress: Callable[[int], None] = lambda done: None, first: int = 1) -> Tensor:  # fmt: skip
        """A unit vector for each of some places in texts, the mean of the vectors of its tokens in their context: (N, D)."""
        spans, places_of = self.tokenizer.offsets(texts), defaultdict[int, list[tuple[int, slice]]](list)
        for number, place in enumerate(places):
            tokens_of = _tokens_within(place, spans[place.text], self.max_len, f"text {first + place.text}")
            places_of[place.text].append((number, tokens_of))
        vectors = torch.zeros(len(places), self.run.model.dim)
        for rows, tokens, mask in encoded_batches(self, self.encode(texts), progress):
            states = self.model.encode(tokens, mask)[:, 1:].cpu()  # type: ignore[operator]  # (B, T, D) without the start token
            for row, text in enumerate(rows):
                for number, within in places_of[text]:
                    vectors[number] = states[row, within].mean(0)
        return torch.nn.functional.normalize(vectors)


def require_list(texts: Sequence[str] | Sequence[list[int]]) -> None:
    """Refuse one text, or none, where a list of texts is wanted."""
    if isinstance(texts, str):
        raise ValueError("a list of texts is wanted, not one string; put it in brackets")
    if not isinstance(texts, Iterable):
        raise ValueError(f"a list of texts is wanted, and got {type(texts).__name__}")


def find_word(word: str, texts: Sequence[str], first: int = 1) -> list[Occurrence]:
    """Every occurrence of a whole word in texts that all contain it; error messages number the texts, from `first` on."""
    require_list(texts)
    word, found = word.strip(), list[Occurrence]()
    if not word:
        raise ValueError("an empty word is in no text; give one, such as bank")
    whole = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
    for index, text in enumerate(texts):
        places = [Occurrence(index, *match.span()) for match in whole.finditer(text)]
        if not text.strip():
            raise ValueError(f"text {first + index} is empty; give a text that contains {word!r}")
        if not places:
            raise ValueError(f"text {first + index}, {text[:60]!r}, does not contain the word {word!r}; give a text that does")
        found += places
    return found


def _tokens_within(place: Occurrence, spans: Sequence[tuple[int, int]], limit: float, name: str) -> slice:
    """The tokens of an occurrence; `spans` are the characters of each token of the text."""
    inside = [index for index, (start, end) in enumerate(spans) if start < place.end and end > place.start]
    if not inside:
        raise ValueError(f"{name} has no token for its characters {place.start + 1} to {place.end}; choose another word")
    if inside[-1] >= limit:
        raise ValueError(
            f"{name} contains the word as token {inside[-1] + 1:,}; this model reads {limit:,} tokens: shorten the text"
        )
    return slice(inside[0], inside[-1] + 1)
