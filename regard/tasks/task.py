"""What a task is: all that differs between kinds of learning, as one value.

The training loop, the model card, scoring and the command line ask the task of a run; none of them compares its name.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from torch import Tensor, nn

from regard.config import Run
from regard.data.position import BatchStream, DataPosition
from regard.data.progress import Progress, Report
from regard.data.text.tokenizer import Tokenizer
from regard.tasks.errors import ErrorAnalysis
from regard.tasks.metrics import Batch, Score

__all__ = ["Batch", "Card", "Dataset", "EncodedSplit", "Progress", "Report", "ScoreOptions", "Task", "require_context"]


class EncodedSplit(Protocol):
    """One encoded split of a data set."""

    @property
    def digest(self) -> str:
        """A hash of its content."""


class Dataset(Protocol):
    """What the training loop asks of a data set."""

    @property
    def train(self) -> EncodedSplit:
        """The training split."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names by index; empty if no classes are learned."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None for images."""


class Card(NamedTuple):
    """What the model card says of a task."""

    does: str  # "A gpt that …"
    tag: str  # the name model hubs have for it
    verb: str  # of the command line
    call: str  # the same in Python
    words: str = '"…"'  # what the verb is given
    reads: Literal["text", "image", "audio", "nothing"] = "text"  # its kind


@dataclass(frozen=True)
class ScoreOptions:
    """How to score a split."""

    limit: int | None = None  # most examples
    beam_size: int | None = None  # of translations; None: the run's
    length_penalty: float | None = None
    report: Report = lambda text: None
    progress: Callable[[int], None] = lambda done: None
    bootstrap: int = 0  # resamples for confidence intervals of BLEU and chrF; 0: none
    trained_on: Run | None = None  # the run in whose training data the examples are looked for; None: they are not
    collect: Callable[[ErrorAnalysis], None] | None = None  # gets every example with its answer, where the task can give them


Model = TypeVar("Model")
Data = TypeVar("Data", bound=Dataset)
BatchT = TypeVar("BatchT", bound=Batch)
Predictor = TypeVar("Predictor")


@dataclass(frozen=True)
class Task(Generic[Model, Data, BatchT, Predictor]):
    """One kind of learning."""

    name: str
    kinds: tuple[str, ...]  # of models that learn it
    data: type  # config class of its data
    card: Card
    prepare: Callable[[Run, Path, Report, Progress], Data]  # finds and encodes the data; the path is of the tokenizer
    batches: Callable[[Run, Data, DataPosition], BatchStream[BatchT]]  # endless; makes a batch when called
    validation: Callable[[Run, Data], Iterator[BatchT]]  # every validation example once
    loss: Callable[[Model, BatchT, float], tuple[Tensor, Tensor]]  # (model, batch, label_smoothing) → two sums, see `loss.py`
    # (model, run, tokenizer, labels) → what `regard.load` returns, with the VERBS it answers and the INPUT that `show` gives it
    predictor: Callable[[nn.Module, Run, Any, tuple[str, ...]], Predictor]
    score: Callable[[Predictor, str, ScoreOptions], list[Score]]  # of a split by name, or a file
    # the loss with R-Drop: (model, batch, label_smoothing, its weight); None: not offered
    r_drop: Callable[[Model, BatchT, float, float], tuple[Tensor, Tensor]] | None = None
    mixed_validation: Callable[[Run, Data], dict[str, Iterator[BatchT]]] = lambda run, dataset: {}  # of `data.mix`, by name
    samples: Callable[[Predictor, Data], list[str]] = lambda predictor, dataset: []  # lines shown at every evaluation
    check: Callable[[Run, Model], None] = lambda run, model: None  # refuses a model that does not fit the data
    advice: Callable[[Run, int], str] = lambda run, batches: ""  # before training, given the batches of a step
    batch_text: Callable[[Run, int], str] = lambda run, batches: f"{run.train.batch_tokens * batches:,} tokens"  # of a step
    unit: str = "token"  # one prediction
    perplexity: bool = True  # whether exp(validation loss) is one; not of classes, vectors or transcripts
    trains: tuple[str, ...] = ()  # heads of the model that it trains, among those that imports may lack
    scored_by_search: bool = False  # whether beam size and length penalty matter to its scores
    decodes: bool = True  # whether weights are laid out for small products, as decoding has them
    int8: bool = False  # whether it can be scored with 8-bit weights
    analyses_errors: bool = False  # whether its score collects examples
    score_limit: int | None = None  # validation examples scored at the end of a training
    score_text: Callable[[Run], str] = lambda run: ""  # how they were scored, for the card


def require_context(run: Run, context: float, extra: int) -> None:
    """Refuse texts longer than the model's context; `extra` tokens mark their start or end."""
    length = run.data.max_len
    if length + extra > context:
        longer = "" if run.init else f" or model.max_len={length + extra}"
        raise ValueError(f"data.max_len={length} and {extra} for start or end exceed the model's context length of {context} "
                         f"tokens; set data.max_len={context - extra}{longer}")  # fmt: skip
