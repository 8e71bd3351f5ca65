"""Text in, text out: a trained run that translates, or answers."""

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, ClassVar, cast

import torch

from regard.config import Run
from regard.data.text.batches import pad
from regard.data.text.dataset import task_prefixes
from regard.data.text.tokenizer import Tokenizer
from regard.decode import search
from regard.decode.search import Hypothesis
from regard.decode.workers import map_in_threads
from regard.layers.attention import Attention

__all__ = ["Sampling", "Translation", "Translator"]

SHARE = 4  # sentences that make a thread worth its while
MOST = 8  # threads: each holds a batch of its own


@dataclass(frozen=True)
class Translation:
    """One answer: its text, tokens, ids and score, and the n best answers, itself first."""

    text: str
    tokens: list[str]
    ids: list[int]
    score: float | None  # log-probability / length ** penalty; of a greedy answer or a sample only if asked for
    n_best: list["Translation"] = field(default_factory=list)


@dataclass(frozen=True)
class Sampling:
    """How to draw an answer instead of searching for the best."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Translator:
    """A model with its tokenizer and the run it comes from."""

    VERBS: ClassVar = ("translate", "ask")  # of the command line, that take it

    model: Any
    tokenizer: Tokenizer
    run: Run

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What names the tasks this model was trained on, if it was trained on several."""
        return task_prefixes(self.run.data)

    def translate(
        self,
        texts: Sequence[str] | Sequence[list[int]],
        *,
        beam: int | None = None,
        n_best: int = 1,
        length_penalty: float | None = None,
        tokens: int | None = None,
        batch: int | None = None,
        temperature: float | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        scored: bool = False,
        first: int = 1,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Translation]:
        """Translate sentences, given as text or as the ids that `encode` returns.

        `beam` 1 is greedy; a `temperature` samples instead.  Other defaults are the run's.  A greedy answer or a sample has a
        score only if `scored`, which takes time.  An empty sentence stays empty; one too long is refused by its number, counted
        from `first`.  An answer has at most `tokens` tokens, see `limit`.  `progress` is called with the number done.
        """
        width = self.run.decode.beam_size if beam is None else beam
        size = self.run.decode.batch_size if batch is None else batch
        penalty = self.run.decode.length_penalty if length_penalty is None else length_penalty
        if temperature is not None and beam is not None and beam > 1:
            raise ValueError(
                f"beam {beam} and temperature {temperature}; search with a beam or draw with a temperature"
            )
        _check_options(width, n_best, size, penalty, temperature, top_k, top_p, seed)
        if tokens is not None and tokens < 1:
            raise ValueError(f"answers of {tokens} tokens; ask for 1 or more")
        encoded = bool(texts) and not isinstance(texts[0], str)
        sources = cast(Sequence[list[int]], texts) if encoded else self.encode(cast(Sequence[str], texts))
        for number, ids in enumerate(sources, first):
            self.require_short(ids, number)
        sampling = None if temperature is None else Sampling(temperature, top_k, top_p, seed)
        answers = self.search(sources, beam=1 if sampling else width, batch=size, penalty=penalty, scored=scored,
                              tokens=tokens, sampling=sampling, progress=progress)  # fmt: skip
        found = []
        for hypotheses in answers:
            best = [
                Translation(self._spell(h.tokens), self.tokenizer.tokens(h.tokens), h.tokens, h.score)
                for h in hypotheses[:n_best]
            ]
            found.append(replace(best[0], n_best=best))
        return found

    def _spell(self, ids: list[int]) -> str:
        """The text of an answer; of one that fills gaps, with the names of the gaps."""
        if self.run.task != "spans":
            return self.tokenizer.decode(ids)
        gaps = {number: f"<extra_id_{n}>" for n, number in enumerate(self.tokenizer.special.sentinels)}
        runs = ((gap, list(part)) for gap, part in groupby(ids, key=lambda number: gaps.get(number, "")))
        return " ".join(gap or self.tokenizer.decode(part) for gap, part in runs)

    def search(
        self,
        sources: Sequence[list[int]],
        *,
        beam: int,
        batch: int,
        penalty: float,
        scored: bool = False,
        tokens: int | None = None,
        sampling: "Sampling | None" = None,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[list[Hypothesis]]:
        """Token numbers in, token numbers out: the answers to each sentence, best first, in the order of the sentences."""
        device = next(self.model.parameters()).device
        special = self.tokenizer.special
        how: dict[str, Any] = {"bos": special.bos, "eos": special.eos, "penalty": penalty}

        draws = torch.Generator(device).manual_seed(sampling.seed if sampling else 0)

        def answer(rows: list[int]) -> list[list[Hypothesis]]:
            source = pad([sources[row] for row in rows], special).to(device)
            limits = torch.tensor([self.limit(len(sources[row]), tokens) for row in rows], device=device)
            if sampling is not None:
                drawn = search.sample(self.model, source, limits, **how, scored=scored, generator=draws,
                                      temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)  # fmt: skip
                return [[one] for one in drawn]
            if beam == 1:
                return [[one] for one in search.greedy(self.model, source, limits, **how, scored=scored)]
            return search.beam(self.model, source, limits, width=beam, **how)

        nothing = Hypothesis([], 0.0 if scored or (beam > 1 and sampling is None) else None)
        found = [[nothing] for _ in sources]
        order = sorted((row for row, ids in enumerate(sources) if ids), key=lambda row: -len(sources[row]))
        workers = 1 if sampling else self._workers(len(order))  # draws come from one line of numbers
        size = max(1, min(batch, -(-len(order) // workers)))
        done = 0
        jobs = [order[start : start + size] for start in range(0, len(order), size)]
        with closing(map_in_threads(answer, jobs, workers)) as shared:  # also if `progress` is interrupted
            for rows, answers in shared:
                for row, hypotheses in zip(rows, answers, strict=True):
                    found[row] = hypotheses
                done += len(rows)
                progress(done)
        return found

    def _workers(self, sentences: int) -> int:
        """How many threads are worth their while: each with a core of its own, and some sentences."""
        workers = max(1, min(torch.get_num_threads(), MOST, sentences // SHARE))
        if workers == 1 or next(self.model.parameters()).device.type != "cpu":
            return 1
        watched = any(part.tap for part in self.model.modules() if isinstance(part, Attention))
        return 1 if watched else workers  # one who watches sees the steps in their order

    @property
    def max_len(self) -> int:
        """The most tokens a sentence may have."""
        return int(min(self.run.data.max_len, self.model.max_len - 1))

    def require_short(self, ids: Sequence[int], number: int) -> None:
        """Refuse a sentence that is longer than the model takes, by its number."""
        if len(ids) > self.max_len:
            raise ValueError(
                f"sentence {number} has {len(ids):,} tokens; "
                f"this model takes at most {self.max_len}: split it into sentences"
            )

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers, without an end; a sentinel such as <extra_id_0> stands for itself, if the model knows any."""
        if isinstance(texts, str):
            raise ValueError("translate wants a list of sentences, not one string; put it in brackets")
        numbers = self.tokenizer.special.sentinels
        known = dict(zip(self.tokenizer.tokens(numbers), numbers, strict=True))
        pieces = [re.split(r"(<extra_id_\d+>)", text) if known else [text] for text in texts]
        flat = iter(self.tokenizer.encode([piece for text in pieces for piece in text]))
        return [[number for piece in text for number in _or(known, piece, next(flat))] for text in pieces]

    def limit(self, source: int, wanted: int | None = None) -> int:
        """The most tokens an answer may have: as many as wanted, else so many that only a repetition meets it."""
        return int(min(2 * source + 20 if wanted is None else wanted, self.model.max_len))


def _or(known: dict[str, int], piece: str, ids: list[int]) -> list[int]:
    return [known[piece]] if piece in known else ids


def _check_options(
    width: int, n_best: int, batch: int, penalty: float, temperature: float | None, top_k: int, top_p: float, seed: int
) -> None:
    """Refuse what cannot be done, and what would do nothing."""
    if width < 1 or not 1 <= n_best <= width:
        raise ValueError(f"beam {width} and n_best {n_best}; use a beam of 1 or more, and an n_best from 1 to the beam")
    if batch < 1:
        raise ValueError(f"batch {batch}; use 1 or more sentences at once")
    if not -10 <= penalty <= 10:
        raise ValueError(f"length_penalty {penalty}; use -10 to 10")
    if temperature is None and (top_k or top_p != 1):
        raise ValueError("top_k and top_p choose what to draw from; give a temperature too, such as 1.0")
    if temperature is not None and n_best > 1:
        raise ValueError(
            f"n_best {n_best} with a temperature; a sample is one translation, draw others with other seeds"
        )
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed {seed}; use 0 or more and less than 2 ** 63")
