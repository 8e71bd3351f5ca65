"""The validation losses of the data that `data.mix` mixes in, during fine-tuning, beside those before it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from regard.config import Run
from regard.tasks.metrics import evaluate
from regard.tasks.task import Dataset, Task

__all__ = ["KEY", "describe", "first_losses", "mixed_losses"]

KEY = "valid_loss_mix/"  # of the log, followed by the name of the part


def mixed_losses(task: Task[Any, Any, Any, Any], run: Run, dataset: Dataset, model: nn.Module) -> dict[str, float]:
    """Mean loss of the validation data of each part, by its name."""
    return {name: evaluate(model, batches, task.loss) for name, batches in task.mixed_validation(run, dataset).items()}


def first_losses(file: Path) -> dict[str, float]:
    """The losses that a log has of step 0, those of the weights that fine-tuning started from; none if it has no such line."""
    if not file.exists():
        return {}
    with open(file, encoding="utf-8") as lines:
        for line in lines:
            try:
                values = json.loads(line)
            except ValueError:  # torn by a kill
                continue
            if isinstance(values, dict) and values.get("step") == 0:
                return {key.removeprefix(KEY): value for key, value in values.items() if key.startswith(KEY)}
    return {}


def describe(losses: Mapping[str, float], before: Mapping[str, float]) -> str:
    """The losses in brackets, " (runs/enfr: 3.0200, was 2.8800)", or nothing."""
    shown = [f"{name}: {loss:.4f}" + (f", was {before[name]:.4f}" if name in before else "") for name, loss in losses.items()]
    return f" ({'; '.join(shown)})" if shown else ""
