"""CIFAR-10's binary version: records of one byte of class, then 32 × 32 bytes each of red, green and blue.

https://www.cs.toronto.edu/~kriz/cifar.html
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from regard.data.archives import tar_files
from regard.data.official.write import write_arrays

__all__ = ["read"]

SIDE, RECORD = 32, 1 + 3 * 32 * 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LIMIT = 1 << 28  # bytes of the unpacked archive
SPLITS = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)}


def read(name: str, files: Mapping[str, Path], folder: Path) -> dict[str, int]:
    """Write train.npz and test.npz, in the order of the MD5 of "train/cat/0012.jpg", the number counted in each class."""
    (file,) = files.values()
    wanted = {batch for batches in SPLITS.values() for batch in batches}
    found = {
        PurePosixPath(at).name: content for at, content in tar_files(file, lambda at: PurePosixPath(at).name in wanted, LIMIT)
    }
    counts = {}
    for split, batches in SPLITS.items():
        if missing := [batch for batch in batches if batch not in found]:
            raise ValueError(f"{file} has no {', '.join(missing)}; get the binary version, cifar-10-binary.tar.gz")
        for batch in batches:
            if not found[batch] or len(found[batch]) % RECORD:
                raise ValueError(f"{batch} of {file} has {len(found[batch]):,} bytes, which is not a multiple of {RECORD:,}; "
                                 f"get it again")  # fmt: skip
        records = np.frombuffer(b"".join(found.pop(batch) for batch in batches), np.uint8).reshape(-1, RECORD)
        labels = records[:, 0]
        if labels.max() >= len(CLASSES):
            raise ValueError(f"{file} has the class {labels.max()} in {split}; wanted 0 to {len(CLASSES) - 1}: get it again")
        rows = _order(split, labels.tolist())
        images = records[rows, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        write_arrays(folder / f"{split}.npz", images=images, labels=labels[rows])
        counts[split] = len(rows)
    return counts


def _order(split: str, labels: Sequence[int]) -> list[int]:
    counts, hashed = [0] * len(CLASSES), []
    for row, label in enumerate(labels):
        path = f"{split}/{CLASSES[label]}/{counts[label]:04d}.jpg"
        hashed.append((hashlib.md5(path.encode(), usedforsecurity=False).digest(), row))
        counts[label] += 1
    return [row for _, row in sorted(hashed)]
