"""Everything that attention did for one input: the answer, and the weights of every layer and head, of any predictor.

A `Record` is plain data with the tensors still in it; the explorer page asks for parts of it.  How each kind of predictor is
recorded is in `record_text`, `record_encoders`, `record_images` and `record_speech`.

Shapes: H heads, Q queries, K keys, N windows, T items of the answer, Y X rows and columns of a tile or a thumbnail.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.image.io import ImageLike
from regard.tasks.observer import TextObserver
from regard.tasks.speech import Samples

if TYPE_CHECKING:
    from regard.tasks.predictors import Predictor

__all__ = ["Answer", "AnswerItem", "AttentionLayer", "Axis", "InputLike", "MelLevels", "Record", "RecordOptions", "Rerun",
           "Windows", "Word", "record_attention", "record_with", "rollout", "rollout_of", "thumbnails"]  # fmt: skip

InputLike = str | Path | bytes | ImageLike | Samples  # a text; or an image or a sound: a file, its content, or an array

AttentionKind = Literal["self", "masked", "cross"]
AxisKind = Literal["tokens", "grid", "frames"]


@dataclass(frozen=True)
class Word:
    """Tokens that are one word or, of byte pieces, one character: positions `start` to `end` - 1 of an axis."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Axis:
    """What the queries or the keys of a layer are: tokens, places of an image (rows first), or frames of a sound."""

    kind: AxisKind
    size: int
    labels: list[str] = field(default_factory=list)  # of each token; of class tokens before a grid
    words: list[Word] = field(default_factory=list)  # of tokens; they cover the axis, special tokens are words of their own
    grid: tuple[int, int] | None = None  # rows and columns of an image; a class token before them is `size` - rows · columns
    times: list[float] = field(default_factory=list)  # of frames: the middle of each, in seconds
    special: list[int] = field(default_factory=list)  # positions of start, end and other tokens that are no text


@dataclass(frozen=True, eq=False)
class Windows:
    """Where local attention looks: for each window, the positions of its queries (N, Q) and keys (N, K), -1 for padding.

    A position is a query of one window; it may be a key of several.
    """

    queries: Tensor
    keys: Tensor
    shape: tuple[int, int]  # all queries and all keys


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """The weights of one attention module."""

    name: str  # of the module, as `watch` has it: "decoder.2.cross"
    title: str  # "decoder layer 3, cross-attention"
    kind: AttentionKind
    stack: str  # "encoder", "decoder", or "" of a model with one stack
    queries: str  # name of an axis of the record
    keys: str
    weights: Tensor  # (H, Q, K), or (N, H, Q, K) of windows
    windows: Windows | None = None

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.weights.shape[-3]

    @property
    def shape(self) -> tuple[int, int]:
        """All queries and all keys: of windows, those of the whole image."""
        queries, keys = self.weights.shape[-2:] if self.windows is None else self.windows.shape
        return queries, keys

    def of_head(self, head: int | None) -> Tensor:
        """The weights of one head, counted from 0, or the mean of all: (Q, K), or (N, Q, K) of windows."""
        if head is not None and not 0 <= head < self.heads:
            raise ValueError(f"no head {head}; {self.name} has heads 0 to {self.heads - 1}")
        return self.weights.mean(-3) if head is None else self.weights.select(-3, head)

    def dense(self, head: int | None = None, top: int = 0, left: int = 0, rows: int | None = None,
              columns: int | None = None) -> Tensor:  # fmt: skip
        """A tile of the matrix of all queries and keys, by default all of it: (Y, X).

        Outside of its window a query has weight 0.  Each row of the whole matrix sums to one, less what a window gives to
        padding: Swin pads a grid that its windows do not tile, and lets the positions beside the padding attend to it.
        """
        rows = self.shape[0] - top if rows is None else rows
        columns = self.shape[1] - left if columns is None else columns
        if min(top, left) < 0 or min(rows, columns) < 1 or top + rows > self.shape[0] or left + columns > self.shape[1]:
            raise ValueError(f"{rows} × {columns} weights from row {top}, column {left}; {self.name} has {self.shape[0]} × "
                             f"{self.shape[1]}: ask for a tile inside")  # fmt: skip
        weights = self.of_head(head)
        if self.windows is None:
            return weights[top : top + rows, left : left + columns]
        queries, keys = self.windows.queries, self.windows.keys
        window, place = ((queries >= top) & (queries < top + rows)).nonzero(as_tuple=True)  # of each row of the tile
        at = keys[window] - left  # (Y, K)
        at = at.masked_fill((keys[window] < 0) | (at < 0) | (at >= columns), columns)  # one more column, which is dropped
        tile = weights.new_zeros(rows, columns + 1)
        tile[queries[window, place] - top] = weights.new_zeros(len(at), columns + 1).scatter_(1, at, weights[window, place])
        return tile[:, :columns]

    def received(self, head: int | None = None) -> Tensor:
        """The attention that each key receives, the mean over all queries: (K,)."""
        weights = self.of_head(head)
        if self.windows is None:
            return weights.mean(0)
        queries, keys = self.windows.queries, self.windows.keys
        sums = (weights * (queries >= 0)[..., None]).sum(1)  # (N, K)
        real = keys >= 0
        return weights.new_zeros(self.shape[1]).index_add(0, keys[real], sums[real]) / self.shape[0]


@dataclass(frozen=True)
class AnswerItem:
    """A token of an answer, or a class, with its probability; `query` is its row in the alignment."""

    text: str
    probability: float | None
    query: int


@dataclass(frozen=True)
class Answer:
    """What the model says: a translation, continuation, caption, transcript, class, or filled-in words."""

    kind: Literal["translation", "continuation", "caption", "transcript", "class", "fill", "none"]
    text: str
    items: list[AnswerItem]
    score: float | None = None


class Rerun(Protocol):
    """The same model on the same input once more, with something changed around it."""

    @property
    def source(self) -> list[int]:
        """Token ids of the input, the first positions of its axis: a translator's without the end token that follows them.

        Empty if the input is not text; then no other source can be given.
        """

    def logprobs(self, source: list[int] | None = None) -> Tensor:
        """One forward pass: the log-probability of each item of the recorded answer (T,), reading another source if given."""

    def answer(self, source: list[int] | None = None, observer: TextObserver | None = None) -> Answer:
        """Search for an answer again, with the same options; an observer may stop waiting for it."""


@dataclass(frozen=True, eq=False)
class Record:
    """One input, its answer, and all attention."""

    title: str  # of run and family
    answer: Answer
    axes: dict[str, Axis]  # "source", "read", "answer", "tokens", "image", "frames", ...
    layers: list[AttentionLayer]
    alignment: Tensor  # (rows, columns): what each item of the answer attended to; see `alignment_axes`; (0, 0) without attention
    alignment_axes: tuple[str, str]
    alignment_title: str  # which layers and heads it is the mean of
    rerun: Rerun
    picture: bytes | None = None  # PNG of what an image model was given, upright, not larger than 1024 pixels
    region: tuple[float, float, float, float] | None = None  # top, left, bottom, right: the part of the picture that was read
    spectrogram: "MelLevels | None" = None
    notes: list[str] = field(default_factory=list)  # what the user should know: few training steps, cut text, ...
    alignment_queries: list[int] | None = None  # rows of self-attention over the columns' axis that the alignment's rows are


@dataclass(frozen=True, eq=False)
class MelLevels:
    """The level of each mel channel in each frame, from 0 (silent) to 1 (loudest)."""

    seconds: float
    frequencies: list[float]  # Hz, of each channel
    levels: Tensor  # (channels, frames)


@dataclass(frozen=True)
class RecordOptions:
    """How to find the answer; None is what the run or the model says."""

    beam: int | None = None
    tokens: int | None = None  # the most of an answer
    temperature: float | None = None  # sample, instead of searching for the best answer
    seed: int = 0
    name: str = ""  # of the run, for titles
    observer: TextObserver | None = None  # follows the answer while it is searched for

    def observed_by(self, observer: TextObserver | None) -> "RecordOptions":
        """The same for running again, for another observer or none."""
        return replace(self, observer=observer)


def record_attention(predictor: "Predictor", what: InputLike, *, beam: int | None = None, tokens: int | None = None,
                     temperature: float | None = None, seed: int = 0, name: str = "",
                     observer: TextObserver | None = None) -> Record:  # fmt: skip
    """Answer a text, an image or a sound, and record all attention of one forward pass over the input and the answer.

    An image or a sound is a file, the content of one, or an array.  `beam`, `tokens` and `temperature` are for models that write
    their answer token by token, and so is an `observer`, who reads the text so far and may stop waiting for the rest.
    """
    # Each registers the predictors that it records, and needs the types above.
    from regard.view import record_encoders, record_images, record_speech, record_text  # noqa: F401

    return record_with(predictor, what, RecordOptions(beam, tokens, temperature, seed, name, observer))


@singledispatch
def record_with(predictor: "Predictor", what: InputLike, options: RecordOptions) -> Record:
    """`record_attention` of one kind of predictor."""
    name = options.name or predictor.run.name
    verbs = " or ".join(getattr(predictor, "VERBS", ("score",)))
    hint = getattr(predictor, "HINTS", {}).get("show", f"cannot be shown; use regard {verbs}")
    raise ValueError(f"{name} {hint.replace('THIS_FOLDER', name)}")


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """Attention rollout: how much of each token reaches each other through all layers, residual paths counted as half.

    Abnar and Zuidema 2020, https://arxiv.org/abs/2005.00928: layers of (H, T, T) weights, the first first, → (T, T).
    """
    reached = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype)
    for weights in layers:
        step = (weights.mean(0) + torch.eye(len(reached), dtype=weights.dtype)) / 2  # (T, T)
        reached = step / step.sum(-1, keepdim=True) @ reached
    return reached


def rollout_of(record: Record, stack: str) -> Tensor:
    """The rollout through the self-attention of a stack: (T, T)."""
    layers = [layer for layer in record.layers if layer.stack == stack and layer.kind != "cross"]
    named = f"the {stack}" if stack else "this model"
    if not layers:
        raise ValueError(f"{named} has no self-attention to follow from layer to layer; there is no rollout")
    if any(layer.windows is not None for layer in layers):
        raise ValueError(f"{named} attends within windows; a rollout needs layers in which every token may attend to every other")
    if len({axis for layer in layers for axis in (layer.queries, layer.keys)}) > 1:
        raise ValueError(f"the layers of {named} attend among different tokens, which get fewer; there is no rollout")
    return rollout([layer.weights for layer in layers])


def thumbnails(layer: AttentionLayer, side: int = 48) -> Tensor:
    """Each head's matrix, max-pooled to at most `side` rows and columns: (H, Y, X)."""
    rows, columns = (min(side, length) for length in layer.shape)
    if layer.windows is None:
        return F.adaptive_max_pool2d(layer.weights, (rows, columns))
    queries, keys = layer.windows.queries, layer.windows.keys
    down = queries * rows // layer.shape[0] * columns  # (N, Q): where a row of cells starts
    across = keys * columns // layer.shape[1]  # (N, K)
    cells = (down[:, :, None] + across[:, None]).masked_fill((queries < 0)[:, :, None] | (keys < 0)[:, None], rows * columns)
    pooled = layer.weights.new_zeros(layer.heads, rows * columns + 1)  # padding falls into the last, which is dropped
    weights = layer.weights.transpose(0, 1).flatten(1)  # (H, N · Q · K)
    pooled = pooled.scatter_reduce(1, cells.flatten().expand_as(weights), weights, "amax")
    return pooled[:, :-1].unflatten(1, (rows, columns))
