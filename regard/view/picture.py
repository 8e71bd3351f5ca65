"""The user's own picture below a map, and the part of it that the model saw.  Shapes: Y X rows and columns, C channels."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from regard.data.image.config import Images
from regard.data.image.io import Bytes, ImageLike, crop_region, to_pixels
from regard.data.image.store import ImageInput, resize_side

__all__ = ["MAX_SIDE", "Picture", "Region", "picture_of", "read_picture", "shrink"]

MAX_SIDE = 1024  # pixels of the longer side of a picture that is drawn


class Region(NamedTuple):
    """A part of a picture, as fractions of its height and width."""

    top: float = 0.0
    left: float = 0.0
    bottom: float = 1.0
    right: float = 1.0


class Picture(NamedTuple):
    """An upright picture (Y, X, C), and what the model saw of it."""

    pixels: Bytes
    region: Region


def read_picture(image: ImageLike, data: Images, model: ImageInput) -> Picture:
    """The picture as its owner knows it, in its own resolution up to a bound, and the region that a model of this size reads."""
    pixels = to_pixels(image, 3, MAX_SIDE // 2)
    rows, columns = pixels.shape[:2]
    top, left, bottom, right = crop_region(rows, columns, resize_side(data, model.image), model.image, data.fit)
    return Picture(shrink(pixels, MAX_SIDE), Region(top / rows, left / columns, bottom / rows, right / columns))


def picture_of(image: list[list[list[int]]], pixels: Bytes | None, region: Sequence[float]) -> Picture:
    """The picture of a map; a map read from JSON has only the model's input (Y, X, C)."""
    if pixels is not None:
        return Picture(pixels, Region(*region))
    array = np.array(image, np.uint8)
    return Picture(np.repeat(array, 3, -1) if array.shape[2] == 1 else array, Region())


def shrink(pixels: Bytes, side: int) -> Bytes:
    """Scale down a picture (Y, X, 3) whose longer side has more than `side` pixels."""
    longest = max(pixels.shape[:2])
    if longest <= side:
        return pixels
    rows, columns = (max(1, round(edge * side / longest)) for edge in pixels.shape[:2])
    return np.array(Image.fromarray(pixels).resize((columns, rows), Image.Resampling.LANCZOS))
