"""Text in, text out: a trained run that translates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard.config import Run
from regard.config import load as load_run
from regard.data.batch import pad
from regard.data.tokenizer import BOS, EOS, Tokenizer
from regard.decode import search
from regard.decode.search import Hypothesis
from regard.models import FAMILIES, load_model

__all__ = ["Translation", "Translator", "load"]


@dataclass(frozen=True)
class Translation:
    """One answer: its text, its tokens, its score, and the best others, itself first."""

    text: str
    tokens: list[str]
    score: float  # log-probability / length ** penalty
    n_best: list["Translation"] = field(default_factory=list)


@dataclass(frozen=True)
class Translator:
    """A model with its tokenizer and the run it comes from."""

    model: Any
    tokenizer: Tokenizer
    run: Run

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        n_best: int = 1,
        length_penalty: float | None = None,
        batch: int | None = None,
        temperature: float | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        first: int = 1,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Translation]:
        """Translate sentences, in their order.  `beam` 1 is greedy; a `temperature` draws samples instead.

        What is not given is as the run says.  An empty sentence stays empty; one too long is refused, by its number,
        counted from `first`.  `progress` hears how many are done.
        """
        if isinstance(texts, str):
            raise ValueError("translate wants a list of sentences, not one string; put it in brackets")
        width = self.run.decode.beam if beam is None else beam
        if width < 1 or not 1 <= n_best <= width:
            raise ValueError(
                f"beam {width} and n_best {n_best}; use a beam of 1 or more, and an n_best from 1 to the beam"
            )
        size = self.run.decode.batch if batch is None else batch
        if size < 1:
            raise ValueError(f"batch {size}; use 1 or more sentences at once")
        penalty = self.run.decode.length_penalty if length_penalty is None else length_penalty
        sources = self.tokenizer.encode(texts)
        longest = int(min(self.run.data.longest, self.model.longest - 1))
        for number, ids in enumerate(sources, first):
            if len(ids) > longest:
                raise ValueError(
                    f"sentence {number} has {len(ids):,} tokens; this model takes at most {longest}: split it into sentences"
                )
        generator = torch.Generator().manual_seed(seed)

        def answer(rows: list[int]) -> list[list[Hypothesis]]:
            device = next(self.model.parameters()).device
            source = pad([sources[row] for row in rows]).to(device)
            limits = torch.tensor([self._limit(len(sources[row])) for row in rows], device=device)
            how: dict[str, Any] = {"bos": BOS, "eos": EOS, "penalty": penalty}
            if temperature is not None:
                drawn = search.sample(
                    self.model,
                    source,
                    limits,
                    generator=generator,
                    temperature=temperature,
                    top_k=top_k,
                    top_p=top_p,
                    **how,
                )
                return [[one] for one in drawn]
            if width == 1:
                return [[one] for one in search.greedy(self.model, source, limits, **how)]
            return search.beam(self.model, source, limits, width=width, **how)

        found: list[Translation] = [Translation("", [], 0.0)] * len(sources)
        order = sorted((row for row, ids in enumerate(sources) if ids), key=lambda row: -len(sources[row]))
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            for row, hypotheses in zip(rows, answer(rows), strict=True):
                best = [
                    Translation(self.tokenizer.decode(h.tokens), self.tokenizer.tokens(h.tokens), h.score)
                    for h in hypotheses[:n_best]
                ]
                found[row] = Translation(best[0].text, best[0].tokens, best[0].score, best)
            progress(start + len(rows))
        return found

    def _limit(self, source: int) -> int:
        """The most tokens a translation may have: so long that only a model that repeats itself meets it."""
        return int(min(2 * source + 20, self.model.longest))


def load(folder: str | Path, device: str = "cpu") -> Translator:
    """Open a run folder: `regard.load("runs/multi30k").translate(["…"], beam=5)`."""
    folder = Path(folder)
    model = load_model(folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    if tokenizer.vocab != model.config.vocab:
        raise ValueError(
            f"{folder}/tokenizer.json has {tokenizer.vocab:,} tokens, the model's vocabulary {model.config.vocab:,}; "
            f"they are not of the same run: restore the tokenizer it was trained with"
        )
    return Translator(model.to(device), tokenizer, load_run(str(folder / "run.toml"), (), FAMILIES))
