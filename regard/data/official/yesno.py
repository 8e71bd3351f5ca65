"""OpenSLR 1: sixty wav files, each of eight words, which its name tells: 0_1_1_0_1_0_0_1.wav, 1 for yes.

https://www.openslr.org/1
"""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from regard.data.archives import GB, tar_files
from regard.data.official.wav import read_wav
from regard.data.official.write import write_rows, write_sound

__all__ = ["read"]

RATE = 8000
NAME = re.compile(r"(?:^|/)([01](?:_[01]){7})\.wav$")
SPLITS = ("train", "train", "valid", "train", "train", "test")  # of every six files, sorted by name


def read(name: str, files: Mapping[str, Path], folder: Path) -> dict[str, int]:
    """Write the sound and the index."""
    (file,) = files.values()
    found = {}
    for at, content in tar_files(file, lambda at: bool(NAME.search(at)), GB):
        found[NAME.search(at)[1]] = read_wav(content, RATE, PurePosixPath(at).name, file)  # type: ignore[index]  # `tar_files` yields names that match
    if len(found) < len(SPLITS):
        raise ValueError(f"{file} has {len(found)} sound files such as 0_1_0_1_0_1_0_1.wav; get the official file, of 60")
    names = sorted(found)
    cuts = write_sound(folder / "audio.npy.xz", [found[one] for one in names])
    splits = [SPLITS[number % len(SPLITS)] for number in range(len(names))]
    rows = [(one, split, *cut, " ".join(("NO", "YES")[int(word)] for word in one.split("_")))
            for one, split, cut in zip(names, splits, cuts, strict=True)]  # fmt: skip
    write_rows(folder / "index.tsv.gz", [("id", "split", "start", "length", "text"), *rows])
    return {split: splits.count(split) for split in dict.fromkeys(SPLITS)}
