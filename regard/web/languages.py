"""Which languages a run translates, and which of them a text is in.

A run names its languages by the named set it was trained on, by `languages` (found in the header row of own files or in an
OPUS-MT checkpoint, or given), by `data.pair`, or by the endings of its aligned files.  A text's language is told by its character
trigrams, counted in the training data of the runs; where that data is not on this machine, the language of a text is not known,
and callers are told so.
"""

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from regard.config import Run
from regard.data.sources import SOURCES, is_local, prefix_of
from regard.data.text.columns import language_of, parse_pair
from regard.data.text.config import TextData
from regard.data.text.splits import find_split, source_names

__all__ = ["Detection", "Direction", "LanguageDetector", "directions_of", "learn_detector"]

TOY_PAIRS = {"phrasebook": "en-it"}  # of the toys that are languages
LEARNED = 5000  # first training pairs of a run, whose trigrams are counted
OVERLAP = 3  # a character is in three trigrams, which are not independent: their log-probabilities count a third
UNSEEN = 0.5  # count of a trigram that a language lacks


class Direction(NamedTuple):
    """From which language a run translates to which, and the task prefix that its sentences need."""

    source: str
    target: str
    prefix: str = ""
    dataset: str = ""  # the named set it was learned from; "" of own files


def directions_of(run: Run) -> list[Direction]:
    """The directions that a run names; of a mixture of sets (T5), one of each set of sentence pairs."""
    data = run.data
    if not isinstance(data, TextData):
        return []
    names = [name for name in source_names(data) if name]
    if not names:
        pair = run.languages or data.pair or _pair_of_files(data.train)
        return [Direction(*parse_pair(pair))] if pair else []
    found = []
    for name in names:
        pair = _pair_of(name, data)
        if pair:
            prefix = (prefix_of(name, pair) if name in SOURCES else f"{name}: ") if data.prefixed else ""
            found.append(Direction(*parse_pair(pair), prefix, name))
    return found


def _pair_of(name: str, data: TextData) -> str:
    known = SOURCES[name].pairs if name in SOURCES else ()
    if not known:
        return TOY_PAIRS.get(name, "")
    return data.pair if data.pair in known else known[0]


def _pair_of_files(train: str) -> str:
    """The languages of aligned files that end in them: "news.en,news.de"."""
    endings = [language_of(Path(part.strip().removesuffix(".gz")).suffix.removeprefix(".")) for part in train.split(",")]
    return "-".join(endings) if len(endings) == 2 and all(endings) else ""


class Detection(NamedTuple):
    """A language that a text may be in, and how sure that is, from 0 to 100."""

    language: str
    confidence: float


class LanguageDetector:
    """Tells languages apart by their character trigrams (naive Bayes); it knows those it has counted, and no others."""

    def __init__(self, texts: Mapping[str, Iterable[str]]):
        self._counts = {language: Counter(t for text in given for t in _trigrams(text)) for language, given in texts.items()}
        self._totals = {language: sum(counts.values()) for language, counts in self._counts.items()}
        self._vocabulary = len(set().union(*self._counts.values())) + 1

    @property
    def languages(self) -> list[str]:
        """The languages it tells apart."""
        return list(self._counts)

    def detect(self, text: str) -> list[Detection]:
        """Every language with its confidence, the likeliest first; none for a text without letters.

        The confidence is the probability among the known languages, times the share of the text's trigrams that the language's
        texts have: a text of a third language is like none of them.
        """
        trigrams = Counter(_trigrams(text))
        if not trigrams or not self._counts:
            return []
        scores = {language: self._log_likelihood(language, trigrams) for language in self._counts}
        best = max(scores.values())
        weights = {language: math.exp(score - best) for language, score in scores.items()}
        total = sum(weights.values())
        size = sum(trigrams.values())
        found = []
        for language, weight in weights.items():
            seen = sum(count for trigram, count in trigrams.items() if trigram in self._counts[language]) / size
            found.append(Detection(language, round(100 * weight / total * seen, 1)))
        return sorted(found, key=lambda detection: -detection.confidence)

    def _log_likelihood(self, language: str, trigrams: Counter[str]) -> float:
        counts, total = self._counts[language], self._totals[language] + UNSEEN * self._vocabulary
        return sum(n * math.log((counts.get(t, 0) + UNSEEN) / total) for t, n in trigrams.items()) / OVERLAP


def _trigrams(text: str) -> list[str]:
    """Three characters in a row inside words, which begin and end with a space; digits and signs tell no language."""
    words = "".join(character if character.isalpha() or character == "'" else " " for character in text.lower()).split()
    return [f" {word} "[i : i + 3] for word in words for i in range(len(word))]


def learn_detector(runs: Sequence[Run]) -> tuple[LanguageDetector, set[str]]:
    """Count the training texts of some runs; and the languages whose texts are not on this machine."""
    texts, missing = dict[str, list[str]](), set[str]()
    for run in runs:
        for direction in directions_of(run):
            pairs = _training_pairs(run, direction)
            if not pairs:
                missing |= {direction.source, direction.target}
            for source, target in pairs:
                texts.setdefault(direction.source, []).append(source.removeprefix(direction.prefix))
                texts.setdefault(direction.target, []).append(target)
    return LanguageDetector(texts), missing - set(texts)


def _training_pairs(run: Run, direction: Direction) -> list[tuple[str, str]]:
    """The first training pairs of a run, if reading them needs no download."""
    data, name = run.data, direction.dataset
    if name in SOURCES and not is_local(
        name, "train", _pair_of(name, data), data.text if len(source_names(data)) == 1 else "raw"
    ):
        return []
    try:
        return list(islice(find_split(data, "train", name).pairs(), LEARNED))
    except (ValueError, OSError, EOFError, zlib.error):  # own files that were moved, deleted or cut short since
        return []
