"""Captioning: images with captions in, a decoder that writes a caption and looks at the image for each word.

Shapes: B images, R captions, T tokens, S places of the image, E width of the output layer's input, Y X rows and columns.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from regard.config import Run
from regard.data.image.batches import to_model_input
from regard.data.image.captions import (
    CaptionBatch,
    CaptionDataset,
    all_caption_batches,
    caption_batches,
    find_captions,
    prepare_captions,
    store_captions,
)
from regard.data.image.config import CaptionData
from regard.data.image.io import Bytes, ImageLike, require_several
from regard.data.image.store import to_square
from regard.data.position import BatchStream, DataPosition
from regard.data.text.dataset import require_special
from regard.data.text.tokenizer import Tokenizer
from regard.decode import search
from regard.decode.fast import decoder
from regard.decode.logits_processors import logits_processor
from regard.decode.search import Hypothesis, Observers
from regard.models.image_encoder import CaptionFeatures
from regard.tasks.answer_html import answer_repr, n_best_html
from regard.tasks.loss import linear_cross_entropy
from regard.tasks.metrics import Score, caption_scores
from regard.tasks.origin import predictor_repr
from regard.tasks.task import Card, Progress, Report, ScoreOptions, Task, require_context

__all__ = ["TASK", "Caption", "ImageCaptioner"]

KINDS = ("captioner",)
BASELINE = 0.9  # decay of the mean reward that REINFORCE subtracts


class CaptionModel(Protocol):
    """What captioning asks of a model."""

    training: bool
    max_len: float  # longest caption in tokens, its start or end included
    output: nn.Linear

    def features(self, image: Tensor, target: Tensor) -> CaptionFeatures:
        """Input of the output layer for images (B, C, Y, X) and the captions so far (R, T)."""


@dataclass(frozen=True)
class Caption:
    """A caption, and how likely the model finds it."""

    text: str
    tokens: list[str]
    ids: list[int]
    score: float | None  # log-probability / length ** length_penalty, if it was computed
    n_best: list["Caption"] = field(default_factory=list)  # further captions, best first

    def __repr__(self) -> str:
        return answer_repr(self)

    def _repr_html_(self) -> str:
        return n_best_html(self, self.n_best)


@dataclass(frozen=True, repr=False)
class ImageCaptioner:
    """A trained caption model, its tokenizer and how it reads images."""

    VERBS: ClassVar = ("caption",)  # of the command line
    INPUT: ClassVar = "image"

    __repr__ = predictor_repr

    model: nn.Module
    tokenizer: Tokenizer
    run: Run

    @torch.inference_mode()
    def caption(self, images: Sequence[ImageLike], beam: int | None = None, n_best: int = 1,
                length_penalty: float | None = None, progress: Callable[[int], None] = lambda done: None,
                ) -> list[Caption]:  # fmt: skip
        """A caption of each image: a file, an array (Y, X, C) of bytes, or PIL's image."""
        require_several(images)
        decode = self.run.decode
        width = decode.beam_size if beam is None else beam
        penalty = decode.length_penalty if length_penalty is None else length_penalty
        if width < 1 or not 1 <= n_best <= width:
            raise ValueError(f"beam {width} and n_best {n_best}; use a beam of 1 or more, and an n_best from 1 to the beam")
        if not -10 <= penalty <= 10:
            raise ValueError(f"length_penalty {penalty}; use -10 to 10")
        captions = list[Caption]()
        for first in range(0, len(images), decode.batch_size):
            x = torch.cat([self.to_input(image) for image in images[first : first + decode.batch_size]])  # (B, C, Y, X)
            captions += [self._caption(hypotheses[:n_best]) for hypotheses in self.search(x, width, penalty)]
            progress(len(captions))
        return captions

    def search(self, x: Tensor, beam: int, penalty: float, observers: Observers | None = None) -> list[list[Hypothesis]]:
        """Model input (B, C, Y, X) → the captions of each image as token ids, best first; `observers` follow those of each."""
        special, steps, decode = self.tokenizer.special, decoder(self.model), self.run.decode
        limits = torch.full((len(x),), self.max_answer(), device=x.device)
        processor = logits_processor(decode, special.eos)
        if beam == 1:
            found = search.greedy(steps, x, limits, bos=special.bos, eos=special.eos, penalty=penalty, scored=True,
                                  processor=processor, observers=observers)  # fmt: skip
            return [[hypothesis] for hypothesis in found]
        return search.beam(steps, x, limits, width=beam, bos=special.bos, eos=special.eos, penalty=penalty, processor=processor,
                           observers=observers)  # fmt: skip

    def max_answer(self, wanted: int | None = None) -> int:
        """The most tokens of a caption, its end included: as wanted, else the run's."""
        return int(min(wanted or self.run.decode.max_length or self.run.data.max_len + 1, self.model.max_len))  # type: ignore[type-var,arg-type]

    def _caption(self, hypotheses: list[Hypothesis]) -> Caption:
        decode, pieces = self.tokenizer.decode, self.tokenizer.ids_to_tokens
        best = [Caption(decode(ids), pieces(ids), ids, score) for ids, score, _ in hypotheses]
        return Caption(best[0].text, best[0].tokens, best[0].ids, best[0].score, best)

    def to_input(self, image: ImageLike) -> Tensor:
        """The model's input: the middle of the image, resized and normalised; (1, C, Y, X)."""
        device = next(self.model.parameters()).device
        return to_model_input(self.square(image)[None], self.run.model.image, self.run.data).to(device)

    def square(self, image: ImageLike) -> Bytes:
        """The middle of an image, as in training: (Y, X, C)."""
        return to_square(image, self.run.data, self.run.model)


def caption_loss(model: CaptionModel, batch: CaptionBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Teacher forcing, and in training what Show, Attend and Tell adds: the penalty on weights, REINFORCE for hard attention."""
    inputs, targets = batch.target[:, :-1], batch.target[:, 1:]
    real = targets != batch.pad  # (R, T)
    features, weights, log_prob = model.features(batch.image, inputs)
    loss, nll = linear_cross_entropy(features[real], model.output.weight, model.output.bias, targets[real], label_smoothing)
    if not model.training or weights is None:
        return loss, nll
    c = model.config  # type: ignore[attr-defined]
    if c.penalty:
        loss = loss + c.penalty * doubly_stochastic(weights, real)
    if log_prob is not None:
        reward = _rewards(model, features, targets, real)  # (R,)
        loss = loss - ((reward - model.baseline)[:, None] * log_prob * real).sum()  # type: ignore[attr-defined]
        loss = loss + c.entropy * (weights * weights.clamp_min(1e-12).log()).sum(-1)[real].sum()
        model.baseline.lerp_(reward.mean(), 1 - BASELINE)  # type: ignore[attr-defined]
    return loss, nll


def doubly_stochastic(weights: Tensor, real: Tensor) -> Tensor:
    """Σᵢ (1 - Σₜ αₜᵢ)² of all captions, equation 14 of https://arxiv.org/abs/1502.03044.

    Weights (R, T, S), real tokens (R, T).
    """
    looked = (weights * real[..., None]).sum(1)[real.any(1)]  # (R, S)
    return ((1 - looked) ** 2).sum()


@torch.no_grad()
def _rewards(model: CaptionModel, features: Tensor, targets: Tensor, real: Tensor) -> Tensor:
    """The mean log-probability of a token of each caption, which hard attention should raise: (R,)."""
    rows = real.any(1)
    rewards = features.new_zeros(len(features))
    tokens = model.output(features[real]).log_softmax(-1).gather(1, targets[real][:, None])[:, 0]
    rewards.index_add_(0, real.nonzero()[:, 0], tokens)
    rewards[rows] /= real[rows].sum(1)
    return rewards


def _prepare(run: Run, tokenizer: Path, report: Report, progress: Progress) -> CaptionDataset:
    dataset = prepare_captions(run.data, run.model, tokenizer, report, progress)
    require_special(dataset.tokenizer, tokenizer, TASK.name, pad=True)
    return dataset


def _batches(run: Run, dataset: CaptionDataset, position: DataPosition) -> BatchStream[CaptionBatch]:
    batch, seed = run.train.batch_size, run.train.seed
    return caption_batches(dataset.train, run.model.image, batch, seed, run.data, dataset.tokenizer, position)


def _validation(run: Run, dataset: CaptionDataset) -> Iterator[CaptionBatch]:
    return all_caption_batches(dataset.valid, run.model.image, run.train.batch_size, run.data, dataset.tokenizer)


def _samples(captioner: ImageCaptioner, dataset: CaptionDataset) -> list[str]:
    images = dataset.valid.images.images[: len(dataset.samples)]
    device = next(captioner.model.parameters()).device
    x = to_model_input(images, captioner.run.model.image, captioner.run.data).to(device)
    with torch.inference_mode():
        found = captioner.search(x, 1, 1.0)
    texts = [captioner.tokenizer.decode(hypotheses[0].tokens) for hypotheses in found]
    return [f"{text}   (wanted: {captions[0]})" for text, captions in zip(texts, dataset.samples, strict=True)]


@torch.inference_mode()
def _score(captioner: ImageCaptioner, split: str, options: ScoreOptions) -> list[Score]:
    """Caption every image of a split and compare with all its captions."""
    run, decode, device = captioner.run, captioner.run.decode, next(captioner.model.parameters()).device
    source = find_captions(run.data, run.model, split)
    images = store_captions(run.data, run.model, source, captioner.tokenizer, options.report).images
    beam = decode.beam_size if options.beam_size is None else options.beam_size
    penalty = decode.length_penalty if options.length_penalty is None else options.length_penalty
    count, answers = min(len(images), options.limit or len(images)), list[str]()
    for first in range(0, count, decode.batch_size):
        x = to_model_input(images.images[first : min(first + decode.batch_size, count)], run.model.image, run.data).to(device)
        found = captioner.search(x, beam, penalty)
        answers += [captioner.tokenizer.decode(hypotheses[0].tokens) for hypotheses in found]
        options.progress(len(answers))
    return caption_scores(answers, source.captions[:count], tokenized=run.data.normalize)


TASK: Task[CaptionModel, CaptionDataset, CaptionBatch, ImageCaptioner] = Task(
    name="captioning",
    kinds=KINDS,
    data=CaptionData,
    card=Card("writes captions of images", "image-to-text", "caption", 'caption(["photo.jpg"])', "photo.jpg", "image"),
    prepare=_prepare,
    batches=_batches,
    validation=_validation,
    loss=caption_loss,
    predictor=lambda model, run, tokenizer, labels: ImageCaptioner(model, tokenizer, run),
    score=_score,
    samples=_samples,
    check=lambda run, model: require_context(run, model.max_len, extra=1),
    batch_text=lambda run, batches: f"{run.train.batch_size * batches:,} images",
    scored_by_search=True,
    score_text=lambda run: f", beam {run.decode.beam_size}, length penalty {run.decode.length_penalty}",
)
