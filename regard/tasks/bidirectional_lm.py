"""Bidirectional language modelling (ELMo): each word of a text is predicted from those before it, and again from those after it.

The run then embeds words in their context.  Training does not reach the weights with which a model's layers are mixed: `embed`
gives the mean of the normalized layers.

Shapes: B windows, T tokens, C characters of a token, D width of a vector, V vocabulary.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from regard.config import Run
from regard.data.position import BatchStream, DataPosition
from regard.data.text.characters import CharacterTokenizer
from regard.data.text.config import TextData
from regard.data.text.dataset import TextDataset, prepare_text
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.windows import BoundedBatch, all_bounded_windows, bounded_windows
from regard.tasks.language_model import perplexity, plain_text, validation_of
from regard.tasks.loss import linear_cross_entropy
from regard.tasks.metrics import Score, evaluate
from regard.tasks.origin import predictor_repr
from regard.tasks.task import Card, Progress, Report, ScoreOptions, Task
from regard.tasks.text_embedding import TextEmbedder, TextEncoder

__all__ = ["TASK", "BidirectionalLM", "bidirectional_loss"]

Directions = tuple[Tensor, Tensor]


class BidirectionalModel(TextEncoder, Protocol):
    """What this task asks of a model."""

    output: nn.Linear

    def features(self, words: Tensor) -> Directions:
        """What the output layer reads to predict the next word, and the previous one: twice (B, T, D / 2)."""


@dataclass(frozen=True, repr=False)
class BidirectionalLM:
    """A trained bidirectional language model with its tokenizer."""

    VERBS: ClassVar = ("embed",)  # of the command line
    INPUT: ClassVar = "words"
    HINTS: ClassVar = {
        "show": "has LSTMs and no attention to show; compare a word in two texts: regard embed THIS_FOLDER --word WORD TEXT TEXT"
    }

    __repr__ = predictor_repr

    model: nn.Module
    tokenizer: Tokenizer | CharacterTokenizer
    run: Run

    max_len, encode, embed = TextEmbedder.max_len, TextEmbedder.encode, TextEmbedder.embed
    embed_word, embed_spans = TextEmbedder.embed_word, TextEmbedder.embed_spans


def bidirectional_loss(model: BidirectionalModel, batch: BoundedBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Each token between start and end is predicted from those before it, and from those after it."""
    losses = [_loss(model, states, batch.labels, label_smoothing) for states in _predicting(model.features(batch.words))]
    loss, nll = (sum(column) for column in zip(*losses, strict=True))
    return loss, nll


def _predicting(features: Directions) -> Directions:
    """The states that predict each token between start and end: of the token before it, and of that after it."""
    following, preceding = features  # (B, T + 2, D / 2)
    return following[:, :-2], preceding[:, 2:]


def _loss(model: BidirectionalModel, features: Tensor, labels: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    output = model.output
    return linear_cross_entropy(features.flatten(0, 1), output.weight, output.bias, labels.flatten(), label_smoothing)


def _one_direction(
    direction: int, model: BidirectionalModel, batch: BoundedBatch, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    return _loss(model, _predicting(model.features(batch.words))[direction], batch.labels, label_smoothing)


@dataclass(frozen=True)
class _Vocabulary:
    """What a model reads and predicts of each token."""

    characters: Tensor | None  # (V, C): the character ids of each token; None: the model reads tokens
    outputs: int  # tokens that it predicts
    unk: int

    @classmethod
    def of(cls, run: Run, tokenizer: Tokenizer) -> "_Vocabulary":
        by_character = run.model.inputs == "characters"
        table = torch.tensor(CharacterTokenizer(tokenizer, run.model.characters).table) if by_character else None
        return cls(table, run.model.output_vocab or tokenizer.vocab, tokenizer.special.unk)

    def convert(self, batch: BoundedBatch) -> BoundedBatch:
        """The same windows: words as the model reads them, labels that it does not predict as unknown."""
        words = batch.words if self.characters is None else self.characters[batch.words]
        return BoundedBatch(words, batch.labels.masked_fill(batch.labels >= self.outputs, self.unk))


def _prepare(run: Run, tokenizer: Path, report: Report, progress: Progress) -> TextDataset:
    dataset = prepare_text(run.data, tokenizer, report, progress, extra_tokens=(), task=TASK.name)
    outputs, unk = run.model.output_vocab, dataset.tokenizer.special.unk
    if 0 < outputs <= unk:
        raise ValueError(f"model.output_vocab={outputs} leaves out the unknown token, number {unk + 1:,} of the vocabulary, "
                         f"which stands for all tokens left out; set it to {unk + 1:,} or more, or to 0 for all")  # fmt: skip
    return dataset


def _batches(run: Run, dataset: TextDataset, position: DataPosition) -> BatchStream[BoundedBatch]:
    text, special, t = plain_text(dataset.train).tokens, dataset.tokenizer.special, run.train
    vocabulary = _Vocabulary.of(run, dataset.tokenizer)
    for make, after in bounded_windows(text, run.data.max_len, t.batch_tokens, t.seed, special, position):
        yield partial(_make_batch, vocabulary, make), after


def _make_batch(vocabulary: _Vocabulary, read_windows: Callable[[], BoundedBatch]) -> BoundedBatch:
    return vocabulary.convert(read_windows())


def _validation(run: Run, dataset: TextDataset) -> Iterator[BoundedBatch]:
    text, special = plain_text(dataset.valid).tokens, dataset.tokenizer.special
    windows = all_bounded_windows(text, run.data.max_len, run.train.batch_tokens, special)
    return map(_Vocabulary.of(run, dataset.tokenizer).convert, windows)


def _predictor(model: nn.Module, run: Run, tokenizer: Tokenizer, labels: tuple[str, ...]) -> BidirectionalLM:
    by_character = run.model.inputs == "characters"
    return BidirectionalLM(model, CharacterTokenizer(tokenizer, run.model.characters) if by_character else tokenizer, run)


def _score(predictor: BidirectionalLM, split: str, options: ScoreOptions) -> list[Score]:
    """Perplexity of each direction."""
    run, words = predictor.run, predictor.tokenizer
    dataset = validation_of(words.words if isinstance(words, CharacterTokenizer) else words, run, split, options.report)
    scores = list[Score]()
    for direction, name in enumerate(("forward", "backward")):
        half = evaluate(predictor.model, _validation(run, dataset), partial(_one_direction, direction))
        scores.append(perplexity(2 * half)._replace(name=f"{name} perplexity"))  # a batch counts both directions
    return scores


TASK: Task[BidirectionalModel, TextDataset, BoundedBatch, BidirectionalLM] = Task(
    name="bidirectional_lm",
    kinds=("bidirectional-lm",),
    data=TextData,
    card=Card(
        "embeds words in their context", "feature-extraction", "embed", 'embed_word(["…", "…"], "word")', '"…" "…" --word word'
    ),
    prepare=_prepare,
    batches=_batches,
    validation=_validation,
    loss=bidirectional_loss,
    predictor=_predictor,
    score=_score,
    decodes=False,
)
