"""Pictures as rows of numbers, one for the colour of each pixel, as a language model reads them.

Shapes: B batch, T pixels, Y X rows and columns, C channels.
"""

from collections.abc import Iterator

import numpy as np
import torch

from regard.data.image.batches import batch_order, stratified_fraction
from regard.data.image.io import Bytes
from regard.data.image.store import ImageStore
from regard.data.text.batches import DataPosition
from regard.data.text.store import Ints
from regard.data.text.windows import WindowBatch

__all__ = ["all_pixels", "from_numbers", "pixels", "to_numbers"]


def to_numbers(pictures: Bytes, levels: int) -> Ints:
    """The number of each pixel's colour, if a channel has so many brightnesses: (B, Y, X, C) → (B, T)."""
    level = pictures.astype(np.int64) * levels // 256  # (B, Y, X, C)
    weights = levels ** np.arange(pictures.shape[-1] - 1, -1, -1)
    return (level @ weights).reshape(len(pictures), -1)


def from_numbers(numbers: Ints, levels: int, side: int, channels: int) -> Bytes:
    """The picture that such numbers stand for, black and white kept as they are: (B, T) → (B, Y, X, C)."""
    weights = levels ** np.arange(channels - 1, -1, -1)
    level = numbers[..., None] // weights % levels  # (B, T, C)
    return np.rint(level * (255 / (levels - 1))).astype(np.uint8).reshape(len(numbers), side, side, channels)


def pixels(
    images: ImageStore, levels: int, batch: int, seed: int, share: float = 1.0, place: DataPosition = DataPosition()
) -> Iterator[tuple[WindowBatch, DataPosition]]:
    """Endless batches from a place on, each with the place of the one after it; the order is a function of (seed, epoch)."""
    for rows, _, after in batch_order(stratified_fraction(images.labels, share), batch, seed, place):
        yield _read(images, np.sort(rows), levels), after


def all_pixels(images: ImageStore, levels: int, batch: int) -> Iterator[WindowBatch]:
    """Every picture once, in order."""
    for first in range(0, len(images), batch):
        yield _read(images, np.arange(first, min(first + batch, len(images))), levels)


def _read(images: ImageStore, rows: Ints, levels: int) -> WindowBatch:
    """A start, whose number follows that of the last colour, then the pixels."""
    numbers = to_numbers(images.pictures[rows], levels)  # (B, T)
    start = levels ** images.pictures.shape[-1]
    return WindowBatch(torch.from_numpy(np.pad(numbers, ((0, 0), (1, 0)), constant_values=start)))  # (B, T + 1)
