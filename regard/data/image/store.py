"""Pictures as squares of bytes on disk, so that memory does not grow with their number.

Every picture is read once, upright, and stored as training wants it: one that cannot be read is named before training
starts.  What is stored is a little larger than what the model sees, so that training can cut elsewhere every time.

    pictures.bin  uint8, (N, S, S, C): red, green, blue, or grey
    labels.bin    one int64 a picture: the number of its class
    about.json    counts and the digest; written last, so a folder with it is whole

Shapes: N pictures, S side of what is stored, Y X rows and columns, C channels.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from regard.data.files import flush, write_atomic
from regard.data.image.io import Bytes, resize_square
from regard.data.text.store import Ints, cached

__all__ = ["ImageStore", "default_resize", "store_images"]

FORMAT = 1  # of the files above
OFTEN = 50  # pictures between two reports of progress


def default_resize(image: int, own: int | None) -> int:
    """The side to store pictures with that a model sees `image` pixels of; `own` is that of a named set's.

    8/7 of it, as the 256 of which ImageNet's 224 are cut; but pictures of the very size are left as they are.
    """
    return image if own == image else round(image * 8 / 7)


class ImageStore:
    """Labelled pictures on disk."""

    def __init__(self, folder: Path):
        self.folder = folder
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        self.digest: str = about["digest"]
        self.side: int = about["side"]
        self.channels: int = about["channels"]
        shape = (about["count"], self.side, self.side, self.channels)
        self.pictures: np.memmap[tuple[int, ...], np.dtype[np.uint8]] = np.memmap(
            folder / "pictures.bin", dtype=np.uint8, mode="r", shape=shape
        )
        self.labels: Ints = np.fromfile(folder / "labels.bin", dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)


def store_images(
    pictures: Callable[[], Iterable[Bytes]],
    labels: Sequence[int] | Ints,
    name: str,
    identity: object,
    side: int,
    channels: int,
    progress: Callable[[int], None] = lambda done: None,
    fit: Callable[[Bytes, int], Bytes] = resize_square,
) -> ImageStore:
    """Store pictures in the cache folder, or find them there from an earlier time.

    `identity` is what the pictures depend on (files, their sizes and times): the store is found by it.  The pictures are
    of any size, with the channels asked for; `fit` makes each of them a square of so many pixels.
    """
    numbers = np.asarray(labels, dtype=np.int64)

    def write(folder: Path) -> None:
        digest, done = hashlib.sha256(repr((side, channels)).encode()), 0
        with open(folder / "pictures.bin", "wb") as file:
            for done, picture in enumerate(pictures(), 1):
                content = fit(picture, side).tobytes()
                file.write(content)
                digest.update(content)
                if done % OFTEN == 0:
                    progress(done)
        if not done:
            raise ValueError(f"{name} holds no pictures; give some")
        assert done == len(numbers), f"{done} pictures, {len(numbers)} labels"
        progress(done)
        numbers.tofile(folder / "labels.bin")
        digest.update(numbers.tobytes())
        for name_ in ("pictures.bin", "labels.bin"):
            flush(folder / name_)
        about = {"count": done, "side": side, "channels": channels, "digest": digest.hexdigest()}
        write_atomic(folder / "about.json", json.dumps(about).encode())

    order = hashlib.sha256(numbers.tobytes()).hexdigest()
    return ImageStore(cached(["pictures", FORMAT, identity, order, side, channels], write))
