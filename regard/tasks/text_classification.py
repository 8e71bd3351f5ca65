"""Text classification: labelled texts in, an encoder that names the class of a text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from regard.config import Run
from regard.data.position import BatchStream, DataPosition
from regard.data.text.batches import LabeledBatch, all_labeled_batches, labeled_batches
from regard.data.text.config import TextData
from regard.data.text.dataset import TextDataset, prepare_labeled
from regard.data.text.rows import ReadNotes
from regard.data.text.splits import find_split
from regard.data.text.store import PairStore, TextStore
from regard.data.text.tokenizer import Tokenizer
from regard.tasks.errors import ScoredExample
from regard.tasks.loss import class_cross_entropy
from regard.tasks.metrics import Score
from regard.tasks.mixing import mix_parts
from regard.tasks.origin import predictor_repr
from regard.tasks.overlap import trained_texts
from regard.tasks.scoring import score_classes
from regard.tasks.task import Card, Progress, Report, ScoreOptions, Task, require_context
from regard.tasks.text_embedding import Prediction, TextEmbedder, encoded_batches, require_list, require_top

__all__ = ["TASK", "TextClassifier"]


class ClassifyingEncoder(Protocol):
    """What this task asks of a model."""

    max_len: float  # context length

    def classify(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of the classes of each text: (B, T) → (B, classes)."""


@dataclass(frozen=True, repr=False)
class TextClassifier:
    """A trained text classifier with its tokenizer and the names of its classes."""

    VERBS: ClassVar = ("classify", "embed")  # of the command line
    INPUT: ClassVar = "text"
    HINTS: ClassVar = TextEmbedder.HINTS

    __repr__ = predictor_repr

    model: nn.Module
    tokenizer: Tokenizer
    run: Run
    labels: tuple[str, ...]

    max_len, encode, embed = TextEmbedder.max_len, TextEmbedder.encode, TextEmbedder.embed
    embed_word, embed_spans = TextEmbedder.embed_word, TextEmbedder.embed_spans

    @torch.inference_mode()
    def classify(self, texts: Sequence[str] | Sequence[list[int]], top: int = 1,
                 progress: Callable[[int], None] = lambda done: None) -> list[list[Prediction]]:  # fmt: skip
        """The most likely classes of each text, given as text or token ids, best first."""
        if "classifier" in self.run.untrained:
            raise ValueError("this model has no trained classes; use regard train classify init=THIS_FOLDER data.train=FILE")
        require_list(texts)
        require_top(top)
        predictions: list[list[Prediction]] = [[] for _ in texts]
        for rows, tokens, mask in encoded_batches(self, texts, progress):
            logits = self.model.classify(tokens, mask)  # type: ignore[operator]
            probabilities, best = logits.softmax(-1).topk(min(top, len(self.labels)))
            for row, ps, classes in zip(rows, probabilities.tolist(), best.tolist(), strict=True):
                predictions[row] = [Prediction(self.labels[n], p) for n, p in zip(classes, ps, strict=True)]
        return predictions


def text_class_loss(model: ClassifyingEncoder, batch: LabeledBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the class of each text."""
    return class_cross_entropy(model.classify(batch.text, batch.mask), batch.label, label_smoothing)


def _prepare(run: Run, tokenizer: Path, report: Report, progress: Progress) -> TextDataset:
    return prepare_labeled(run.data, tokenizer, report, progress, task=TASK.name, mix=mix_parts(run))


def _batches(run: Run, dataset: TextDataset, position: DataPosition) -> BatchStream[LabeledBatch]:
    assert not isinstance(dataset.train, TextStore)
    return labeled_batches(dataset.train, dataset.tokenizer.special, run.train.batch_tokens, run.train.seed, position)


def _validation(run: Run, dataset: TextDataset) -> Iterator[LabeledBatch]:
    assert isinstance(dataset.valid, PairStore)
    return all_labeled_batches(dataset.valid, dataset.tokenizer.special, run.train.batch_tokens)


def _validate_mixed(run: Run, dataset: TextDataset) -> dict[str, Iterator[LabeledBatch]]:
    special, tokens = dataset.tokenizer.special, run.train.batch_tokens
    return {name: all_labeled_batches(valid, special, tokens) for name, valid in dataset.mixed}


def _samples(classifier: TextClassifier, dataset: TextDataset) -> list[str]:
    predictions = classifier.classify([text for text, _ in dataset.samples])
    pairs = zip(dataset.samples, predictions, strict=True)
    return [f"{text}  →  {best.text} {best.probability:.0%}   (wanted: {wanted})" for (text, wanted), [best] in pairs]


def _score(classifier: TextClassifier, split: str, options: ScoreOptions) -> list[Score]:
    found, notes = find_split(classifier.run.data, split), ReadNotes(classifier.run.data.strict)
    pairs = [row[:2] for row in islice(found.rows(notes) if found.rows else found.pairs(), options.limit)]
    for line in notes.lines():
        options.report(line)
    if not pairs:
        raise ValueError(f"{split} is empty; give a file with a text and its class on each line")
    unknown = next((label for _, label in pairs if label not in classifier.labels), None)
    if unknown is not None:
        raise ValueError(f"{split} has the class {unknown!r}, never seen in training; known are {', '.join(classifier.labels)}")
    predictions = classifier.classify([text for text, _ in pairs], progress=options.progress)
    checked = options.trained_on if split != "train" else None
    trained = trained_texts(checked, [text for text, _ in pairs], "texts", options.report) if checked else None
    rows = zip(pairs, predictions, strict=True)
    examples = [ScoredExample(text, (label,), best.text, best.probability, None) for (text, label), [best] in rows]
    return score_classes(examples, trained, classifier.labels, "texts", options)


TASK: Task[ClassifyingEncoder, TextDataset, LabeledBatch, TextClassifier] = Task(
    name="text_classification",
    kinds=("encoder",),
    data=TextData,
    card=Card("classifies texts", "text-classification", "classify", 'classify(["…"])'),
    prepare=_prepare,
    batches=_batches,
    validation=_validation,
    mixed_validation=_validate_mixed,
    loss=text_class_loss,
    predictor=lambda model, run, tokenizer, labels: TextClassifier(model, tokenizer, run, labels),
    score=_score,
    samples=_samples,
    check=lambda run, model: require_context(run, model.max_len, extra=2),
    unit="text",
    perplexity=False,
    int8=True,
    analyses_errors=True,
    trains=("pooler", "classifier"),
)
