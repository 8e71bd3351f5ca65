"""Image classification: labelled images in, a model that names the class of an image.

Shapes: B images, Y X rows and columns, C channels.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.config import Run
from regard.data.image.batches import ImageBatch, all_image_batches, image_batches, to_model_input
from regard.data.image.config import ImageData
from regard.data.image.io import Bytes, ImageLike, require_several
from regard.data.image.store import ImageDataset, image_names, prepare, read_split, to_square
from regard.data.position import BatchStream, DataPosition
from regard.tasks.errors import ScoredExample
from regard.tasks.loss import mixup_cross_entropy
from regard.tasks.metrics import Score
from regard.tasks.origin import predictor_repr
from regard.tasks.overlap import trained_images
from regard.tasks.scoring import score_classes
from regard.tasks.task import Card, Progress, Report, ScoreOptions, Task
from regard.tasks.text_embedding import Prediction, require_top

__all__ = ["TASK", "ImageClassifier"]

CLASSIFIER = "classifier"
UNTRAINED = "this model has no trained classes; train it on some: regard train images init=THIS_FOLDER data.train=IMAGES"
SAMPLED = 1000  # validation images classified at every evaluation


@dataclass(frozen=True, repr=False)
class ImageClassifier:
    """A trained image model and the names of its classes."""

    VERBS: ClassVar = ("classify",)  # of the command line
    INPUT: ClassVar = "image"

    __repr__ = predictor_repr

    model: nn.Module
    run: Run
    labels: tuple[str, ...]

    @property
    def trained(self) -> bool:
        """Whether its classes were trained; those of an imported backbone were not."""
        return CLASSIFIER not in self.run.untrained

    @torch.inference_mode()
    def classify(self, images: Sequence[ImageLike], top: int = 1,
                 progress: Callable[[int], None] = lambda done: None) -> list[list[Prediction]]:  # fmt: skip
        """The most likely classes of each image: a file, an array (Y, X, C) of bytes, or PIL's image, best first."""
        require_several(images)
        require_top(top)
        if not self.trained:
            raise ValueError(UNTRAINED)
        predictions, size = list[list[Prediction]](), self.run.decode.batch_size
        for first in range(0, len(images), size):
            x = torch.cat([self.to_input(image) for image in images[first : first + size]])  # (B, C, Y, X)
            probabilities, best = self.model(x).softmax(-1).topk(min(top, len(self.labels)))
            for ps, classes in zip(probabilities.tolist(), best.tolist(), strict=True):
                predictions.append([Prediction(self.labels[n], p) for n, p in zip(classes, ps, strict=True)])
            progress(len(predictions))
        return predictions

    def to_input(self, image: ImageLike) -> Tensor:
        """The model's input: the middle of the image, resized and normalised; (1, C, Y, X)."""
        device = next(self.model.parameters()).device
        return to_model_input(self.square(image)[None], self.run.model.image, self.run.data).to(device)

    def square(self, image: ImageLike) -> Bytes:
        """The middle of an image, as in training: (Y, X, C)."""
        return to_square(image, self.run.data, self.run.model)


def image_class_loss(model: nn.Module, batch: ImageBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the class of each image; of a mixture of two images, weighted by their parts."""
    return mixup_cross_entropy(model(batch.image), batch.label, batch.other, batch.part, label_smoothing)


def _prepare(run: Run, tokenizer: Path, report: Report, progress: Progress) -> ImageDataset:
    return prepare(run.data, run.model, report, progress, labeled=True)


def _batches(run: Run, dataset: ImageDataset, position: DataPosition) -> BatchStream[ImageBatch]:
    return image_batches(dataset.train, run.model.image, run.train.batch_size, run.train.seed, run.data, position)


def _validation(run: Run, dataset: ImageDataset) -> Iterator[ImageBatch]:
    return all_image_batches(dataset.valid, run.model.image, run.train.batch_size, run.data)


@torch.inference_mode()
def _samples(classifier: ImageClassifier, dataset: ImageDataset) -> list[str]:
    images, run, device = dataset.valid, classifier.run, next(classifier.model.parameters()).device
    rows = np.linspace(0, len(images) - 1, min(SAMPLED, len(images))).astype(int)  # own images are sorted by class
    right = 0
    for some in np.array_split(rows, -(-len(rows) // run.train.batch_size)):
        x = to_model_input(images.images[some], run.model.image, run.data).to(device)
        right += int((classifier.model(x).argmax(-1).cpu().numpy() == images.labels[some]).sum())
    return [f"accuracy {right / len(rows):.1%} on {len(rows):,} validation images"]


@torch.inference_mode()
def _score(classifier: ImageClassifier, split: str, options: ScoreOptions) -> list[Score]:
    run, model, labels = classifier.run, classifier.model, classifier.labels
    if not classifier.trained:
        raise ValueError(UNTRAINED)
    images, device = (read_split(run.data, run.model, split, options.report, labels=labels), next(model.parameters()).device)
    checked = options.trained_on if split != "train" else None
    trained = trained_images(checked, images, labels, options.report) if checked else None
    predicted, probabilities = list[int](), list[float]()
    for batch in all_image_batches(images, run.model.image, run.train.batch_size, run.data):
        best = model(batch.image.to(device)).softmax(-1).max(-1)
        predicted += best.indices.tolist()
        probabilities += best.values.tolist()
        options.progress(len(predicted))
    names = image_names(run.data, split, images) if options.collect else [""] * len(images)
    rows = zip(names, images.labels.tolist(), predicted, probabilities, strict=True)
    examples = [ScoredExample(name, (labels[wanted],), labels[best], p, None) for name, wanted, best, p in rows]
    return score_classes(examples, trained, labels, "images", options)


TASK: Task[nn.Module, ImageDataset, ImageBatch, ImageClassifier] = Task(
    name="image_classification",
    kinds=("image-encoder",),
    data=ImageData,
    card=Card("classifies images", "image-classification", "classify", 'classify(["photo.jpg"])', "photo.jpg", "image"),
    prepare=_prepare,
    batches=_batches,
    validation=_validation,
    loss=image_class_loss,
    predictor=lambda model, run, tokenizer, labels: ImageClassifier(model, run, labels),
    score=_score,
    samples=_samples,
    batch_text=lambda run, batches: f"{run.train.batch_size * batches:,} images",
    unit="image",
    perplexity=False,
    decodes=False,
    int8=True,
    analyses_errors=True,
    trains=(CLASSIFIER,),
)
