"""Fine-tuning: a run with `init` takes the model, the tokenizer and the weights of another run.

All that `init` means is here: which keys it decides, which stay free, and how weights and tokenizer are taken over.
"""

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from regard.config import COUNTED, Family, Run, Tables, TaskSpec, tasks_of
from regard.models import load_weights, read_config
from regard.run_folder import RunFolder

__all__ = ["copy_tokenizer", "inherit", "load_init_weights"]

FREE = ("dropout", "attention_dropout", "drop_path")  # model keys that a fine-tuned run sets itself
NEW_HEAD = "classifier."  # weights that are always initialized anew


def inherit(tables: Tables, changes: Iterable[str], families: Mapping[str, Family], tasks: Mapping[str, TaskSpec],
            read: Callable[[Path], Run]) -> Any:  # fmt: skip
    """Put what `init` decides into the tables of a run; → the model config to start from.  `read` reads a run.toml."""
    init = RunFolder(str(tables["init"]))
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


def copy_tokenizer(run: Run, file: Path) -> None:
    """Copy the tokenizer of `init`; a model of images has none."""
    tokenizer = RunFolder(run.init).tokenizer
    if tokenizer.exists():
        shutil.copyfile(tokenizer, file)


def load_init_weights(run: Run, model: nn.Module) -> None:
    """Start from the weights of `init`, but for the classifier."""
    load_weights(model, RunFolder(run.init).weights, new=NEW_HEAD)
