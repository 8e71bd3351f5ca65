"""Pictures as rows of numbers, one for the colour of each pixel, as a language model reads them.

Shapes: B batch, T pixels, Y X rows and columns, C channels.
"""

from collections.abc import Iterator

import numpy as np
import torch

from regard.data.batch import Place
from regard.data.images import Images
from regard.data.photo import Bytes
from regard.data.pictures import in_turn, share_of
from regard.data.store import Ints
from regard.data.windows import Windows

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
    images: Images, levels: int, batch: int, seed: int, share: float = 1.0, place: Place = Place()
) -> Iterator[tuple[Windows, Place]]:
    """Endless batches from a place on, each with the place of the one after it; the order is a function of (seed, epoch)."""
    for rows, _, after in in_turn(share_of(images.labels, share), batch, seed, place):
        yield _read(images, np.sort(rows), levels), after


def all_pixels(images: Images, levels: int, batch: int) -> Iterator[Windows]:
    """Every picture once, in order."""
    for first in range(0, len(images), batch):
        yield _read(images, np.arange(first, min(first + batch, len(images))), levels)


def _read(images: Images, rows: Ints, levels: int) -> Windows:
    """A start, whose number follows that of the last colour, then the pixels."""
    numbers = to_numbers(images.pictures[rows], levels)  # (B, T)
    start = levels ** images.pictures.shape[-1]
    return Windows(torch.from_numpy(np.pad(numbers, ((0, 0), (1, 0)), constant_values=start)))  # (B, T + 1)
