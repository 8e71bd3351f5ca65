"""Small image models for the tests: run folders of ours, and Hugging Face checkpoints."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import save
from torch import nn

from regard.config import Run, to_toml
from regard.data.image.config import ImageData
from regard.interop.hf import import_run
from regard.layers.attention import QKVWithoutKeyBias
from regard.models import FAMILIES, saved_tensors, state_tensors
from regard.models.resnet import ResNetConfig
from regard.models.swin import SwinConfig
from regard.models.vit import ViTConfig
from regard.run_folder import RunFolder

LABELS = ("a daisy", "tulip", "roses")
MEAN, STD = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]


SWIN = {"image": 28, "patch": 2, "dim": 8, "depths": [1, 2], "heads": [1, 2], "window": 7, "classes": 3}
OURS: dict[str, tuple[str, Any]] = {
    "vit": ("vit", ViTConfig(image=28, patch=7, dim=16, depth=2, heads=2, classes=3, dropout=0.1, drop_path=0.1)),
    "swin": ("swin", SwinConfig(**SWIN)),
    "swin v2": ("swin", SwinConfig(**SWIN, version="v2")),
    "resnet": ("resnet", ResNetConfig(image=28, dim=8, dims=[16, 32], depths=[1, 1], classes=3)),
}


def randomize(model: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    for part in model.modules():
        if isinstance(part, QKVWithoutKeyBias):
            nn.init.zeros_(part.bias.chunk(3)[1])  # always zero
    return model.eval()


def make_run(folder: Path, kind: str, **data: Any) -> Path:
    """A run folder with random weights."""
    family, config = OURS[kind]
    folder.mkdir()
    RunFolder(folder).write_description(family, dataclasses.asdict(config), "0")
    (folder / "model.safetensors").write_bytes(save(saved_tensors(randomize(FAMILIES[family].build(config)))))
    how = ImageData(**{"mean": MEAN, "std": STD, **data})
    (folder / "run.toml").write_text(to_toml(Run("ours", family, config, "image_classification", data=how)))
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS))
    return folder


def vit_checkpoint(folder: Path, kind: str = "ViTForImageClassification", **keys: Any) -> Path:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
             "image_size": 28, "patch_size": 7, "num_labels": 3}  # fmt: skip
    randomize(getattr(transformers, kind)(transformers.ViTConfig(**{**sizes, **keys}))).save_pretrained(folder)
    write_processor(folder)
    return folder


def write_processor(folder: Path, **keys: Any) -> None:
    """Write a preprocessor_config.json as old checkpoints have it."""
    defaults = {"do_resize": True, "size": 28, "do_normalize": True, "image_mean": MEAN, "image_std": STD}
    content = {key: value for key, value in {**defaults, **keys}.items() if value is not None}
    (folder / "preprocessor_config.json").write_text(json.dumps(content))


def update_json(file: Path, **keys: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def same_weights(a: Any, b: Any) -> bool:
    x, y = state_tensors(a), state_tensors(b)
    return a.config == b.config and x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)


def make_photo(rows: int, columns: int) -> Image.Image:
    """An image with coarse and fine structure."""
    rng = np.random.default_rng(rows)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)).resize((columns, rows), 3)
    noise = rng.integers(-40, 40, (rows, columns, 3))
    return Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8))


def assert_run_refused(folder: Path, message: str) -> None:
    to = folder.parent / "refused"
    with pytest.raises(ValueError, match=message) as error:
        import_run(folder, to)
    assert "\n" not in str(error.value)
    assert not to.exists()
