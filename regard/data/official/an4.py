"""AN4: SPHERE recordings, and transcripts "<s> P I T T S </s> (cen1-fash-b)"; their cepstra are those that CMU distributes.

http://www.speech.cs.cmu.edu/databases/an4
"""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from regard.data.archives import GB, tar_files
from regard.data.audio.features import mfcc
from regard.data.official.sphere import read_sphere
from regard.data.official.write import write_arrays, write_rows

__all__ = ["read"]

RATE = 16_000
FULL_SCALE = 32_768
TEXTS = {"train": "an4_train.transcription", "test": "an4_test.transcription"}
VALID = frozenset(("fejs", "fplp", "mcrt", "mgah", "mmap", "msct"))  # speakers of train
LINE = re.compile(r"(?:<s>)?([^<>()]+)(?:</s>)?\s*\(([a-z0-9-]+)\)$")

Row = tuple[str, str, str]  # id, speaker, transcript


def read(name: str, files: Mapping[str, Path], folder: Path) -> dict[str, int]:
    """Write the cepstra and the transcripts of each split."""
    (file,) = files.values()
    texts, sounds = dict[str, str](), dict[str, np.ndarray]()
    for at, content in tar_files(file, lambda at: at.endswith(".sph") or PurePosixPath(at).name in TEXTS.values(), GB):
        path = PurePosixPath(at)
        if path.suffix == ".sph":
            x = torch.from_numpy(read_sphere(content, RATE, f"{at} of {file}").astype(np.float32)) / FULL_SCALE
            sounds[path.stem] = mfcc(x, RATE).numpy().astype(np.float16)
        else:
            texts[path.name] = content.decode("utf-8", "replace")
    if missing := [text for text in TEXTS.values() if text not in texts]:
        raise ValueError(f"{file} has no etc/{missing[0]}; get the official file")
    rows = {split: _transcripts(texts[text], text, file) for split, text in TEXTS.items()}
    splits = {"train": [row for row in rows["train"] if row[1] not in VALID],
              "valid": [row for row in rows["train"] if row[1] in VALID], "test": rows["test"]}  # fmt: skip
    for split, part in splits.items():
        if not part:
            raise ValueError(f"{file} has no utterance of the split {split}; get the official file")
        if silent := [row[0] for row in part if row[0] not in sounds]:
            raise ValueError(f"{file} has no recording {silent[0]}.sph; get it again")
        frames = [sounds[row[0]] for row in part]
        offsets = np.cumsum([0, *map(len, frames)]).astype(np.int32)
        write_arrays(folder / f"{split}.npz", feats=np.concatenate(frames), offsets=offsets)
        write_rows(folder / f"{split}.tsv.gz", part)
    return {split: len(part) for split, part in splits.items()}


def _transcripts(text: str, name: str, file: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        found = LINE.match(line.strip())
        if not found or found[2].count("-") != 2:
            raise ValueError(f"{name} line {number} of {file} is not a transcript and an id such as (cen1-fash-b); get it again")
        rows.append((found[2], found[2].split("-")[1], " ".join(found[1].split())))
    return rows
