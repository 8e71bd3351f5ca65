"""Records of models that read images: classifiers and captioners.

Shapes: T classes or tokens of a caption that are named, C channels, Y X rows and columns.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from regard.data.image.io import ImageLike, image_size
from regard.layers.tap import watch
from regard.models.image_encoder import ImageEncoder
from regard.tasks.captioning import ImageCaptioner
from regard.tasks.image_classification import ImageClassifier
from regard.tasks.observer import TextObserver
from regard.view.maps import is_cross
from regard.view.picture import Picture, read_picture
from regard.view.record import Answer, AttentionLayer, Axis, InputLike, Record, RecordOptions, Word, record_with
from regard.view.record_grids import Places, on_grids, padding_note, place_layers, square_grid
from regard.view.record_layers import (
    Placed,
    class_answer,
    first_notes,
    follow_tokens,
    gather_log_probs,
    joined_calls,
    mean_weights,
    refuse_source,
    require_no_search,
    title_layers,
    title_of,
    title_record,
    token_items,
)
from regard.view.words import text_axis

__all__ = ["MAX_PIXELS", "CaptionRerun", "ImageRerun", "require_image"]

MAX_PIXELS = 50_000_000  # of an image given by its content, which may come from anyone: about 150 MB when it is decoded


def require_image(what: InputLike, name: str) -> ImageLike:
    """The image of an input; the content of a file is refused before it is decoded if it would fill the memory."""
    if isinstance(what, bytes):
        rows, columns = image_size(what)
        if rows * columns > MAX_PIXELS:
            raise ValueError(f"the image has {columns:,} × {rows:,} pixels; {MAX_PIXELS:,} at most are read: make it smaller")
    elif not isinstance(what, str | Path | np.ndarray | Image.Image):
        raise ValueError(f"{name} reads images, and got {type(what).__name__}; give a file, its content, PIL's image or an array "
                         f"of bytes")  # fmt: skip
    return what


def _to_png(picture: Picture) -> bytes:
    with io.BytesIO() as stream:
        Image.fromarray(picture.pixels).save(stream, "PNG")
        return stream.getvalue()


# -- classifiers


@torch.inference_mode()
def _class_log_probs(classifier: ImageClassifier, x: Tensor) -> Tensor:
    return classifier.model(x)[0].float().log_softmax(-1).cpu()  # (classes,)


@dataclass(frozen=True, eq=False)
class ImageRerun:
    """An image classifier once more."""

    classifier: ImageClassifier
    x: Tensor  # (1, C, Y, X)
    target: list[int]  # classes that were named
    source: list[int]

    def logprobs(self, source: list[int] | None = None) -> Tensor:
        """The log-probability of each class that was named (T,)."""
        refuse_source(source)
        return _class_log_probs(self.classifier, self.x)[self.target]

    def answer(self, source: list[int] | None = None, observer: TextObserver | None = None) -> Answer:
        """Classify again."""
        refuse_source(source)
        if not self.classifier.trained:
            return Answer("none", "", [])
        return class_answer(self.classifier.labels, _class_log_probs(self.classifier, self.x))[0]


@record_with.register
def _(classifier: ImageClassifier, what: InputLike, options: RecordOptions) -> Record:
    """Axes: the grid of each stage.  The alignment is where the last layer looks: its class token, or all positions."""
    require_no_search(classifier.run.family, options)
    image = require_image(what, options.name or classifier.run.name)
    x = classifier.to_input(image)
    with watch(classifier.model) as recorded:
        log_probs = _class_log_probs(classifier, x)

    found = on_grids(classifier.model, recorded)
    places = Places.of([grid for part in found.values() for grid in (part.queries, part.keys)])
    layers = title_layers(place_layers(found, places))
    answer, target = Answer("none", "", []), list[int]()
    notes = first_notes(classifier) + padding_note(found)
    if classifier.trained:
        answer, target = class_answer(classifier.labels, log_probs)
    else:
        notes.append("this model has no trained classes, so it gives no answer; only its attention is shown")
    if not layers:
        notes.append(f"a {classifier.run.family} without attention; there is nothing to show but the answer")
    label = answer.text or "image"
    axes = places.axes | {"answer": Axis("tokens", 1, [label], [Word(label, 0, 1)])}
    picture = read_picture(image, classifier.run.data, classifier.run.model)
    alignment, columns, title = _class_alignment(layers, axes)
    return Record(
        title_record(classifier, options), answer, axes, layers, alignment, ("answer", columns), title,
        ImageRerun(classifier, x, target, []), picture=_to_png(picture), region=picture.region, notes=notes,
    )  # fmt: skip


def _class_alignment(layers: Sequence[AttentionLayer], axes: Mapping[str, Axis]) -> tuple[Tensor, str, str]:
    """One row over the keys of the last layer, their axis, and what it is."""
    if not layers:
        return torch.zeros(0, 0), "image", ""
    last = layers[-1]
    of_class = bool(axes[last.queries].special)
    row = last.of_head(None)[:1] if of_class else last.received()[None]
    whose = "attention of the class token" if of_class else "mean attention of all positions"
    heads = f", mean of {last.heads} heads" if last.heads > 1 else ""
    return row, last.keys, f"{whose}, layer {len(layers)} of {len(layers)}{heads}"


# -- captioners


@dataclass(frozen=True, eq=False)
class _Captioned:
    """A caption: its text, its tokens with the end token if it was reached, and the score of the search."""

    text: str
    target: list[int]
    score: float | None


@torch.inference_mode()
def _caption(captioner: ImageCaptioner, x: Tensor, options: RecordOptions) -> _Captioned:
    decode, eos = captioner.run.decode, captioner.tokenizer.special.eos
    width = decode.beam_size if options.beam is None else options.beam
    if width < 1:
        raise ValueError(f"beam {width}; use a beam of 1 or more")
    [[best, *_]] = captioner.search(x, width, decode.length_penalty, follow_tokens(options.observer, captioner.tokenizer.decode))
    ended = len(best.tokens) < captioner.max_answer()
    return _Captioned(captioner.tokenizer.decode(best.tokens), [*best.tokens, eos] if ended else best.tokens, best.score)


@torch.inference_mode()
def _read_caption(captioner: ImageCaptioner, x: Tensor, target: list[int]) -> Tensor:
    """Teacher forcing: the log-probability of each token of a caption (T,)."""
    read = torch.tensor([[captioner.tokenizer.special.bos, *target[:-1]]], device=x.device)
    return gather_log_probs(captioner.model(x, read)[0], target)


def _caption_answer(captioner: ImageCaptioner, found: _Captioned, log_probs: Tensor) -> Answer:
    return Answer("caption", found.text, token_items(captioner.tokenizer, found.target, log_probs), found.score)


@dataclass(frozen=True, eq=False)
class CaptionRerun:
    """A captioner once more."""

    captioner: ImageCaptioner
    options: RecordOptions
    x: Tensor  # (1, C, Y, X)
    target: list[int]
    source: list[int]

    def logprobs(self, source: list[int] | None = None) -> Tensor:
        """The log-probability of each token of the recorded caption (T,)."""
        refuse_source(source)
        return _read_caption(self.captioner, self.x, self.target)

    def answer(self, source: list[int] | None = None, observer: TextObserver | None = None) -> Answer:
        """Write a caption again."""
        refuse_source(source)
        found = _caption(self.captioner, self.x, self.options.observed_by(observer))
        return _caption_answer(self.captioner, found, _read_caption(self.captioner, self.x, found.target))


@record_with.register
def _(captioner: ImageCaptioner, what: InputLike, options: RecordOptions) -> Record:
    """Axes: the grids of the encoder, what the decoder reads, and the caption it answers."""
    for key, value in (("tokens", options.tokens), ("temperature", options.temperature)):
        if value is not None:
            raise ValueError(f"{key} {value}; a caption is searched for with a beam, up to the run's length: leave it out")
    image = require_image(what, options.name or captioner.run.name)
    x = captioner.to_input(image)
    found = _caption(captioner, x, options)
    with watch(captioner.model) as recorded:
        log_probs = _read_caption(captioner, x, found.target)

    # The encoder's layers are on its grids, the decoder's are of tokens; cross-attention looks at the encoder's last grid.
    encoder, bos = cast(ImageEncoder, captioner.model.encoder), captioner.tokenizer.special.bos
    encoded = on_grids(encoder.net, {name: calls for name, calls in recorded.items() if name.startswith("encoder.")},
                       "encoder.net.")  # fmt: skip
    memory = square_grid(encoder.tokens, encoder.extra)
    places = Places.of([memory, *(grid for part in encoded.values() for grid in (part.queries, part.keys))])
    placed = place_layers(encoded, places, "encoder")
    decoded = joined_calls({name: calls for name, calls in recorded.items() if name.startswith("decoder")})
    for name, weights in decoded.items():
        cross = is_cross(name)
        axes = ("answer", places.names[memory]) if cross else ("read", "read")
        placed.append(Placed(name, "cross" if cross else "masked", "decoder", *axes, weights))
    layers = title_layers(placed)
    cross_layers = [layer for layer in layers if layer.kind == "cross"]
    picture = read_picture(image, captioner.run.data, captioner.run.model)
    return Record(
        title_record(captioner, options), _caption_answer(captioner, found, log_probs),
        places.axes | {"read": text_axis(captioner.tokenizer, [bos, *found.target[:-1]]),
                       "answer": text_axis(captioner.tokenizer, found.target)},
        layers, mean_weights(cross_layers), ("answer", places.names[memory]), title_of(cross_layers),
        CaptionRerun(captioner, options.observed_by(None), x, found.target, []), picture=_to_png(picture), region=picture.region,
        notes=first_notes(captioner) + padding_note(encoded),
    )  # fmt: skip
