"""Run folders of the families that the explorer shows: untrained models with large weights, so that all heads differ.

Each is written in milliseconds.  The run of `train_learner` is trained for a few steps, so it has checkpoints and a log.
"""

import dataclasses
from pathlib import Path

import numpy as np
import soundfile
import torch
from PIL import Image
from safetensors.torch import save_file
from tone_speech import say

from regard.config import DecodeConfig, Run, to_toml
from regard.data.audio.config import AudioData
from regard.data.image.config import CaptionData, ImageData
from regard.data.text.config import TextData
from regard.data.text.tokenizer import Tokenizer, train_tokenizer
from regard.models import FAMILIES, saved_tensors
from regard.run_folder import RunFolder

LINES = ["the dog runs in the park", "a cat sits on the old mat", "they do not want the small bird", "il cane corre nel parco",
         "un gatto siede sul vecchio tappeto"]  # fmt: skip
TEXT = "they want the old dog"
MASKED = "the [MASK] sits on the [MASK]"
LABELS = ("bag", "boot", "coat")
TEXTS = {"transformer": TEXT, "bahdanau": TEXT, "t5": TEXT, "gpt": "the dog", "bert": MASKED}
PICTURES = ("vit", "swin", "captioner")
SOUNDS = ("conformer",)
LONG = "long-gpt"  # 12 layers of 12 heads, 512 tokens
EVERY_FAMILY = (*TEXTS, *PICTURES, *SOUNDS)

_TEXT_DATA = {"tokenizer": "bpe", "max_len": 64, "pair": "en-it", "train": "none.tsv"}


def write_runs(home: Path) -> dict[str, Path]:
    """A folder for each of `EVERY_FAMILY`, and for `LONG`."""
    words = {kind: train_tokenizer(LINES, kind, 90) for kind in ("bpe", "characters", "wordpiece")}
    text = {"dim": 12, "depth": 2, "heads": 3}
    pairs = TextData(**_TEXT_DATA)
    plain = {"max_len": 24, "train": "none.txt"}
    image = {"image": 16, "patch": 4, "channels": 3, "classes": 3}
    squares = ImageData(train="none", resize=16)
    resnet = {"family": "resnet", "image": 16, "stem": "cifar", "dim": 8, "dims": [8, 12], "depths": [1, 1], "block": "basic"}
    speech = {"features": 20, "dim": 16, "depth": 2, "heads": 2, "kernel": 3, "subsample": 2}
    sound = AudioData(train="none.tsv", rate=8000, mels=20, normalize="none")
    t5 = {**text, "head_dim": 4, "mlp_dim": 24, "tied": False}
    bahdanau = {"dim": 12, "hidden": 16, "align": 8, "readout": 8}
    swin = {"dim": 8, "depths": [2, 2], "heads": [2, 4], "window": 4, "patch": 2}
    bpe = words["bpe"]
    return {
        "transformer": _write(home, "transformer", {**text, "mlp_ratio": 2, "tied": False}, "translation", pairs, bpe, seed=16),
        "bahdanau": _write(home, "bahdanau", bahdanau, "translation", pairs, bpe, seed=1),
        "t5": _write(home, "t5", t5, "translation", pairs, bpe, std=0.2, seed=26),
        "gpt": _write(home, "gpt", {**text, "max_len": 48}, "language_model", TextData(**plain, tokenizer="characters"),
                      words["characters"], seed=1),
        "bert": _write(home, "bert", {**text, "max_len": 32}, "masked_lm", TextData(**plain, tokenizer="wordpiece"),
                       words["wordpiece"]),
        "vit": _write(home, "vit", {**image, **text}, "image_classification", squares, labels=LABELS),
        "swin": _write(home, "swin", {**image, **swin}, "image_classification", squares, labels=LABELS),
        "captioner": _write(home, "captioner", {"dim": 8, "hidden": 12, "align": 8, "encoder": resnet}, "captioning",
                            CaptionData(source="shapes", tokenizer="bpe", max_len=10, resize=16), bpe, seed=11),
        "conformer": _write(home, "conformer", speech, "speech", sound, words["characters"]),
        LONG: _write(home, "gpt", {"dim": 48, "depth": 12, "heads": 12, "max_len": 512}, "language_model",
                     TextData(train="none.txt", max_len=512, tokenizer="characters"), words["characters"], name=LONG),
    }  # fmt: skip


def _write(home: Path, family: str, values: dict, task: str, data: object, tokenizer: Tokenizer | None = None,
           labels: tuple[str, ...] = (), std: float = 0.3, seed: int = 1, name: str = "") -> Path:  # fmt: skip
    """A run folder that `regard.load` opens, named after the family unless another name is given."""
    torch.manual_seed(seed)
    config = FAMILIES[family].config(**values, **({"vocab": tokenizer.vocab} if tokenizer else {}))
    model = FAMILIES[family].build(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += std * torch.randn_like(weight)
    files, decode = (
        RunFolder(home / (name or family)),
        DecodeConfig() if task == "speech" else DecodeConfig(beam_size=2, max_length=9),
    )
    files.path.mkdir()
    files.write_description(family, dataclasses.asdict(config), "0")
    files.run.write_text(to_toml(Run(family, family, config, task=task, data=data, decode=decode)))
    if tokenizer:
        tokenizer.save(files.tokenizer)
    if labels:
        files.write_labels(labels)
    save_file(saved_tensors(model), files.weights)
    return files.path


def train_learner(folder: Path) -> Path:
    """A phrasebook translator after 150 steps, with checkpoints at 50, 100 and 150 and a log."""
    from regard.tasks import read_run
    from regard.train.loop import fit

    changes = ("model.dim=32", "model.heads=2", "model.depth=1", "data.pairs=2000", "data.vocab=200", "train.batch_tokens=512",
               "train.steps=150", "train.warmup=20", "train.lr=0.01", "train.save_every=50", "train.eval_every=50",
               "train.average=5", "train.log_every=10", "train.device=cpu", "decode.max_length=8")  # fmt: skip
    fit(read_run("phrasebook", changes), folder)
    return folder


def write_inputs(home: Path) -> dict[str, Path]:
    """A picture, a sound, and files that are neither."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    files = {name: home / name for name in ("picture.png", "sound.wav", "notes.txt", "broken.png", "broken.wav")}
    Image.fromarray(pixels).save(files["picture.png"])
    soundfile.write(files["sound.wav"], say("a c b"), 8000)
    files["notes.txt"].write_text("no picture and no sound\n")
    files["broken.png"].write_bytes(files["picture.png"].read_bytes()[:200])
    files["broken.wav"].write_bytes(files["sound.wav"].read_bytes()[:30])
    return files


def given_to(family: str, inputs: dict[str, Path]) -> str | Path:
    """The input of a family: its text, or one of the files of `write_inputs`."""
    return TEXTS.get(family) or inputs["sound.wav" if family in SOUNDS else "picture.png"]
