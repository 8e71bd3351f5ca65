"""One layer of a record as a file, by the code that draws for `regard show`: a grid of tokens, maps over a picture, or frames.

Shapes: Q queries, K keys, Y X rows and columns.
"""

from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from regard.layers.masks import causal_mask
from regard.view import caption_maps, draw, image_maps, speech_maps
from regard.view.caption_maps import CaptionMap
from regard.view.draw import Drawing
from regard.view.image_maps import ImageMap, Panel
from regard.view.maps import AttentionMap
from regard.view.picture import Region
from regard.view.record import AttentionLayer, Axis, Record
from regard.view.speech_maps import DECIBELS, FrameAttention, Spectrogram, SpeechMap

__all__ = ["draw_layer", "map_layer"]

MAX_SIDE = 128  # rows or columns of a grid that is drawn: each takes half an inch
MAX_CELLS = 1 << 20  # of a grid that is written as JSON


def draw_layer(record: Record, layer: AttentionLayer, head: int | None, kind: str) -> Drawing:
    """A layer's attention, of one head, counted from 0, or the mean of all, as png, svg, pdf or json."""
    attention, drawn = map_layer(record, layer, head)
    if isinstance(attention, AttentionMap) and kind != "json" and max(len(attention.rows), len(attention.columns)) > MAX_SIDE:
        raise ValueError(f"a drawing of {len(attention.rows)} × {len(attention.columns)} cells; {MAX_SIDE} × {MAX_SIDE} at most "
                         f"can be read: choose json, or a shorter input")  # fmt: skip
    return Drawing(attention.to_json().encode() + b"\n", []) if kind == "json" else drawn(attention, kind)


def map_layer(record: Record, layer: AttentionLayer, head: int | None) -> tuple[Any, Callable[[Any, str], Drawing]]:
    """The map of a layer, as `regard show` has it for this kind of model, and the function that draws it."""
    of_head = f", head {head + 1}" if head is not None else f", mean of {layer.heads} heads" if layer.heads > 1 else ""
    title = f"{record.title}: {layer.title}{of_head}"
    rows, columns = record.axes[layer.queries], record.axes[layer.keys]
    if columns.kind == "grid" and rows.kind == "grid":  # a panel for each head, unless one is chosen
        return _image_map(record, layer, head, f"{record.title}: {layer.title}"), image_maps.draw
    if columns.kind == "grid":
        return _caption_map(record, layer, head, title), caption_maps.draw
    if columns.kind == "frames" and record.spectrogram is not None:
        return _speech_map(record, layer, head, title), speech_maps.draw
    weights = _whole(layer, head)
    mask = causal_mask(*weights.shape).tolist() if layer.kind == "masked" else None
    return AttentionMap(title, _labels(rows), _labels(columns), weights.tolist(), mask), draw.draw


def _whole(layer: AttentionLayer, head: int | None) -> Tensor:
    """The whole matrix (Q, K)."""
    rows, columns = layer.shape
    if rows * columns > MAX_CELLS:
        raise ValueError(f"a matrix of {rows:,} × {columns:,} weights; {MAX_CELLS:,} at most are written: choose a shorter input")
    return layer.dense(head).float()


def _labels(axis: Axis) -> list[str]:
    if axis.times:
        return [f"{seconds:.2f} s" for seconds in axis.times]
    if len(axis.labels) != axis.size:
        return [str(position + 1) for position in range(axis.size)]
    starts = {word.start for word in axis.words} - {*axis.special}
    return [
        f"▁{label}" if position in starts else label for position, label in enumerate(axis.labels)
    ]  # as tokenizers mark words


def _on_grid(axis: Axis, weights: Tensor) -> Tensor:
    """Weights over an axis of an image (..., K), without its class tokens: (..., Y, X)."""
    assert axis.grid is not None
    rows, columns = axis.grid
    return weights[..., axis.size - rows * columns :].unflatten(-1, (rows, columns))


def _picture(record: Record) -> np.ndarray:
    assert record.picture is not None
    return np.array(Image.open(BytesIO(record.picture), formats=["PNG"]).convert("RGB"))


def _image_map(record: Record, layer: AttentionLayer, head: int | None, title: str) -> ImageMap:
    """Attention of the class token, or without one the mean over all queries."""
    rows, columns = record.axes[layer.queries], record.axes[layer.keys]
    assert rows.grid is not None
    has_class_token = rows.size > rows.grid[0] * rows.grid[1]
    panels = list[Panel]()
    for number in range(layer.heads) if head is None else (head,):
        over_keys = layer.dense(number, rows=1)[0] if has_class_token else layer.received(number)  # (K,)
        panels.append(Panel(f"head {number + 1}", _on_grid(columns, over_keys.float()).tolist()))
    best = record.answer.items[0] if record.answer.items else None
    return ImageMap(title, record.answer.text, (best.probability if best else None) or 0.0, [], panels,
                    [*(record.region or Region())], None, _picture(record))  # fmt: skip


def _caption_map(record: Record, layer: AttentionLayer, head: int | None, title: str) -> CaptionMap:
    """A panel for each word of the answer, the mean of its tokens."""
    rows, columns = record.axes[layer.queries], record.axes[layer.keys]
    grids = _on_grid(columns, _whole(layer, head))  # (Q, Y, X)
    panels = list[Panel]()
    for word in rows.words:
        grid = grids[word.start : word.end].mean(0)
        panels.append(Panel(word.text, (grid / grid.sum().clamp_min(1e-12)).tolist()))
    return CaptionMap(title, record.answer.text, [], panels, 0.0, [*(record.region or Region())], _picture(record))


def _speech_map(record: Record, layer: AttentionLayer, head: int | None, title: str) -> SpeechMap:
    """The spectrogram, and the attention over its frames."""
    assert record.spectrogram is not None
    rows, columns = record.axes[layer.queries], record.axes[layer.keys]
    weights, sound = _whole(layer, head), record.spectrogram
    levels = (sound.levels.float() - 1) * DECIBELS
    times = [sound.seconds * (frame + 0.5) / levels.shape[1] for frame in range(levels.shape[1])]
    spectrogram = Spectrogram(times, sound.frequencies, levels.tolist())
    attention = FrameAttention(layer.title, [] if rows.kind == "frames" else _labels(rows), weights.tolist())
    return SpeechMap(title, record.answer.text, sound.seconds, [], spectrogram, columns.times, None, attention)
