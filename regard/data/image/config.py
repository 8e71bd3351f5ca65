"""Which images a run reads, and how they are resized, augmented and normalised."""

import dataclasses
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from regard.config import STRICT, require_max, require_min
from regard.data.sources import require_one_source

__all__ = ["CaptionData", "ImageData", "Images", "require_unchanged"]

CHANGES = ("crop", "flip", "augment", "mixup", "erase", "mean", "std", "resize")


@dataclass(frozen=True, config=STRICT)
class ImageData:
    """Keys of [data] for the tasks that read images."""

    INHERITED: ClassVar = ("fit", "resize", "resample", "mean", "std")  # keys that a fine-tuned run takes over

    source: str = ""  # a named data set (cifar10, mnist, …); empty: own folders
    train: str = ""  # own folder, with one folder of images for each class
    valid: str = ""  # the same, for validation; empty: a tenth of `train`
    strict: bool = False  # refuse a folder for one unreadable image, instead of leaving the image out
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
        require_min(0, mixup=self.mixup)
        require_max(100, mixup=self.mixup)
        _require_positive_fraction("fraction", self.fraction)
        _check_images(self)


@dataclass(frozen=True, config=STRICT)
class CaptionData:
    """Keys of [data] for captions: those of images, and those of the text."""

    INHERITED: ClassVar = ("fit", "resize", "resample", "mean", "std", "tokenizer", "vocab", "normalize")

    source: str = ""  # a named data set (flickr8k), or the generated shapes; empty: own files
    train: str = ""  # own TSV: the path of an image, a tab, its caption; several lines for several captions
    valid: str = ""  # the same, for validation; empty: a tenth of the images of `train`
    strict: bool = False  # refuse a file for one unreadable image, instead of leaving the image out
    captions: int = 5  # captions of an image that one step learns, chosen at random; 0: all
    crop: int = 0  # pixels of mirrored padding before the random crop
    flip: bool = False  # mirror half of the images, left to right; captions that say left or right become wrong
    augment: float = 0.0  # strength of RandAugment, 0 to 1; two operations for each image
    erase: float = 0.0  # fraction of the images in which a random rectangle is made grey
    fit: Literal["crop", "squash"] = "crop"  # how an image becomes a square: its centre, or squashed
    resize: int = 0  # side in pixels to which images are scaled before the crop; 0: 8/7 of the model's
    resample: Literal["bicubic", "bilinear"] = "bicubic"  # interpolation for scaling
    mean: list[float] = dataclasses.field(default_factory=list)  # of each channel, for pixels from 0 to 1; empty: 0.5
    std: list[float] = dataclasses.field(default_factory=list)  # standard deviation of each channel; empty: 0.5
    normalize: bool = True  # captions in lower case and without punctuation, as published scores use them
    tokenizer: Literal["bpe", "bytes", "wordpiece", "characters", "words"] = "bpe"
    vocab: int = 4000  # tokens to learn; more if there are more different characters
    max_len: int = 64  # tokens; longer captions are left out

    def __post_init__(self) -> None:
        require_min(0, captions=self.captions)
        require_min(1, vocab=self.vocab)
        require_min(2, max_len=self.max_len)
        require_max(65_535, max_len=self.max_len)
        _check_images(self)


Images = ImageData | CaptionData


def _check_images(data: Images) -> None:
    """Refuse values that no image can have."""
    require_min(0, crop=data.crop, resize=data.resize, augment=data.augment, erase=data.erase)
    require_max(1, augment=data.augment, erase=data.erase)
    for value in data.mean:
        require_min(0, mean=value)
        require_max(1, mean=value)
    for value in data.std:
        _require_positive_fraction("std", value)
    if data.mean and data.std and len(data.mean) != len(data.std):
        raise ValueError(f"mean has {len(data.mean)} numbers and std {len(data.std)}; give one for every channel")
    require_one_source(data.source, data.train, data.valid)


def _require_positive_fraction(key: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{key} is {value}; use more than 0, and 1 or less")


def require_unchanged(data: ImageData) -> None:
    """Refuse keys that change images: image generation learns pixels as they are."""
    default = ImageData()
    for key in CHANGES:
        if getattr(data, key) != getattr(default, key):
            raise ValueError(f"data.{key}={getattr(data, key)} is for classification; generation reads images unchanged")
