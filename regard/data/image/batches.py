"""Batches of pictures; their order, and what is changed of each, are a function of (seed, epoch).

An epoch takes the pictures in random order.  What a batch changes is drawn for (seed, epoch, batch), so one can go on
from any `Place` to the very same bits.

    stored  →  cut at random, mirrored  →  two changes  →  a rectangle hidden  →  minus mean, over std  →  mixed in pairs

Shapes: B batch, C channels, Y X rows and columns, N all pictures.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from regard.config import DataConfig
from regard.data.image.augment import augment, crop, erase, flip, mixup
from regard.data.image.io import Bytes
from regard.data.image.store import ImageStore
from regard.data.text.batches import DataPosition
from regard.data.text.store import Ints

__all__ = ["ImageBatch", "all_image_batches", "batch_order", "pictures", "stratified_fraction", "to_model_input"]

SHARED = 1  # the seed of which pictures are the share to learn from: the same for every training


class ImageBatch(NamedTuple):
    """Some pictures, and the class of each; mixed ones have two."""

    image: Tensor  # (B, C, Y, X)
    label: Tensor  # (B,)
    other: Tensor  # (B,): the class of what was laid over it, or its own
    part: Tensor  # (B,): how much of it is of the first class

    @property
    def tokens(self) -> int:
        """What is to predict: one class a picture."""
        return len(self.label)

    def to(self, device: torch.device) -> "ImageBatch":
        """The same batch on another device."""
        return ImageBatch(*(part.to(device, non_blocking=True) for part in self))


def pictures(
    images: ImageStore, image: int, batch: int, seed: int, how: DataConfig, place: DataPosition = DataPosition()
) -> Iterator[tuple[ImageBatch, DataPosition]]:
    """Endless batches of `batch` pictures, `image` pixels a side, each with the place of the one after it."""
    _check(images.side, image)
    if how.crop >= images.side:
        most = images.side - 1
        raise ValueError(
            f"data.crop={how.crop} moves pictures of {images.side} pixels out of sight; use {most} or less"
        )
    for chosen, drawn, after in batch_order(stratified_fraction(images.labels, how.fraction), batch, seed, place):
        yield _changed(images, chosen, image, how, _generator(*drawn)), after


def batch_order(
    rows: Ints, batch: int, seed: int, place: DataPosition
) -> Iterator[tuple[Ints, list[int], DataPosition]]:
    """Which of the rows (N,) each batch takes, what its draws depend on, and the place after it; endless, from a place on.

    A last batch of an epoch that is not half full is left out.
    """
    count = max(1, (2 * len(rows) + batch) // (2 * batch))  # as many as N / batch rounds to
    epoch, _, skip = place
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(rows)
        for number in range(skip, count):
            after = DataPosition(epoch + 1) if number + 1 == count else DataPosition(epoch, 0, number + 1)
            yield order[number * batch : (number + 1) * batch], [seed, epoch, number], after
        epoch, skip = epoch + 1, 0


def all_image_batches(images: ImageStore, image: int, batch: int, how: DataConfig) -> Iterator[ImageBatch]:
    """Every picture once, in order, its middle, unchanged: for evaluation."""
    for first in range(0, len(images), batch):
        label = torch.from_numpy(images.labels[first : first + batch])
        seen = to_model_input(images.pictures[first : first + batch], image, how)
        yield ImageBatch(seen, label, label, torch.ones(len(label)))


def to_model_input(pictures: Bytes, image: int, how: DataConfig) -> Tensor:
    """What a model sees of pictures: the middle, `image` pixels a side, normalised; (B, S, S, C) → (B, C, Y, X)."""
    _check(min(pictures.shape[1:3]), image)
    top, left = ((side - image) // 2 for side in pictures.shape[1:3])
    return _normalised(_planes(pictures[:, top : top + image, left : left + image]), how)


def stratified_fraction(labels: Ints, share: float) -> Ints:
    """The rows of a share of each class, at least one; the same every time, and those of less lie within: (N,) → (n,)."""
    if share == 1:
        return np.arange(len(labels))
    found = []
    for label in np.unique(labels):
        rows = np.random.default_rng([SHARED, int(label)]).permutation(np.flatnonzero(labels == label))
        found.append(rows[: max(1, round(share * len(rows)))])
    return np.sort(np.concatenate(found))


def _check(side: int, image: int) -> None:
    if side < image:
        raise ValueError(
            f"pictures of {side} pixels were stored, the model sees {image}; store them with {image} or more"
        )


def _generator(*numbers: int) -> Generator:
    (state,) = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
    return Generator().manual_seed(int(state) >> 1)


def _planes(pictures: Bytes) -> Tensor:
    """Pixel by pixel → channel by channel: (B, Y, X, C) → (B, C, Y, X)."""
    return torch.from_numpy(np.array(pictures.transpose(0, 3, 1, 2), order="C"))


def _normalised(x: Tensor, how: DataConfig) -> Tensor:
    """Bytes → numbers around 0, minus the mean of their channel, over its spread."""
    both = [_each(name, value, x.shape[1]) for name, value in (("mean", how.mean), ("std", how.std))]
    return (x.float() - both[0]) / both[1]


def _each(name: str, values: list[float], channels: int) -> Tensor:
    """A number for each channel, of pixels from 0 to 255: (C, 1, 1)."""
    if len(values) not in (0, channels):
        raise ValueError(f"data.{name} is {values}; a picture here has {channels} channels: give one number for each")
    return 255 * torch.tensor(values or [0.5] * channels)[:, None, None]


def _changed(images: ImageStore, rows: Ints, image: int, how: DataConfig, generator: Generator) -> ImageBatch:
    label = torch.from_numpy(images.labels[rows])
    x = _planes(images.pictures[rows])  # (B, C, S, S)
    if how.crop or images.side > image:
        x = crop(x, image, how.crop, generator)  # (B, C, Y, X)
    if how.flip:
        x = flip(x, generator)
    x = augment(x, how.augment, generator)
    if how.erase:
        x = erase(x, how.erase, generator)
    x = _normalised(x, how)
    if not how.mixup:
        return ImageBatch(x, label, label, torch.ones(len(label)))
    x, other, part = mixup(x, label, how.mixup, generator)
    return ImageBatch(x, label, other, part)
