"""What a search may not choose, or must: functions of the scores between a step and the choice, as Hugging Face's `generate` has.

Shapes: R rows, V vocabulary, t tokens so far.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from regard.config import DecodeConfig

__all__ = ["LogitsProcessor", "SearchProgress", "ban_repeated_ngrams", "ban_tokens", "ban_words", "force_first", "force_last",
           "logits_processor", "penalize_repetitions", "require_length"]  # fmt: skip


class SearchProgress(NamedTuple):
    """How far the rows of a search are."""

    history: Tensor  # (R, t): the start token or the prompt, then the answer so far
    length: int  # tokens of the answer so far
    last: Tensor  # (R,): true where the limit leaves one token


LogitsProcessor = Callable[[Tensor, SearchProgress], Tensor]  # scores (R, V) → the same shape; its input stays as it is


def logits_processor(decode: DecodeConfig, eos: int) -> LogitsProcessor | None:
    """All that a run asks for, in the order of Hugging Face, or None if it asks for nothing.

    Greedy search and sampling apply it to logits, beam search to log-probabilities; the start token and the prompt count as
    tokens so far.
    """
    if not all(decode.bad_words):
        raise ValueError("decode.bad_words has an empty sequence; leave it out")
    named = {
        "suppress_tokens": decode.suppress_tokens,
        "bad_words": [token for words in decode.bad_words for token in words],
        "forced_bos": [decode.forced_bos] if decode.forced_bos >= 0 else [],
        "forced_eos": [decode.forced_eos] if decode.forced_eos >= 0 else [],
    }
    smallest, largest = (pick((token for ids in named.values() for token in ids), default=0) for pick in (min, max))
    parts: list[LogitsProcessor] = []
    if decode.repetition_penalty != 1:
        parts.append(penalize_repetitions(decode.repetition_penalty))
    if decode.no_repeat_ngram_size:
        parts.append(ban_repeated_ngrams(decode.no_repeat_ngram_size))
    if words := [words for words in decode.bad_words if list(words) != [eos]]:  # without an end no answer would end
        parts.append(ban_words(words))
    if decode.min_length:
        parts.append(require_length(decode.min_length, eos))
    if decode.forced_bos >= 0:
        parts.append(force_first(decode.forced_bos))
    if decode.forced_eos >= 0:
        parts.append(force_last(decode.forced_eos))
    if decode.suppress_tokens:
        parts.append(ban_tokens(decode.suppress_tokens))
    if not parts and not decode.renormalize_logits:
        return None

    def process(scores: Tensor, progress: SearchProgress) -> Tensor:
        if smallest < 0 or largest >= scores.shape[-1]:
            _refuse_ids(named, scores.shape[-1])
        left = scores
        for part in parts:
            left = part(left, progress)
        nothing = left.amax(-1, keepdim=True).isneginf()  # every token is ruled out: then none is
        left = torch.where(nothing, scores, left) if nothing.any() else left
        return left.log_softmax(-1) if decode.renormalize_logits else left

    return process


def _refuse_ids(named: Mapping[str, Sequence[int]], vocab: int) -> NoReturn:
    name, token = next((name, token) for name, ids in named.items() for token in ids if not 0 <= token < vocab)
    raise ValueError(f"decode.{name} has token {token}; this model's tokens are 0 to {vocab - 1}")


def penalize_repetitions(penalty: float) -> LogitsProcessor:
    """Divide the positive scores of tokens so far by a penalty, multiply the negative: https://arxiv.org/abs/1909.05858."""

    def process(scores: Tensor, progress: SearchProgress) -> Tensor:
        before = scores.gather(1, progress.history)
        return scores.scatter(1, progress.history, torch.where(before < 0, before * penalty, before / penalty))

    return process


def ban_repeated_ngrams(size: int) -> LogitsProcessor:
    """No `size` tokens in a row occur twice."""

    def process(scores: Tensor, progress: SearchProgress) -> Tensor:
        history = progress.history
        if history.shape[1] < size:
            return scores
        ngrams = history.unfold(1, size, 1)  # (R, N, size)
        start = history[:, history.shape[1] - size + 1 :]  # (R, size - 1): of the next one
        same = (ngrams[:, :, :-1] == start[:, None]).all(-1)  # (R, N)
        row, place = same.nonzero().T
        scores = scores.clone()
        scores[row, ngrams[row, place, -1]] = -math.inf
        return scores

    return process


def ban_words(words: Sequence[Sequence[int]]) -> LogitsProcessor:
    """None of these sequences of tokens occurs."""
    single = [word[0] for word in words if len(word) == 1]
    longer = [word for word in words if len(word) > 1]

    def process(scores: Tensor, progress: SearchProgress) -> Tensor:
        history, scores = progress.history, scores.clone()
        scores[:, single] = -math.inf
        for *start, last in longer:
            if len(start) <= history.shape[1]:
                ends_so = (history[:, -len(start) :] == history.new_tensor(start)).all(1)  # (R,)
                scores[ends_so, last] = -math.inf
        return scores

    return process


def ban_tokens(ids: Sequence[int]) -> LogitsProcessor:
    """None of these tokens occurs."""

    def process(scores: Tensor, progress: SearchProgress) -> Tensor:
        scores = scores.clone()
        scores[:, list(ids)] = -math.inf
        return scores

    return process


def require_length(least: int, eos: int) -> LogitsProcessor:
    """No end before that many tokens."""

    def process(scores: Tensor, progress: SearchProgress) -> Tensor:
        if progress.length >= least:
            return scores
        scores = scores.clone()
        scores[:, eos] = -math.inf
        return scores

    return process


def force_first(token: int) -> LogitsProcessor:
    """An answer starts with this token."""

    def process(scores: Tensor, progress: SearchProgress) -> Tensor:
        return _only(scores, token) if progress.length == 0 else scores

    return process


def force_last(token: int) -> LogitsProcessor:
    """An answer that reaches its limit ends with this token."""

    def process(scores: Tensor, progress: SearchProgress) -> Tensor:
        return torch.where(progress.last[:, None], _only(scores, token), scores) if progress.last.any() else scores

    return process


def _only(scores: Tensor, token: int) -> Tensor:
    """Scores that leave one token: 0 for it, -inf for the others."""
    scores = torch.full_like(scores, -math.inf)
    scores[:, token] = 0.0
    return scores
