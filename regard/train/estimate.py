"""What a training will need: memory and disk before it starts, time from its first steps on."""

import time
from collections import deque
from pathlib import Path

from torch import nn

from regard.config import TrainConfig
from regard.data.machine import free_disk, read_memory
from regard.data.units import format_duration, format_size
from regard.run_folder import RunFolder
from regard.train.checkpoint import RESUMABLE

__all__ = ["StepTimer", "Throttle", "checkpoint_bytes", "memory_bytes", "peak_memory", "shortages"]

WARMUP = 2  # steps of a process, slower than the others: memory is allocated, kernels are chosen
TIMED = 5  # steps after them that give a first estimate
WINDOW = 200  # steps of which the mean is taken
MOMENTS = {"adam": 2, "adafactor": 0}  # numbers per weight; Adafactor keeps rows and columns only


class StepTimer:
    """Seconds per step, evaluation and checkpoint so far, and from them the seconds left."""

    def __init__(self, train: TrainConfig):
        self.train, self.steps, self.first = train, deque[float](maxlen=WINDOW), list[float]()
        self.pauses: dict[tuple[str, int], deque[float]] = {}

    def step(self, seconds: float) -> None:
        """Note the time of a step, without evaluation and checkpoint."""
        if len(self.first) < WARMUP:
            self.first.append(seconds)
        else:
            self.steps.append(seconds)

    def pause(self, what: str, every: int, seconds: float) -> None:
        """Note the time of something that happens every `every` steps, such as an evaluation."""
        self.pauses.setdefault((what, every), deque(maxlen=WINDOW)).append(seconds)

    @property
    def ready(self) -> bool:
        """Whether the steps that an estimate needs have just been timed."""
        return len(self.steps) == TIMED

    @property
    def per_step(self) -> float:
        """Seconds of a step; of the last one, until some are known that are not slowed by the start."""
        return sum(self.steps) / len(self.steps) if self.steps else (self.first[-1] if self.first else 0.0)

    def summary(self, step: int, memory: int) -> str:
        """The estimate, for people, from the steps timed so far."""
        rest, used = max(0, self.train.steps - step), f"; memory so far {format_size(memory)}" if memory else ""
        left = format_duration(self.left(step))
        return f"about {left} for {rest:,} more steps of {self.per_step:.2g} s, evaluations not counted{used}"

    def left(self, step: int) -> float:
        """Seconds until the last step, as far as known: an evaluation counts once one has been seen."""
        rest = max(0, self.train.steps - step)
        pauses = sum(sum(known) / len(known) * (rest // every) for (_, every), known in self.pauses.items())
        return rest * self.per_step + pauses


class Throttle:
    """True at most once in a number of seconds."""

    def __init__(self, seconds: float):
        self.seconds, self.last = seconds, time.monotonic()

    def __call__(self) -> bool:
        """Whether it is time again."""
        now = time.monotonic()
        if now - self.last < self.seconds:
            return False
        self.last = now
        return True


def memory_bytes(model: nn.Module, train: TrainConfig) -> int:
    """Weights, gradients, moments of the optimizer and moving average: the least that training needs, without activations."""
    numbers = 2 + MOMENTS[train.optimizer] + (1 if train.ema else 0)
    return numbers * sum(p.numel() * p.element_size() for p in model.parameters())


def checkpoint_bytes(model: nn.Module, train: TrainConfig) -> int:
    """The most that checkpoints and the published weights take on disk at once, while one more is being written."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    count = min(-(-train.steps // train.save_every), max(train.average, RESUMABLE)) + 1
    kept = train.steps // train.keep_every if train.keep_every else 0
    optimizers = min(count, RESUMABLE + 1) * (MOMENTS[train.optimizer] + (1 if train.ema else 0))
    return weights * (count + kept + optimizers + (1 if train.average > 1 or train.checkpoints else 0))


def shortages(model: nn.Module, train: TrainConfig, files: RunFolder, on_cpu: bool) -> list[str]:
    """Warnings, if the disk or the memory of this machine is less than needed."""
    found = []
    need, have = checkpoint_bytes(model, train), free_disk(files.checkpoints) + _size_of(files.checkpoints)
    if need > have:
        found.append(f"warning: checkpoints may need {format_size(need)}, {files.checkpoints} has room for {format_size(have)}; "
                     f"free some space, set train.average=1, or write them to another disk with "
                     f"train.checkpoints=FOLDER")  # fmt: skip
    need, memory = memory_bytes(model, train), read_memory()
    if on_cpu and memory and need > memory.available:
        found.append(f"warning: training needs over {format_size(need)} of memory, {format_size(memory.available)} is free; "
                     f"use a smaller model")  # fmt: skip
    return found


def peak_memory(on_cuda: bool) -> int:
    """Bytes of memory that this process has used at most so far; 0 if unknown."""
    if on_cuda:
        import torch

        return torch.cuda.max_memory_allocated()
    try:
        import resource
        import sys

        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else used * 1024
    except ImportError:  # Windows
        return 0


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("step-*/*") if file.is_file())
