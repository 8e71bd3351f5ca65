"""Fine-tuning: a run with `init` takes the model, the tokenizer and the weights of another run.

All that `init` means is here: which keys it decides, which stay free, and how weights and tokenizer are taken over.  The same
for `init_encoder`, an image classifier that becomes the encoder of a caption model.
"""

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from regard.config import COUNTED, Family, Run, Tables, TaskSpec, tasks_of
from regard.models import load_weights, read_config
from regard.models.image_encoder import ENCODERS, ImageEncoder
from regard.run_folder import RunFolder

__all__ = ["copy_tokenizer", "inherit", "inherit_encoder", "load_encoder_weights", "load_init_weights"]

FREE = ("dropout", "attention_dropout", "drop_path")  # model keys that a fine-tuned run sets itself
PREPARED = ("fit", "resample", "mean", "std")  # data keys that an image encoder brings along
ANY_SIZE = ("resnet", "lrnet")  # image models without positions, which read images of another size too
NEW_HEAD = "classifier."  # weights that are always initialized anew


def inherit(tables: Tables, changes: Iterable[str], families: Mapping[str, Family], tasks: Mapping[str, TaskSpec],
            read: Callable[[Path], Run]) -> Any:  # fmt: skip
    """Put what `init` decides into the tables of a run; → the model config to start from.  `read` reads a run.toml."""
    init = RunFolder.find(str(tables["init"]))
    family, config = read_config(init.path)
    model, default = tables.get("model", {}), families[family].sizes
    own = str(model.get("family", "transformer"))
    supported = tasks_of(families[own], tasks) if own in families else []
    task = str(tables.get("task", supported[0] if supported else ""))
    if family != own and task not in tasks_of(families[family], tasks):
        raise ValueError(f"init={init.path} is a {family}, the recipe trains a {own}; start from a {own}")
    inherited = tasks[task].data.INHERITED if task in tasks else ()  # type: ignore[attr-defined]
    for key in (change.partition("=")[0] for change in changes):
        table, _, name = key.partition(".")
        if key == "model" or (table == "model" and name not in FREE) or (table == "data" and name in inherited):
            raise ValueError(f"{key} and init={init.path} were both given; the model and its preprocessing are those of init")
    before = read(init.run)
    tables["model"] = {"family": family, **{key: model[key] for key in FREE if key in model}}
    decided = {key: getattr(config if key in COUNTED else before.data, key) for key in inherited}
    tables["data"] = {**tables.get("data", {}), **decided}
    trained = tasks[task].trains if task in tasks else ()  # type: ignore[attr-defined]
    tables["untrained"] = [head for head in before.untrained if head not in trained]
    usual = default.get(str(model.get("size", "")), default.get("base", next(iter(default.values()))))
    return dataclasses.replace(config, **{key: getattr(usual, key) for key in (*FREE, "classes") if hasattr(config, key)})


def inherit_encoder(tables: Tables, changes: Iterable[str], families: Mapping[str, Family], read: Callable[[Path], Run]) -> None:
    """Put the image model of `init_encoder`, and how it reads images, into the tables of a caption run."""
    folder = RunFolder.find(str(tables["init_encoder"]))
    family, config = read_config(folder.path)
    model = tables.setdefault("model", {})
    own = str(model.get("family", "transformer"))
    if tables.get("init"):
        raise ValueError("init and init_encoder were both given; init brings its own encoder: give one of them")
    if own in families and not any(field.name == "encoder" for field in dataclasses.fields(families[own].config)):
        raise ValueError(f"init_encoder={folder.path} is for caption models; a {own} has no image encoder")
    if family not in ENCODERS:
        raise ValueError(f"init_encoder={folder.path} is a {family}; wanted an image classifier: {', '.join(ENCODERS)}")
    for key in (change.partition("=")[0] for change in changes):
        table, _, name = key.partition(".")
        if (key.startswith("model.encoder") and key != "model.encoder.image") or (table == "data" and name in PREPARED):
            raise ValueError(f"{key} and init_encoder={folder.path} were both given; the encoder and how it reads images are "
                             f"those of init_encoder")  # fmt: skip
    image = model.get("encoder", {}).get("image", config.image)
    if image != config.image and family not in ANY_SIZE:
        raise ValueError(f"init_encoder={folder.path} is a {family} for images of {config.image} pixels; remove "
                         f"model.encoder.image={image}")  # fmt: skip
    model["encoder"] = {"family": family, **dataclasses.asdict(config), "image": image}
    tables["data"] = {**tables.get("data", {}), **{key: getattr(read(folder.run).data, key) for key in PREPARED}}


def load_encoder_weights(run: Run, model: nn.Module) -> None:
    """Start the image encoder from the weights of `init_encoder`, but for its classifier."""
    encoder = model.encoder
    assert isinstance(encoder, ImageEncoder)
    load_weights(encoder.net, RunFolder.find(run.init_encoder).weights, new=NEW_HEAD)


def copy_tokenizer(run: Run, file: Path) -> None:
    """Copy the tokenizer of `init`; a model of images has none."""
    source = RunFolder.find(run.init)
    if source.target_tokenizer.exists():
        raise ValueError(f"init={run.init} has a tokenizer of its own for the target; such a model is imported to translate, and "
                         f"cannot be trained: start from a run with one tokenizer")  # fmt: skip
    tokenizer = source.tokenizer
    if tokenizer.exists():
        shutil.copyfile(tokenizer, file)


def load_init_weights(run: Run, model: nn.Module) -> None:
    """Start from the weights of `init`, but for the classifier."""
    load_weights(model, RunFolder.find(run.init).weights, new=NEW_HEAD)
