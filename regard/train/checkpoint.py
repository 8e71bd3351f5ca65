"""Save atomically, load what is whole, average; resume to the same bits.

    checkpoints/step-00000500/model.safetensors
                              optimizer.safetensors   moments of each parameter, the random generator's state, and, where
                                                      the model is a running mean, the weights that it follows
                              state.json              step, place in the data, …, and the sha256 of all three

A checkpoint is written under a hidden name, flushed to the disk and renamed, so one that can be seen is whole.  If the
disk damages it later the checksums tell, and the one before it is used.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.data.files import flush, sync_folder, write_atomic
from regard.models import load_weights, saved_tensors, state_tensors
from regard.train.ema import EMA

__all__ = ["average", "models_saved", "newest", "prune", "restore", "save"]

MOMENTS = ("step", "exp_avg", "exp_avg_sq", "row_var", "col_var", "variance")  # of Adam, and of Adafactor
RAW = "raw"  # weights that a running mean follows
RESUMABLE = 2  # so many newest checkpoints keep their optimizer state, twice as large as the model


def save(
    folder: Path, state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, keep: int, every: int = 1,
    mean: EMA | None = None,
) -> Path:  # fmt: skip
    """Write a checkpoint of the step `state["step"]` and let go of those no longer needed.

    With a running mean, that is the model: whoever opens the run gets it.
    """
    home = folder / "checkpoints"
    home.mkdir(exist_ok=True)
    final, part = home / f"step-{state['step']:08d}", home / ".part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        _write(saved_tensors(model) if mean is None else mean.weights, part / "model.safetensors")
        _write(_memory(model, optimizer, mean is not None), part / "optimizer.safetensors")
        sums = {"state": _fingerprint(state)}
        for name in ("model.safetensors", "optimizer.safetensors"):
            flush(part / name)
            sums[name] = _sha256(part / name)
        write_atomic(part / "state.json", json.dumps({**state, "sha256": sums}, indent=1).encode())
        sync_folder(part)
        shutil.rmtree(final, ignore_errors=True)  # a damaged one of the same step, left behind by a resume
        os.replace(part, final)
        sync_folder(home)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)  # a full disk gets its space back
        raise
    _publish(final / "model.safetensors", folder / "model.safetensors")
    prune(folder, keep, every)
    return final


def prune(folder: Path, keep: int, every: int) -> None:
    """Let go of checkpoints no longer needed.

    One off the beat of `every` steps was made by Ctrl-C: once it is not the newest it goes, so that the mean at the end
    is of the same checkpoints as if nobody had interrupted.
    """
    age = 0
    for old in sorted((folder / "checkpoints").glob("step-*"), reverse=True):
        if age and (int(old.name[5:]) % every or (age >= keep and age >= RESUMABLE)):
            shutil.rmtree(old)
            continue
        if age >= RESUMABLE:
            (old / "optimizer.safetensors").unlink(missing_ok=True)
        age += 1


def newest(folder: Path, say: Callable[[str], None]) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that is whole, and its state; each damaged one is named and passed over."""
    found = sorted((folder / "checkpoints").glob("step-*"), reverse=True)
    for place in found:
        try:
            return place, _check(place, ("model.safetensors", "optimizer.safetensors"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            say(f"{place} is damaged ({error}); going back to the one before it")
    if found:
        raise ValueError(f"no checkpoint of {folder} is whole; train again with --fresh, or restore {found[0]}")
    return None


def models_saved(folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Model files of the checkpoints that are whole, oldest first; each damaged one is named and left out."""
    files = []
    for place in sorted((folder / "checkpoints").glob("step-*")):
        try:
            _check(place, ("model.safetensors",))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            say(f"{place} is damaged ({error}); the mean is of the others")
            continue
        files.append(place / "model.safetensors")
    return files


def _check(place: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """The state of a checkpoint, if it and the files named have their checksums."""
    state: dict[str, Any] = json.loads((place / "state.json").read_text(encoding="utf-8"))
    sums = state.pop("sha256")
    if sums["state"] != _fingerprint(state):
        raise ValueError("state.json does not have its checksum")
    for name in names:
        if _sha256(place / name) != sums[name]:
            raise ValueError(f"{name} does not have its checksum")
    return state


@torch.no_grad()
def restore(place: Path, model: nn.Module, optimizer: torch.optim.Optimizer, mean: EMA | None = None) -> None:
    """Put a checkpoint's weights, moments and random state back."""
    load_weights(model, place / "model.safetensors")
    memory = load_file(place / "optimizer.safetensors")
    for name, one in state_tensors(model).items():
        if mean is not None:
            mean.weights[name].copy_(one)
        if (raw := memory.get(f"{name}/{RAW}")) is not None:
            one.copy_(raw)
    for device, (_, put) in _random().items():
        if f"random/{device}" in memory:
            put(memory[f"random/{device}"])
    for name, p in model.named_parameters():
        moments = {key: _laid_out(memory[f"{name}/{key}"], p) for key in MOMENTS if f"{name}/{key}" in memory}
        if moments:  # a head that this task does not train has no moments
            optimizer.state[p] = moments


def _laid_out(moment: Tensor, p: Tensor) -> Tensor:
    """A moment as the optimizer's kernel reads it: beside its parameter, in the same order, which convolutions choose."""
    return torch.empty_like(p).copy_(moment) if moment.shape == p.shape else moment.to(p.device)


def average(files: list[Path]) -> dict[str, Tensor]:
    """The mean of several models' weights, a steadier model than any of them."""
    mean: dict[str, Tensor] = {}
    for file in files:
        for name, weight in load_file(file).items():
            mean[name] = mean.get(name, 0) + weight.double() / len(files)
    return {name: weight.float() for name, weight in mean.items()}


def _memory(model: nn.Module, optimizer: torch.optim.Optimizer, averaged: bool) -> dict[str, Tensor]:
    """The optimizer's moments by parameter name, the random state that dropout draws from, and weights not saved elsewhere."""
    moments = {f"{name}/{key}": value.contiguous()
               for name, p in model.named_parameters() for key, value in optimizer.state[p].items()}  # fmt: skip
    raw = {f"{name}/{RAW}": one for name, one in saved_tensors(model).items()} if averaged else {}
    return {**moments, **raw, **{f"random/{device}": get() for device, (get, _) in _random().items()}}


def _random() -> dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], None]]]:
    """How to get and put the random state of each device there is."""
    found: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], None]]] = {
        "cpu": (torch.get_rng_state, torch.set_rng_state)
    }
    if torch.cuda.is_available():
        found |= {f"cuda:{n}": (partial(torch.cuda.get_rng_state, n), partial(torch.cuda.set_rng_state, device=n))
                  for n in range(torch.cuda.device_count())}  # fmt: skip
    if torch.backends.mps.is_available():
        found["mps"] = (torch.mps.get_rng_state, torch.mps.set_rng_state)
    return found


def _publish(file: Path, name: Path) -> None:
    """Show the newest weights as the run's own, so that it translates while it still trains; no copy if the disk can link."""
    part = name.with_name(f".{name.name}.part")
    part.unlink(missing_ok=True)
    try:
        os.link(file, part)
    except OSError:
        shutil.copyfile(file, part)
    os.replace(part, name)


def _fingerprint(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _write(what: dict[str, Tensor], file: Path) -> None:
    """Save tensors; a full disk is an `OSError`, as for any other file."""
    try:
        save_file(what, file)
    except SafetensorError as error:
        if number := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from None
        raise


def _sha256(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
