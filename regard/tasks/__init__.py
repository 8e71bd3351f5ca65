"""5. One kind of learning per file; this is their only registry."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard.config import Run, build_run, read_tables
from regard.models import FAMILIES
from regard.tasks import (
    finetuning,
    image_classification,
    image_generation,
    language_model,
    masked_lm,
    span_corruption,
    text_classification,
    translation,
)
from regard.tasks.task import Task

__all__ = ["TASKS", "read_run", "task_of"]

TASKS: dict[str, Task[Any, Any, Any, Any]] = {
    "translation": translation.TASK,
    "language_model": language_model.TASK,
    "masked_lm": masked_lm.TASK,
    "span_corruption": span_corruption.TASK,
    "text_classification": text_classification.TASK,
    "image_classification": image_classification.TASK,
    "image_generation": image_generation.TASK,
}


def task_of(run: Run) -> Task[Any, Any, Any, Any]:
    """The task of a run."""
    return TASKS[run.task]


def read_run(what: str | Path, changes: Iterable[str] = ()) -> Run:
    """Read a recipe by name, or a TOML file, and put `table.key=value` changes on top; `init` is resolved."""
    changes = tuple(changes)
    name, tables = read_tables(what, changes, FAMILIES)
    base = finetuning.inherit(tables, changes, FAMILIES, TASKS) if tables.get("init") and name != "run" else None
    return build_run(name, tables, FAMILIES, TASKS, base)
