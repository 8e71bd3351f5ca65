"""A record of a search: what each step read, what it found likely, and what became of each candidate.

A token is an id while the search runs (`TraceStep[int]`), and a string for people (`TraceStep[str]`, see `in_words`).

Shapes: B sentences, W beams, V vocabulary, N candidates, t tokens so far.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

__all__ = ["Branch", "LikelyToken", "SearchTrace", "TraceBeam", "TraceStep"]

Token = TypeVar("Token", int, str)


@dataclass(frozen=True)
class LikelyToken(Generic[Token]):
    """A token that may come next, and its probability, as the model has it; `sampling` is that of drawing it, of a sample."""

    token: Token
    probability: float
    sampling: float | None = None


@dataclass(frozen=True)
class TraceBeam(Generic[Token]):
    """What the decoder read for one beam, and its most likely next tokens, best first."""

    inputs: list[Token]  # the start token or the prompt, then the answer so far
    top: list[LikelyToken[Token]]
    entropy: float  # of the distribution of the next token, in nats


@dataclass(frozen=True)
class Branch(Generic[Token]):
    """A candidate of a step: a beam extended by a token."""

    parent: int  # beam of this step
    token: Token
    probability: float  # of the token, as the model has it
    score: float  # of the output with it: the sum of log-probabilities
    fate: Literal["kept", "finished", "dropped"]
    beam: int | None = None  # its beam in the next step, if kept
    sampling: float | None = None  # probability of drawing the token, if it was sampled


@dataclass(frozen=True)
class TraceStep(Generic[Token]):
    """One step of a sentence: its beams, and their extensions that were considered, best first."""

    number: int  # counted from 1
    beams: list[TraceBeam[Token]]
    branches: list[Branch[Token]]


@dataclass
class SearchTrace:
    """Collects the steps of every sentence of a search; `top` is how many likely tokens of each beam are kept."""

    top: int = 5
    sentences: dict[int, list[TraceStep[int]]] = field(default_factory=dict)

    def record(self, sentences: list[int], history: Tensor, scores: Tensor, candidates: tuple[Tensor, Tensor, Tensor],
               finished: Tensor, kept: Tensor, sampling: Tensor | None = None) -> None:  # fmt: skip
        """Add a step of some sentences, -1 for rows that are done.

        `history` (B, W, t), the scores of all tokens (B, W, V), `candidates` (scores, parents, tokens) of (B, N), which of them
        `finished` (B, N), the indices of those `kept` (B, W), in the order of the next beams, -1 for none, and of a sample the
        probabilities that it was drawn by (B, W, V).
        """
        totals, parents, tokens = candidates
        log_probs = scores.log_softmax(-1)  # changes scores of CTC and attention together only: others are normalised
        entropy = -(log_probs.exp() * log_probs.clamp_min(-1e4)).sum(-1)  # (B, W)
        likely, ids = log_probs.topk(min(self.top, log_probs.shape[-1]))  # (B, W, top)
        rows = torch.arange(len(totals), device=totals.device)[:, None]
        probabilities = log_probs[rows, parents, tokens].exp()  # (B, N)
        drawn = None if sampling is None else (sampling.gather(-1, ids), sampling[rows, parents, tokens])
        for row, sentence in enumerate(sentences):
            if sentence < 0:
                continue
            steps = self.sentences.setdefault(sentence, [])
            alive = sum(branch.fate == "kept" for branch in steps[-1].branches) if steps else 1  # beams with a history
            beams = []
            for beam, inputs in enumerate(history[row, :alive].tolist()):
                chances = drawn[0][row, beam].tolist() if drawn is not None else [None] * ids.shape[-1]
                columns = ids[row, beam].tolist(), likely[row, beam].exp().tolist(), chances
                top = [LikelyToken(*values) for values in zip(*columns, strict=True)]
                beams.append(TraceBeam(inputs, top, float(entropy[row, beam])))
            place = {index: beam for beam, index in enumerate(kept[row].tolist())}
            chances = drawn[1][row].tolist() if drawn is not None else [None] * totals.shape[-1]
            numbers = (column[row].tolist() for column in (totals, parents, tokens, probabilities, finished))
            branches = []
            for index, (total, parent, token, probability, end, chance) in enumerate(zip(*numbers, chances, strict=True)):
                if total > float("-inf"):
                    to = None if end else place.get(index)
                    fate: Literal["kept", "finished", "dropped"] = "finished" if end else "dropped" if to is None else "kept"
                    branches.append(Branch(parent, token, probability, total, fate, to, chance))
            steps.append(TraceStep(len(steps) + 1, beams, branches))

    def in_words(self, sentence: int, words: Callable[[list[int]], list[str]], penalty: float) -> list[TraceStep[str]]:
        """The steps of a sentence with strings for ids; scores of finished outputs are divided by length ** `penalty`."""
        steps = []
        for step in self.sentences[sentence]:
            beams = [
                TraceBeam(words(beam.inputs), [
                    LikelyToken(token, likely.probability, likely.sampling)
                    for token, likely in zip(words([likely.token for likely in beam.top]), beam.top, strict=True)
                ], beam.entropy)
                for beam in step.beams
            ]  # fmt: skip
            branches = [
                Branch(branch.parent, token, branch.probability,
                       branch.score / step.number**penalty if branch.fate == "finished" else branch.score,
                       branch.fate, branch.beam, branch.sampling)
                for token, branch in zip(words([branch.token for branch in step.branches]), step.branches, strict=True)
            ]  # fmt: skip
            steps.append(TraceStep(step.number, beams, branches))
        return steps
