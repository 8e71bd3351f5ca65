"""What a training writes and shows while it runs, and how it hears that it is to stop."""

import json
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch.utils.tensorboard.writer import SummaryWriter

from regard.data.files import write_atomic
from regard.train.parallel import World

__all__ = ["Log", "progress", "stop_politely"]


class Log:
    """`log.jsonl` and TensorBoard events, cut back to the step a run resumes from."""

    def __init__(self, folder: Path, step: int):
        self.file = folder / "log.jsonl"
        if self.file.exists():
            lines = self.file.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if _step_of(line) <= step]
            write_atomic(self.file, "".join(f"{line}\n" for line in kept).encode())
        self.events = SummaryWriter(str(folder / "events"), purge_step=step + 1)

    def write(self, step: int, **numbers: float) -> None:
        """One line of numbers."""
        with open(self.file, "a", encoding="utf-8") as out:
            out.write(json.dumps({"step": step, **numbers}) + "\n")
        for name, number in numbers.items():
            self.events.add_scalar(name, number, step)
        self.events.flush()

    def close(self) -> None:
        """Let go of the file and the thread of TensorBoard."""
        self.events.close()


def _step_of(line: str) -> float:
    """The step a log line belongs to; the line at the end, or one torn by a kill, belongs to none and is written anew."""
    try:
        numbers = json.loads(line)
        return math.inf if "final_loss" in numbers else numbers["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf


@contextmanager
def progress(console: Console, name: str, steps: int, done: int) -> Iterator[Any]:
    """A bar with loss, speed and time left; yields `bar(step, numbers)`."""
    columns = ("{task.description}", BarColumn(), "{task.completed:,}/{task.total:,}", TextColumn("{task.fields[numbers]}"),
               TimeElapsedColumn(), TimeRemainingColumn(elapsed_when_finished=True))  # fmt: skip
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(name, total=steps, completed=done, numbers="")

        def bar(step: int, numbers: str) -> None:
            shown.update(task, completed=step, numbers=numbers)

        yield bar


class _Stop:
    """True once the user has asked to stop."""

    asked = False

    def __bool__(self) -> bool:
        return self.asked


@contextmanager
def stop_politely(world: World) -> Iterator[_Stop]:
    """Turn the first Ctrl-C (or SIGTERM) into a wish that the loop grants at the end of its step; a second one kills.

    Of several processes none is killed so: torchrun hands on a signal that all of them may have got already.
    """
    stop = _Stop()

    def ask(number: int, frame: Any) -> None:
        stop.asked = True
        for n, old in before.items() if world.size == 1 else ():
            signal.signal(n, old)

    before = {}
    with suppress(ValueError):  # not the main thread: there are no signals to turn
        before = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for n, old in before.items():
            signal.signal(n, old)
