"""Speech that a tiny model learns in seconds: each letter is a tone, with a pause between two words."""

from pathlib import Path

import numpy as np
import soundfile

TONES = {"a": 400, "b": 1000, "c": 2500}  # Hz
TONE, PAUSE = 0.16, 0.12  # seconds
CHANGES = ("model.features=20", "model.dim=24", "model.depth=1", "model.heads=2", "model.kernel=5", "model.subsample=2",
           "model.dropout=0.0", "data.mels=20", "data.normalize=none", "data.rate=8000", "data.time_masks=0", "data.freq_masks=0",
           "data.speed=[1.0]", "train.batch_tokens=800", "train.lr=0.01", "train.warmup=20", "train.ema=0.0",
           "train.device=cpu")  # fmt: skip


def say(text: str, rate: int = 8000, seed: int = 0) -> np.ndarray:
    """The sound of words of one letter each, over a little noise: (N,)."""
    time = np.arange(round(TONE * rate)) / rate
    parts = [np.zeros(round(PAUSE * rate))]
    for word in text.split():
        parts += [0.3 * np.sin(2 * np.pi * TONES[word] * time), np.zeros(round(PAUSE * rate))]
    sound = np.concatenate(parts)
    return (sound + 0.002 * np.random.default_rng(seed).standard_normal(len(sound))).astype(np.float32)


def starts(text: str) -> list[float]:
    """When each word begins, in seconds."""
    return [PAUSE + (TONE + PAUSE) * number for number in range(len(text.split()))]


def random_text(words: int, seed: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(list(TONES), size=words))


def write_tones(folder: Path, count: int = 60) -> Path:
    """Write a TSV file of utterances of one to six words, and their sound files."""
    lines = []
    for number in range(count):
        text = random_text(1 + number % 6, number)
        first, last = np.random.default_rng(number).integers(0, round(PAUSE * 8000), size=2)  # as after a cut in a pause
        soundfile.write(folder / f"{number}.wav", say(text, seed=number)[first : -1 - last], 8000)
        lines.append(f"{number}.wav\t{text}\n")
    (folder / "tones.tsv").write_text("".join(lines))
    return folder / "tones.tsv"
