"""Sounds for tests: noise, tones, files of them, and small stores."""

import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from regard.data.audio.config import AudioData
from regard.data.audio.store import prepare

WORDS = ("one", "two", "three", "no")


def noise(count: int, seed: int = 0, level: float = 0.1) -> np.ndarray:
    return (level * np.random.default_rng(seed).standard_normal(count)).astype(np.float32)


def tone(count: int, hz: float, rate: int, level: float = 0.5) -> np.ndarray:
    return level * np.sin(2 * np.pi * hz * np.arange(count) / rate)


def write(file: Path, x: np.ndarray, rate: int = 16_000, **how: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(file, x, rate, **how)
    return file


def write_list(folder: Path, count: int = 12, rate: int = 8000, name: str = "list.tsv", speakers: bool = True) -> Path:
    """A TSV file of noise of different lengths, each with a word or two."""
    rows = []
    for index in range(count):
        write(folder / f"{index}.wav", noise(2000 + 317 * index, index), rate)
        text = WORDS[index % 4] + (f" {WORDS[index % 3]}" if index % 5 == 0 else "")
        rows.append(f"{index}.wav\t{text}" + (f"\tspeaker{index % 3}" if speakers else ""))
    (folder / name).write_text("\n".join(rows) + "\n")
    return folder / name


def small(folder: Path, count: int = 12, **how):
    """The config and the training store of `count` utterances."""
    file = write_list(folder, count)
    data = AudioData(train=str(file), valid=str(file), rate=8000, mels=8, **how)
    return data, prepare(data, folder / "tokenizer.json", lambda line: None, lambda what, done: None).train


def require_set(name: str) -> Path:
    folder = Path(os.environ.get("REGARD_DATA", "")) / name
    if not os.environ.get("REGARD_DATA") or not folder.exists():
        pytest.skip(f"no {name} here; set REGARD_DATA to a folder that holds {name}/")
    return folder
