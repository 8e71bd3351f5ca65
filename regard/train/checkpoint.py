"""Save atomically, load only intact checkpoints, average; resume to the same bits.

    step-00000500/model.safetensors       weights; with `train.ema`, their moving average
                  optimizer.safetensors   moments of each parameter, the state of the random generators, and with `train.ema` the
                                          weights that are averaged
                  state.json              the training state, and the sha256 of all three

A checkpoint is written under a hidden name, flushed to the disk and renamed, so one that can be seen is complete.  If the disk
corrupts it later the checksums tell, and the one before it is used.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.data.files import flush, new_file_mode, sync_folder, write_atomic
from regard.models import load_weights, saved_tensors, state_tensors
from regard.run_folder import Checkpoint, RunFolder
from regard.train.ema import EMA
from regard.train.state import TrainState

__all__ = ["average", "intact_weights", "newest", "prune", "restore", "save"]

MOMENTS = ("step", "exp_avg", "exp_avg_sq", "row_var", "col_var", "variance")  # of Adam, and of Adafactor
RAW = "raw"  # suffix of weights of which `model.safetensors` holds the moving average
RESUMABLE = 2  # newest checkpoints that keep their optimizer state, twice as large as the model
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError)  # what reading a damaged file raises


def save(
    files: RunFolder, state: TrainState, model: nn.Module, optimizer: torch.optim.Optimizer, keep: int, every: int = 1,
    ema: EMA | None = None, keep_every: int = 0,
) -> Checkpoint:  # fmt: skip
    """Write a checkpoint of the state's step, make its weights those of the run, and delete old checkpoints."""
    files.checkpoints.mkdir(parents=True, exist_ok=True)
    final, part = files.checkpoint(state.step), files.part_checkpoint
    shutil.rmtree(part.path, ignore_errors=True)
    part.path.mkdir()
    try:
        _write_tensors(saved_tensors(model) if ema is None else ema.weights, part.weights)
        _write_tensors(_optimizer_tensors(model, optimizer, ema is not None), part.optimizer)
        values = state.to_json()
        sums = {"state": _digest(values)}
        for file in (part.weights, part.optimizer):
            flush(file)
            sums[file.name] = _sha256(file)
        write_atomic(part.state, json.dumps({**values, "sha256": sums}, indent=1).encode())
        sync_folder(part.path)
        shutil.rmtree(final.path, ignore_errors=True)  # a damaged one of the same step, left by a resume
        os.replace(part.path, final.path)
        sync_folder(files.checkpoints)
    except BaseException:
        shutil.rmtree(part.path, ignore_errors=True)  # gives a full disk its space back
        raise
    files.publish(final.weights)
    prune(files, keep, every, state.step, keep_every)
    return final


def prune(files: RunFolder, keep: int, every: int, newest: int, keep_every: int = 0) -> None:
    """Delete checkpoints no longer needed; those after the step `newest` are damaged ones, which are left alone.

    One whose step is no multiple of `every` was made by Ctrl-C or because time had passed: it goes once it is not the newest, so
    that the average at the end is over the same checkpoints as in any other run.  Of multiples of `keep_every` the weights stay.
    """
    age = 0
    for old in reversed([saved for saved in files.saved() if saved.step <= newest]):
        stays = keep_every and old.step % keep_every == 0
        if age and (old.step % every or (age >= keep and age >= RESUMABLE)) and not stays:
            shutil.rmtree(old.path)
            continue
        if age >= RESUMABLE:
            old.optimizer.unlink(missing_ok=True)
        age += 1


def newest(files: RunFolder, report: Callable[[str], None]) -> tuple[Checkpoint, TrainState] | None:
    """The newest intact checkpoint and its state; each damaged one is reported and skipped."""
    found = files.saved()
    for checkpoint in reversed(found):
        try:
            return checkpoint, _verify(checkpoint, checkpoint.weights, checkpoint.optimizer)
        except DAMAGE as error:
            report(f"{checkpoint.path} is damaged ({error}); not used")
    if found:
        raise ValueError(f"no checkpoint of {files.path} is intact; train again with --fresh, or restore {found[-1].path}")
    return None


def intact_weights(files: RunFolder, report: Callable[[str], None]) -> list[Path]:
    """Weights of the intact checkpoints, oldest first; each damaged one is reported and left out."""
    weights = []
    for checkpoint in files.saved():
        try:
            _verify(checkpoint, checkpoint.weights)
        except DAMAGE as error:
            report(f"{checkpoint.path} is damaged ({error}); averaging the others")
            continue
        weights.append(checkpoint.weights)
    return weights


def _verify(checkpoint: Checkpoint, *tensors: Path) -> TrainState:
    """The state of a checkpoint, if it and the files given have their checksums."""
    values = json.loads(checkpoint.state.read_text(encoding="utf-8"))
    sums = values.pop("sha256")
    if sums["state"] != _digest(values):
        raise ValueError(f"{checkpoint.state.name} does not have its checksum")
    for file in tensors:
        if _sha256(file) != sums[file.name]:
            raise ValueError(f"{file.name} does not have its checksum")
    return TrainState.from_json(values)


@torch.no_grad()
def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer, ema: EMA | None = None) -> None:
    """Put a checkpoint's weights, moments and random state back."""
    load_weights(model, checkpoint.weights)
    saved = load_file(checkpoint.optimizer)
    for name, tensor in state_tensors(model).items():
        if ema is not None:
            ema.weights[name].copy_(tensor)
        if (raw := saved.get(f"{name}/{RAW}")) is not None:
            tensor.copy_(raw)
    for device, (_, put) in _random().items():
        if f"random/{device}" in saved:
            put(saved[f"random/{device}"])
    for name, p in model.named_parameters():
        moments = {key: _like(saved[f"{name}/{key}"], p) for key in MOMENTS if f"{name}/{key}" in saved}
        if moments:  # a head that this task does not train has none
            optimizer.state[p] = moments


def _like(moment: Tensor, p: Tensor) -> Tensor:
    """A moment in the memory layout of its parameter, which the optimizer's kernel needs and convolutions choose."""
    return torch.empty_like(p).copy_(moment) if moment.shape == p.shape else moment.to(p.device)


def average(files: list[Path]) -> dict[str, Tensor]:
    """The mean of several models' weights."""
    mean: dict[str, Tensor] = {}
    for file in files:
        for name, weight in load_file(file).items():
            mean[name] = mean.get(name, 0) + weight.double() / len(files)
    return {name: weight.float() for name, weight in mean.items()}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, averaged: bool) -> dict[str, Tensor]:
    """Moments by parameter name, the state of the random generators, and with an EMA the raw weights."""
    moments = {f"{name}/{key}": value.contiguous()
               for name, p in model.named_parameters() for key, value in optimizer.state[p].items()}  # fmt: skip
    raw = {f"{name}/{RAW}": tensor for name, tensor in saved_tensors(model).items()} if averaged else {}
    return {**moments, **raw, **{f"random/{device}": get() for device, (get, _) in _random().items()}}


def _random() -> dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], None]]]:
    """How to get and to set the random state of each device."""
    states: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], None]]] = {"cpu": (torch.get_rng_state, torch.set_rng_state)}
    if torch.cuda.is_available():
        states |= {f"cuda:{n}": (partial(torch.cuda.get_rng_state, n), partial(torch.cuda.set_rng_state, device=n))
                   for n in range(torch.cuda.device_count())}  # fmt: skip
    if torch.backends.mps.is_available():
        states["mps"] = (torch.mps.get_rng_state, torch.mps.set_rng_state)
    return states


def _digest(values: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _write_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    """Save tensors; a full disk is an `OSError`, as for any other file."""
    try:
        save_file(tensors, file)
        file.chmod(new_file_mode(file.parent))
    except SafetensorError as error:
        if code := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(file)) from None
        raise


def _sha256(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
