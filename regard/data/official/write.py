"""Writing the files of a named set: tables of text, arrays of images, one array of sound."""

import gzip
import lzma
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["write_arrays", "write_jpegs", "write_rows", "write_sound"]

Sound = npt.NDArray[np.int16]


def write_rows(file: Path, rows: Iterable[Sequence[object]]) -> None:
    """A table: columns separated by tabs, gzip if the name says so."""
    text = "".join("\t".join(map(str, row)) + "\n" for row in rows).encode("utf-8")
    file.write_bytes(gzip.compress(text, mtime=0) if file.suffix == ".gz" else text)


def write_arrays(file: Path, **arrays: npt.NDArray[np.generic]) -> None:
    """Arrays in one .npz file."""
    with open(file, "wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]  # numpy's stub takes its keyword `allow_pickle` for one of them


def write_jpegs(file: Path, images: Sequence[bytes], labels: Sequence[int]) -> None:
    """JPEG files one after another, where each begins, and their classes."""
    offsets = np.cumsum([0, *map(len, images)]).astype(np.int32)
    write_arrays(file, jpeg=np.frombuffer(b"".join(images), np.uint8), offsets=offsets, labels=np.array(labels, np.uint8))


def write_sound(file: Path, sounds: Sequence[Sound]) -> list[tuple[int, int]]:
    """All samples one after another as .npy.xz; where each sound begins, and its length."""
    with lzma.open(file, "wb", preset=1) as stream:
        np.save(stream, np.concatenate(sounds).astype(np.int16), allow_pickle=False)
    starts = np.cumsum([0, *map(len, sounds)])
    return [(int(start), len(sound)) for start, sound in zip(starts, sounds, strict=False)]
