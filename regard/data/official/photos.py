"""Archives of photos, one folder for each class: flower_photos, and the ants and bees of PyTorch's tutorial."""

import hashlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from regard.data.archives import GB, tar_files, zip_files
from regard.data.image.io import read_image, resize_square
from regard.data.official.write import write_jpegs

__all__ = ["read", "shrink"]

SIDE, QUALITY = 96, 80
CLASSES = {"flowers5": ("daisy", "dandelion", "roses", "sunflowers", "tulips"), "ants-bees": ("ants", "bees")}
TEST = 0.2  # of the flowers of a class
VALID = 0.1  # of the flowers that are not test
SEED = 42

Photo = tuple[str, int, bytes, bytes]  # path in the archive, class, sha256 of the content, the small JPEG


def read(name: str, files: Mapping[str, Path], folder: Path) -> dict[str, int]:
    """Write each split as squares of 96 × 96, in the order of the MD5 of their paths, copies removed."""
    (file,) = files.values()
    photos = list(_photos(file, CLASSES[name]))
    if empty := [label for number, label in enumerate(CLASSES[name]) if not any(photo[1] == number for photo in photos)]:
        raise ValueError(f"{file} has no photos in a folder {' or '.join(empty)}; get the official file")
    splits = _split_flowers(photos) if name == "flowers5" else _split_folders(photos, file)
    for split, rows in splits.items():
        write_jpegs(folder / f"{split}.npz", [row[3] for row in rows], [row[1] for row in rows])
    return {split: len(rows) for split, rows in splits.items()}


def shrink(content: bytes, side: int, quality: int, name: str, fit: str = "crop") -> bytes:
    """A photo as a square JPEG of `side` pixels: its middle, or with `fit` "squash" all of it."""
    square = resize_square(read_image(content, 3, name=name), side, fit=fit)
    packed = io.BytesIO()
    Image.fromarray(square).save(packed, "JPEG", quality=quality)
    return packed.getvalue()


def _photos(file: Path, classes: Sequence[str]) -> Iterator[Photo]:
    def is_photo(at: str) -> bool:
        path = PurePosixPath(at)
        return path.suffix.lower() in (".jpg", ".jpeg") and path.parent.name in classes and not path.name.startswith(".")

    read_files = zip_files if file.suffix == ".zip" else tar_files
    for at, content in read_files(file, is_photo, GB):
        small = shrink(content, SIDE, QUALITY, f"{at} of {file}")
        yield at, classes.index(PurePosixPath(at).parent.name), hashlib.sha256(content).digest(), small


def _split_flowers(photos: Sequence[Photo]) -> dict[str, list[Photo]]:
    """The split of scikit-learn's train_test_split(test_size=0.2, random_state=42) for each class, from sorted names."""
    parts: dict[str, list[Photo]] = {"train": [], "val": []}
    for label in range(len(CLASSES["flowers5"])):
        rows = sorted((photo for photo in photos if photo[1] == label), key=lambda photo: PurePosixPath(photo[0]).name.upper())
        shuffled = np.random.RandomState(SEED).permutation(len(rows)).tolist()
        chosen = set(shuffled[: math.ceil(TEST * len(rows))])
        for number, row in enumerate(rows):
            part = "val" if number in chosen else "train"
            path = PurePosixPath(row[0])
            parts[part].append((f"dataset/{part}/{path.parent.name}/{path.name}", *row[1:]))
    digests = set[bytes]()  # shared, test first: a photo of test is not in train
    test = _ordered(parts["val"], digests)
    train = _ordered(parts["train"], digests)
    count = round(VALID * len(train))
    return {"train": train[count:], "valid": train[:count], "test": test}


def _split_folders(photos: Sequence[Photo], file: Path) -> dict[str, list[Photo]]:
    """The official folders, train and val."""
    parts = {split: [photo for photo in photos if PurePosixPath(photo[0]).parent.parent.name == folder]
             for split, folder in (("train", "train"), ("test", "val"))}  # fmt: skip
    if not all(parts.values()):
        raise ValueError(f"{file} has no photos in its folders train and val; get the official file")
    digests = set[bytes]()
    return {split: _ordered(rows, digests) for split, rows in parts.items()}


def _ordered(rows: Sequence[Photo], digests: set[bytes]) -> list[Photo]:
    """Photos in the order of the MD5 of their paths, without copies of photos whose sha256 is in `digests`, which it extends."""
    kept = []
    for row in sorted(rows, key=lambda row: hashlib.md5(row[0].encode(), usedforsecurity=False).digest()):
        if row[2] not in digests:
            digests.add(row[2])
            kept.append(row)
    return kept
