"""Greedy search, sampling and beam search of any `Decoder`.

All of them may be given a `processor`, which changes the scores of each step (`logits_processors`), `observers`, who follow
single sentences, and a `recorder`, which keeps what each step did (`trace`); beam search also phrases that each output must
contain (`constraints`).

Shapes: B sentences, W beams, V vocabulary, N candidates, P tokens of the prompt, t tokens so far.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from regard.decode.logits_processors import LogitsProcessor, SearchProgress
from regard.decode.step import Decoder, Source, reorder
from regard.decode.topk import blocked_logsumexp, blocked_topk
from regard.decode.trace import SearchTrace

__all__ = ["Allocation", "Choose", "Hypothesis", "Observer", "Observers", "Sampler", "argmax", "beam", "greedy", "sample",
           "sample_each", "sampler", "stream"]  # fmt: skip

Choose = Callable[[Tensor], Tensor]  # logits (B, V) → the next token (B,)
COLDEST = 1e-6  # a temperature below this chooses the most likely token, as this one does
SHRINK = 0.75  # finished sentences leave when at most this fraction of the batch is unfinished: shrinking copies the rest


class Hypothesis(NamedTuple):
    """A finished output: its tokens without start and end, and log-probability / length ** penalty, if computed.

    `logprobs`, if asked for, are those of each token, and last that of the end token, if the output reached its end.
    """

    tokens: list[int]
    score: float | None
    logprobs: list[float] | None = None


class Observer(Protocol):
    """Follows the search for one sentence while it runs.

    A sentence that is no longer wanted leaves the batch before the next step; its result is the best output so far.  The
    others are not changed by that, unless they share one random stream.
    """

    @property
    def wanted(self) -> bool:
        """Whether anyone waits for the result; asked after each step."""

    @property
    def partial(self) -> Callable[[list[int], bool], None] | None:
        """Gets the best output after each step, and whether it is the result; None costs nothing.  It must not keep the list."""


Observers = Sequence[Observer | None]  # of each sentence


class Allocation(Protocol):
    """How a beam search chooses its candidates, if not by their scores alone: see `constraints.PhraseAllocation`."""

    def extend(self, offset: Tensor, scores: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Offset (B, W) + scores (B · W, V) → scores, parents and tokens of candidates (B, N), in the order of preference."""

    def keep(self, stay: Tensor, kept: Tensor) -> None:
        """Continue with lines `stay` and of these with candidates `kept` (B, W), -1 for none."""


def greedy(model: Decoder, source: Source, limits: Tensor, *, bos: int | Tensor, eos: int, penalty: float = 1.0,
           scored: bool = True, logprobs: bool = False, processor: LogitsProcessor | None = None,
           observers: Observers | None = None, recorder: SearchTrace | None = None) -> list[Hypothesis]:  # fmt: skip
    """Choose the most likely token at each step.  `limits` (B,) are maximum lengths, end included; no softmax unless `scored`.

    `bos` is the start token, one for each sentence (B,), or a prompt (B, P) of which the decoder has read all but the last.
    """
    return _generate(model, source, limits, argmax, bos, eos, penalty, scored, logprobs, processor, observers, recorder)


def argmax(logits: Tensor) -> Tensor:
    """The most likely token of each row: (B, V) → (B,)."""
    if len(logits) == 1:  # one call is faster than the several of blocked_topk
        return logits.max(1)[1]
    return blocked_topk(logits[:, None], 1)[1][:, 0]


def sample(model: Decoder, source: Source, limits: Tensor, *, bos: int | Tensor, eos: int, generator: torch.Generator,
           temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, penalty: float = 1.0,
           scored: bool = True, logprobs: bool = False, processor: LogitsProcessor | None = None,
           observers: Observers | None = None, recorder: SearchTrace | None = None) -> list[Hypothesis]:  # fmt: skip
    """Sample a token at each step; see `sampler`.  All sentences share the generator's random stream."""
    choose = sampler(generator, temperature, top_k, top_p)
    return _generate(model, source, limits, choose, bos, eos, penalty, scored, logprobs, processor, observers, recorder)


def sample_each(model: Decoder, source: Source, limits: Tensor, choose: Sequence[Choose], *, bos: int | Tensor, eos: int,
                processor: LogitsProcessor | None = None, observers: Observers | None = None) -> list[Hypothesis]:  # fmt: skip
    """Each sentence with its own `sampler`, or `argmax`: its output is the one it has alone.  With an `eos` of -1 none ends."""
    same = all(of is argmax for of in choose)
    return _generate(model, source, limits, argmax if same else choose, bos, eos, 1.0, False, False, processor, observers, None)


@dataclass(frozen=True)
class Sampler:
    """Draws a token of each row: logits (B, V) → (B,)."""

    generator: torch.Generator
    probabilities: Callable[[Tensor], Tensor]  # logits (B, V) → of drawing each token (B, V)

    def __call__(self, logits: Tensor) -> Tensor:
        """The token of each row."""
        return torch.multinomial(self.probabilities(logits), 1, generator=self.generator)[:, 0]


def sampler(generator: torch.Generator, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Sampler:
    """A function that samples a token of each row by its probability: (B, V) → (B,).

    A low temperature sharpens the distribution; `top_k` keeps the k most likely tokens (0 = all), `top_p` the fewest tokens
    whose probabilities sum to p.
    """
    if not temperature > 0 or top_k < 0 or not 0 < top_p <= 1:
        raise ValueError(f"temperature {temperature}, top_k {top_k}, top_p {top_p}; "
                         f"use a temperature above 0, a top_k of 0 or more, a top_p above 0 up to 1")  # fmt: skip

    def probabilities(logits: Tensor) -> Tensor:
        # The maximum is 0, so no temperature overflows; one that float32 rounds to 0 would make it 0 / 0.
        logits = (logits - logits.amax(-1, keepdim=True)) / max(temperature, COLDEST)
        if 0 < top_k < logits.shape[-1]:
            kept, ids = logits.topk(top_k)
            logits = torch.full_like(logits, -math.inf).scatter(-1, ids, kept)
        if top_p < 1:
            ordered, ids = logits.softmax(-1).sort(-1, descending=True)
            before = ordered.cumsum(-1) - ordered  # the probability of all more likely tokens
            beyond = before >= top_p
            beyond[..., 0] = False  # the first stays, also if float32 rounds top_p to 0
            removed = torch.zeros_like(beyond).scatter(-1, ids, beyond)
            logits = logits.masked_fill(removed, -math.inf)
        return logits.softmax(-1)

    return Sampler(generator, probabilities)


@torch.inference_mode()
def stream(model: Decoder, source: Source, choose: Choose, *, bos: int | Tensor, limit: int,
           processor: LogitsProcessor | None = None) -> Iterator[int]:  # fmt: skip
    """The tokens of one output, each as soon as it is chosen: source (1, S)."""
    history = _start_tokens(source, bos)
    token, state = history[:, -1], model.start(source)
    for length in range(limit):
        logits, state = model.step(token, state)  # (1, V)
        if processor is not None:
            last = torch.tensor([length == limit - 1], device=source.device)
            logits = processor(logits, SearchProgress(history, length, last))
        token = choose(logits)
        if processor is not None:
            history = torch.cat((history, token[:, None]), 1)
        yield int(token)


@torch.inference_mode()
def _generate(model: Decoder, source: Source, limits: Tensor, choose: Choose | Sequence[Choose], bos: int | Tensor, eos: int,
              penalty: float, scored: bool, logprobs: bool, processor: LogitsProcessor | None, observers: Observers | None,
              recorder: SearchTrace | None) -> list[Hypothesis]:  # fmt: skip
    """Step all sentences together, one output each."""
    finished: list[Hypothesis | None] = [None] * len(source)
    outputs: list[list[int]] = [[] for _ in range(len(source))]
    parts: list[list[float]] = [[] for _ in range(len(source))]  # log-probabilities of the tokens
    max_lens: list[int] = limits.tolist()
    rows = list(range(len(source)))  # the sentence of each row; -1 once it is finished
    history = _start_tokens(source, bos)  # (B, P + t), of which t = 0 unless someone reads it
    prompt, reads_history = history.shape[1], processor is not None or recorder is not None
    token = history[:, -1]
    total = torch.zeros(len(source), device=source.device)
    state = model.start(source)
    while rows:
        # One step.
        logits, state = model.step(token, state)  # (B, V)
        scores = logits
        if processor is not None:
            length = history.shape[1] - prompt
            last = torch.tensor([length >= max_lens[i] - 1 for i in rows], device=source.device)  # of rows that are done: any
            scores = processor(logits, SearchProgress(history, length, last))
        token = choose(scores) if callable(choose) else _choose_each(choose, scores, rows)  # (B,)
        if recorder is not None:
            drawn = choose.probabilities(scores) if isinstance(choose, Sampler) else None
            _record_greedy(recorder, model, rows, history, logits, token, eos, max_lens, prompt, drawn)
        if reads_history:
            history = torch.cat((history, token[:, None]), 1)
        if scored or logprobs:
            added = logits.gather(1, token[:, None])[:, 0] - _log_normalizer(model, logits)  # (B,)
            total += added
            if logprobs:
                for i, part in zip(rows, added.tolist(), strict=True):
                    if i >= 0:
                        parts[i].append(part)

        # Append the token of each row; finish sentences at their end token or their limit, or if nobody wants the rest.
        dropped = False
        for row, (i, token_id) in enumerate(zip(rows, token.tolist(), strict=True)):
            if i < 0:
                continue
            outputs[i].append(token_id)
            ids = outputs[i][:-1] if token_id == eos else outputs[i]
            done = token_id == eos or len(outputs[i]) >= max_lens[i]
            unwanted = observers is not None and not _observe(observers[i], ids, done) and not done
            if done or unwanted:
                score = float(total[row]) / len(outputs[i]) ** penalty if scored else None
                finished[i] = Hypothesis(ids, score, parts[i] if logprobs else None)
                rows[row] = -1
            dropped |= unwanted

        # Shrink the batch once enough sentences are finished, or a sentence is no longer wanted.
        stay = [row for row, i in enumerate(rows) if i >= 0]
        if not stay:
            break
        if dropped or len(stay) <= SHRINK * len(rows):
            kept = torch.tensor(stay, dtype=torch.long, device=source.device)
            state, token, total = reorder((state, token, total), kept)
            history = history.index_select(0, kept) if reads_history else history
            rows = [rows[row] for row in stay]
    return [hypothesis for hypothesis in finished if hypothesis is not None]


@torch.inference_mode()
def beam(model: Decoder, source: Source, limits: Tensor, *, bos: int | Tensor, eos: int, width: int,
         penalty: float = 1.0, logprobs: bool = False, processor: LogitsProcessor | None = None,
         allocation: Allocation | None = None, observers: Observers | None = None,
         recorder: SearchTrace | None = None) -> list[list[Hypothesis]]:  # fmt: skip
    """Keep the `width` best unfinished outputs at each step; return the best finished ones of each sentence, best first.

    A sentence is done when it has `width` finished outputs, or at its limit, where unfinished outputs count as finished.
    Each step considers 2 · `width` candidates, so that `width` remain even if half of them end; only those among the first
    `width` may end.
    """
    if width < 1:
        raise ValueError(f"width {width}; use a beam of 1 or more")
    finished: list[list[Hypothesis]] = [[] for _ in range(len(source))]
    sentence = torch.arange(len(source), device=source.device)  # (B,): the sentence of each line of beams
    state = reorder(model.start(source), sentence[:, None].expand(-1, width))  # (B · W, ...)
    prompt = _start_tokens(source, bos)  # (B, P)
    token = prompt[:, -1].repeat_interleave(width)
    score = torch.full((len(source), width), -math.inf, device=source.device)
    score[:, 0] = 0.0  # all beams start equal: only the first is extended at the first step
    active = torch.ones_like(sentence, dtype=torch.bool)
    output = token.new_empty(len(source), width, 0)  # (B, W, t)
    parts = score.new_empty(len(source), width, 0)  # (B, W, t): log-probabilities of the output, if wanted
    while len(sentence):
        # One step: the 2W best extensions of each sentence's beams.
        logits, state = model.step(token, state)  # (B · W, V)
        normalizer = _log_normalizer(model, logits).view_as(score)
        offset, scores = score - normalizer, logits  # the offset is added to each beam's scores
        length = output.shape[-1] + 1
        at_limit = length >= limits[sentence]
        history = _join_history(prompt, sentence, output) if processor is not None or recorder is not None else output
        if processor is not None:
            progress = SearchProgress(history, length - 1, at_limit.repeat_interleave(width))
            offset, scores = score, processor(logits - normalizer.flatten()[:, None], progress)
        if allocation is None:
            best, parent, token = _extend(offset, scores, min(2 * width, width * logits.shape[-1]))  # (B, 2W)
        else:
            best, parent, token = allocation.extend(offset, scores, length)  # (B, N)

        # Collect the candidates that end here: at an end token, or at the limit of their sentence.
        ends = (token == eos) | at_limit[:, None]
        row, rank = (ends[:, :width] & best[:, :width].isfinite() & active[:, None]).nonzero().T
        if logprobs:
            flat = (parent * logits.shape[-1] + token).flatten(1)
            added = logits.view(len(score), -1).gather(1, flat) - normalizer.gather(1, parent)  # (B, 2W)
        if len(row):  # at most steps nothing ends
            ended = torch.cat((output[row, parent[row, rank]], token[row, rank][:, None]), -1).tolist()
            ended_parts: list[list[float] | None] = [None] * len(ended)
            if logprobs:
                ended_parts = torch.cat((parts[row, parent[row, rank]], added[row, rank][:, None]), -1).tolist()
            for i, ids, total, each in zip(sentence[row].tolist(), ended, best[row, rank].tolist(), ended_parts, strict=True):
                finished[i].append(Hypothesis(ids[:-1] if ids[-1] == eos else ids, total / length**penalty, each))

        # The W best candidates that do not end are the next beams.
        unfinished = best.masked_fill(ends, -math.inf)
        if allocation is None:
            score, kept = unfinished.topk(width)  # (B, W)
        else:
            kept = unfinished.isinf().int().argsort(stable=True, dim=1)[:, :width]  # the first
            score = unfinished.gather(1, kept)
        if recorder is not None:
            done = torch.zeros_like(ends).index_put_((row, rank), torch.ones_like(row, dtype=torch.bool))
            logs = logits.view(*offset.shape, -1) - normalizer[:, :, None]
            lines = [i if now else -1 for i, now in zip(sentence.tolist(), active.tolist(), strict=True)]
            recorder.record(lines, history.view(*offset.shape, -1), logs, (best, parent, token), done,
                            kept.masked_fill(score.isinf(), -1))  # fmt: skip
        parent, token = parent.gather(1, kept), token.gather(1, kept)
        if logprobs:
            before = parts.gather(1, parent[:, :, None].expand(-1, -1, length - 1))
            parts = torch.cat((before, added.gather(1, kept)[:, :, None]), -1)
        output = torch.cat((output.gather(1, parent[:, :, None].expand(-1, -1, length - 1)), token[:, :, None]), -1)

        # Sentences that are done leave, several at once; those that nobody wants any more, at once.
        full = torch.tensor([len(finished[i]) >= width for i in sentence.tolist()], device=source.device)
        was_active, active = active, active & ~(full | at_limit | score.isinf().all(1))
        unwanted = [] if observers is None else _observe_beams(observers, finished, sentence, was_active, active, output)
        for line in unwanted:
            partial = Hypothesis(output[line, 0].tolist(), float(score[line, 0]) / length**penalty,
                                 parts[line, 0].tolist() if logprobs else None)  # fmt: skip
            finished[int(sentence[line])].append(partial)
            active[line] = False
        stay = active.nonzero()[:, 0]
        shrinks = bool(unwanted) or len(stay) <= SHRINK * len(active)
        if not shrinks:
            stay = torch.arange(len(active), device=source.device)

        if allocation is not None:
            allocation.keep(stay, kept.masked_fill(score.isinf(), -1)[stay])

        # Beams swap parents: each continues from the state of the beam it extends.
        state = reorder(state, stay[:, None] * width + (parent[stay] if shrinks else parent))
        if shrinks:
            token, score, output, sentence, active = reorder((token, score, output, sentence, active), stay)
            parts = parts.index_select(0, stay) if logprobs else parts
        token = token.flatten()
    if not all(finished):
        raise ValueError("the model's scores are not numbers; its weights may be damaged: train again, or restore them")
    return [sorted(outputs, key=lambda output: -_score(output))[:width] for outputs in finished]


def _choose_each(choose: Sequence[Choose], scores: Tensor, rows: list[int]) -> Tensor:
    """The next token of each row, by its sentence's own choice; of rows that are done, any: (B, V) → (B,)."""
    token = torch.zeros(len(rows), dtype=torch.long, device=scores.device)
    for row, i in enumerate(rows):
        if i >= 0:
            token[row] = choose[i](scores[row : row + 1])[0]
    return token


def _observe(observer: Observer | None, output: list[int], done: bool) -> bool:
    """Show an output so far; whether it is still wanted."""
    if observer is None:
        return True
    if observer.partial is not None:
        observer.partial(output, done)
    return observer.wanted


def _observe_beams(observers: Observers, finished: list[list[Hypothesis]], sentence: Tensor, was_active: Tensor, active: Tensor,
                   output: Tensor) -> list[int]:  # fmt: skip
    """Show the best output of each sentence after a step; the lines of those that nobody wants any more.

    A sentence that was active (B,) and is no more is done.  `output` (B, W, t) has the best beam first.
    """
    unwanted = []
    lines = zip(sentence.tolist(), was_active.tolist(), active.tolist(), output[:, 0].tolist(), strict=True)
    for line, (i, before, now, tokens) in enumerate(lines):
        if now and not _observe(observers[i], tokens, False):
            unwanted.append(line)
        elif before and not now and finished[i]:
            _observe(observers[i], max(finished[i], key=_score).tokens, True)
    return unwanted


def _start_tokens(source: Source, bos: int | Tensor) -> Tensor:
    """The start token of each sentence, or its prompt: (B, P)."""
    if isinstance(bos, Tensor) and bos.ndim == 2:
        return bos
    return (torch.zeros(len(source), dtype=torch.long, device=source.device) + bos)[:, None]


def _join_history(prompt: Tensor, sentence: Tensor, output: Tensor) -> Tensor:
    """The prompts (B, P) of sentences and the outputs of their beams (B, W, t), joined: (B · W, P + t)."""
    width = output.shape[1]
    return torch.cat((prompt[sentence].repeat_interleave(width, 0), output.flatten(0, 1)), 1)


def _record_greedy(recorder: SearchTrace, model: Decoder, rows: list[int], history: Tensor, logits: Tensor, token: Tensor,
                   eos: int, limits: list[int], prompt: int, drawn: Tensor | None) -> None:  # fmt: skip
    """A step of greedy search, or of a sample `drawn` by probabilities (B, V), as that of a beam of 1."""
    logs = (logits - _log_normalizer(model, logits)[:, None])[:, None]  # (B, 1, V)
    length = history.shape[1] - prompt + 1
    ended = (token == eos) | torch.tensor([length >= limits[i] for i in rows], device=token.device)
    before = logs.new_tensor([[steps[-1].branches[0].score if (steps := recorder.sentences.get(i)) else 0.0] for i in rows])
    candidates = before + logs[:, 0].gather(1, token[:, None]), torch.zeros_like(token)[:, None], token[:, None]
    recorder.record(rows, history[:, None], logs, candidates, ended[:, None], torch.where(ended, -1, 0)[:, None],
                    None if drawn is None else drawn[:, None])  # fmt: skip


def _score(hypothesis: Hypothesis) -> float:
    assert hypothesis.score is not None
    return hypothesis.score


def _extend(offset: Tensor, logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest offset (B, W) + logits (B · W, V) of each sentence: scores, parents and last tokens, each (B, count)."""
    vocab = logits.shape[-1]
    best, index = blocked_topk(logits.view(*offset.shape, vocab), count, offset)  # (B, count)
    return best, index // vocab, index % vocab


def _log_normalizer(model: Decoder, logits: Tensor) -> Tensor:
    """What turns logits into log-probabilities, subtracted: (R, V) → (R,); 0 if the decoder has done it."""
    return logits.new_zeros(len(logits)) if getattr(model, "normalized", False) else blocked_logsumexp(logits)
