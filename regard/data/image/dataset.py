"""From a `DataConfig` to pictures on disk, train and valid, and the names of their classes: what training on pictures reads."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from regard.config import DataConfig, nearest
from regard.data.image.folders import ImageSource, folder_source, left_out, list_images, named_source, split_validation
from regard.data.image.io import Bytes, read_image, resize_square
from regard.data.image.store import ImageStore, default_resize, store_images
from regard.data.sources import SOURCES

__all__ = ["ImageDataset", "fitting", "prepare", "read_split", "resize_side", "squared"]

FEW = 20  # classes that are named before training
CHANGES = ("crop", "flip", "augment", "mixup", "erase", "mean", "std", "resize")  # that pixels do not know


class ImageDataset(NamedTuple):
    """What training on pictures reads."""

    train: ImageStore
    valid: ImageStore
    labels: tuple[str, ...]  # the names of the classes, by number; none if no class is learnt


def prepare(
    config: DataConfig, model: Any, task: str, say: Callable[[str], None], progress: Callable[[str, int], None]
) -> ImageDataset:
    """Find the pictures, train and valid, and store them in the size that the model's config asks for."""
    labels = _classes(config, say, 2 if task == "image" else 1)
    train, valid = (read_split(config, model, task, split, say, labels, progress) for split in ("train", "valid"))
    return ImageDataset(train, valid, labels if task == "image" else ())


def read_split(
    config: DataConfig,
    model: Any,
    task: str,
    split: str,
    say: Callable[[str], None],
    labels: Sequence[str] = (),
    progress: Callable[[str, int], None] = lambda what, done: None,
) -> ImageStore:
    """One split by name, or a folder of one's own, stored; `labels` are the classes, by number."""
    _check(config, task)
    named = config.source in SOURCES and (split == "valid" or split in SOURCES[config.source].splits)
    side = resize_side(config, model.image) if task == "image" else model.image
    if side < model.image:
        raise ValueError(
            f"data.resize={side} is less than the {model.image} pixels that the model sees; use as many or more"
        )
    if named:
        album = named_source(config.source, split, model.channels)
    else:
        album = _own(config, split, labels, partial(squared, config, model.image, model.channels, side))
    how = [album.identity, model.image, config.fit, config.resample, config.resize]  # what the stored squares depend on
    heard, fit = partial(progress, f"reading {album.name}"), fitting(config, model.image)
    images = store_images(album.pictures, album.labels, album.name, how, side, model.channels, heard, fit)
    say(f"{album.name}: {len(images):,} pictures, kept as {side} × {side} pixels")
    return images


def resize_side(config: DataConfig, image: int) -> int:
    """To how many pixels a picture is scaled, of which a model sees `image`, in training as in answers."""
    return config.resize or default_resize(image, SOURCES[config.source].side if config.source in SOURCES else None)


def fitting(config: DataConfig, image: int) -> Callable[[Bytes, int], Bytes]:
    """How a picture of any shape becomes a square of so many pixels."""
    return partial(resize_square, seen=image, fit=config.fit, resample=config.resample)


def squared(config: DataConfig, image: int, channels: int, side: int, file: Path) -> Bytes:
    """A picture file as a square of so many pixels, of which a model sees `image`: (S, S, C), in training as in answers."""
    # A side that is asked for is another program's, which scales in one step; else a large picture may come smaller: faster.
    return fitting(config, image)(read_image(file, channels, None if config.resize else side), side)


def _own(config: DataConfig, split: str, labels: Sequence[str], read: Callable[[Path], Bytes]) -> ImageSource:
    """Pictures of one's own; a tenth of those to learn from is held out if there are no others."""
    place = {"train": config.train, "valid": config.valid or config.train}.get(split, split)
    if not place:
        raise ValueError(
            f"no {split} data; give data.{split}=FOLDER, which holds a folder of pictures for each class, or data.source=NAME"
        )
    folder = Path(place).expanduser()
    if config.source and not folder.exists():
        has = SOURCES[config.source].splits
        raise ValueError(f"{config.source} has no split {split!r}{nearest(split, has)}, and there is no such folder; "
                         f"splits are {', '.join(has)}")  # fmt: skip
    found, files = list_images(folder, least=1)
    if split in ("train", "valid") and not config.valid:
        files = split_validation(folder, files)[split == "valid"]
    album = folder_source(folder, files, labels or found, read)
    return album._replace(name=f"{album.name}, held out" if split == "valid" and not config.valid else album.name)


def _check(config: DataConfig, task: str) -> None:
    usual = DataConfig()
    for key in CHANGES if task == "pixels" else ():
        if getattr(config, key) != getattr(usual, key):
            raise ValueError(
                f"data.{key}={getattr(config, key)} is for classes of pictures; task pixels learns them as they are"
            )
    known = [name for name, source in SOURCES.items() if source.kind == "images"]
    if config.source and config.source not in known:
        what = "is no set of pictures" if config.source in SOURCES else "is not known"
        raise ValueError(
            f"data.source={config.source} {what}{nearest(config.source, known)}, and task {task} learns from pictures; "
            f"known are {', '.join(known)}; for own pictures set data.train to a folder with one folder for each class"
        )


def _classes(config: DataConfig, say: Callable[[str], None], least: int) -> tuple[str, ...]:
    """The names of the classes: those of the named set, or all folders, which are said with their counts."""
    if config.source in SOURCES:
        return SOURCES[config.source].labels
    if not config.train:
        return ()
    folder = Path(config.train).expanduser()
    labels, files = list_images(folder, least)
    if others := left_out(folder):
        kinds = ", ".join(f"{n:,} {ending}" for ending, n in others.most_common(5))
        say(f"{folder}: files that are no pictures regard reads are left out: {kinds}")
    counts = Counter(label for _, label in files)
    shown = [f"{label!r} {counts[label]:,}" for label in labels[:FEW]]
    say(f"classes: {', '.join(shown)}{f', and {len(labels) - FEW} more' if len(labels) > FEW else ''}")
    return tuple(labels)
