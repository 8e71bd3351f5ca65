"""The Free Spoken Digit Dataset: wav files DIGIT_SPEAKER_NUMBER.wav.

https://github.com/Jakobovski/free-spoken-digit-dataset
"""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from regard.data.archives import GB, tar_files
from regard.data.official.wav import read_wav
from regard.data.official.write import write_rows, write_sound

__all__ = ["read"]

RATE = 8000
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NAME = re.compile(r"recordings/([0-9])_([a-z]+)_([0-9]{1,3})\.wav$")
SPLITS = {"train": range(10, 1000), "valid": range(5, 10), "test": range(5)}  # by the number of the recording


def read(name: str, files: Mapping[str, Path], folder: Path) -> dict[str, int]:
    """Write the sound and the index of each split."""
    (file,) = files.values()
    clips = {}
    for at, content in tar_files(file, lambda at: bool(NAME.search(at)), GB):
        digit, speaker, number = NAME.search(at).groups()  # type: ignore[union-attr]  # `tar_files` yields names that match
        clips[int(digit), speaker, int(number)] = read_wav(content, RATE, PurePosixPath(at).name, file)
    counts = {}
    for split, numbers in SPLITS.items():
        keys = sorted((key for key in clips if key[2] in numbers), key=lambda key: (key[1], key[0], key[2]))
        if missing := set(range(10)) - {digit for digit, _, _ in keys}:
            raise ValueError(f"{file} has no recording {numbers.start} to {numbers.stop - 1} of the digit {min(missing)}; "
                             f"get the official file, version 1.0.9 or later")  # fmt: skip
        cuts = write_sound(folder / f"{split}_audio.npy.xz", [clips[key] for key in keys])
        rows = [(f"{digit}_{speaker}_{number}", speaker, *cut, digit, WORDS[digit])
                for (digit, speaker, number), cut in zip(keys, cuts, strict=True)]  # fmt: skip
        write_rows(folder / f"{split}_index.tsv.gz", [("id", "speaker", "start", "length", "digit", "text"), *rows])
        counts[split] = len(keys)
    return counts
