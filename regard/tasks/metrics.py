"""How good a model is: BLEU and chrF by sacreBLEU, word error rate by jiwer, accuracy and F1, AER, Spearman, validation loss."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

if TYPE_CHECKING:  # imported where they score: a model that only answers does not wait for them
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

__all__ = ["Batch", "Score", "alignment_error_rate", "caption_scores", "classification_scores", "evaluate", "sentence_chrf",
           "share", "spearman", "to_device", "transcript_scores", "translation_scores", "wilson"]  # fmt: skip


class Score(NamedTuple):
    """One figure, and how it was computed."""

    name: str
    value: float
    signature: str
    unit: str = ""  # "%" for shares
    examples: int | None = None  # that were scored
    what: str = ""  # they are, if the signature does not say so: "sentences"
    low: float | None = None  # of a 95 % confidence interval
    high: float | None = None

    def to_json(self) -> dict[str, str | float]:
        """All that is known of it."""
        return {key: value for key, value in self._asdict().items() if value is not None and (value != "" or key == "signature")}

    @property
    def details(self) -> str:
        """How many examples, the signature and the confidence interval, in one line."""
        counted = f"{self.examples:,} {self.what}" if self.what else ""
        between = "" if self.low is None else f"95 % confidence {self.low:.2f} to {self.high:.2f}"
        return "; ".join(filter(None, (counted, self.signature, between)))


class Batch(Protocol):
    """What training and evaluation ask of a batch."""

    @property
    def tokens(self) -> int:
        """How many predictions it holds; the loss is averaged over them."""

    def __iter__(self) -> Iterator[Any]:
        """Its tensors, in the order of its constructor."""


BatchT = TypeVar("BatchT", bound=Batch)
LinkT = TypeVar("LinkT")  # of words; any hashable value


def to_device(batch: BatchT, device: torch.device) -> BatchT:
    """The same batch on another device."""
    parts = (part.to(device, non_blocking=True) if isinstance(part, Tensor) else part for part in batch)
    return type(batch)(*parts)


@torch.inference_mode()
def evaluate(model: nn.Module, batches: Iterable[BatchT], loss: Callable[[Any, BatchT, float], tuple[Tensor, Tensor]]) -> float:
    """Mean negative log-likelihood of a prediction, in nats; no label smoothing, no dropout."""
    training, device = model.training, next(model.parameters()).device
    total, count = 0.0, 0
    try:
        model.eval()
        for batch in batches:
            _, nll = loss(model, to_device(batch, device), 0.0)
            total, count = total + float(nll), count + batch.tokens
    finally:
        model.train(training)
    if not count:
        raise ValueError("the validation data has nothing to predict; give more of it, in the language of the training data")
    return total / count


def translation_scores(answers: Sequence[str], references: Sequence[Sequence[str]], tokenized: bool,
                       bootstrap: int = 0) -> list[Score]:  # fmt: skip
    """BLEU and chrF of answers with one or more references each; `bootstrap` resamples give their confidence intervals.

    The third score is BLEU on lower-cased tokens: the text's own tokens if it is `tokenized` (as published Multi30k scores are
    computed), else those of sacreBLEU's 13a.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    right = sum(answer in refs for answer, refs in zip(answers, references, strict=True))
    tokens = BLEU(lowercase=True, tokenize="none" if tokenized else "13a", force=True)
    lower = "BLEU, tokenized, lower-cased" if tokenized else "BLEU, lower-cased"
    metrics: dict[str, BLEU | CHRF] = {"BLEU": BLEU(force=True), "chrF": CHRF(), lower: tokens}
    streams = _reference_streams(references)
    scores = [_corpus_score(name, metric, answers, streams, bootstrap) for name, metric in metrics.items()]
    return [*scores, share("exact match", right, len(answers), "answers equal to a reference")]


def sentence_chrf(answers: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """The chrF of each answer by itself."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    return [metric.sentence_score(answer, list(refs)).score for answer, refs in zip(answers, references, strict=True)]


def caption_scores(answers: Sequence[str], references: Sequence[Sequence[str]], tokenized: bool) -> list[Score]:
    """BLEU-1 to BLEU-4 of captions with one or more references each; `tokenized`: words are separated by spaces already."""
    from sacrebleu.metrics.bleu import BLEU

    right = sum(answer in refs for answer, refs in zip(answers, references, strict=True))
    streams, scores = _reference_streams(references), []
    for order in range(1, 5):
        metric = BLEU(max_ngram_order=order, lowercase=True, tokenize="none" if tokenized else "13a", force=True)
        scores.append(_corpus_score(f"BLEU-{order}", metric, answers, streams)._replace(what="images"))
    return [*scores, share("exact match", right, len(answers), "captions equal to a reference")]


def _reference_streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """As sacreBLEU wants them: the first reference of every answer, then the second ones; None where there are fewer."""
    most = max(map(len, references))
    return [[refs[i] if i < len(refs) else None for refs in references] for i in range(most)]


def _corpus_score(name: str, metric: "BLEU | CHRF", answers: Sequence[str], streams: Any, bootstrap: int = 0) -> Score:
    logger = logging.getLogger("sacrebleu")
    before = logger.level
    try:
        logger.setLevel(max(before, logging.WARNING))  # it tells its random seed, which the signature has too
        found: Any = metric.corpus_score(list(answers), streams, n_bootstrap=bootstrap or 1)
    finally:
        logger.setLevel(before)
    score = Score(name, found.score, str(metric.get_signature()), examples=len(answers), what="sentences")
    if not bootstrap:
        return score
    return score._replace(low=max(0.0, found._mean - found._ci), high=min(100.0, found._mean + found._ci))


def transcript_scores(answers: Sequence[str], references: Sequence[str]) -> list[Score]:
    """Word and character error rate of transcripts, by jiwer, and how many are exact."""
    import jiwer

    words = jiwer.process_words(list(references), list(answers))
    characters = jiwer.process_characters(list(references), list(answers))
    exact = sum(answer == reference for answer, reference in zip(answers, references, strict=True))
    scores = [
        Score(f"{unit} error rate", 100 * rate, f"{found.substitutions:,} substitutions, {found.deletions:,} deletions, "
              f"{found.insertions:,} insertions of {found.hits + found.substitutions + found.deletions:,} {unit}s; "
              f"jiwer {version('jiwer')}", "%", len(answers))
        for unit, rate, found in (("word", words.wer, words), ("character", characters.cer, characters))
    ]  # fmt: skip
    return [*scores, share("exact match", exact, len(answers), "transcripts")]


def classification_scores(predicted: Sequence[str], wanted: Sequence[str], labels: Sequence[str], what: str) -> list[Score]:
    """Accuracy with its confidence interval, and the mean over classes of F1."""
    right = Counter(p for p, w in zip(predicted, wanted, strict=True) if p == w)
    chosen, present = Counter(predicted), Counter(wanted)
    f1 = [2 * right[label] / (chosen[label] + present[label]) for label in labels if chosen[label] + present[label]]
    return [
        share("accuracy", right.total(), len(wanted), what),
        Score("F1", 100 * sum(f1) / len(f1), "mean over classes", "%", len(wanted)),
    ]


def share(name: str, right: int, count: int, what: str) -> Score:
    """A share in percent, with its confidence interval."""
    low, high = wilson(right, count)
    return Score(name, 100 * right / count, f"{right:,} of {count:,} {what}", "%", count, "", 100 * low, 100 * high)


def wilson(right: int, count: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson's interval of a proportion, by default of 95 %: https://doi.org/10.1080/01621459.1927.10502953."""
    p, extra = right / count, z * z / count
    middle, half = (p + extra / 2) / (1 + extra), z * math.sqrt(p * (1 - p) / count + extra / (4 * count)) / (1 + extra)
    return max(0.0, min(p, middle - half)), min(1.0, max(p, middle + half))


def alignment_error_rate(predicted: Set[LinkT], sure: Set[LinkT], possible: Set[LinkT]) -> float:
    """AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), Och & Ney 2003, https://aclanthology.org/J03-1002; 0 is best, 1 worst.

    A holds the predicted links, S the sure and P the possible ones, which include S.  The rate of a corpus counts the links of
    all its sentences: let each link name its sentence, such as (sentence, source word, target word).
    """
    if not sure <= possible:
        raise ValueError(f"{len(sure - possible)} sure links are not possible links; sure links must be possible too")
    if not predicted and not sure:
        raise ValueError("no predicted and no sure links; the alignment error rate needs one of them")
    return 1 - (len(predicted & sure) + len(predicted & possible)) / (len(predicted) + len(sure))


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation: Pearson's, of the ranks; NaN if one side has equal values only."""
    ranks = np.stack([_ranks(x), _ranks(y)])
    ranks -= ranks.mean(1, keepdims=True)
    norms = np.sqrt((ranks**2).sum(1))
    return float(ranks[0] @ ranks[1] / norms.prod()) if norms.all() else float("nan")


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """The rank of each value; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
