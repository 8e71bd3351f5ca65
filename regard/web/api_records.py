"""Runs, inspected inputs and the parts of their attention, as JSON."""

import base64
import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from regard.config import STRICT
from regard.tasks.observer import TextObserver, require_wanted
from regard.version import VERSION
from regard.view.head_labels import label_heads
from regard.view.record import AttentionLayer, Axis, MelLevels, Record, record_attention, rollout_of, thumbnails
from regard.view.record_drawing import draw_layer
from regard.view.show import plain_name
from regard.view.words import piece_labels
from regard.web.encode import encode_bytes, encode_weights
from regard.web.explorer import Explorer, ServedRun, StoredRecord
from regard.web.inputs import check_text, display_name, input_kind, read_file, read_sound
from regard.web.routes import BadRequest, Endpoint, FileAnswer, Json
from regard.web.run_info import describe_run

__all__ = ["ENDPOINTS", "TILE", "InspectBody"]

TILE = 256  # rows and columns of the largest tile
THUMBNAIL = 48
MAX_TOKENS = 4096  # of an answer that is asked for
MEDIA = {"svg": "image/svg+xml", "pdf": "application/pdf", "png": "image/png", "json": "application/json"}

Head = Annotated[int, Field(ge=0, le=10_000)] | Literal["mean"]
Position = Annotated[int, Field(ge=0, le=10_000_000)]


@dataclass(frozen=True, config=STRICT)
class InspectBody:
    """An input, and how to find the answer to it; what is left out is the run's."""

    text: str | None = None
    file: str | None = None  # base64
    name: Annotated[str, Field(max_length=1000)] | None = None  # of the file
    beam: Annotated[int, Field(ge=1, le=32)] | None = None
    tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    checkpoint: Annotated[int, Field(ge=0, lt=2**53)] | None = None  # a training step


@dataclass(frozen=True)
class TileQuery:
    """A tile of the weights of a head."""

    head: Head = "mean"
    top: Position = 0
    left: Position = 0
    rows: Annotated[int, Field(ge=1, le=TILE)] = TILE
    columns: Annotated[int, Field(ge=1, le=TILE)] = TILE


@dataclass(frozen=True)
class HeadQuery:
    """One head, or the mean of all."""

    head: Head = "mean"


@dataclass(frozen=True)
class StackQuery:
    """A stack of layers: encoder, decoder, or "" of a model with one."""

    stack: Annotated[str, Field(max_length=100)] = ""


@dataclass(frozen=True)
class DrawingQuery:
    """What to draw, and as what."""

    layer: Position = 0
    head: Head = "mean"
    format: Literal["svg", "pdf", "png", "json"] = "svg"


def list_runs(explorer: Explorer) -> Json:
    """All served runs."""
    return {"version": VERSION, "runs": [describe_run(run) for run in explorer.runs.values()]}


def inspect(explorer: Explorer, run: str, observer: TextObserver | None = None, **body: Any) -> Json:
    """Answer an input, and keep all attention for further questions."""
    return record_json(_inspect(explorer, explorer.run(run), InspectBody(**body), observer))


@dataclasses.dataclass
class _StreamedText:
    """The observer of an answer that is streamed: sends the text so far whenever it has changed."""

    observer: TextObserver
    send: Callable[[Json], None]
    last: str = ""

    @property
    def wanted(self) -> bool:
        """Whether anyone waits for the answer."""
        return self.observer.wanted

    def partial(self, text: str) -> None:
        """Send a text that is new."""
        if text != self.last:
            self.send({"event": "text", "text": text})
        self.last = text


def stream_inspect(explorer: Explorer, run: str, send: Callable[[Json], None], observer: TextObserver, **body: Any) -> None:
    """The same, with the text of the answer while it is decoded."""
    progress = _StreamedText(observer, send)
    inspected = _inspect(explorer, explorer.run(run), InspectBody(**body), progress)
    progress.partial(inspected.record.answer.text)
    send({"event": "record", "record": record_json(inspected)})


def _inspect(explorer: Explorer, run: ServedRun, body: InspectBody, observer: TextObserver | None = None) -> StoredRecord:
    kind = input_kind(run.predictor)
    if body.text is not None and body.file is not None:
        raise BadRequest("a text and a file were both given; give one of them")
    if kind == "none":
        raise BadRequest(f"{run.name} takes no input that can be inspected; use regard {' or '.join(run.predictor.VERBS)}")
    predictor = run.at(body.checkpoint)
    chosen = {key: value for key in ("beam", "tokens", "temperature", "seed") if (value := getattr(body, key)) is not None}

    def record(what: Any) -> Record:
        found = record_attention(predictor, what, **chosen, name=run.name, observer=observer)
        require_wanted(observer)  # an answer that was given up is not kept, where it would drop a record that is used
        return found

    if body.file is None:
        if kind != "text":
            wanted = "an image file" if kind == "image" else "a sound file"
            raise BadRequest(f"{run.name} reads {'images' if kind == 'image' else 'sound'}; give {wanted}")
        recorded = record(check_text(predictor, run.name, body.text, body.tokens))
        return explorer.keep(run, predictor, recorded, checkpoint=body.checkpoint, text=body.text)
    name = display_name(body.name)
    content = read_file(predictor, run.name, body.file, name)
    recorded = record(content if kind == "image" else read_sound(content, name, predictor.run.data.rate))
    return explorer.keep(run, predictor, recorded, checkpoint=body.checkpoint, name=name, file=content)


def record_json(inspected: StoredRecord) -> Json:
    """`Record` of the API: all but the weights of the layers."""
    record, (rows, columns) = inspected.record, inspected.record.alignment_axes
    picture = None if record.picture is None else f"data:image/png;base64,{base64.b64encode(record.picture).decode()}"
    return {
        "id": inspected.id,
        "run": inspected.run.name,
        "title": record.title,
        "checkpoint": inspected.checkpoint,
        "input": {"text": inspected.text, "picture": picture, "region": list(record.region) if record.region else None,
                  "spectrogram": _spectrogram_json(record.spectrogram), "name": inspected.name},
        "answer": _answer_json(record),
        "axes": {name: _axis_json(axis) for name, axis in record.axes.items()},
        "layers": [_layer_json(index, layer, record) for index, layer in enumerate(record.layers)],
        "alignment": {"rows": rows, "columns": columns, "title": record.alignment_title, "queries": record.alignment_queries,
                      "weights": encode_weights(record.alignment)},
        "notes": list(record.notes),
    }  # fmt: skip


def _axis_json(axis: Axis) -> Json:
    return {**dataclasses.asdict(axis), "labels": piece_labels(axis), "grid": list(axis.grid) if axis.grid else None}


def _answer_json(record: Record) -> Json:
    """The answer; an item that is a token is named as on the axis of the answer."""
    axis, answer = record.axes.get(record.alignment_axes[0]), dataclasses.asdict(record.answer)
    if axis is not None and len(axis.labels) == axis.size and record.answer.kind != "class":
        names = piece_labels(axis)
        for item in answer["items"]:
            if axis.labels[item["query"]] == item["text"]:
                item["text"] = names[item["query"]]
    return answer


def _layer_json(index: int, layer: AttentionLayer, record: Record) -> Json:
    about = {key: getattr(layer, key) for key in ("name", "title", "kind", "stack", "queries", "keys", "heads")}
    labels = [dataclasses.asdict(label) for label in label_heads(layer, record)]
    return {"index": index, **about, "windowed": layer.windows is not None, "labels": labels}


def _spectrogram_json(sound: MelLevels | None) -> Json | None:
    if sound is None:
        return None
    rows, columns = sound.levels.shape
    return {"seconds": sound.seconds, "frequencies": sound.frequencies, "rows": rows, "columns": columns,
            "levels": encode_bytes((sound.levels.clamp(0, 1) * 255).round())}  # fmt: skip


def small_maps(explorer: Explorer, record: str, layer: str) -> Json:
    """Every head of a layer as a small map: the largest weight of each cell, relative to the largest of the head."""
    pooled = thumbnails(explorer.record(record).layer(layer), THUMBNAIL).float()  # (H, rows, columns)
    return {"rows": pooled.shape[1], "columns": pooled.shape[2], "heads": [_thumbnail(head) for head in pooled]}


def _thumbnail(cells: Tensor) -> Json:
    most = float(cells.max())
    return {"max": most, "cells": encode_bytes((cells / max(most, 1e-12) * 255).round())}


def weights(explorer: Explorer, record: str, layer: str, head: Head, top: int, left: int, rows: int, columns: int) -> Json:
    """A tile of a head's weights; at the lower and the right edge a smaller one."""
    found = explorer.record(record).layer(layer)
    rows, columns = min(rows, found.shape[0] - top), min(columns, found.shape[1] - left)
    if rows < 1 or columns < 1:
        raise BadRequest(f"a tile at row {top}, column {left}; {found.title} has {found.shape[0]} × {found.shape[1]} weights")
    tile = found.dense(_head(found, head), top, left, rows, columns)
    return {"top": top, "left": left, "rows": rows, "columns": columns, "weights": encode_weights(tile)}


def _head(layer: AttentionLayer, head: Head) -> int | None:
    if head != "mean" and head >= layer.heads:
        raise BadRequest(f"no head {head}; {layer.title} has heads 0 to {layer.heads - 1}, and mean", 404)
    return None if head == "mean" else head


def received(explorer: Explorer, record: str, layer: str, head: Head) -> Json:
    """The mean weight of each key over all queries, for maps over pictures."""
    found = explorer.record(record).layer(layer)
    return {"weights": encode_weights(found.received(_head(found, head)))}


def rollout(explorer: Explorer, record: str, stack: str) -> Json:
    """Attention rollout through a stack, where its layers attend among the same tokens."""
    try:
        through = rollout_of(explorer.record(record).record, stack)
    except BadRequest:
        raise
    except ValueError as error:
        raise BadRequest(str(error), 404) from None
    return {"rows": through.shape[0], "columns": through.shape[1], "weights": encode_weights(through)}


def drawing(explorer: Explorer, record: str, layer: int, head: Head, format: str) -> FileAnswer:
    """A layer as a file, drawn by the code of `regard show`."""
    inspected = explorer.record(record)
    found = inspected.layer(layer)
    content = draw_layer(inspected.record, found, _head(found, head), format).content
    return FileAnswer(content, MEDIA[format], f"{plain_name(inspected.run.name)}-{found.name}.{format}")


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/runs", list_runs),
    Endpoint("POST", "/runs/{run}/inspect", inspect, body=InspectBody, observed=True),
    Endpoint("POST", "/runs/{run}/inspect/stream", inspect, body=InspectBody, stream=stream_inspect),
    Endpoint("GET", "/records/{record}/layers/{layer}/thumbnails", small_maps),
    Endpoint("GET", "/records/{record}/layers/{layer}/weights", weights, query=TileQuery),
    Endpoint("GET", "/records/{record}/layers/{layer}/received", received, query=HeadQuery),
    Endpoint("GET", "/records/{record}/rollout", rollout, query=StackQuery),
    Endpoint("GET", "/records/{record}/drawing", drawing, query=DrawingQuery),
)
