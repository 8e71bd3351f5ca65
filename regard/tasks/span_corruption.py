"""Span corruption (T5): spans of a text are cut out, each leaving a sentinel; the model generates what is missing."""

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

from regard.config import Run
from regard.data.position import BatchStream, DataPosition
from regard.data.text.batches import PairBatch
from regard.data.text.config import TextData
from regard.data.text.dataset import TextDataset, prepare_text, require_special
from regard.data.text.tokenizer import SENTINELS, Tokenizer
from regard.data.text.windows import all_span_windows, span_windows
from regard.tasks.language_model import perplexity, plain_text, validation_of
from regard.tasks.metrics import Score, evaluate
from regard.tasks.task import Card, Progress, Report, ScoreOptions, Task, require_context
from regard.tasks.translation import KINDS, EncoderDecoder, Translator, sequence_loss

__all__ = ["TASK"]


def decode_spans(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of an answer, with the names of its sentinels."""
    names = {sentinel: f"<extra_id_{n}>" for n, sentinel in enumerate(tokenizer.special.sentinels)}
    parts = ((name, list(part)) for name, part in groupby(ids, key=lambda token: names.get(token, "")))
    return " ".join(name or tokenizer.decode(part) for name, part in parts)


def _prepare(run: Run, tokenizer: Path, report: Report, progress: Progress) -> TextDataset:
    check = partial(require_special, file=tokenizer, task=TASK.name, sentinels=2, pad=True)
    return prepare_text(run.data, tokenizer, report, progress, extra_tokens=SENTINELS, task=TASK.name, check=check)


def _batches(run: Run, dataset: TextDataset, position: DataPosition) -> BatchStream[PairBatch]:
    text, special = plain_text(dataset.train).tokens, dataset.tokenizer.special
    return span_windows(text, run.data.max_len, run.train.batch_tokens, run.train.seed, special, position)


def _validation(run: Run, dataset: TextDataset) -> Iterator[PairBatch]:
    text = plain_text(dataset.valid).tokens
    return all_span_windows(text, run.data.max_len, run.train.batch_tokens, dataset.tokenizer.special)


def _score(predictor: Translator, split: str, options: ScoreOptions) -> list[Score]:
    dataset = validation_of(predictor.tokenizer, predictor.run, split, options.report)
    return [perplexity(evaluate(predictor.model, _validation(predictor.run, dataset), sequence_loss))]


TASK: Task[EncoderDecoder, TextDataset, PairBatch, Translator] = Task(
    name="span_corruption",
    kinds=KINDS,
    data=TextData,
    card=Card(
        "fills in spans cut out of a text", "text2text-generation", "ask", 'translate(["… <extra_id_0> …"])', '"… <extra_id_0> …"'
    ),
    prepare=_prepare,
    batches=_batches,
    validation=_validation,
    loss=sequence_loss,
    predictor=lambda model, run, tokenizer, labels: Translator(model, tokenizer, run, decode_spans),
    score=_score,
    check=lambda run, model: require_context(run, model.max_len, extra=1),
)
