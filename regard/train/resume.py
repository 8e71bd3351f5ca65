"""Resume: a run folder goes on with the model and the data it was started with; train and decode keys may change."""

import dataclasses
from collections.abc import Sequence

from regard.config import COUNTED, Run
from regard.run_folder import RunFolder
from regard.tasks import read_run, run_name

__all__ = ["resumed_run"]


def resumed_run(what: str, changes: Sequence[str], files: RunFolder) -> Run:
    """The run of a folder with the `train.` and `decode.` changes on top; a model or data key that differs is refused by name."""
    stored = read_run(files.run)
    _compare(files, "name", run_name(what, changes), stored.name)
    keys = [change.partition("=")[0] for change in changes]
    fine_tuned = stored.init or "init" in keys
    asked = read_run(files.run if fine_tuned else what, changes)  # the run that `init` names may be gone
    for key in keys:
        table, _, name = key.partition(".")
        if key in ("model", "model.size"):  # a whole model: all that the data does not decide
            _compare(files, "model.family", asked.family, stored.family)
            for field in (field.name for field in dataclasses.fields(stored.model) if field.name not in COUNTED):
                _compare(files, f"model.{field}", getattr(asked.model, field), getattr(stored.model, field))
        elif key == "model.family" or not name:
            _compare(files, key, getattr(asked, name or key), getattr(stored, name or key))
        elif table in ("model", "data") and name not in COUNTED[1:]:
            _compare(files, key, getattr(getattr(asked, table), name), getattr(getattr(stored, table), name))
    return read_run(files.run, [change for change in changes if change.startswith(("train.", "decode."))])


def _compare(files: RunFolder, key: str, asked: object, stored: object) -> None:
    if asked != stored:
        raise ValueError(f"{files.path} was trained with {key}={stored}, {key}={asked} was asked for; --resume may change train "
                         f"and decode keys only: leave {key} out, or start over with --fresh")  # fmt: skip
