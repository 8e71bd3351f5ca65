"""How a run learned: its training log as curves, and the steps whose weights can still be looked at."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from regard.run_folder import RunFolder

__all__ = ["LearningCurve", "LossPoint", "ValidationPoint", "read_learning"]

MAX_POINTS = 2000  # of a curve; neighbouring points of a longer one are averaged
MAX_BYTES = 64_000_000  # of a log that is read; a log line has about 150
TRAINED, VALID, FINAL = "loss", "valid_loss", "final_loss"  # keys of the log, see `train/loop.py`
NO_SCORES = ("step", VALID, FINAL, "minutes")


@dataclass(frozen=True)
class LossPoint:
    """The mean training loss of the steps up to this one since the point before, in nats per prediction."""

    step: int
    loss: float


@dataclass(frozen=True)
class ValidationPoint:
    """The loss of the validation data after a step, and what else was measured then: perplexity, BLEU, accuracy."""

    step: int
    loss: float
    scores: Mapping[str, float]


@dataclass(frozen=True)
class LearningCurve:
    """The curves of one run.  `final` is of the published weights, which may be an average of the last checkpoints."""

    points: list[LossPoint]
    validation: list[ValidationPoint]
    final: ValidationPoint | None


def read_learning(folder: str | Path, max_points: int = MAX_POINTS) -> LearningCurve:
    """Read the log of a run folder; one that was imported has none, and empty curves."""
    points, validation, final = list[LossPoint](), list[ValidationPoint](), None
    for values in _log_lines(RunFolder(folder).log):
        step = int(values["step"])
        scores = {name: value for name, value in values.items() if name not in NO_SCORES}
        if FINAL in values:
            final = ValidationPoint(step, values[FINAL], scores)
        elif VALID in values:
            validation.append(ValidationPoint(step, values[VALID], scores))
        elif TRAINED in values:
            points.append(LossPoint(step, values[TRAINED]))
    return LearningCurve(_thin(points, max_points), validation[-max_points:], final)


def _log_lines(log: Path) -> Iterator[dict[str, float]]:
    """The finite numbers of each line of a log that has a step; a line torn by a kill is left out."""
    if not log.is_file():
        return
    read = 0
    with open(log, "rb") as lines:
        for line in lines:
            read += len(line)
            if read > MAX_BYTES:
                raise ValueError(f"{log} has more than {MAX_BYTES / 1e6:.0f} MB; it is not the log of a training, restore it")
            try:
                values = json.loads(line)
            except ValueError:
                continue
            if isinstance(values, dict):
                numbers = {name: value for name, value in values.items() if _is_number(value)}
                if numbers.get("step", -1) >= 0:
                    yield numbers


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _thin(points: list[LossPoint], most: int) -> list[LossPoint]:
    """At most that many points, each the mean of its neighbours, at the last of their steps."""
    size = -(-len(points) // most) if points else 1
    groups = (points[start : start + size] for start in range(0, len(points), size))
    return [LossPoint(group[-1].step, sum(point.loss for point in group) / len(group)) for group in groups]
