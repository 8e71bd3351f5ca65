"""Untrained caption models of both kinds, small enough for tests, with a tokenizer that splits words."""

import dataclasses
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from regard.config import DecodeConfig, Run, to_toml
from regard.data.image.config import CaptionData
from regard.data.text.tokenizer import train_tokenizer
from regard.models import FAMILIES
from regard.run_folder import RunFolder
from regard.tasks.captioning import ImageCaptioner
from regard.train.checkpoint import saved_tensors

RESNET = {"family": "resnet", "image": 32, "stem": "cifar", "dim": 8, "dims": [8, 12, 16], "depths": [1, 1, 1], "block": "basic"}
VIT = {"family": "vit", "image": 32, "patch": 8, "dim": 16, "depth": 1, "heads": 2}
RECURRENT = {"dim": 8, "hidden": 12, "align": 8, "encoder": RESNET}
TRANSFORMER = {"dim": 16, "depth": 3, "heads": 2, "max_len": 12, "encoder": VIT}
CAPTIONS = ["a red circle above a blue square", "a green triangle left of a purple cross", "an orange circle"]


def captioner(family: str = "captioner", seed: int = 0, tokenizer: str = "bpe", **changes: object) -> ImageCaptioner:
    """An untrained model whose captions are long: its end token is unlikely."""
    torch.manual_seed(seed)
    words = train_tokenizer(CAPTIONS, tokenizer, 40)
    values = {**(RECURRENT if family == "captioner" else TRANSFORMER), "vocab": words.vocab, **changes}
    config = FAMILIES[family].config(**values)
    model = FAMILIES[family].build(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
        output = model.output.weight
        output[words.special.eos] = output[words.special.pad] = output[words.special.bos] = 0
    data = CaptionData(tokenizer=tokenizer, max_len=10)
    run = Run("tiny", family, config, task="captioning", data=data, decode=DecodeConfig(batch_size=4))
    return ImageCaptioner(model, words, run)


def random_image(side: int = 40, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Noise (side, side, channels)."""
    return np.random.default_rng(seed).integers(0, 256, (side, side, channels), dtype=np.uint8)


def save_run(folder: Path, predictor: ImageCaptioner) -> Path:
    """Write a run folder that `regard.load` opens."""
    files, run = RunFolder(folder), predictor.run
    folder.mkdir()
    files.write_description(run.family, dataclasses.asdict(run.model), "0")
    data = dataclasses.replace(run.data, source="shapes")
    files.run.write_text(to_toml(dataclasses.replace(run, data=data)))
    predictor.tokenizer.save(files.tokenizer)
    save_file(saved_tensors(predictor.model), files.weights)
    return folder
