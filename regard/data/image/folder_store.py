"""An own folder of images, read once and stored: unreadable images are left out, copies stay on one side of the split.

Copies are images whose stored squares are equal.  All copies of an image are for training or all for validation.

    train-images.bin, train-labels.bin, valid-images.bin, valid-labels.bin    as in `store.py`; or all-images.bin, all-labels.bin
    about.json    for each part its counts, digest and files; the unreadable images; the copies

Shapes: N images, S side of a stored square, C channels.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard.data.cache import cached
from regard.data.image.folders import VALID_EVERY, ImageFolder, read_ahead, relative_name
from regard.data.image.io import Bytes, Ints
from regard.data.image.unreadable import or_reason, refuse_unreadable

__all__ = ["FolderStore", "hold_out", "store_folder"]

VERSION = 1  # of the files above and of the split
REPORT_EVERY = 50  # images


class FolderStore(NamedTuple):
    """Where the parts of a folder are stored, and what was found in it."""

    cache: Path
    unreadable: list[str]  # why each of them cannot be read
    total: int  # images, unreadable ones included
    copies: int  # images that equal an earlier one
    ambiguous: list[list[str]]  # files of each image that is in several classes


def store_folder(listed: ImageFolder, labels: Sequence[str], read: Callable[[Path], Bytes], identity: object, side: int,
                 channels: int, progress: Callable[[int], None], *, split: bool, strict: bool = False,
                 every_class: bool = False) -> FolderStore:  # fmt: skip
    """Store the squares that `read` makes of a folder's images, or find them in the cache; `split` holds out a tenth.

    `labels` are the classes by id.  With `every_class` a class without a readable image is refused.
    """
    ids = _class_ids(listed, labels)
    names = [str(file.relative_to(listed.folder)) for file, _ in listed.files]

    def write(folder: Path) -> dict[str, object]:
        kept, digests, reasons = list[int](), list[bytes](), list[str]()
        with open(folder / "images.bin", "wb") as out:
            files = (file for file, _ in listed.files)
            for index, image in enumerate(read_ahead(partial(or_reason, read), files)):
                if isinstance(image, str):
                    reasons.append(image)
                else:
                    out.write(content := image.tobytes())
                    kept.append(index)
                    digests.append(hashlib.blake2b(content, digest_size=16).digest())
                if (index + 1) % REPORT_EVERY == 0:
                    progress(index + 1)
        progress(len(names))
        lost = set(listed.labels) - {listed.files[index][1] for index in kept}
        refuse_unreadable(str(listed.folder), reasons, len(names), lost=lost if every_class or split else ())

        readable = listed._replace(files=[listed.files[index] for index in kept])
        valid = hold_out(readable, digests) if split else set[int]()
        rows = {"train": [row for row in range(len(kept)) if row not in valid], "valid": sorted(valid)}
        squares = np.memmap(folder / "images.bin", np.uint8, "r", shape=(len(kept), side, side, channels))
        parts = {
            part: _write_part(folder, part, squares, rows, ids[kept][rows]) | {"files": [names[kept[row]] for row in rows]}
            for part, rows in (rows if split else {"all": [*range(len(kept))]}).items()
        }
        del squares
        (folder / "images.bin").unlink()
        groups = [[names[kept[row]] for row in group] for group in _copies(digests)]
        classes = dict(zip(names, ids.tolist(), strict=True))
        ambiguous = [group for group in groups if len({classes[name] for name in group}) > 1]
        return {"parts": parts, "unreadable": reasons, "total": len(names), "copies": sum(len(group) - 1 for group in groups),
                "ambiguous": ambiguous}  # fmt: skip

    stamps = [(name, (about := file.stat()).st_size, about.st_mtime_ns, about.st_mode)  # a file may become readable
              for name, (file, _) in zip(names, listed.files, strict=True)]  # fmt: skip
    order = hashlib.sha256(ids.tobytes()).hexdigest()
    key = ["image folder", VERSION, str(listed.folder.resolve()), stamps, order, identity, side, channels, split, every_class]
    folder = cached(key, write)
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    refuse_unreadable(str(listed.folder), about["unreadable"], about["total"], strict=strict)
    return FolderStore(folder, about["unreadable"], about["total"], about["copies"], about["ambiguous"])


def _class_ids(listed: ImageFolder, labels: Sequence[str]) -> Ints:
    """The class id of each image, by `labels` or by the folder's own classes."""
    label_ids = {label: index for index, label in enumerate(labels or listed.labels)}
    for file, label in listed.files:
        if label not in label_ids:
            raise ValueError(f"{file} is of class {label!r}, never seen in training; known are {', '.join(labels)}: rename its "
                             "folder, or leave it out")  # fmt: skip
    return np.array([label_ids[label] for _, label in listed.files], dtype=np.int64)


def _write_part(folder: Path, part: str, squares: Bytes, rows: list[int], ids: Ints) -> dict[str, object]:
    """Write some of the squares (N, S, S, C) and their class ids."""
    _, side, _, channels = squares.shape
    digest = hashlib.sha256(repr((side, channels)).encode())
    with open(folder / f"{part}-images.bin", "wb") as out:
        for row in rows:
            out.write(content := squares[row].tobytes())
            digest.update(content)
    ids.tofile(folder / f"{part}-labels.bin")
    digest.update(ids.tobytes())
    return {"count": len(rows), "side": side, "channels": channels, "digest": digest.hexdigest()}


def _copies(digests: Sequence[bytes]) -> list[list[int]]:
    """Rows of equal images, for each image that is there more than once."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for row, digest in enumerate(digests):
        groups[digest].append(row)
    return [group for group in groups.values() if len(group) > 1]


def hold_out(listed: ImageFolder, digests: Sequence[bytes]) -> set[int]:
    """The rows for validation: a tenth of each class, at least one; images with equal digests are on one side.

    Chosen by the hash of their names, of copies the smallest, so that the split is the same for every size of the squares.
    An image that is in several classes is for training.
    """
    groups: dict[bytes, list[int]] = defaultdict(list)
    for row, digest in enumerate(digests):
        groups[digest].append(row)
    ranks, by_class, counts = list[str](), defaultdict[str, list[list[int]]](list), Counter[str]()
    for file, label in listed.files:
        ranks.append(hashlib.sha256(relative_name(file, listed.folder).encode("utf-8", "surrogateescape")).hexdigest())
        counts[label] += 1
    mixed = Counter[str]()  # images of each class that are in others too
    for group in groups.values():
        labels = {listed.files[row][1] for row in group}
        if len(labels) == 1:
            by_class[labels.pop()].append(group)
        else:
            mixed.update(labels)

    valid = set[int]()
    for label, count in counts.items():
        own = sorted(by_class[label], key=lambda group: min(ranks[row] for row in group))
        if len(own) + mixed[label] < 2 or not own:
            several = f"{count:,} images, all copies of one" if own else "only images that are in other classes too"
            found = "one image" if count == 1 else several
            raise ValueError(f"{listed.folder / label} has {found}; add one for validation, or give data.valid")
        wanted, held = max(1, round(count / VALID_EVERY)), list[int]()
        for group in own:
            if len(held) + len(group) <= wanted:
                held += group
        smallest = min(own, key=len)
        valid |= set(held or smallest)  # every image has more copies than are wanted
    return valid
