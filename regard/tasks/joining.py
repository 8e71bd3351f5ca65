"""Translations, and how those of several sentences become that of a text."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from regard.data.text.sentences import is_cjk
from regard.decode.search import Observers
from regard.tasks.answer_html import answer_repr, n_best_html

__all__ = ["MARKS", "SentenceTranslator", "Translation", "join_texts", "join_translations"]

MARKS = ".!?…。！？।؟"  # end sentences


@dataclass(frozen=True)
class Translation:
    """One answer: its text, tokens, ids and score, and the n best answers, itself first; and what to know about it.

    Of a text of several sentences, tokens and ids are those of all sentences, the score is that of all tokens together, and the
    n-th best answer is made of the n-th best of each sentence.  Tags and emoji that were put back beside their words are in the
    text only: tokens, ids and probabilities are those that the model wrote, and of texts copied before, between and after them.
    """

    text: str
    tokens: list[str]
    ids: list[int]
    score: float | None  # log-probability / length ** penalty; of a greedy answer or a sample only if asked for
    n_best: list["Translation"] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)  # of each token, with `details`; 1.0 of a copied one
    coverage: float | None = None  # of the source by attention, with `details`; see tasks/coverage.py
    source_tokens: int = 0
    unknown: int = 0  # tokens of the source that are not in the vocabulary; copied ones do not count
    sentences: int = 1
    cut: int = 0  # sentences that were longer than the model takes, and were translated in pieces
    restored: int = 0  # placeholders, tags, addresses and numbers that the model left out, and that were put back

    def __repr__(self) -> str:
        return answer_repr(self)

    def _repr_html_(self) -> str:
        return n_best_html(self, self.n_best)


class SentenceTranslator(NamedTuple):
    """How sentences are translated: their token ids, the phrases each answer must contain, who follows it → answers."""

    encode: Callable[[Sequence[str]], list[list[int]]]  # sources → token ids
    encode_answers: Callable[[Sequence[str]], list[list[int]]]  # answers, or parts of them → token ids
    decode: Callable[[list[int]], str]
    spell: Callable[[list[int]], list[str]]  # token ids → tokens
    translate: Callable[[list[list[int]], list[list[list[int]]] | None, Observers | None], list[Translation]]
    offsets: Callable[[Sequence[str]], list[list[tuple[int, int]]]]  # where the tokens of `encode` are in a text
    attend: Callable[[list[list[int]], list[list[int]]], list[list[list[float]] | None]]  # sources, targets → weights (T, S)
    max_len: int
    unk: int  # of answers
    penalty: float

    def into(self, language: Sequence[int]) -> "SentenceTranslator":
        """The same with the code of a language, if it is not empty, before each sentence."""
        if not language:
            return self
        code = [*language]
        return self._replace(
            encode=lambda texts: [code + ids for ids in self.encode(texts)],
            offsets=lambda texts: [[(0, 0)] * len(code) + spans for spans in self.offsets(texts)],
        )


def join_texts(parts: Sequence[str], answers: Sequence[str]) -> str:
    """Put answers between the texts around them: `parts` are the texts at even places, `answers` belong to those at odd ones.

    After a Chinese or Japanese full stop there is no space; a language that needs one gets it.
    """
    text = parts[0]
    for number, (written, after) in enumerate(zip(answers, parts[2::2], strict=True)):
        apart = number and not parts[2 * number] and written and text and text[-1] in MARKS
        between = " " if apart and not is_cjk(text[-1]) and not is_cjk(written[0]) else ""
        text += between + written + after
    return text


def join_translations(translator: SentenceTranslator, parts: Sequence[str], answers: Sequence[Translation]) -> Translation:
    """Put answers between the texts around them, as `join_texts` does."""
    tokens, probabilities, ids = list[str](), list[float](), list[int]()
    _add_copy(translator, parts[0], tokens, ids, probabilities)
    for answer, after in zip(answers, parts[2::2], strict=True):
        tokens += answer.tokens
        ids += answer.ids
        probabilities += answer.probabilities
        _add_copy(translator, after, tokens, ids, probabilities)
    covered = [(answer.coverage, answer.source_tokens) for answer in answers if answer.coverage is not None]
    weight = sum(count for _, count in covered)
    joined = Translation(
        join_texts(parts, [answer.text for answer in answers]), tokens, ids, _joint_score(answers, translator.penalty),
        probabilities=probabilities if any(answer.probabilities for answer in answers) else [],
        coverage=sum(value * count for value, count in covered) / weight if weight else None,
        source_tokens=sum(answer.source_tokens for answer in answers), unknown=sum(answer.unknown for answer in answers),
        sentences=len(answers), cut=sum(answer.cut for answer in answers), restored=sum(answer.restored for answer in answers),
    )  # fmt: skip
    ranks = max((len(answer.n_best) for answer in answers), default=0)
    best = [joined, *(
        join_translations(translator, parts, [_at_rank(answer, rank) for answer in answers]) for rank in range(1, ranks)
    )]  # fmt: skip
    return dataclasses.replace(joined, n_best=best) if ranks else joined


def _at_rank(answer: Translation, rank: int) -> Translation:
    """The answer of this rank, counted from 0; of fewer answers the last."""
    return answer.n_best[min(rank, len(answer.n_best) - 1)] if answer.n_best else answer


def _add_copy(translator: SentenceTranslator, text: str, tokens: list[str], ids: list[int], probabilities: list[float]) -> None:
    """The tokens of a text that was copied instead of translated; spaces have none."""
    if text.strip():
        [copied] = translator.encode_answers([text.strip()])
        ids += copied
        tokens += translator.spell(copied)
        probabilities += [1.0] * len(copied)


def _joint_score(answers: Sequence[Translation], penalty: float) -> float | None:
    """The score of all tokens together: the sum of the log-probabilities / the sum of the lengths ** penalty."""
    if any(answer.score is None for answer in answers):
        return None
    scored = [(answer.score, len(answer.ids) + 1) for answer in answers if answer.score is not None and answer.source_tokens]
    total = sum(score * length**penalty for score, length in scored)
    return total / sum(length for _, length in scored) ** penalty if scored else 0.0
