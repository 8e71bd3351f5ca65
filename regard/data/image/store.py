"""Images as squares of bytes on disk, so that memory does not grow with their number.

Every image is read once and stored upright: unreadable files are reported before training starts.  Stored squares are
a little larger than the model's input, so that training can take random crops.

    images.bin    uint8, (N, S, S, C): red, green, blue, or grey
    labels.bin    one int64 for each image: the id of its class
    about.json    counts and the digest; written last, so a folder that has it is complete

Shapes: N images, S side of a stored square, C channels.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from regard.config import nearest
from regard.data.cache import cached
from regard.data.image.config import ImageData, Images
from regard.data.image.folder_store import FolderStore, store_folder
from regard.data.image.folders import ImageFolder, list_images, named_source
from regard.data.image.io import Bytes, ImageLike, Ints, read_image, resize_square, to_pixels
from regard.data.image.unreadable import unreadable_lines
from regard.data.progress import Progress, Report
from regard.data.sources import SOURCES

__all__ = ["ImageDataset", "ImageInput", "ImageStore", "default_resize", "image_names", "prepare", "read_split", "read_square",
           "resize_function", "resize_side", "store_images", "to_square"]  # fmt: skip

FORMAT = 1  # of the files above
REPORT_EVERY = 50  # images
NAMED_CLASSES = 20  # named before training


class ImageInput(Protocol):
    """The part of a model's config that says which images it reads."""

    @property
    def image(self) -> int:
        """Side in pixels."""

    @property
    def channels(self) -> int:
        """1 (grey) or 3 (red, green, blue)."""


class ImageStore:
    """Labelled images on disk."""

    def __init__(self, folder: Path, part: str = ""):
        self.folder = folder
        about, prefix = json.loads((folder / "about.json").read_text(encoding="utf-8")), f"{part}-" if part else ""
        about = about["parts"][part] if part else about
        self.digest: str = about["digest"]
        self.side: int = about["side"]
        self.channels: int = about["channels"]
        shape = (about["count"], self.side, self.side, self.channels)
        self.images: Bytes = np.memmap(folder / f"{prefix}images.bin", dtype=np.uint8, mode="r", shape=shape)
        self.labels: Ints = np.fromfile(folder / f"{prefix}labels.bin", dtype=np.int64)
        self.files: list[str] = about.get("files", [])  # below the own folder

    def __len__(self) -> int:
        return len(self.labels)


class ImageDataset(NamedTuple):
    """The images that training reads."""

    train: ImageStore
    valid: ImageStore
    labels: tuple[str, ...]  # class names by id; none if no class is learned
    tokenizer: None = None  # of text alone


def prepare(data: ImageData, model: ImageInput, report: Report, progress: Progress, *, labeled: bool) -> ImageDataset:
    """Store the training and validation images in the size the model's config asks for; own folders are listed once."""
    _require_images(data)
    listed, labels = None, SOURCES[data.source].labels if data.source else ()
    if data.train:
        listed = list_images(Path(data.train).expanduser(), 2 if labeled else 1)
        labels = tuple(listed.labels)
        _report_folder(listed, report)
    store = partial(read_split, data, model, report=report, labels=labels, progress=progress, labeled=labeled, listed=listed)
    return ImageDataset(store("train"), store("valid"), labels if labeled else ())


def read_split(data: ImageData, model: ImageInput, split: str, report: Report, *, labels: Sequence[str] = (),
               progress: Progress = lambda what, done: None, labeled: bool = True,
               listed: ImageFolder | None = None) -> ImageStore:  # fmt: skip
    """Store one split by name, or an own folder (perhaps already `listed`); `labels` are the class names by id.

    Images for a classifier (`labeled`) are stored larger than its input, for random crops; others in its size.
    """
    _require_images(data)
    side = resize_side(data, model.image) if labeled else model.image
    if side < model.image:
        raise ValueError(f"data.resize={side} is less than the model's {model.image} pixels; use {model.image} or more")
    if data.source and (split == "valid" or split in SOURCES[data.source].splits):
        source = named_source(data.source, split, model.channels)
        name, done, fit = source.name, partial(progress, f"reading {source.name}"), resize_function(data, model.image)
        identity = [source.identity, model.image, data.fit, data.resample, data.resize]  # all that the squares depend on
        store = store_images(source.images, source.labels, name, identity, side, model.channels, done, fit)
    else:
        name, store = _read_own(data, model, split, side, listed, labels, report, progress)
    report(f"{name}: {len(store):,} images, stored as {side} × {side} pixels")
    return store


def _read_own(data: ImageData, model: ImageInput, split: str, side: int, listed: ImageFolder | None, labels: Sequence[str],
              report: Report, progress: Progress) -> tuple[str, ImageStore]:  # fmt: skip
    """Images of an own folder; a tenth of the training images is for validation if no other folder is given."""
    path = {"train": data.train, "valid": data.valid or data.train}.get(split, split)
    if not path:
        raise ValueError(f"no {split} data; give data.{split}=FOLDER with a folder for each class, or data.source=NAME")
    folder = Path(path).expanduser()
    if data.source and not folder.exists():
        has = SOURCES[data.source].splits
        raise ValueError(f"{data.source} has no split {split!r}{nearest(split, has)}, and there is no such folder; "
                         f"splits are {', '.join(has)}")  # fmt: skip
    if listed is None or folder != listed.folder:
        listed = list_images(folder, least=1)
    held_out = split in ("train", "valid") and not data.valid
    read, identity = partial(read_square, data, model, side), [model.image, data.fit, data.resample, data.resize]
    stored = store_folder(listed, labels, read, identity, side, model.channels, partial(progress, f"reading {folder}"),
                          split=held_out, strict=data.strict, every_class=held_out or split == "train")  # fmt: skip
    if split != "valid" or not held_out:  # else reported with the training images
        for line in unreadable_lines(str(folder), stored.unreadable, stored.total):
            report(line)
    if split == "train" and (copies := _describe_copies(stored)):
        report(f"{folder}: {copies}")
    name = f"{folder}, validation" if held_out and split == "valid" else str(folder)
    return name, ImageStore(stored.cache, split if held_out else "all")


def _describe_copies(stored: FolderStore) -> str:
    """Say how many images are copies, and how many of several classes."""
    if not stored.copies:
        return ""
    told = f"{stored.copies:,} image{'s are copies' if stored.copies > 1 else ' is a copy'} of others"
    if not (several := len(stored.ambiguous)):
        return told
    names = " and ".join(stored.ambiguous[0][:2])
    return f"{told}; {several:,} image{'s are' if several > 1 else ' is'} in several classes, such as {names}"


def image_names(data: ImageData, split: str, images: ImageStore) -> list[str]:
    """The files of the images that `read_split` stored, in their order; their numbers, if they have no files of their own."""
    if images.files:
        path = {"train": data.train, "valid": data.valid or data.train}.get(split, split)
        return [str(Path(path).expanduser() / file) for file in images.files]
    return [f"image {number:,} of {split}" for number in range(1, len(images) + 1)]


def _require_images(data: ImageData) -> None:
    known = [name for name, source in SOURCES.items() if source.kind == "images"]
    if data.source and data.source not in known:
        what = "is not a set of images" if data.source in SOURCES else "is not known"
        raise ValueError(f"data.source={data.source} {what}{nearest(data.source, known)}; known are {', '.join(known)}; for own "
                         "images set data.train to a folder with one folder for each class")  # fmt: skip


def _report_folder(listed: ImageFolder, report: Report) -> None:
    if listed.skipped:
        kinds = ", ".join(f"{count:,} {ending}" for ending, count in listed.skipped.most_common(5))
        report(f"{listed.folder}: files that are not images regard reads are left out: {kinds}")
    counts = Counter(label for _, label in listed.files)
    shown = [f"{label!r} {counts[label]:,}" for label in listed.labels[:NAMED_CLASSES]]
    more = len(listed.labels) - NAMED_CLASSES
    report(f"classes: {', '.join(shown)}{f', and {more} more' if more > 0 else ''}")


def default_resize(image: int, own: int | None) -> int:
    """8/7 of the model's `image` pixels, as ImageNet's 256 for 224; or the same if the set's `own` images have that side."""
    return image if own == image else round(image * 8 / 7)


def resize_side(data: Images, image: int) -> int:
    """The side to which images are scaled before the model's `image` pixels are cropped, in training and inference."""
    return data.resize or default_resize(image, SOURCES[data.source].side if data.source in SOURCES else None)


def resize_function(data: Images, image: int) -> Callable[[Bytes, int], Bytes]:
    """The function that turns an image of any shape into a square of a given side."""
    return partial(resize_square, center=image, fit=data.fit, resample=data.resample)


def read_square(data: Images, model: ImageInput, side: int, file: Path | bytes) -> Bytes:
    """Read an image file, or its content, as a square: (S, S, C), the same in training and inference."""
    # No draft, which is faster: a photo gives the same square as a file and as decoded pixels.
    image = read_image(file, model.channels, _reduce_to(data, side), draft=False)
    return resize_function(data, model.image)(image, side)


def _reduce_to(data: Images, side: int) -> int | None:
    """The side for which a much larger image is reduced before it is scaled."""
    return None if data.resize else side  # an explicit data.resize reproduces another program, which scales in one step


def to_square(image: ImageLike, data: Images, model: ImageInput) -> Bytes:
    """An image file or its content, an array of bytes or PIL's image as a square: (S, S, C)."""
    side = resize_side(data, model.image)
    if isinstance(image, str | Path | bytes):
        return read_square(data, model, side, image if isinstance(image, bytes) else Path(image))
    return resize_function(data, model.image)(to_pixels(image, model.channels, _reduce_to(data, side)), side)


def store_images(images: Callable[[], Iterable[Bytes]], labels: Sequence[int] | Ints, name: str, identity: object, side: int,
                 channels: int, progress: Callable[[int], None] = lambda done: None,
                 fit: Callable[[Bytes, int], Bytes] = resize_square) -> ImageStore:  # fmt: skip
    """Store images of any size under `identity` in the cache folder, or find them there; `fit` makes each a square."""
    ids = np.asarray(labels, dtype=np.int64)

    def write(folder: Path) -> dict[str, object]:
        digest, done = hashlib.sha256(repr((side, channels)).encode()), 0
        with open(folder / "images.bin", "wb") as file:
            for done, image in enumerate(images(), 1):
                content = fit(image, side).tobytes()
                file.write(content)
                digest.update(content)
                if done % REPORT_EVERY == 0:
                    progress(done)
        if not done:
            raise ValueError(f"{name} holds no images; give a folder with images in it")
        assert done == len(ids), f"{done} images, {len(ids)} labels"
        progress(done)
        ids.tofile(folder / "labels.bin")
        digest.update(ids.tobytes())
        return {"count": done, "side": side, "channels": channels, "digest": digest.hexdigest()}

    order = hashlib.sha256(ids.tobytes()).hexdigest()
    return ImageStore(cached(["images", FORMAT, identity, order, side, channels], write))
