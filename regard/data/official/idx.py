"""MNIST and Fashion-MNIST: IDX files, a header with the sizes of an array and then its bytes.

    0 0 8 n   a byte each: n sizes follow, of 4 bytes, the highest first; 8 stands for unsigned bytes

http://yann.lecun.com/exdb/mnist
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from regard.data.archives import gunzip
from regard.data.official.write import write_arrays

__all__ = ["read"]

LIMIT = 1 << 27  # bytes of an unpacked file
SIDE = 28
UNSIGNED_BYTES = 8
# How many images of each class a split takes, and the file name that each image has in the repository that the order comes from,
# by its class, its number, counted on over both files, and its number in its class.
SETS = {
    "mnist": ((("train", "train", 1200, 0), ("test", "t10k", 300, 60_000)), "{split}/{label}/{number}.png"),
    "fashion-mnist": ((("train", "train", 2000, 0), ("test", "t10k", 500, 60_000)),
                      "fashion_mnist_images/{split}/{label}/{in_class:04d}.png"),
}  # fmt: skip

Bytes = npt.NDArray[np.uint8]


def read(name: str, files: Mapping[str, Path], folder: Path) -> dict[str, int]:
    """Write train.npz and test.npz: of each class the first images by the MD5 of their names."""
    counts, (splits, template) = {}, SETS[name]
    for split, stem, per_class, before in splits:
        at = files[f"{stem}-labels-idx1-ubyte.gz"]
        images, labels = _array(files[f"{stem}-images-idx3-ubyte.gz"], 3), _array(at, 1)
        if images.shape != (len(labels), SIDE, SIDE):
            raise ValueError(f"{at} has {len(labels):,} labels for images of the shape {images.shape}; get both files again")
        classes = np.bincount(labels, minlength=10)
        if len(classes) > 10 or classes.min() < per_class:
            raise ValueError(f"{at} has {len(classes)} classes, the smallest of {classes.min():,} images; wanted 10 of at least "
                             f"{per_class:,}: get it again")  # fmt: skip
        rows = _chosen(labels.tolist(), per_class, template.replace("{split}", split), before)
        write_arrays(folder / f"{split}.npz", images=images[rows], labels=labels[rows])
        counts[split] = len(rows)
    return counts


def _chosen(labels: list[int], per_class: int, template: str, before: int) -> list[int]:
    """The rows of a class-balanced part, in the order of the MD5 of their names."""
    counts, hashed = [0] * 10, []
    for row, label in enumerate(labels):
        name = template.format(label=label, number=before + row, in_class=counts[label])
        hashed.append((hashlib.md5(name.encode(), usedforsecurity=False).digest(), row))
        counts[label] += 1
    rows, taken = [], [0] * 10
    for _, row in sorted(hashed):
        if taken[labels[row]] < per_class:
            taken[labels[row]] += 1
            rows.append(row)
    return rows


def _array(file: Path, dims: int) -> Bytes:
    """The array of an IDX file of unsigned bytes."""
    content = gunzip(file, LIMIT)
    start = 4 + 4 * dims
    if len(content) < start or content[:4] != bytes((0, 0, UNSIGNED_BYTES, dims)):
        raise ValueError(f"{file} is not an IDX file of bytes with {dims} sizes; get the official file")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dims, offset=4))
    if len(content) - start != int(np.prod(shape, dtype=object)):
        raise ValueError(f"{file} has {len(content) - start:,} bytes for an array of the shape {shape}; get it again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
