"""Greedy, sampling and beam search, written once for every model that has `start` and `step`.

Shapes: B sentences still open, W beam width, V vocabulary, t tokens so far.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard.decode.step import Decoder, reorder
from regard.decode.topk import blocked_logsumexp, blocked_topk

__all__ = ["Hypothesis", "argmax", "beam", "greedy", "sample", "sampler", "stream"]

STAY = 0.75  # ended sentences leave once no more than this share of the batch goes on: leaving copies those that stay


class Hypothesis(NamedTuple):
    """A finished answer: its tokens without start and end, and its log-probability / length ** penalty, if kept."""

    tokens: list[int]
    score: float | None


def _score(total: float, length: int, penalty: float) -> float:
    return total / length**penalty


def greedy(
    model: Decoder,
    source: Tensor,
    limits: Tensor,
    *,
    bos: int | Tensor,
    eos: int,
    penalty: float = 1.0,
    scored: bool = True,
) -> list[Hypothesis]:
    """The likeliest token, each time.  `limits` (B,) is the most tokens for each sentence, its end counted.

    Unless `scored`, the odds of all other tokens need not be summed.
    """
    return _roll(model, source, limits, argmax, bos, eos, penalty, scored)


def argmax(logits: Tensor) -> Tensor:
    """The likeliest token of each row: (B, V) → (B,)."""
    if len(logits) == 1:  # many small calls would take longer than one that is not so quick
        return logits.max(1)[1]
    return blocked_topk(logits[:, None], 1)[1][:, 0]


def sample(
    model: Decoder, source: Tensor, limits: Tensor, *, bos: int | Tensor, eos: int, generator: torch.Generator,
    temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, penalty: float = 1.0, scored: bool = True,
) -> list[Hypothesis]:  # fmt: skip
    """A token drawn by its probability, each time; see `drawing`."""
    draw = sampler(generator, temperature, top_k, top_p)
    return _roll(model, source, limits, draw, bos, eos, penalty, scored)


def sampler(
    generator: torch.Generator, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> Callable[[Tensor], Tensor]:
    """A function that draws a token of each row by its probability: (B, V) → (B,).

    A low temperature sharpens the choice; `top_k` draws from the k likeliest tokens alone (0 = all), `top_p` from the
    fewest that together have probability p.
    """
    if not temperature > 0 or top_k < 0 or not 0 < top_p <= 1:
        raise ValueError(
            f"temperature {temperature}, top_k {top_k}, top_p {top_p}; "
            f"use a temperature above 0, a top_k of 0 or more, a top_p above 0 up to 1"
        )

    def draw(logits: Tensor) -> Tensor:
        logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # the likeliest is 0: no temperature is too low
        if 0 < top_k < logits.shape[-1]:
            kept, where = logits.topk(top_k)
            logits = torch.full_like(logits, -math.inf).scatter(-1, where, kept)
        if top_p < 1:
            ordered, where = logits.softmax(-1).sort(-1, descending=True)
            before = ordered.cumsum(-1) - ordered  # the probability of all likelier tokens; the likeliest always stays
            logits = logits.masked_fill(
                torch.zeros_like(before, dtype=torch.bool).scatter(-1, where, before >= top_p), -math.inf
            )
        return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]

    return draw


@torch.inference_mode()
def stream(
    model: Decoder, source: Tensor, choose: Callable[[Tensor], Tensor], *, bos: int | Tensor, limit: int
) -> Iterator[int]:
    """The tokens of one answer, each as soon as it is chosen: source (1, S)."""
    token = torch.zeros(1, dtype=torch.long, device=source.device) + bos
    state = model.start(source)
    for _ in range(limit):
        logits, state = model.step(token, state)  # (1, V)
        token = choose(logits)
        yield int(token)


@torch.inference_mode()
def _roll(
    model: Decoder, source: Tensor, limits: Tensor, choose: Callable[[Tensor], Tensor], bos: int | Tensor, eos: int, penalty: float,
    scored: bool,
) -> list[Hypothesis]:  # fmt: skip
    """Step all sentences together; those that have ended leave the batch, several at once.

    `choose` gives the next token (B,) by the logits (B, V).
    """
    found: list[Hypothesis | None] = [None] * len(source)
    said: list[list[int]] = [[] for _ in range(len(source))]
    most: list[int] = limits.tolist()
    rows = list(range(len(source)))  # the sentence of each row; -1 once it has ended
    token = torch.zeros(len(source), dtype=torch.long, device=source.device) + bos
    total = torch.zeros(len(source), device=source.device)
    state = model.start(source)
    while rows:
        logits, state = model.step(token, state)  # (B, V)
        token = choose(logits)  # (B,)
        if scored:
            total += logits.gather(1, token[:, None])[:, 0] - blocked_logsumexp(logits)
        for row, (i, one) in enumerate(zip(rows, token.tolist(), strict=True)):
            if i < 0:
                continue
            said[i].append(one)
            if one == eos or len(said[i]) >= most[i]:
                ids = said[i][:-1] if one == eos else said[i]
                found[i] = Hypothesis(ids, _score(float(total[row]), len(said[i]), penalty) if scored else None)
                rows[row] = -1
        stay = [row for row, i in enumerate(rows) if i >= 0]
        if not stay:
            break
        if len(stay) <= STAY * len(rows):
            state, token, total = reorder(
                (state, token, total), torch.tensor(stay, dtype=torch.long, device=source.device)
            )
            rows = [rows[row] for row in stay]
    return [one for one in found if one is not None]


@torch.inference_mode()
def beam(
    model: Decoder, source: Tensor, limits: Tensor, *, bos: int | Tensor, eos: int, width: int, penalty: float = 1.0
) -> list[list[Hypothesis]]:
    """The `width` best unfinished answers, each time; for each sentence the best finished ones, best first.

    A sentence ends when `width` of its answers are finished, or at its limit, where what is open counts as finished.
    Twice as many candidates as beams are looked at, so that enough go on even if half of them end; only those among
    the first `width` may end.
    """
    if width < 1:
        raise ValueError(f"width {width}; use a beam of 1 or more")
    found: list[list[tuple[float, list[int]]]] = [[] for _ in range(len(source))]
    sentence = torch.arange(len(source), device=source.device)  # (B,): which sentence a line of beams is
    state = reorder(model.start(source), sentence[:, None].expand(-1, width))  # (B · W, ...)
    token = (torch.zeros(len(source), dtype=torch.long, device=source.device) + bos).repeat_interleave(width)
    score = torch.full((len(source), width), -math.inf, device=source.device)
    score[:, 0] = 0.0  # all beams begin alike: only the first may speak at the first step
    going = torch.ones_like(sentence, dtype=torch.bool)
    said = token.new_empty(len(source), width, 0)  # (B, W, t)
    while len(sentence):
        logits, state = model.step(token, state)  # (B · W, V)
        best, parent, token = _grow(score, logits, min(2 * width, width * logits.shape[-1]))  # (B, 2W)
        length = said.shape[-1] + 1
        closed = length >= limits[sentence]
        over = (token == eos) | closed[:, None]
        ended = (over[:, :width] & best[:, :width].isfinite() & going[:, None]).nonzero()
        row, place = ended.T
        ids = torch.cat((said[row, parent[row, place]], token[row, place][:, None]), -1).tolist()
        for i, one, end in zip(sentence[row].tolist(), ids, best[row, place].tolist(), strict=True):
            found[i].append((_score(end, length, penalty), one[:-1] if one[-1] == eos else one))
        score, keep = best.masked_fill(over, -math.inf).topk(width)  # (B, W)
        parent, token = parent.gather(1, keep), token.gather(1, keep)
        said = torch.cat((said.gather(1, parent[:, :, None].expand(-1, -1, length - 1)), token[:, :, None]), -1)
        full = torch.tensor([len(found[i]) >= width for i in sentence.tolist()], device=source.device)
        going = going & ~(full | closed | score.isinf().all(1))
        stay = going.nonzero()[:, 0]
        if len(stay) > STAY * len(going):
            stay = torch.arange(len(going), device=source.device)
        state = reorder(state, stay[:, None] * width + parent[stay])  # each beam goes on from its parent
        token, score, said, sentence, going = reorder((token, score, said, sentence, going), stay)
        token = token.flatten()
    if not all(found):
        raise ValueError("the model's scores are not numbers; its weights may be damaged: train again, or restore them")
    best_first = (sorted(answers, key=lambda answer: -answer[0])[:width] for answers in found)
    return [[Hypothesis(tokens, total) for total, tokens in answers] for answers in best_first]


def _grow(score: Tensor, logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuations of the beams (B, W): their scores, their parents and their last tokens, each (B, count).

    logits (B · W, V).
    """
    vocab = logits.shape[-1]
    logits = logits.view(*score.shape, vocab)
    best, where = blocked_topk(
        logits, count, score - blocked_logsumexp(logits.flatten(0, 1)).view_as(score)
    )  # (B, count)
    return best, where // vocab, where % vocab
