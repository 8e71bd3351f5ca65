"""Photos of many shapes, and a small GPT-2 checkpoint."""

import shutil
from pathlib import Path

import pytest
import transformers
from image_checkpoints import make_photo


@pytest.fixture(scope="module")
def gpt2_saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2") / "gpt2"
    config = transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=48)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def gpt2(gpt2_saved, tmp_path):
    return Path(shutil.copytree(gpt2_saved, tmp_path / "gpt2"))


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Files of many shapes: square, tall, wide, large, and of the model's size."""
    home = tmp_path_factory.mktemp("photos")
    for rows, columns in ((96, 96), (97, 60), (61, 143), (300, 410), (28, 28), (20, 25)):
        make_photo(rows, columns).save(home / f"{rows}x{columns}.jpg", quality=90)
    return sorted(home.iterdir())
