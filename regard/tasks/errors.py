"""Where a model is wrong: each scored example, the confusion of classes, the worst answers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["ClassErrors", "Confusion", "ErrorAnalysis", "ScoredExample"]


class ScoredExample(NamedTuple):
    """One example, the model's answer, and how good it is."""

    input: str  # a sentence, a text, or the file of an image
    wanted: tuple[str, ...]  # the references, or the class
    answer: str
    value: float  # chrF of the sentence, or the probability of the class that was chosen
    trained: bool | None  # whether it is in the training data; None: not known
    set_name: str = ""  # of a mixture


class ClassErrors(NamedTuple):
    """How well one class is found."""

    label: str
    examples: int  # of the class
    chosen: int  # examples that the model takes for it
    right: int

    @property
    def recall(self) -> float | None:
        """The share of its examples that are found."""
        return self.right / self.examples if self.examples else None

    @property
    def precision(self) -> float | None:
        """The share of the examples taken for it that are of it."""
        return self.right / self.chosen if self.chosen else None


class Confusion(NamedTuple):
    """How often one class is taken for another."""

    wanted: str
    answer: str
    times: int


@dataclass(frozen=True)
class ErrorAnalysis:
    """All scored examples, and what is to be learned from them."""

    examples: Sequence[ScoredExample]
    labels: tuple[str, ...] = ()  # class names; none for translations

    def worst(self, count: int | None = None) -> list[ScoredExample]:
        """The most confident wrong classes, or the translations of the lowest chrF; the worst first."""
        if not self.labels:
            return sorted(self.examples, key=lambda example: example.value)[:count]
        wrong = [example for example in self.examples if example.answer not in example.wanted]
        return sorted(wrong, key=lambda example: -example.value)[:count]

    def matrix(self) -> list[list[int]]:
        """Confusion matrix: a row for each true class, a column for each answer."""
        pairs = self._pairs()
        return [[pairs[wanted, answer] for answer in self.labels] for wanted in self.labels]

    def classes(self) -> list[ClassErrors]:
        """Recall and precision of each class."""
        pairs = self._pairs()
        count, chosen = Counter[str](), Counter[str]()
        for (wanted, answer), number in pairs.items():
            count[wanted] += number
            chosen[answer] += number
        return [ClassErrors(label, count[label], chosen[label], pairs[label, label]) for label in self.labels]

    def confused(self, count: int | None = None) -> list[Confusion]:
        """The pairs of classes that are confused, the most frequent first."""
        wrong = [Confusion(*pair, number) for pair, number in self._pairs().items() if pair[0] != pair[1]]
        return sorted(wrong, key=lambda pair: (-pair.times, pair.wanted, pair.answer))[:count]

    def _pairs(self) -> Counter[tuple[str, str]]:
        return Counter((example.wanted[0], example.answer) for example in self.examples)
