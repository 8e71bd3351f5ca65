"""How good a model is: BLEU and chrF by sacreBLEU, word error rate by jiwer, accuracy and F1, AER, Spearman, validation loss."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from importlib.metadata import version
from typing import Any, NamedTuple, Protocol, TypeVar

import jiwer
import numpy as np
import numpy.typing as npt
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor, nn

__all__ = ["Batch", "Score", "alignment_error_rate", "caption_scores", "classification_scores", "evaluate", "spearman",
           "to_device", "transcript_scores", "translation_scores"]  # fmt: skip


class Score(NamedTuple):
    """One figure, and how it was computed."""

    name: str
    value: float
    signature: str
    unit: str = ""  # "%" for shares
    count: int | None = None  # examples scored
    low: float | None = None  # of a 95 % confidence interval
    high: float | None = None

    def to_json(self) -> dict[str, str | float]:
        """All that is known of it."""
        return {key: value for key, value in self._asdict().items() if value is not None and value != ""}


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


def translation_scores(answers: Sequence[str], references: Sequence[Sequence[str]], tokenized: bool) -> list[Score]:
    """BLEU and chrF of answers with one or more references each.

    The third score is BLEU on lower-cased tokens: the text's own tokens if it is `tokenized` (as published Multi30k scores are
    computed), else those of sacreBLEU's 13a.
    """
    most = max(map(len, references))
    streams: Any = [[refs[i] if i < len(refs) else None for refs in references] for i in range(most)]
    exact = 100 * sum(answer in refs for answer, refs in zip(answers, references, strict=True)) / len(answers)
    tokens = BLEU(lowercase=True, tokenize="none" if tokenized else "13a", force=True)
    metrics: dict[str, BLEU | CHRF] = {"BLEU": BLEU(force=True), "chrF": CHRF(), "BLEU, tokenized, lower-cased": tokens}
    scores = []
    for name, metric in metrics.items():
        value = metric.corpus_score(list(answers), streams).score
        scores.append(Score(name, value, str(metric.get_signature())))
    return [*scores, Score("exact", exact, "answers equal to a reference")]


def caption_scores(answers: Sequence[str], references: Sequence[Sequence[str]], tokenized: bool) -> list[Score]:
    """BLEU-1 to BLEU-4 of captions with one or more references each; `tokenized`: words are separated by spaces already."""
    most = max(map(len, references))
    streams: Any = [[refs[i] if i < len(refs) else None for refs in references] for i in range(most)]
    scores = []
    for order in range(1, 5):
        metric = BLEU(max_ngram_order=order, lowercase=True, tokenize="none" if tokenized else "13a", force=True)
        value = metric.corpus_score(list(answers), streams).score
        scores.append(Score(f"BLEU-{order}", value, str(metric.get_signature())))
    exact = 100 * sum(answer in refs for answer, refs in zip(answers, references, strict=True)) / len(answers)
    return [*scores, Score("exact", exact, "captions equal to a reference")]


def transcript_scores(answers: Sequence[str], references: Sequence[str]) -> list[Score]:
    """Word and character error rate of transcripts, by jiwer, and how many are exact."""
    words = jiwer.process_words(list(references), list(answers))
    characters = jiwer.process_characters(list(references), list(answers))
    exact = sum(answer == reference for answer, reference in zip(answers, references, strict=True))
    scores = [
        Score(f"{unit} error rate", 100 * rate, f"{found.substitutions:,} substitutions, {found.deletions:,} deletions, "
              f"{found.insertions:,} insertions of {found.hits + found.substitutions + found.deletions:,} {unit}s; "
              f"jiwer {version('jiwer')}")
        for unit, rate, found in (("word", words.wer, words), ("character", characters.cer, characters))
    ]  # fmt: skip
    return [*scores, Score("exact", 100 * exact / len(answers), f"{exact:,} of {len(answers):,} transcripts")]


def classification_scores(predicted: Sequence[str], wanted: Sequence[str], labels: Sequence[str], what: str) -> list[Score]:
    """Accuracy, and the mean over classes of F1."""
    right = Counter(p for p, w in zip(predicted, wanted, strict=True) if p == w)
    chosen, present = Counter(predicted), Counter(wanted)
    f1 = [2 * right[label] / (chosen[label] + present[label]) for label in labels if chosen[label] + present[label]]
    return [
        Score("accuracy", 100 * right.total() / len(wanted), f"of {len(wanted):,} {what}"),
        Score("F1", 100 * sum(f1) / len(f1), "mean over classes"),
    ]


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
