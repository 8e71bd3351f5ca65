"""A record of a search: what each step read, what it found likely, and what became of each candidate.

Shapes: B sentences, W beams, V vocabulary, N candidates, t tokens so far.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Branch", "LikelyToken", "SearchTrace", "TraceBeam", "TraceStep"]


@dataclass(frozen=True)
class LikelyToken:
    """A token that may come next, and its probability, as the model has it."""

    token: int
    probability: float


@dataclass(frozen=True)
class TraceBeam:
    """What the decoder read for one beam, and its most likely next tokens, best first."""

    inputs: list[int]  # the start token or the prompt, then the answer so far
    top: list[LikelyToken]


@dataclass(frozen=True)
class Branch:
    """A candidate of a step: a beam extended by a token."""

    parent: int  # beam of this step
    token: int
    probability: float  # of the token
    score: float  # of the output with it: the sum of log-probabilities
    fate: Literal["kept", "finished", "dropped"]
    beam: int | None = None  # its beam in the next step, if kept


@dataclass(frozen=True)
class TraceStep:
    """One step of a sentence: its beams, and their extensions that were considered, best first."""

    number: int  # counted from 1
    beams: list[TraceBeam]
    branches: list[Branch]


@dataclass
class SearchTrace:
    """Collects the steps of every sentence of a search; `top` is how many likely tokens of each beam are kept."""

    top: int = 5
    sentences: dict[int, list[TraceStep]] = field(default_factory=dict)

    def record(self, sentences: list[int], history: Tensor, log_probs: Tensor, candidates: tuple[Tensor, Tensor, Tensor],
               finished: Tensor, kept: Tensor) -> None:  # fmt: skip
        """Add a step of some sentences, -1 for rows that are done.

        `history` (B, W, t), log-probabilities (B, W, V), `candidates` (scores, parents, tokens) of (B, N), which of them
        `finished` (B, N), and the indices of those `kept` (B, W), in the order of the next beams, -1 for none.
        """
        scores, parents, tokens = candidates
        likely, ids = log_probs.topk(min(self.top, log_probs.shape[-1]))  # (B, W, top)
        rows = torch.arange(len(scores), device=scores.device)[:, None]
        probabilities = log_probs[rows, parents, tokens].exp()  # (B, N)
        for row, sentence in enumerate(sentences):
            if sentence < 0:
                continue
            steps = self.sentences.setdefault(sentence, [])
            alive = sum(branch.fate == "kept" for branch in steps[-1].branches) if steps else 1  # beams with a history
            beams = [
                TraceBeam(inputs, [LikelyToken(*pair) for pair in zip(words, chances, strict=True)])
                for inputs, words, chances in zip(
                    history[row].tolist(), ids[row].tolist(), likely[row].exp().tolist(), strict=True
                )
            ]
            place = {index: beam for beam, index in enumerate(kept[row].tolist())}
            columns = (scores[row], parents[row], tokens[row], probabilities[row], finished[row])
            branches = []
            for index, (score, parent, token, chance, end) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
                if score > float("-inf"):
                    beam = None if end else place.get(index)
                    fate: Literal["kept", "finished", "dropped"] = "finished" if end else "dropped" if beam is None else "kept"
                    branches.append(Branch(parent, token, chance, score, fate, beam))
            steps.append(TraceStep(len(steps) + 1, beams[:alive], branches))
