"""The training log, the progress bar, and Ctrl-C."""

import json
import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from torch.utils.tensorboard.writer import SummaryWriter

from regard.data.files import write_atomic
from regard.data.units import format_duration
from regard.run_folder import RunFolder
from regard.train.estimate import StepTimer, Throttle
from regard.train.parallel import World

__all__ = ["Log", "StopRequest", "TrainingProgress", "progress_bar", "stop_on_signal"]

SECONDS_PER_LINE = 30.0  # of a training whose output is no terminal
SECONDS_PER_REFRESH = 0.2  # of the bar


class Log:
    """`log.jsonl` and TensorBoard events, cut back to the step a run resumes from."""

    def __init__(self, files: RunFolder, step: int):
        self.file = files.log
        if self.file.exists():
            lines = self.file.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if _step_of(line) <= step]
            write_atomic(self.file, "".join(f"{line}\n" for line in kept).encode())
        self.events = SummaryWriter(str(files.events), purge_step=step + 1)

    def write(self, step: int, **values: float) -> None:
        """Append one line."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        with open(os.open(self.file, flags, 0o644), "a", encoding="utf-8") as out:
            out.write(json.dumps({"step": step, **values}) + "\n")
        for name, value in values.items():
            self.events.add_scalar(name, value, step)
        self.events.flush()

    def close(self) -> None:
        """Close the file and the thread of TensorBoard."""
        self.events.close()


def _step_of(line: str) -> float:
    """The step of a log line; the last line of a run, or one torn by a kill, has none and is written anew."""
    try:
        values = json.loads(line)
        return math.inf if "final_loss" in values else values["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf


class TrainingProgress:
    """Step, loss, speed and time left: on a terminal a bar, elsewhere a line now and then."""

    def __init__(self, console: Console, report: Callable[..., None], bar: Progress, task: TaskID, timer: StepTimer):
        self.report, self.bar, self.task, self.timer = report, bar, task, timer
        self.lines = not _draws(console)
        self.due = Throttle(SECONDS_PER_LINE if self.lines else SECONDS_PER_REFRESH)

    def update(self, step: int, loss: float, speed: str) -> None:
        """Show where the training stands; call it after each step, it is shown when due."""
        if self.due():
            left, steps = f"{format_duration(self.timer.left(step))} left", self.timer.train.steps
            if self.lines:
                self.report(f"step {step:,} of {steps:,}: loss {loss:.3f}, {speed}, {left}")
            else:
                self.bar.update(self.task, completed=step, text=f"loss {loss:.3f} · {speed}", left=left)


def _draws(console: Console) -> bool:
    return console.is_interactive or console.is_jupyter


@contextmanager
def progress_bar(
    console: Console, report: Callable[..., None], name: str, timer: StepTimer, done: int
) -> Iterator[TrainingProgress]:
    """Show the progress of a training from the step `done` on."""
    columns = ("{task.description}", BarColumn(), "{task.completed:,}/{task.total:,}", TextColumn("{task.fields[text]}"),
               TimeElapsedColumn(), TextColumn("{task.fields[left]}"))  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not _draws(console)) as bar:
        task = bar.add_task(name, total=timer.train.steps, completed=done, text="", left="")
        yield TrainingProgress(console, report, bar, task, timer)


class StopRequest:
    """True once the user has asked to stop."""

    asked = False

    def __bool__(self) -> bool:
        return self.asked


@contextmanager
def stop_on_signal(world: World) -> Iterator[StopRequest]:
    """Turn the first Ctrl-C (or SIGTERM) into a request that the loop meets at the end of its step; a second one kills.

    Of several processes none is killed so: torchrun forwards a signal that all of them may have got already.
    """
    stop = StopRequest()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.asked = True
        for n, handler in before.items() if world.size == 1 else ():
            signal.signal(n, handler)

    before = {}
    with suppress(ValueError):  # not the main thread: it gets no signals
        before = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)
