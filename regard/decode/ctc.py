"""Decoding of CTC: best path, prefix beam search, forced alignment, and joint decoding with an attention decoder.

A path has one token for each frame, of which the blank stands for none; its output is the path without repetitions, then without
blanks.  The probability of an output is the sum over all its paths.  Graves et al. 2006; joint decoding: Watanabe et al. 2017,
https://arxiv.org/abs/1609.06773.

Shapes: B utterances, W beams, R = B · W rows, S frames, V vocabulary, T tokens.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.decode.fast import decoder, read_memory
from regard.decode.search import Hypothesis
from regard.decode.step import Decoder, reorder
from regard.layers.masks import length_mask
from regard.models.conformer import Conformer, Utterances

__all__ = ["JointDecoder", "PrefixScores", "PrefixState", "Span", "align", "best_path", "prefix_beam"]

NEVER = -1e6  # log-probability of a token in a padding frame; finite, so that differences are numbers
IMPOSSIBLE = -1e30  # log-probability of tokens without a path


class Span(NamedTuple):
    """A token of an alignment, and its frames: `start` to `stop` - 1."""

    token: int
    start: int
    stop: int


def best_path(log_probs: Tensor, lengths: Tensor, *, blank: int = 0) -> list[Hypothesis]:
    """The output of the most likely token of each frame: log-probabilities (B, S, V) of `lengths` (B,) frames → B outputs.

    The score is that of the one path; the output's own probability is at least as large.
    """
    best, tokens = log_probs.max(-1)  # (B, S)
    real = length_mask(lengths, tokens.shape[1])[:, 0, 0]  # (B, S)
    scores = (best * real).sum(1).tolist()
    new = torch.ones_like(real)
    new[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
    kept = real & new & (tokens != blank)
    return [Hypothesis(row[keep].tolist(), score) for row, keep, score in zip(tokens, kept, scores, strict=True)]


def prefix_beam(log_probs: Tensor, lengths: Tensor, *, width: int, blank: int = 0,
                min_prob: float = 1e-5) -> list[list[Hypothesis]]:  # fmt: skip
    """Keep the `width` most likely outputs so far at each frame, summed over their paths; best first.

    Log-probabilities (B, S, V) of `lengths` (B,) frames → at most `width` outputs of each utterance, with their
    log-probabilities.  A token less likely than `min_prob` in a frame does not extend an output there, which saves most of
    the time.  With `min_prob` 0 and a large width the search is exact.
    """
    if width < 1:
        raise ValueError(f"width {width}; use a beam of 1 or more")
    floor = math.log(min_prob) if min_prob > 0 else -math.inf
    frames = log_probs.double().cpu()
    return [_prefix_beam(row[:length], width, blank, floor) for row, length in zip(frames, lengths.tolist(), strict=True)]


def _prefix_beam(frames: Tensor, width: int, blank: int, floor: float) -> list[Hypothesis]:
    """One utterance (S, V)."""
    # Each output so far, with the log-probabilities of its paths that end in a blank, and of those that end in its last token.
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -math.inf)}
    for frame in frames:
        likely = [(token, float(frame[token])) for token in (frame > floor).nonzero()[:, 0].tolist() if token != blank]
        blank_log, extended = float(frame[blank]), dict[tuple[int, ...], list[float]]()
        for prefix, (ends_blank, ends_token) in beams.items():
            both = _log_add(ends_blank, ends_token)

            # A blank, or the last token again, leaves the output as it is.
            same = extended.setdefault(prefix, [-math.inf, -math.inf])
            same[0] = _log_add(same[0], both + blank_log)
            if prefix:
                same[1] = _log_add(same[1], ends_token + float(frame[prefix[-1]]))

            # Any other token extends it; the last token does so only after a blank.
            for token, log_prob in likely:
                longer = extended.setdefault((*prefix, token), [-math.inf, -math.inf])
                before = ends_blank if prefix and token == prefix[-1] else both
                longer[1] = _log_add(longer[1], before + log_prob)
        totals = {prefix: _log_add(*ends) for prefix, ends in extended.items()}
        best = sorted((prefix for prefix in totals if totals[prefix] > -math.inf), key=lambda prefix: -totals[prefix])
        beams = {prefix: (extended[prefix][0], extended[prefix][1]) for prefix in best[:width]}
    return [Hypothesis(list(prefix), _log_add(*ends)) for prefix, ends in beams.items()]


def _log_add(a: float, b: float) -> float:
    """log(eᵃ + eᵇ)."""
    high, low = (a, b) if a > b else (b, a)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def align(log_probs: Tensor, tokens: list[int], *, blank: int = 0) -> list[Span]:
    """The frames of each token on the most likely path (Viterbi) whose output is `tokens`: log-probabilities (S, V)."""
    repeats = sum(a == b for a, b in itertools.pairwise(tokens))
    if len(tokens) + repeats > len(log_probs):
        raise ValueError(f"{len(tokens)} tokens, {repeats} of them repeated, need {len(tokens) + repeats} frames, got "
                         f"{len(log_probs)}; shorten the transcript, or subsample less")  # fmt: skip

    # The states of a path: blank, first token, blank, second token, ..., blank.  A state follows itself, the state before it,
    # or the one two before, if that skips a blank between two different tokens.
    states = torch.full((2 * len(tokens) + 1,), blank)
    states[1::2] = torch.tensor(tokens, dtype=torch.long)
    skips = torch.zeros(len(states), dtype=torch.bool)
    skips[3::2] = states[3::2] != states[1:-2:2]
    emitted = log_probs.double().cpu()[:, states]  # (S, states)

    # Forward: the best log-probability of a path that is in each state, and how many states back it came from.
    score = torch.full((len(states) + 2,), -math.inf, dtype=torch.float64)  # after two columns for "before the first state"
    score[2:4] = emitted[0, :2]
    steps = []
    for frame in emitted[1:]:
        came = torch.stack((score[2:], score[1:-1], score[:-2].masked_fill(~skips, -math.inf)))  # (3, states)
        best, back = came.max(0)
        score[2:] = best + frame
        steps.append(back.tolist())

    # Backward: from the better of the last two states.
    state = len(states) - 1
    if tokens and score[-2] >= score[-1]:
        state -= 1
    path = [state]
    for back in reversed(steps):
        path.append(path[-1] - back[path[-1]])
    path.reverse()
    spans = []
    for i, token in enumerate(tokens):
        start = path.index(2 * i + 1)
        spans.append(Span(token, start, start + path.count(2 * i + 1)))
    return spans


class PrefixState(NamedTuple):
    """What `PrefixScores` carries from step to step, for B utterances with W beams each.

    The probability of the paths of the first n frames that give a row's tokens so far is split by the path's end.
    """

    log_probs: Tensor  # (B, S, V); the W beams of an utterance share them
    ends_blank: Tensor  # (R, S + 1): log-probabilities for n = 0, ..., S
    ends_token: Tensor  # (R, S + 1)
    total: Tensor  # (R,): log-probability of all outputs that start with the tokens so far
    last: Tensor  # (R,): the last token; -1 before the first step, -2 if there is none

    def reorder(self, rows: Tensor) -> "PrefixState":
        """Select rows: (R,), or (B, W) with the beams of one utterance in each line."""
        log_probs, beams, lines = self.log_probs, len(self.last) // len(self.log_probs), rows if rows.ndim == 2 else rows[:, None]
        utterance = lines[:, 0] // beams
        if not torch.equal(utterance, torch.arange(len(log_probs), device=rows.device)):
            log_probs = log_probs.index_select(0, utterance)
        return PrefixState(log_probs, *(part.index_select(0, rows.flatten()) for part in self[1:]))


class PrefixScores:
    """CTC as a `Decoder`: the log-probability of each next token, given the tokens before, summed over all ways to go on.

    The probability of a prefix is that of all outputs that start with it: equations 10 to 13 and Algorithm 2 of the paper.  The
    end token gets that of the output itself.  Log-probabilities (B, S, V) of `lengths` (B,) frames are the source.
    """

    normalized = True

    def __init__(self, eos: int, blank: int = 0):
        self.eos, self.blank = eos, blank

    def start(self, source: tuple[Tensor, Tensor]) -> PrefixState:
        """Before the first step: log-probabilities (B, S, V), and how many frames of each row are real (B,)."""
        log_probs, lengths = source
        padding = ~length_mask(lengths, log_probs.shape[1])[:, 0, 0]  # (B, S)
        log_probs = log_probs.double().clamp(min=NEVER).masked_fill(padding[:, :, None], NEVER)
        log_probs[:, :, self.blank].masked_fill_(padding, 0.0)  # a certain blank changes no output
        start = log_probs.new_zeros(len(log_probs), 1)
        ends_blank = torch.cat((start, log_probs[:, :, self.blank].cumsum(1)), 1)  # (B, S + 1)
        last = torch.full_like(lengths, -1)
        return PrefixState(log_probs, ends_blank, torch.full_like(ends_blank, IMPOSSIBLE), start[:, 0], last)

    def step(self, token: Tensor, state: PrefixState) -> tuple[Tensor, PrefixState]:
        """The last token (R,) and the state before it → log-probabilities (R, V) of the next one and the state after it.

        The first token is the start token, which is not part of the output.
        """
        first = state.last[0] == -1
        state = state._replace(last=state.last - 1) if first else self._extend(token, state)
        log_probs, ends_blank, ends_token, total, last = state
        beams = len(last) // len(log_probs)

        # A path goes on to another token from any of its frames: one product with the probabilities of all tokens.
        ends = torch.logaddexp(ends_blank, ends_token)  # (R, S + 1)
        high = ends[:, :-1].amax(1, keepdim=True)  # (R, 1)
        weights = (ends[:, :-1] - high).exp().unflatten(0, (-1, beams))  # (B, W, S)
        scores = (weights @ log_probs.exp()).flatten(0, 1).log() + high  # (R, V)

        # To the last token only from a blank; to the end with all frames read.
        if not first:
            again = (ends_blank[:, :-1] + self._frames_of(last, log_probs)).logsumexp(1)
            scores = scores.scatter(1, last[:, None], again[:, None])
        scores[:, self.eos] = ends[:, -1]
        scores[:, self.blank] = -math.inf
        return (scores - total[:, None]).masked_fill_(scores < NEVER / 2, -math.inf), state

    def _extend(self, token: Tensor, state: PrefixState) -> PrefixState:
        """Append a token to each row."""
        log_probs, ends_blank, ends_token, _, last = state
        token_log, blank_log = self._frames_of(token, log_probs), self._frames_of(torch.full_like(token, self.blank), log_probs)
        ends = torch.where((token == last)[:, None], ends_blank, torch.logaddexp(ends_blank, ends_token))[:, :-1]  # (R, S)
        total = (ends + token_log).logsumexp(1).clamp(min=IMPOSSIBLE)
        ends_token = _accumulate(ends, token_log)
        return PrefixState(log_probs, _accumulate(ends_token[:, :-1], blank_log), ends_token, total, token)

    def _frames_of(self, token: Tensor, log_probs: Tensor) -> Tensor:
        """Log-probabilities of one token of each row in all frames: (R,) → (R, S)."""
        lines = token.view(len(log_probs), 1, -1).expand(-1, log_probs.shape[1], -1)  # (B, S, W)
        return log_probs.gather(2, lines).transpose(1, 2).flatten(0, 1)


def _accumulate(arrive: Tensor, stay: Tensor) -> Tensor:
    """xₙ = (xₙ₋₁ + arriveₙ) stayₙ with x₀ = 0, all in logarithms: (R, S) twice → (R, S + 1).

    Divided by the product of all `stay` up to n, xₙ is a sum, which needs no loop over the frames.
    """
    product = stay.cumsum(1)
    x = product + (arrive - (product - stay)).logcumsumexp(1)
    return torch.nn.functional.pad(x.clamp(min=IMPOSSIBLE), (1, 0), value=IMPOSSIBLE)


class JointState(NamedTuple):
    """The states of both decoders."""

    attention: Any
    ctc: PrefixState

    def reorder(self, rows: Tensor) -> "JointState":
        """Select rows: (R,), or (B, W) with the beams of one utterance in each line."""
        return JointState(reorder(self.attention, rows), self.ctc.reorder(rows))


@dataclass
class JointDecoder:
    """The `Decoder` of a Conformer with both: weight · CTC + (1 - weight) · attention, section III-C of the paper.

    Its scores are weighted log-probabilities, to be summed as they are.
    """

    model: Conformer
    weight: float  # of CTC
    eos: int
    normalized = True

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ValueError(f"weight {self.weight}; use 0 (attention alone) to 1 (CTC alone)")
        self.attention: Decoder = decoder(self.model)
        self.prefixes = PrefixScores(self.eos, self.model.config.pad)

    def start(self, source: Utterances) -> JointState:
        """Encode the utterances once, for both."""
        memory, mask = self.model.encode(source.frames, source.lengths)
        log_probs = self.model.ctc_logits(memory).log_softmax(-1)
        ctc = self.prefixes.start((log_probs, self.model.subsampled(source.lengths)))
        return JointState(read_memory(self.model, memory, mask), ctc)

    def step(self, token: Tensor, state: JointState) -> tuple[Tensor, JointState]:
        """The last token (R,) and the state before it → scores (R, V) of the next one and the state after it."""
        logits, attention = self.attention.step(token, state.attention)
        scores, ctc = logits.log_softmax(-1), state.ctc
        if self.weight > 0:
            prefix, ctc = self.prefixes.step(token, ctc)
            scores = ((1 - self.weight) * scores + self.weight * prefix).to(logits.dtype)
        return scores, JointState(attention, ctc)
