"""Open a run folder and get its predictor."""

import dataclasses
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from regard.config import Run
from regard.data.text.tokenizer import Tokenizer
from regard.decode.precision import PrecisionProbe
from regard.layers.conv import fold_batch_norms
from regard.models import load_model, new_model, read_config
from regard.run_folder import RunFolder
from regard.tasks import read_run, task_of
from regard.tasks.origin import parameter_count, remember_folder

if TYPE_CHECKING:
    from regard.tasks.predictors import Predictor

__all__ = ["load", "pick_device", "steps_of"]

_SEEDING = threading.Lock()


def pick_device(wanted: str) -> torch.device:
    """The device named, or the best available: cuda, mps, cpu.  Numbers stay float32 on all of them."""
    have = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [name for name, there in have.items() if there]
    if not isinstance(wanted, str):
        raise ValueError(f"a device of type {type(wanted).__name__}; there is {', '.join(available)}, or auto")
    if wanted == "auto":
        return torch.device(available[0])
    kind, _, index = wanted.partition(":")
    if kind not in available or (index and not (index.isdecimal() and kind == "cuda" and int(index) < torch.cuda.device_count())):
        raise ValueError(f"no device {wanted!r} on this machine; there is {', '.join(available)}, or auto")
    return torch.device(wanted)


def load(folder: str | Path, device: str = "auto", precision: str = "float32", step: int | None = None) -> "Predictor":
    """Open a run folder, or a model that ships with regard by its name: `regard.load("en-it").translate(["…"], beam=5)`.

    The predictor is for inference, not for training.  With `precision="int8"` weights are rounded to 8 bits: faster on a CPU and
    about as good; activations are quantized by batch, so an answer may differ with the batch it is in.  `step` asks for the
    weights that training had after that many steps, if there is a checkpoint of it; 0 is before training.
    """
    if not isinstance(folder, str | Path):
        raise ValueError(f"a run folder of type {type(folder).__name__}; give its path, such as runs/multi30k")
    files = RunFolder.find(folder)
    where = torch.device("cpu") if precision == "int8" and device == "auto" else pick_device(device)
    if precision == "int8" and where.type != "cpu":
        raise ValueError(f"precision int8 on {where}; it is for the cpu")
    with PrecisionProbe(precision) as probe:
        model = load_model(files.path) if step is None else _model_at(files, step)
        run = dataclasses.replace(read_run(files.run), model=model.config)
        tokenizer = _tokenizer(files, run) if hasattr(run.model, "vocab") else None
        labels = files.read_labels()
        if len(labels) != (classes := getattr(run.model, "classes", 0)):
            raise ValueError(f"{files.labels} names {len(labels)} classes, the model has {classes}; restore the file it was "
                             f"trained with")  # fmt: skip
        parameters = parameter_count(model)
        task, model = task_of(run), fold_batch_norms(model.to(where))
        ready = probe.passed(model) if precision != "float32" or task.decodes else model
        predictor = task.predictor(ready, run, tokenizer, labels)
        vocab = getattr(run.model, "target_vocab", 0)
        if hasattr(predictor, "target_tokenizer") and (vocab or files.target_tokenizer.exists()):
            target, vocab = Tokenizer.load(files.target_tokenizer), vocab or run.model.vocab
            if target.vocab > vocab:
                raise ValueError(f"{files.target_tokenizer} has {target.vocab:,} tokens, the model's target vocabulary "
                                 f"{vocab:,}; restore the tokenizer it was imported with")  # fmt: skip
            predictor = dataclasses.replace(predictor, target_tokenizer=target)
        remember_folder(predictor.model, files.path, parameters)
        return predictor


def steps_of(folder: Path, run: Run) -> list[int]:
    """The training steps that `load` can go back to, ascending; 0, before training, if the run began with random weights."""
    saved = [saved.step for saved in RunFolder(folder, run.train.checkpoints).saved() if saved.weights.is_file()]
    return saved if _not_from_random(run) else [0, *saved]


def _not_from_random(run: Run) -> str:
    """Why the weights before training cannot be made again; empty if they can."""
    if run.init or run.init_encoder:
        return f"it started from the weights of {run.init or run.init_encoder}"
    return "" if run.data.source or run.data.train else "it was imported"


def _model_at(files: RunFolder, step: int) -> nn.Module:
    """The model of a run after a step of its training; 0: before it."""
    family, config = read_config(files.path)  # refuses what is no run folder
    run = read_run(files.run)
    if step == 0:
        if why := _not_from_random(run):
            raise ValueError(f"step 0 of {files.path} cannot be made again: {why}; choose a later step")
        gpus = range(torch.cuda.device_count())
        with _SEEDING, torch.random.fork_rng(gpus):  # the seed is global
            return new_model(family, config, run.train.seed).eval()
    if step not in (steps := steps_of(files.path, run)):
        have = f"steps {', '.join(f'{n:,}' for n in steps)}" if steps else "no checkpoints"
        raise ValueError(f"{files.path} has no checkpoint of step {step:,}; it has {have}")
    return load_model(files.path, RunFolder(files.path, run.train.checkpoints).checkpoint(step).weights)


def _tokenizer(files: RunFolder, run: Run) -> Tokenizer:
    """The tokenizer of a run, if it is the one its model was trained with."""
    tokenizer, vocab = Tokenizer.load(files.tokenizer), run.model.vocab
    imported = run.init or not (run.data.source or run.data.train)
    fits = tokenizer.vocab <= vocab if imported else tokenizer.vocab == vocab  # imported vocabularies may be padded
    if not fits:
        raise ValueError(
            f"{files.tokenizer} has {tokenizer.vocab:,} tokens, the model's vocabulary {vocab:,}; they are not of the same run: "
            f"restore the tokenizer it was trained with"
        )
    return tokenizer
