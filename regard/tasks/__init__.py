"""5. One kind of learning per file; this is their only registry."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard.config import Run, Tables, build_run, read_tables, tasks_of
from regard.models import FAMILIES
from regard.registry import Registry
from regard.run_folder import RunFolder
from regard.tasks.task import Task

__all__ = ["TASKS", "make_run", "read_run", "run_name", "task_of"]

TASKS = Registry[Task[Any, Any, Any, Any]]("TASK", {
    "translation": "regard.tasks.translation",
    "language_model": "regard.tasks.language_model",
    "masked_lm": "regard.tasks.masked_lm",
    "bidirectional_lm": "regard.tasks.bidirectional_lm",
    "span_corruption": "regard.tasks.span_corruption",
    "text_classification": "regard.tasks.text_classification",
    "word_vectors": "regard.tasks.word_vectors",
    "image_classification": "regard.tasks.image_classification",
    "image_generation": "regard.tasks.image_generation",
    "captioning": "regard.tasks.captioning",
    "speech": "regard.tasks.speech",
})  # fmt: skip


def task_of(run: Run) -> Task[Any, Any, Any, Any]:
    """The task of a run."""
    return TASKS[run.task]


def read_run(what: str | Path, changes: Iterable[str] = ()) -> Run:
    """Read a recipe by name, or a TOML file, and put `table.key=value` changes on top."""
    changes, file = tuple(changes), Path(what)
    name, tables = read_tables(what, changes, FAMILIES)
    if not RunFolder.holds(file):
        return make_run(name, tables, changes)
    if "decode" not in tables:  # the last table
        raise ValueError(f"{file} is cut short: it has no table [decode]; restore the file, or train again")
    return build_run(name, tables, FAMILIES, TASKS)  # a started run has taken over all that `init` decides


def run_name(what: str | Path, changes: Iterable[str] = ()) -> str:
    """The name of a run, read without the run that its `init` names."""
    name, tables = read_tables(what, tuple(changes), FAMILIES)
    return str(tables.get("name", name))


def make_run(name: str, tables: Tables, changes: Iterable[str] = ()) -> Run:
    """Make a new run of the tables of a TOML file; one with `init` or `init_encoder` takes over what that decides."""
    from regard.tasks import finetuning, mixing  # a trained run needs neither

    if tables.get("init_encoder"):
        finetuning.inherit_encoder(tables, changes, FAMILIES, read_run)
    family = str(tables.get("model", {}).get("family", "transformer"))
    supported = tasks_of(FAMILIES[family], TASKS) if family in FAMILIES else [""]
    mixing.require_mixable(tables, str(tables.get("task", supported[0])), TASKS)
    base = finetuning.inherit(tables, changes, FAMILIES, TASKS, read_run) if tables.get("init") else None
    return build_run(name, tables, FAMILIES, TASKS, base)
