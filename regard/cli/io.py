"""Command-line input and progress output."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

__all__ = ["TEXTS_PER_CHUNK", "Count", "open_run", "read_texts", "show_progress"]

TEXTS_PER_CHUNK = 1024  # texts read, answered and printed together
Count = Callable[[int, int], None]  # called with the number done in earlier chunks and in this one


def open_run(run: str, verb: str, device: str, precision: str = "float32") -> Any:
    """Load a run folder and check that its predictor has this verb."""
    from regard.tasks.load import load

    predictor = load(run, device, precision)
    if verb not in (has := getattr(predictor, "VERBS", ())):
        verbs = " or ".join(has or ("score",))
        hint = getattr(predictor, "HINTS", {}).get(verb, "")
        family = predictor.run.family
        raise ValueError(f"{run} is of family {family}, which regard {verb} does not take; use regard {verbs}" + hint)
    return predictor


@contextmanager
def read_texts(
    texts: list[str] | None, file: Path | None, activity: str, size: int = TEXTS_PER_CHUNK, total: float | None = None
) -> Iterator[tuple[Iterator[list[str]], Count]]:
    """Chunks of texts from the command line, a file or standard input, and a progress counter, up to `total` if it is known."""
    from regard.data.files import read_lines

    if texts and file:
        raise ValueError("texts and --input were both given; give one of them")
    interactive = not texts and file is None and sys.stdin is not None and sys.stdin.isatty()
    if interactive:
        print("regard: type one text per line, Ctrl-D ends", file=sys.stderr)
    lines = iter(texts) if texts else read_lines(file or Path("-"))
    size = 1 if interactive else size
    with show_progress(activity, enabled=not interactive, total=total) as count:
        yield _warn_if_empty(iter(lambda: list(islice(lines, size)), [])), count


def _warn_if_empty(chunks: Iterator[list[str]]) -> Iterator[list[str]]:
    first = next(chunks, None)
    if first is None:
        print("regard: nothing to read", file=sys.stderr)
        return
    yield first
    yield from chunks


@contextmanager
def show_progress(activity: str, enabled: bool = True, total: float | None = None) -> Iterator[Count]:
    """A line on standard error that counts what is done, if that is a terminal; with a `total`, a bar and the time left."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal or not enabled:
        yield lambda before, done: None
        return
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn(f"{activity}: {{task.completed:,}}"), TimeElapsedColumn()]
    if total:
        columns[2:] = [TextColumn("of {task.total:,.0f}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(activity, total=total)
        yield lambda before, done: progress.update(task, completed=before + done)
