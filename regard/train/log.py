"""The training log, the progress bar, and Ctrl-C."""

import json
import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch.utils.tensorboard.writer import SummaryWriter

from regard.data.files import write_atomic
from regard.run_folder import RunFolder
from regard.train.parallel import World

__all__ = ["Log", "StopRequest", "progress_bar", "stop_on_signal"]


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


@contextmanager
def progress_bar(console: Console, name: str, steps: int, done: int) -> Iterator[Callable[[int, str], None]]:
    """A bar with loss, throughput and time left; yields `update(step, text)`."""
    columns = ("{task.description}", BarColumn(), "{task.completed:,}/{task.total:,}", TextColumn("{task.fields[text]}"),
               TimeElapsedColumn(), TimeRemainingColumn(elapsed_when_finished=True))  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name, total=steps, completed=done, text="")
        yield lambda step, text: progress.update(task, completed=step, text=text)


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
