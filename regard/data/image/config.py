"""Which images a run reads, and how they are resized, augmented and normalised."""

import dataclasses
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from regard.config import STRICT, require_max, require_min
from regard.data.sources import require_one_source

__all__ = ["ImageData", "require_unchanged"]

CHANGES = ("crop", "flip", "augment", "mixup", "erase", "mean", "std", "resize")


@dataclass(frozen=True, config=STRICT)
class ImageData:
    """Keys of [data] for the tasks that read images."""

    INHERITED: ClassVar = ("fit", "resize", "resample", "mean", "std")  # keys that a fine-tuned run takes over

    source: str = ""  # a named data set (cifar10, mnist, …); empty: own folders
    train: str = ""  # own folder, with one folder of images for each class
    valid: str = ""  # the same, for validation; empty: a tenth of `train`
    crop: int = 0  # pixels of mirrored padding before the random crop
    flip: bool = False  # mirror half of the images, left to right
    augment: float = 0.0  # strength of RandAugment, 0 to 1; two operations for each image
    mixup: float = 0.0  # α of mixup's Beta(α, α); 0 = off
    erase: float = 0.0  # fraction of the images in which a random rectangle is made grey
    fit: Literal["crop", "squash"] = "crop"  # how an image becomes a square: its centre, or squashed
    resize: int = 0  # side in pixels to which images are scaled before the crop; 0: 8/7 of the model's
    resample: Literal["bicubic", "bilinear"] = "bicubic"  # interpolation for scaling
    fraction: float = 1.0  # of the training images of each class; a smaller fraction is a subset of a larger one
    mean: list[float] = dataclasses.field(default_factory=list)  # of each channel, for pixels from 0 to 1; empty: 0.5
    std: list[float] = dataclasses.field(default_factory=list)  # standard deviation of each channel; empty: 0.5

    def __post_init__(self) -> None:
        require_min(0, crop=self.crop, resize=self.resize, augment=self.augment, mixup=self.mixup, erase=self.erase)
        require_max(1, augment=self.augment, erase=self.erase, fraction=self.fraction)
        require_max(100, mixup=self.mixup)
        for value in self.mean:
            require_min(0, mean=value)
            require_max(1, mean=value)
        for value in self.std:
            require_max(1, std=value)
        for key, value in (("fraction", self.fraction), *(("std", value) for value in self.std)):
            if not value > 0:
                raise ValueError(f"{key} is {value}; use more than 0, and 1 or less")
        if self.mean and self.std and len(self.mean) != len(self.std):
            raise ValueError(f"mean has {len(self.mean)} numbers and std {len(self.std)}; give one for every channel")
        require_one_source(self.source, self.train, self.valid)


def require_unchanged(data: ImageData) -> None:
    """Refuse keys that change images: image generation learns pixels as they are."""
    default = ImageData()
    for key in CHANGES:
        if getattr(data, key) != getattr(default, key):
            raise ValueError(f"data.{key}={getattr(data, key)} is for classification; generation reads images unchanged")
