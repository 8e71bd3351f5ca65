"""A finished run → the folder of a model that ships: float16 weights, no checkpoints, nothing of the machine it was trained on.

    run folder ── export_pretrained ──▶ config.json, model.safetensors, tokenizer.json, labels.txt, run.toml, README.md, log.jsonl

Such a folder is a run folder: `regard.load` opens it, and computes in float32.
"""

import dataclasses
import json
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from regard.config import Run, recipes, to_toml
from regard.data.files import create_folder, write_atomic
from regard.data.json_files import load_json
from regard.data.text.splits import licence_of
from regard.data.units import format_size
from regard.models import load_model, saved_tensors
from regard.run_folder import RunFolder
from regard.tasks import read_run
from regard.train.card import usage
from regard.train.inventory import summarize

__all__ = ["export_pretrained", "to_half"]

LARGEST = torch.finfo(torch.float16).max
# Absolute paths, also of a home or of Windows; not URLs, nor words with a slash.
MACHINE_PATH = re.compile(r"(?<![\w:/.<])(?:~|/[\w.@+-]+)/[\w.@+/-]+|\b[A-Za-z]:\\[^\s\"']+")


def export_pretrained(folder: Path, to: Path) -> tuple[str, ...]:
    """Make the folder of a model that ships, whole or not at all; its name is that of `to`.

    Returns its size and what was left out.
    """
    if not re.fullmatch(r"[\w+-][\w.+-]*", to.name):
        raise ValueError(f"{to.name!r} is not a model name; use letters, digits and -")
    model = load_model(folder)  # refuses what is no run folder, and weights that are not finite
    about, files = summarize(folder), RunFolder(folder)
    if about.status != "finished":
        raise ValueError(f"{folder} is {about.status}; only a finished run can ship: train it to its end with --resume")
    if not files.card.is_file():
        raise ValueError(f"{folder} has no {files.card.name}, the card with data, licence and scores; restore it, or train again")
    before = read_run(files.run)
    run, weights = _without_paths(before, to.name), saved_tensors(model)
    content = save(to_half(weights))
    with create_folder(to) as part:
        there = RunFolder(part)
        write_atomic(there.weights, content)
        write_atomic(there.config, files.config.read_bytes())
        for old, new in ((files.tokenizer, there.tokenizer), (files.target_tokenizer, there.target_tokenizer)):
            if old.is_file():
                write_atomic(new, json.dumps(load_json(old), ensure_ascii=False, separators=(",", ":")).encode())
        if labels := files.read_labels():
            there.write_labels(labels)
        write_atomic(there.log, _numbers(files.log).encode())
        card = _card(files.card.read_text(encoding="utf-8"), run, before.name, len(content))
        write_atomic(there.card, card.encode())
        there.write_run(to_toml(run))
        for file in (there.card, there.run, there.log):
            if path := MACHINE_PATH.search(file.read_text(encoding="utf-8")):
                raise ValueError(f"{file.name} would name a path of this machine, {path[0]}; remove it from {folder / file.name}")
    size, full = sum(file.stat().st_size for file in to.iterdir()), files.weights.stat().st_size
    sizes = f"{format_size(size)} in all, {format_size(len(content))} of them weights in float16, {format_size(full)} before"
    return sizes, f"left out: {_left_out(folder, to)}"


def to_half(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights in half precision; one that it cannot hold is refused by its name.  Whole numbers stay as they are."""
    found = {}
    for name, weight in weights.items():
        found[name] = weight.half() if weight.is_floating_point() else weight
        if weight.is_floating_point() and not found[name].isfinite().all():
            worst = float(weight[~found[name].isfinite()][0])
            raise ValueError(f"{name} holds {worst:g}, and half precision holds numbers up to {LARGEST:,.0f}; train again, with "
                             f"a lower train.lr or with train.weight_decay")  # fmt: skip
    return found


def _without_paths(run: Run, name: str) -> Run:
    """The run under another name, with the names of files and folders instead of their paths; with the licence of its data."""
    data = {field.name: getattr(run.data, field.name) for field in dataclasses.fields(run.data)}
    paths = {key: value for key, value in data.items() if isinstance(value, str) and "/" in value}
    named = {key: ",".join(map(_name, value.split(","))) for key, value in paths.items()}
    return dataclasses.replace(
        run, name=name, init=_name(run.init), init_encoder=_name(run.init_encoder), licence=run.licence or licence_of(run.data),
        data=dataclasses.replace(run.data, **named), train=dataclasses.replace(run.train, checkpoints="", device="auto"),
    )  # fmt: skip


def _name(path: str) -> str:
    """The last part of a path."""
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def _numbers(log: Path) -> str:
    """The numbers of a training log, from which the learning curve is drawn; the time left is of no use afterwards."""
    kept = []
    for line in log.read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        numbers = {key: value for key, value in values.items() if isinstance(value, int | float) and key != "seconds_left"}
        if all(map(math.isfinite, numbers.values())):
            kept.append(json.dumps(numbers) + "\n")
    return "".join(kept)


def _card(text: str, run: Run, recipe: str, size: int) -> str:
    """The card of a run as that of a shipped model: its name, its command without paths, the precision of its weights."""
    text = re.sub(r"^# .*$", f"# {run.name}", text, count=1, flags=re.M)
    text = re.sub(r"(?<=^Use it on the command line, or in Python:\n\n).*", lambda _: usage(run, run.name) + "\n", text,
                  flags=re.M | re.S)  # fmt: skip
    text = re.sub(r"^    (regard train .*)$", lambda found: f"    {_command(found[1], recipe)}", text, count=1, flags=re.M)
    row = f"| weights | float16, {format_size(size)}; computed in float32; scores were computed before rounding |\n"
    text = re.sub(r"^(\| parameters \|.*\n)", lambda found: found[1] + row, text, count=1, flags=re.M)
    return MACHINE_PATH.sub(lambda found: _name(found[0]), text)


def _command(command: str, recipe: str) -> str:
    """A command of training that another user can repeat: the recipe by its name, no folders."""
    regard, verb, what, *changes = shlex.split(command)
    stem = _name(what).removesuffix(".toml")
    names = [name for name in (stem, recipe) if name in recipes()]
    kept = [regard, verb, names[0] if names else what]
    words = iter(changes)
    for word in words:
        if word == "--out":
            next(words, None)
        elif not word.startswith(("--out=", "--fresh", "--resume")):
            kept.append(word)
    return shlex.join(kept)


def _left_out(folder: Path, to: Path) -> str:
    """Files and folders of the run that the new folder has not, with their sizes."""
    kept = {file.name for file in to.iterdir()}
    sizes = {
        path.name + "/" * path.is_dir(): sum(file.lstat().st_size for file in (path, *path.rglob("*")) if file.is_file())
        for path in sorted(folder.iterdir()) if path.name not in kept and path.name[0] != "."
    }  # fmt: skip
    return ", ".join(f"{name} ({format_size(size)})" for name, size in sizes.items()) or "nothing"
