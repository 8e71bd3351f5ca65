"""Resume: a run continues with its model, data and optimizer; other train and decode keys may change."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from regard.config import COUNTED, Run, read_tables
from regard.models import FAMILIES
from regard.run_folder import RunFolder
from regard.tasks import read_run

__all__ = ["resumed_run", "run_folder_of"]

FIXED = ("train.optimizer", "train.checkpoints")  # whose state, and whose checkpoints, the run continues with


def resumed_run(what: str, changes: Sequence[str], files: RunFolder) -> Run:
    """The run of a folder with `train.` and `decode.` keys of the command, and of the user's own TOML file, on top.

    A model or data key that differs is refused by name; the run keeps its own name.
    """
    stored, changes = read_run(files.run), [change for change in changes if not change.startswith("name=")]
    keys = [change.partition("=")[0] for change in changes]
    fine_tuned = stored.init or stored.init_encoder or {"init", "init_encoder"} & {*keys}
    own = what.endswith(".toml") and not fine_tuned and not RunFolder.holds(Path(what))
    asked = read_run(files.run if fine_tuned else what, changes)  # the run that they name may be gone
    if own:
        _, tables = read_tables(what, changes, FAMILIES)
        keys += [f"{table}.{key}" for table in ("model", "data") for key in tables.get(table, ())] + ["train.optimizer"]
    if asked.name != stored.name and not fine_tuned:  # another recipe?
        _compare(files, "task", asked.task, stored.task)
    for key in keys:
        table, _, name = key.partition(".")
        if key in ("model", "model.size"):  # a whole model: all that the data does not decide
            _compare(files, "model.family", asked.family, stored.family)
            for field in (field.name for field in dataclasses.fields(stored.model) if field.name not in COUNTED):
                _compare(files, f"model.{field}", getattr(asked.model, field), getattr(stored.model, field))
        elif key == "model.family" or not name:
            _compare(files, key, getattr(asked, name or key), getattr(stored, name or key))
        elif key.startswith("model.encoder"):
            _compare(files, "model.encoder", asked.model.encoder, stored.model.encoder)
        elif (table in ("model", "data") and name != "classes") or key in FIXED:
            _compare(files, key, getattr(getattr(asked, table), name), getattr(getattr(stored, table), name))
    if own:
        train = dataclasses.replace(asked.train, checkpoints=stored.train.checkpoints)
        return dataclasses.replace(stored, train=train, decode=asked.decode)
    return read_run(files.run, [change for change in changes if change.startswith(("train.", "decode."))])


def run_folder_of(what: str) -> Path | None:
    """The folder of a started run, given by its path or that of its run.toml; None for a recipe or another TOML file."""
    path = Path(what)
    folder = path.parent if path.suffix == ".toml" and RunFolder.holds(path) else path
    return folder if folder.is_dir() and RunFolder(folder).started and RunFolder(folder).config.exists() else None


def _compare(files: RunFolder, key: str, asked: object, stored: object) -> None:
    if asked != stored and not (isinstance(asked, str) and isinstance(stored, str) and _absolute(asked) == _absolute(stored)):
        raise ValueError(f"{files.path} was trained with {key}={stored}, {key}={asked} was asked for; --resume may change train "
                         f"and decode keys only: leave {key} out, or start over with --fresh")  # fmt: skip


def _absolute(path: str) -> str:
    """A path, spelled one way; other strings stay different."""
    return os.path.abspath(os.path.expanduser(path)) if path else ""
