"""Which images there are, in a named set or in own folders, and the class of each."""

import hashlib
import os
import unicodedata
import zipfile
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from regard.data.image.io import Bytes, Ints, read_image
from regard.data.sources import SOURCES, locate

__all__ = ["ENDINGS", "TRIED", "VALID_EVERY", "ImageFolder", "ImageSource", "list_images", "named_source", "read_ahead",
           "relative_name"]  # fmt: skip

VALID_EVERY = 10  # one own image of a class in this many is for validation
AHEAD = 4  # images a thread may read ahead of the one being written
ENDINGS = frozenset((".jpg", ".jpeg", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm",
                     ".avif", ".jp2"))  # fmt: skip
# What a folder of images to classify or caption is searched for: also kinds that are not read, so that they are named.
TRIED = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", *sorted(ENDINGS - {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp"}),
         ".heic", ".heif", ".hif", ".jxl", ".psd", ".svg", ".eps", ".ico", ".tga", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf",
         ".raf", ".rw2")  # fmt: skip
SPLITS = frozenset(("train", "valid", "validation", "val", "test"))  # names of folders that are not classes

Read = TypeVar("Read")


class ImageSource(NamedTuple):
    """Images and their class ids: how to read them again, and what they depend on."""

    name: str
    images: Callable[[], Iterator[Bytes]]
    labels: Ints
    identity: object


class ImageFolder(NamedTuple):
    """A listing of own images, one folder for each class."""

    folder: Path
    labels: list[str]  # classes, sorted
    files: list[tuple[Path, str]]  # each image and its class, sorted
    skipped: Counter[str]  # endings of files that are not images


def named_source(name: str, split: str, channels: int) -> ImageSource:
    """A split of a named set."""
    (file,) = locate(name, split, "")
    classes = len(SOURCES[name].labels)
    labels = _arrays(file, "labels")["labels"].astype(np.int64)
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(f"{file} has the class {labels.max()}; wanted 0 to {classes - 1}: get it again")
    rows = _rows(labels, SOURCES[name].valid_images, split)

    def images() -> Iterator[Bytes]:
        arrays = _arrays(file)
        count = len(arrays["images"] if "images" in arrays else arrays["offsets"][1:])
        if count != len(labels):
            raise ValueError(f"{file} has {count:,} images and {len(labels):,} labels; get it again")
        if "images" in arrays:
            mode, shape = "L" if channels == 1 else "RGB", (*arrays["images"].shape[1:3], channels)
            for row in rows.tolist():
                yield np.array(Image.fromarray(arrays["images"][row]).convert(mode)).reshape(shape)
            return
        cuts, content = arrays["offsets"].tolist(), arrays["jpeg"].tobytes()
        for row in rows.tolist():
            yield read_image(content[cuts[row] : cuts[row + 1]], channels, name=f"image {row:,} of {file}")

    stamp = file.stat()
    identity = [str(file.resolve()), stamp.st_size, stamp.st_mtime_ns, hashlib.sha256(rows.tobytes()).hexdigest()]
    return ImageSource(f"{name} {split}", images, labels[rows], identity)


def _rows(labels: Ints, count: int, split: str) -> Ints:
    """The images of a file that belong to a split: `count` of train are for validation, evenly from each class."""
    if not count or split not in ("train", "valid"):
        return np.arange(len(labels))
    by_class = np.argsort(labels, kind="stable")
    valid = by_class[(2 * np.arange(count) + 1) * len(labels) // (2 * count)]
    return np.sort(valid) if split == "valid" else np.setdiff1d(np.arange(len(labels)), valid)


def _arrays(file: Path, *only: str) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of a named set: images, or jpeg and offsets; and labels."""
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            found = {key: archive[key] for key in only or archive.files}
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file} is not a whole .npz file ({error}); get it again") from None
    if not only and not ("images" in found or {"jpeg", "offsets"} <= set(found)):
        raise ValueError(f"{file} holds {', '.join(found)}; wanted images, or jpeg and offsets: get it again")
    return found


def list_images(folder: Path, least: int = 2) -> ImageFolder:
    """List own images, sorted: each folder is a class; fewer than `least` classes are refused."""
    if not folder.is_dir():
        what = f"{folder} is a file" if folder.exists() else f"no folder {folder}"
        raise ValueError(f"{what}; give a folder that holds a folder of images for each class")
    inside = sorted(path for path in folder.iterdir() if not _ignored(path.name))
    labels = [path.name for path in inside if path.is_dir()]
    skipped = [path for path in inside if not path.is_dir()]  # files beside the folders of classes are not read
    if not labels:
        raise ValueError(f"{folder} holds no folders; put the images of each class in one, such as {folder}/cats")
    if set(labels) <= SPLITS:
        raise ValueError(f"{folder} holds {', '.join(labels)}, which are splits; give one, such as {folder / labels[0]}")
    files: list[tuple[Path, str]] = []
    for label in labels:
        not_utf8 = any("\ud800" <= character <= "\udfff" for character in label)
        if label.splitlines() != [label] or not label.strip() or not_utf8:
            raise ValueError(f"{folder} holds the folder {label!r}; a class is one line of text, name it so")
        images: list[Path] = []
        for file in _walk(folder / label):
            (images if file.suffix.lower() in ENDINGS else skipped).append(file)
        if not images:
            raise ValueError(f"{folder / label} holds no images (.jpg, .png, .webp, …); put some in, or remove it")
        files += [(file, label) for file in sorted(images, key=lambda file: relative_name(file, folder))]
    if len(labels) < least:
        raise ValueError(f"{folder} has one class only, {labels[0]!r}; give images of two or more classes")
    endings = (path.suffix.lower() or "without an ending" for path in skipped)
    return ImageFolder(folder, labels, files, Counter(ending for ending in endings if ending not in ENDINGS))


def _ignored(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"  # added by archives made on a Mac


def _walk(folder: Path) -> Iterator[Path]:
    """All files below a folder that are not hidden; links are followed, but never in a circle."""
    visited = set[str]()
    for path, inside, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(path)
        if real in visited:
            inside.clear()
            continue
        visited.add(real)
        inside[:] = [name for name in inside if not _ignored(name)]
        yield from (Path(path, name) for name in files if not _ignored(name))


def relative_name(file: Path, folder: Path) -> str:
    """A file's path below a folder, spelled the same on every machine."""
    return unicodedata.normalize("NFC", file.relative_to(folder).as_posix())


def read_ahead(read: Callable[[Path], Read], files: Iterable[Path]) -> Iterator[Read]:
    """Images read by several threads, in the order of the files; only a few are in memory."""
    threads = os.cpu_count() or 1
    waiting: deque[Future[Read]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for file in files:
                waiting.append(pool.submit(read, file))
                if len(waiting) > AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:  # empty, unless the caller stopped reading
                future.cancel()
