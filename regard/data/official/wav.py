"""Sound files of an official archive as 16-bit samples."""

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

__all__ = ["read_wav"]


def read_wav(content: bytes, rate: int, name: str, file: Path) -> npt.NDArray[np.int16]:
    """The samples of a mono sound of that rate."""
    try:
        samples, found = soundfile.read(io.BytesIO(content), dtype="int16", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError, ValueError) as error:
        raise ValueError(f"{name} of {file} is not a sound file ({error}); get it again") from None
    if found != rate or samples.shape[1] != 1 or not len(samples):
        raise ValueError(f"{name} of {file} has {len(samples):,} samples of {samples.shape[1]} channels at {found} Hz; wanted "
                         f"one channel at {rate} Hz")  # fmt: skip
    return np.ascontiguousarray(samples[:, 0])
