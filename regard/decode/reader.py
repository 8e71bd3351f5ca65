"""Text in, and what a model that reads both ways makes of it: hidden words, a class, a vector.

Shapes: B texts, T tokens, D width, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from regard.config import Run
from regard.data.text.tokenizer import Tokenizer
from regard.layers.masks import padding_mask

__all__ = ["UNTRAINED", "Filled", "Guess", "Reader"]

UNTRAINED = (
    "this model was not trained to guess hidden words; use one that was, or train it: "
    "regard train wikitext-bert init=THIS_FOLDER"
)
MASK = "[MASK]"  # what stands for a hidden word in a user's text, whatever the tokenizer calls it


class Guess(NamedTuple):
    """One of the likeliest words or classes, and its probability."""

    text: str
    probability: float


class Filled(NamedTuple):
    """A text with its hidden words filled in, and the likeliest words for each of them, best first."""

    text: str
    guesses: list[list[Guess]]


@dataclass(frozen=True)
class Reader:
    """An encoder with its tokenizer, the run it comes from, and the names of the classes it knows."""

    VERBS: ClassVar = ("fill", "classify", "embed")  # of the command line, that take it

    model: Any
    tokenizer: Tokenizer
    run: Run
    labels: tuple[str, ...] = ()

    @property
    def max_len(self) -> int:
        """The most tokens of a text, start and end not counted."""
        return min(int(self.model.max_len) - 2, self.run.data.max_len)

    @torch.inference_mode()
    def fill(self, text: str, top: int = 5) -> Filled:
        """Guess each word hidden behind [MASK], from all the others."""
        if not isinstance(text, str):
            raise ValueError("one text is wanted, not a list; call fill for each")
        special = self.tokenizer.special
        if special.mask is None:
            raise ValueError("this model's tokenizer has no mask token; it was not trained to guess hidden words")
        if self.run.task == "class" or "lm_head" in self.run.untrained:
            raise ValueError(UNTRAINED)
        if MASK not in text:
            raise ValueError(f"no {MASK} in {text[:60]!r}; write {MASK} where a word is to be guessed")
        [name] = self.tokenizer.tokens([special.mask])
        [ids] = self.tokenizer.encode([text.replace(MASK, name)], parse_special=True)
        if len(ids) > self.max_len:
            raise ValueError(f"the text has {len(ids):,} tokens; this model takes at most {self.max_len:,}: shorten it")
        tokens = torch.tensor([[special.bos, *ids, special.eos]], device=self._device)
        [hidden] = (tokens == special.mask).nonzero()[:, 1:].unbind(1)
        if not len(hidden):
            raise ValueError(
                f"this model's tokenizer has {name} among its words, not as a mark; flag it as special in tokenizer.json"
            )
        logits = self.model.lm_head(self.model.encode(tokens)[0, hidden])  # (n, V)
        logits[:, list(self.tokenizer.special_ids)] = -torch.inf  # words, not marks
        odds, best = logits.softmax(-1).topk(min(top, logits.shape[-1]))
        for place, word in zip(hidden.tolist(), best[:, 0].tolist(), strict=True):
            ids[place - 1] = word
        guesses = [
            [Guess(self.tokenizer.decode([word]).strip(), p) for word, p in zip(words, ps, strict=True)]
            for words, ps in zip(best.tolist(), odds.tolist(), strict=True)
        ]
        return Filled(self.tokenizer.decode(ids), guesses)

    @torch.inference_mode()
    def classify(
        self,
        texts: Sequence[str] | Sequence[list[int]],
        top: int = 1,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[list[Guess]]:
        """The most likely classes of each text, given as text or as token ids, best first."""
        if not self.labels:
            raise ValueError("this model has learnt no classes; train it on some: regard train sst2 init=THIS_FOLDER")
        found: list[list[Guess]] = [[] for _ in texts]
        for rows, tokens, mask in self._batches(texts, progress):
            odds, best = self.model.classify(tokens, mask).softmax(-1).topk(min(top, len(self.labels)))
            for row, ps, numbers in zip(rows, odds.tolist(), best.tolist(), strict=True):
                found[row] = [Guess(self.labels[n], p) for n, p in zip(numbers, ps, strict=True)]
        return found

    @torch.inference_mode()
    def embed(
        self, texts: Sequence[str] | Sequence[list[int]], progress: Callable[[int], None] = lambda done: None
    ) -> Tensor:
        """A vector of length 1 for each text, the mean of its tokens': (B, D).  Texts alike have a large inner product."""
        vectors = torch.zeros(len(texts), self.model.config.dim)
        for rows, tokens, mask in self._batches(texts, progress):
            real = mask[:, 0, 0, :, None]  # (B, T, 1)
            mean = (self.model.encode(tokens, mask) * real).sum(1) / real.sum(1)
            vectors[rows] = torch.nn.functional.normalize(mean).cpu()
        return vectors

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _batches(
        self, texts: Sequence[str] | Sequence[list[int]], progress: Callable[[int], None]
    ) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Texts of similar length together: their rows, their tokens (B, T) and the mask of what is not padding."""
        if isinstance(texts, str):
            raise ValueError("a list of texts is wanted, not one string; put it in brackets")
        special, size = self.tokenizer.special, self.run.decode.batch_size
        encoded = bool(texts) and not isinstance(texts[0], str)
        ids = cast(Sequence[list[int]], texts) if encoded else self.tokenizer.encode(cast(Sequence[str], texts))
        sources = [tokens[: self.max_len] for tokens in ids]
        order = sorted(range(len(sources)), key=lambda row: len(sources[row]))
        for first in range(0, len(order), size):
            rows = order[first : first + size]
            max_len = len(sources[rows[-1]]) + 2
            lines = [[special.bos, *sources[row], special.eos] for row in rows]
            tokens = torch.tensor(
                [line + [-1] * (max_len - len(line)) for line in lines], device=self._device
            )  # (B, T)
            mask = padding_mask(tokens, -1)
            yield rows, tokens.masked_fill(tokens == -1, special.pad), mask
            progress(first + len(rows))
