"""Between the verbs and the person before the screen: what is read, and how far it is."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

__all__ = ["CHUNK", "counting", "open_run", "read_texts"]

CHUNK = 1024  # texts read, answered and printed together


def open_run(run: str, verb: str, device: str, precision: str = "float32") -> Any:
    """A run folder, if it was trained for this verb."""
    from regard.decode.folder import load

    opened = load(run, device, precision)
    if verb not in opened.VERBS:
        verbs = " or ".join(opened.VERBS)
        raise ValueError(f"{run} holds a {opened.run.family}, which does not {verb}; use regard {verbs}")
    return opened


@contextmanager
def read_texts(
    given: list[str] | None, file: Path | None, what: str, size: int = CHUNK
) -> Iterator[tuple[Iterator[list[str]], Any]]:
    """Texts from the command line, a file or standard input, in chunks of a size, and a counter of those that are done."""
    from regard.data.files import read_lines

    if given and file:
        raise ValueError("texts and --input were both given; give one of them")
    asking = not given and file is None and sys.stdin is not None and sys.stdin.isatty()
    if asking:
        print("regard: type a text a line, Ctrl-D ends", file=sys.stderr)
    lines = iter(given) if given else read_lines(file or Path("-"))
    size = 1 if asking else size
    with counting(what, watched=not asking) as count:
        yield _some(iter(lambda: list(islice(lines, size)), [])), count


def _some(chunks: Iterator[list[str]]) -> Iterator[list[str]]:
    """The same; if there are none, that is said."""
    first = next(chunks, None)
    if first is None:
        print("regard: nothing to read", file=sys.stderr)
        return
    yield first
    yield from chunks


@contextmanager
def counting(what: str, watched: bool = True) -> Iterator[Any]:
    """A line on standard error that counts sentences and their speed, if a person is watching."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal or not watched:
        yield lambda before, done: None  # at a prompt, or into a log, a counter is in the way
        return
    columns = (SpinnerColumn(), TextColumn(f"{what}: {{task.completed:,}}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda before, done: progress.update(task, completed=before + done)
