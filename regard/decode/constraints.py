"""Lexically constrained search: phrases that must appear in an output, where the model likes them best.

Each sentence is first searched as usual.  If its output lacks a phrase, a beam search follows whose beams are divided among
outputs by how many tokens of the phrases they still lack: dynamic beam allocation, Post & Vilar 2018,
https://arxiv.org/abs/1804.06609.  So an output that has begun a phrase need not compete with those that have not.

Shapes: B sentences, W beams, V vocabulary, N candidates.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from regard.config import DecodeConfig
from regard.decode.search import Allocation, Hypothesis

__all__ = ["Constraint", "Phrase", "PhraseAllocation", "PhraseState", "PhrasesTooLong", "Required", "constrained", "contains",
           "required_phrases"]  # fmt: skip

Phrase = Sequence[int]  # token ids that follow each other
Constraint = Phrase | Sequence[Phrase]  # a phrase, or several of which one must appear
Search = Callable[[Tensor, Tensor], list[list[Hypothesis]]]  # sources (B, S) and limits (B,) → the outputs of each, best first
ConstrainedSearch = Callable[[list[int], Tensor, Tensor, int, Allocation], list[list[Hypothesis]]]  # of some rows, with a width

MIN_WIDTH = 6  # beams of a constrained search: an output with and one without each token of a phrase go on side by side
UNLIKELY = -1e4  # log-probability of a token of a phrase that the model, or a processor, rules out


class PhrasesTooLong(ValueError):
    """The phrases that an answer must contain need more tokens than it may have."""


@dataclass(frozen=True)
class Required:
    """The phrases of one sentence: for each its alternatives, of which one must appear.  No two may share a token.

    No token of `continuing` follows a phrase: it would make its last word another one.
    """

    phrases: tuple[tuple[tuple[int, ...], ...], ...]
    continuing: frozenset[int] = frozenset()

    @cached_property
    def shortest(self) -> tuple[int, ...]:
        """The fewest tokens of each phrase."""
        return tuple(min(len(alternative) for alternative in phrase) for phrase in self.phrases)

    @cached_property
    def start(self) -> "PhraseState":
        """The state of an empty output."""
        return PhraseState(frozenset(range(len(self.phrases))), ())

    def missing(self, state: "PhraseState") -> int:
        """The fewest tokens until all phrases are there."""
        total = sum(self.shortest[i] for i in state.unmet)
        saved = (self.shortest[part.phrase] - self._left(part) for part in state.partial)
        return total - max(0, *saved) if state.partial else total

    def next_tokens(self, state: "PhraseState") -> set[int]:
        """Tokens that continue a phrase or begin one."""
        continued = {self.phrases[part.phrase][part.alternative][part.read] for part in state.partial}
        return continued | {alternative[0] for i in state.unmet for alternative in self.phrases[i]}

    def advance(self, state: "PhraseState", token: int) -> "PhraseState":
        """The state after one more token.  A phrase that is complete is met, unless a longer one in progress would be lost."""
        begun = (Partial(i, n, 0) for i in state.unmet for n in range(len(self.phrases[i])))
        read = [part._replace(read=part.read + 1) for part in (*state.partial, *begun)
                if self.phrases[part.phrase][part.alternative][part.read] == token]  # fmt: skip
        going = PhraseState(state.unmet, tuple(part for part in read if self._left(part)))
        complete = {part.phrase for part in read if not self._left(part)}
        options = [PhraseState(state.unmet - {i}, (), True) for i in sorted(complete, key=lambda i: -self.shortest[i])]
        return min((*options, going), key=self.missing)

    def _left(self, part: "Partial") -> int:
        return len(self.phrases[part.phrase][part.alternative]) - part.read


class Partial(NamedTuple):
    """A phrase of which the last tokens of an output are the first `read`."""

    phrase: int
    alternative: int
    read: int


class PhraseState(NamedTuple):
    """What an output lacks: the phrases that are not met, and those among them that its last tokens begin."""

    unmet: frozenset[int]
    partial: tuple[Partial, ...]
    complete: bool = False  # the last token completed a phrase


def required_phrases(constraints: Sequence[Constraint], eos: int, continuing: frozenset[int] = frozenset()) -> Required:
    """The constraints of one sentence, checked: token ids, none of them the end token."""
    phrases = []
    for constraint in constraints:
        single = [part for part in constraint if isinstance(part, int)]
        several = [tuple(part) for part in constraint if not isinstance(part, int)]
        alternatives = tuple(several or [tuple(single)])
        if (single and several) or not all(alternatives):
            raise ValueError(f"constraint {constraint!r}; give a list of token ids, or a list of such lists")
        if any(token < 0 or token == eos for alternative in alternatives for token in alternative):
            raise ValueError(f"constraint {constraint!r}; use token ids of 0 or more, without the end token {eos}")
        phrases.append(alternatives)
    return Required(tuple(phrases), continuing)


def contains(tokens: Sequence[int], required: Required) -> bool:
    """Whether all phrases appear, without a token in common: the longest first, each at its first free place."""
    free = [True] * len(tokens)
    for phrase in sorted(required.phrases, key=lambda phrase: -min(map(len, phrase))):
        places = (
            (start, start + len(alternative))
            for alternative in phrase
            for start in range(len(tokens) - len(alternative) + 1)
            if all(free[start : start + len(alternative)])
            and tuple(tokens[start : start + len(alternative)]) == alternative
            and not required.continuing.intersection(tokens[start + len(alternative) : start + len(alternative) + 1])
        )
        if (place := next(places, None)) is None:
            return False
        free[slice(*place)] = [False] * (place[1] - place[0])
    return True


def constrained(source: Tensor, limits: Tensor, longer: Tensor, required: Sequence[Required], *, width: int, eos: int,
                decode: DecodeConfig, plain: Search, beam: ConstrainedSearch) -> list[list[Hypothesis]]:  # fmt: skip
    """Search as `plain` does; sentences whose best output lacks a phrase are searched again by `beam`, for outputs that have all.

    The second search may need more tokens: `longer` (B,) are its limits.
    """
    before, after = int(decode.forced_bos >= 0), int(decode.forced_eos >= 0)  # tokens that cannot belong to a phrase
    for of, limit in zip(required, longer.tolist(), strict=True):
        if of.phrases and (need := of.missing(of.start) + before + after) > limit:
            raise PhrasesTooLong(f"the phrases that an answer must contain need {need} tokens, and it may have {limit}; "
                                 f"leave some out, or allow more tokens")  # fmt: skip
    found = plain(source, limits)
    rows = [row for row, outputs in enumerate(found) if not contains(outputs[0].tokens, required[row])]
    found = [[output for output in outputs if contains(output.tokens, of)] for outputs, of in zip(found, required, strict=True)]
    if rows:
        part, wide = torch.tensor(rows, device=source.device), max(width, MIN_WIDTH)
        allocation = PhraseAllocation([required[row] for row in rows], (longer[part] - after).tolist(), eos, wide)
        for row, outputs in zip(rows, beam(rows, source[part], longer[part], wide, allocation), strict=True):
            found[row] = outputs[:width]
    return found


class PhraseAllocation:
    """The `search.Allocation` of a constrained beam search.

    An output may end only when it has all its phrases, and no candidate is taken that could not get them within its limit;
    so every output has them, whatever the model.
    """

    def __init__(self, required: Sequence[Required], limits: Sequence[int], eos: int, width: int):
        states = [[of.start, *[None] * (width - 1)] for of in required]
        self.lines = [_Line(*line) for line in zip(required, limits, states, strict=True)]
        self.eos, self.width = eos, width
        self.largest = max((t for of in required for phrase in of.phrases for tokens in phrase for t in tokens), default=0)
        self.after: list[list[PhraseState]] = []  # the states of the last candidates

    def extend(self, offset: Tensor, scores: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Offset (B, W) + scores (B · W, V) → scores, parents and tokens of candidates (B, N), in the order of preference."""
        vocab, width = scores.shape[-1], self.width
        if self.largest >= vocab:
            raise ValueError(f"a phrase has token {self.largest}; this model's tokens are 0 to {vocab - 1}")
        scores = scores.view(-1, width, vocab)
        totals = scores + offset[:, :, None]  # (B, W, V)
        best, index = totals.flatten(1).topk(min(2 * width, width * vocab))
        own, own_token = totals.max(-1)  # (B, W)
        chosen = []
        for n, line in enumerate(self.lines):
            # The best extensions of all beams, the best of each beam, and all that bring a phrase forward.
            keys = [*(divmod(i, vocab) for i in index[n].tolist()), *enumerate(own_token[n].tolist())]
            found = dict(zip(keys, best[n].tolist() + own[n].tolist(), strict=True))
            alive = [(beam, state) for beam, state in enumerate(line.states) if state is not None]
            wanted = [(beam, token) for beam, state in alive for token in line.required.next_tokens(state)]
            ruled_out: dict[tuple[int, int], float] = {}
            if wanted:
                beams, tokens = torch.tensor(wanted, device=totals.device).T
                values = scores[n, beams, tokens].clamp(min=UNLIKELY) + offset[n, beams]
                for key, total, out in zip(wanted, values.tolist(), totals[n, beams, tokens].isinf().tolist(), strict=True):
                    (ruled_out if out else found)[key] = total
            candidates = self._divide_beams(line, found, length) or self._divide_beams(line, found | ruled_out, length, True)
            chosen.append(candidates[: 2 * width])
        self.after = [[candidate.state for candidate in candidates] for candidates in chosen]
        return self._to_tensors(chosen, offset)

    def _divide_beams(self, line: "_Line", found: dict[tuple[int, int], float], length: int,
                      glue: bool = False) -> list["_Candidate"]:  # fmt: skip
        """Candidates from the banks in turn, of which the first lacks the fewest tokens; the best of each bank first.

        `glue` takes tokens that continue the last word of a phrase, too.
        """
        banks: dict[int, list[_Candidate]] = {}
        for (beam, token), total in sorted(found.items(), key=lambda item: -item[1]):
            state = line.states[beam]
            if state is None or not math.isfinite(total) or (token == self.eos and state.unmet):
                continue
            if state.complete and not glue and token in line.required.continuing:
                continue
            after = state if token == self.eos else line.required.advance(state, token)
            missing = line.required.missing(after)
            if length + missing <= line.limit or not state.unmet:
                banks.setdefault(missing, []).append(_Candidate(total, beam, token, after))
        ordered = [banks[missing] for missing in sorted(banks)]
        return [bank[n] for n in range(2 * self.width) for bank in ordered if n < len(bank)]

    def _to_tensors(self, chosen: Sequence[Sequence["_Candidate"]], offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = max(self.width, *map(len, chosen))
        best = offset.new_full((len(chosen), count), -math.inf)
        parent = torch.zeros_like(best, dtype=torch.long)
        token = torch.zeros_like(parent)
        for n, candidates in enumerate(chosen):
            for k, candidate in enumerate(candidates):
                best[n, k], parent[n, k], token[n, k] = candidate[:3]
        return best, parent, token

    def keep(self, stay: Tensor, kept: Tensor) -> None:
        """Continue with lines `stay` and of these with candidates `kept` (B, W), -1 for none."""
        lines, after = [self.lines[n] for n in stay.tolist()], [self.after[n] for n in stay.tolist()]
        self.lines = [
            line._replace(states=[states[k] if k >= 0 else None for k in of])
            for line, states, of in zip(lines, after, kept.tolist(), strict=True)
        ]


class _Line(NamedTuple):
    """A sentence of a constrained search: its phrases, its limit, and what each of its beams lacks; None: no such beam."""

    required: Required
    limit: int
    states: Sequence[PhraseState | None]


class _Candidate(NamedTuple):
    total: float
    beam: int
    token: int
    state: PhraseState
