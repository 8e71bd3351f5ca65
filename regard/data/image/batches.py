"""Batches of images, or of their pixel ids; their order and augmentation are a function of (seed, epoch, batch).

    stored  →  random crop, flip  →  RandAugment  →  random erasing  →  minus mean, over std  →  mixup

An epoch takes the images in random order; training resumes from any `DataPosition` with identical batches.

Shapes: B batch, C channels, Y X rows and columns, N all images, T pixels.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from regard.data.image.augment import augment, crop, erase, flip, mixup
from regard.data.image.config import ImageData, Images
from regard.data.image.io import Bytes, Ints
from regard.data.image.store import ImageStore
from regard.data.position import BatchStream, DataPosition
from regard.data.text.windows import WindowBatch

__all__ = ["ImageBatch", "all_image_batches", "all_pixel_batches", "augmented_images", "batch_order", "dequantize",
           "image_batches", "pixel_batches", "quantize", "require_crop", "seeded_generator", "stratified_fraction",
           "to_model_input"]  # fmt: skip

FRACTION_SEED = 1  # of the images in a fraction: the same for every training


class ImageBatch(NamedTuple):
    """Images, and the class of each; after mixup each has two."""

    image: Tensor  # (B, C, Y, X)
    label: Tensor  # (B,)
    other: Tensor  # (B,): the class of the image mixed in, or its own
    part: Tensor  # (B,): the fraction of the first class

    @property
    def tokens(self) -> int:
        """Classes to predict: one for each image."""
        return len(self.label)


def image_batches(store: ImageStore, image: int, batch: int, seed: int, data: ImageData,
                  position: DataPosition = DataPosition()) -> BatchStream[ImageBatch]:  # fmt: skip
    """Endless batches of `batch` images, `image` pixels a side, from a position on."""
    _require_side(store.side, image)
    require_crop(data, store.side)
    for rows, seeds, after in batch_order(stratified_fraction(store.labels, data.fraction), batch, seed, position):
        yield partial(_augmented, store, rows, image, data, seeds), after


def all_image_batches(store: ImageStore, image: int, batch: int, data: ImageData) -> Iterator[ImageBatch]:
    """The centre of every image once, in order, without augmentation: for evaluation."""
    for first in range(0, len(store), batch):
        label = torch.from_numpy(store.labels[first : first + batch])
        x = to_model_input(store.images[first : first + batch], image, data)
        yield ImageBatch(x, label, label, torch.ones(len(label)))


def pixel_batches(store: ImageStore, levels: int, batch: int, seed: int, fraction: float = 1.0,
                  position: DataPosition = DataPosition()) -> BatchStream[WindowBatch]:  # fmt: skip
    """Endless batches of `batch` images as pixel ids, from a position on."""
    for rows, _, after in batch_order(stratified_fraction(store.labels, fraction), batch, seed, position):
        yield partial(_read_pixels, store, np.sort(rows), levels), after


def all_pixel_batches(store: ImageStore, levels: int, batch: int) -> Iterator[WindowBatch]:
    """Every image once as pixel ids, in order: for evaluation."""
    for first in range(0, len(store), batch):
        yield _read_pixels(store, np.arange(first, min(first + batch, len(store))), levels)


def batch_order(rows: Ints, batch: int, seed: int, position: DataPosition) -> Iterator[tuple[Ints, list[int], DataPosition]]:
    """For each batch, endlessly: its rows of (N,), random seed, and the position after; the last must be half full."""
    count = max(1, (2 * len(rows) + batch) // (2 * batch))  # N / batch, rounded
    epoch, _, skip = position
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(rows)
        for index in range(skip, count):
            after = DataPosition(epoch + 1) if index + 1 == count else DataPosition(epoch, 0, index + 1)
            yield order[index * batch : (index + 1) * batch], [seed, epoch, index], after
        epoch, skip = epoch + 1, 0


def stratified_fraction(labels: Ints, fraction: float) -> Ints:
    """The rows of a fraction of each class, at least one: always the same, and nested in larger ones; (N,) → (n,)."""
    if fraction == 1:
        return np.arange(len(labels))
    found = []
    for label in np.unique(labels):
        rows = np.random.default_rng([FRACTION_SEED, int(label)]).permutation(np.flatnonzero(labels == label))
        found.append(rows[: max(1, round(fraction * len(rows)))])
    return np.sort(np.concatenate(found))


def to_model_input(images: Bytes, image: int, data: Images) -> Tensor:
    """The centre of each image, `image` pixels a side, normalised: (B, S, S, C) → (B, C, Y, X)."""
    _require_side(min(images.shape[1:3]), image)
    top, left = ((side - image) // 2 for side in images.shape[1:3])
    return _normalize(_channels_first(images[:, top : top + image, left : left + image]), data)


def _augmented(store: ImageStore, rows: Ints, image: int, data: ImageData, seeds: list[int]) -> ImageBatch:
    generator = seeded_generator(seeds)
    label = torch.from_numpy(store.labels[rows])
    x = augmented_images(store, rows, image, data, generator)  # (B, C, Y, X)
    if not data.mixup:
        return ImageBatch(x, label, label, torch.ones(len(label)))
    x, other, part = mixup(x, label, data.mixup, generator)
    return ImageBatch(x, label, other, part)


def seeded_generator(seeds: list[int]) -> Generator:
    """The random generator of one batch."""
    (state,) = np.random.SeedSequence(seeds).generate_state(1, np.uint64)
    return Generator().manual_seed(int(state) >> 1)


def augmented_images(store: ImageStore, rows: Ints, image: int, data: Images, generator: Generator) -> Tensor:
    """Some stored images, cropped, flipped, augmented and normalised: (B, C, Y, X)."""
    x = _channels_first(store.images[rows])  # (B, C, S, S)
    if data.crop or store.side > image:
        x = crop(x, image, data.crop, generator)  # (B, C, Y, X)
    if data.flip:
        x = flip(x, generator)
    x = augment(x, data.augment, generator)
    if data.erase:
        x = erase(x, data.erase, generator)
    return _normalize(x, data)


def require_crop(data: Images, side: int) -> None:
    """Refuse padding so wide that a crop may miss the image."""
    if data.crop >= side:
        raise ValueError(f"data.crop={data.crop} moves images of {side} pixels out of sight; use {side - 1} or less")


def _require_side(side: int, image: int) -> None:
    if side < image:
        raise ValueError(f"images of {side} pixels were stored, the model reads {image}; store {image} or more")


def _channels_first(images: Bytes) -> Tensor:
    """(B, Y, X, C) → (B, C, Y, X)."""
    return torch.from_numpy(np.array(images.transpose(0, 3, 1, 2), order="C"))


def _normalize(x: Tensor, data: Images) -> Tensor:
    """Subtract the mean of each channel and divide by its standard deviation."""
    channels = x.shape[1]
    for key, values in (("mean", data.mean), ("std", data.std)):
        if len(values) not in (0, channels):
            raise ValueError(f"data.{key} is {values}; an image here has {channels} channels: give one number for each")
    mean, std = (255 * torch.tensor(values or [0.5] * channels)[:, None, None] for values in (data.mean, data.std))  # (C, 1, 1)
    return (x.float() - mean) / std


def quantize(images: Bytes, levels: int) -> Ints:
    """Pixel ids: each channel rounded down to one of `levels`, the channels as digits; (B, Y, X, C) → (B, T)."""
    level = images.astype(np.int64) * levels // 256  # (B, Y, X, C)
    weights = levels ** np.arange(images.shape[-1] - 1, -1, -1)
    return (level @ weights).reshape(len(images), -1)


def dequantize(ids: Ints, levels: int, side: int, channels: int) -> Bytes:
    """The images of pixel ids, from black (0) to white (255): (B, T) → (B, Y, X, C)."""
    weights = levels ** np.arange(channels - 1, -1, -1)
    level = ids[..., None] // weights % levels  # (B, T, C)
    return np.rint(level * (255 / (levels - 1))).astype(np.uint8).reshape(len(ids), side, side, channels)


def _read_pixels(store: ImageStore, rows: Ints, levels: int) -> WindowBatch:
    """A start token, whose id follows the last pixel id, then the pixels."""
    ids = quantize(store.images[rows], levels)  # (B, T)
    start = levels ** store.images.shape[-1]
    return WindowBatch(torch.from_numpy(np.pad(ids, ((0, 0), (1, 0)), constant_values=start)))  # (B, T + 1)
