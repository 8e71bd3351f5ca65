"""Which pictures there are, of a named set or in folders of one's own, and of which class each is.

Shapes: Y X rows and columns, C channels.
"""

import hashlib
import os
import unicodedata
import zipfile
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from regard.data.image.io import Bytes, read_image
from regard.data.sources import SOURCES, locate
from regard.data.text.store import Ints

__all__ = ["ENDINGS", "ImageSource", "folder_source", "left_out", "list_images", "named_source", "split_validation"]

HELD_OUT = 10  # of so many own pictures of a class, one is held out
AHEAD = 4  # pictures a thread may be ahead of the one that is written
ENDINGS = frozenset((".jpg", ".jpeg", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm",
                     ".avif", ".jp2"))  # fmt: skip
SPLITS = frozenset(("train", "valid", "validation", "val", "test"))  # names of folders that are no classes


class ImageSource(NamedTuple):
    """Some pictures and the numbers of their classes: how to read them again, and what they depend on."""

    name: str
    pictures: Callable[[], Iterator[Bytes]]
    labels: Ints
    identity: object


def named_source(name: str, split: str, channels: int) -> ImageSource:
    """A split of a named set."""
    (file,) = locate(name, split, "")
    classes = len(SOURCES[name].labels)
    labels = _arrays(file, "labels")["labels"].astype(np.int64)
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(f"{file} has the class {labels.max()}; wanted 0 to {classes - 1}: get it again")
    rows = _rows(labels, SOURCES[name].held, split)

    def pictures() -> Iterator[Bytes]:
        held = _arrays(file)
        count = len(held["images"] if "images" in held else held["offsets"][1:])
        if count != len(labels):
            raise ValueError(f"{file} has {count:,} pictures and {len(labels):,} labels; get it again")
        if "images" in held:
            mode = "L" if channels == 1 else "RGB"
            for number in rows.tolist():
                yield np.array(Image.fromarray(held["images"][number]).convert(mode)).reshape(
                    *held["images"].shape[1:3], channels
                )
            return
        cuts, content = held["offsets"].tolist(), held["jpeg"].tobytes()
        for number in rows.tolist():
            one = content[cuts[number] : cuts[number + 1]]
            yield read_image(one, channels, name=f"picture {number:,} of {file}")

    stamp = file.stat()
    identity = [str(file.resolve()), stamp.st_size, stamp.st_mtime_ns, hashlib.sha256(rows.tobytes()).hexdigest()]
    return ImageSource(f"{name} {split}", pictures, labels[rows], identity)


def _rows(labels: Ints, held: int, split: str) -> Ints:
    """Which pictures of a file are those of a split: of train so many are held out as valid, evenly of each class."""
    if not held or split not in ("train", "valid"):
        return np.arange(len(labels))
    by_class = np.argsort(labels, kind="stable")
    valid = by_class[(2 * np.arange(held) + 1) * len(labels) // (2 * held)]
    return np.sort(valid) if split == "valid" else np.setdiff1d(np.arange(len(labels)), valid)


def _arrays(file: Path, *only: str) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of a named set: images, or jpeg and offsets; and labels."""
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as held:
            found = {key: held[key] for key in only or held.files}
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file} is not a whole .npz file ({error}); get it again") from None
    if not only and not ("images" in found or {"jpeg", "offsets"} <= set(found)):
        raise ValueError(f"{file} holds {', '.join(found)}; wanted images, or jpeg and offsets: get it again")
    return found


def list_images(folder: Path, least: int = 2) -> tuple[list[str], list[tuple[Path, str]]]:
    """The classes of own pictures, a folder each, and all pictures in them with the name of their class, sorted."""
    if not folder.is_dir():
        what = f"{folder} is a file" if folder.exists() else f"no folder {folder}"
        raise ValueError(f"{what}; give a folder that holds a folder of pictures for each class")
    inside = sorted(path.name for path in folder.iterdir() if path.is_dir() and not _hidden(path.name))
    if not inside:
        raise ValueError(
            f"{folder} holds no folders; put the pictures of each class in a folder of their own, such as {folder}/cats"
        )
    if set(inside) <= SPLITS:
        raise ValueError(
            f"{folder} holds {', '.join(inside)}, which are no classes; give one of them, such as {folder / inside[0]}"
        )
    found: list[tuple[Path, str]] = []
    for label in inside:
        if label.splitlines() != [label] or not label.strip() or not _is_text(label):
            raise ValueError(f"{folder} holds the folder {label!r}; a class is one line of text, name it so")
        pictures = (file for file in _walk(folder / label) if file.suffix.lower() in ENDINGS)
        files = sorted(pictures, key=lambda file: _relative(file, folder))
        if not files:
            raise ValueError(
                f"{folder / label} holds no pictures (.jpg, .png, .webp, …); put some in, or remove the folder"
            )
        found += [(file, label) for file in files]
    if len(inside) < least:
        raise ValueError(f"{folder} has one class only, {inside[0]!r}; give pictures of two or more, to be told apart")
    return inside, found


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"  # what an archive of a Mac leaves beside the pictures


def _is_text(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)  # bytes that are not UTF-8


def left_out(folder: Path) -> Counter[str]:
    """The endings of files below a folder that are not taken for pictures, and how many have each."""
    every = (file.suffix.lower() or "without an ending" for file in _walk(folder))
    return Counter(ending for ending in every if ending not in ENDINGS)


def _walk(folder: Path) -> Iterator[Path]:
    """All files below a folder that are not hidden, links followed, though never in a circle."""
    seen = set[str]()
    for place, inside, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            inside.clear()
            continue
        seen.add(real)
        inside[:] = [name for name in inside if not _hidden(name)]
        for name in files:
            if not _hidden(name):
                yield Path(place, name)


def _relative(file: Path, folder: Path) -> str:
    """A file's name below a folder, spelt the same on every machine."""
    return unicodedata.normalize("NFC", file.relative_to(folder).as_posix())


def split_validation(
    folder: Path, files: Sequence[tuple[Path, str]]
) -> tuple[list[tuple[Path, str]], list[tuple[Path, str]]]:
    """Own pictures → those to learn from, and a tenth of each class that is held out, at least one.

    Which ones depends on nothing but their names below the folder.
    """
    drawn: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for file, label in files:
        name = _relative(file, folder).encode("utf-8", "surrogateescape")
        drawn[label].append((hashlib.sha256(name).hexdigest(), file))
    held = set[Path]()
    for label, some in drawn.items():
        if len(some) < 2:
            raise ValueError(
                f"{folder / label} has one picture; wanted two or more, to hold one out: add some, or give data.valid"
            )
        held |= {file for _, file in sorted(some)[: max(1, round(len(some) / HELD_OUT))]}
    return [pair for pair in files if pair[0] not in held], [pair for pair in files if pair[0] in held]


def folder_source(
    folder: Path, files: Sequence[tuple[Path, str]], labels: Sequence[str], read: Callable[[Path], Bytes]
) -> ImageSource:
    """Own pictures, of the classes `labels`, by number; read by several threads."""
    number_of = {label: number for number, label in enumerate(labels)}
    for file, label in files:
        if label not in number_of:
            raise ValueError(
                f"{file} is of class {label!r}, never seen in training; known are {', '.join(labels)}: "
                f"rename its folder, or leave it out"
            )

    stamps = [(_relative(file, folder), (s := file.stat()).st_size, s.st_mtime_ns) for file, _ in files]
    return ImageSource(
        str(folder),
        lambda: _in_order(read, [file for file, _ in files]),
        np.array([number_of[label] for _, label in files], dtype=np.int64),
        [str(folder.resolve()), stamps],
    )


def _in_order(read: Callable[[Path], Bytes], files: Iterable[Path]) -> Iterator[Bytes]:
    """What several threads read, in the order of the files; only a few are held."""
    threads = os.cpu_count() or 1
    waiting: deque[Future[Bytes]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for file in files:
                waiting.append(pool.submit(read, file))
                if len(waiting) > AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for one in waiting:  # none, unless reading was given up
                one.cancel()
