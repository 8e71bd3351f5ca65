"""Command-line input and progress output."""

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from regard.data.terminal import UNSAFE, printable

if TYPE_CHECKING:
    from regard.cli.failures import BadInput

__all__ = ["TEXTS_PER_CHUNK", "Count", "expand_folders", "note", "open_run", "read_items", "read_texts", "show_progress", "write",
           "write_json", "write_json_text"]  # fmt: skip

TEXTS_PER_CHUNK = 1024  # texts read, answered and printed together
Item = TypeVar("Item")
Count = Callable[[int, int], None]  # called with the number done in earlier chunks and in this one


def write(*fields: object, sep: str = "\t", end: str = "\n") -> None:
    """Print a result; on a terminal with control characters as escapes, into a pipe or a file exactly."""
    text = sep.join(map(str, fields))
    print(printable(text) if sys.stdout.isatty() else text, end=end)


def write_json(value: object) -> None:
    """Print a result as JSON in one line; control characters are escaped as JSON does."""
    write_json_text(json.dumps(value, ensure_ascii=False))


def write_json_text(text: str) -> None:
    """Print JSON that is text already; control characters are escaped as JSON does."""
    print(UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text))


def note(text: str) -> None:
    """Print one line on standard error, control characters as escapes."""
    print(printable(text, keep=""), file=sys.stderr)


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

    with _read(texts, file, read_lines, activity, size, total) as found:
        yield found


@contextmanager
def read_items(
    texts: list[str] | None, file: Path | None, activity: str, size: int = TEXTS_PER_CHUNK, total: float | None = None,
    endings: Collection[str] = (),
) -> "Iterator[tuple[Iterator[list[str | BadInput]], Count]]":  # fmt: skip
    """The same; a line that cannot be read is a `BadInput`, and with `endings` a folder is all such files inside it."""
    from regard.cli.failures import BadInput
    from regard.data.files import BadLine, read_lines_checked

    def lines(file: Path) -> Iterator[str | BadInput]:
        name = "standard input" if str(file) == "-" else str(file)
        for number, line in enumerate(read_lines_checked(file), 1):
            if isinstance(line, BadLine):
                yield BadInput(f"{name} line {line.number}", f"{name} line {line.number} {line.reason}; {line.advice}")
            elif endings and not line.strip():
                yield BadInput(f"{name} line {number}", f"{name} line {number} is empty; give a file on each line")
            else:
                yield line

    expand = partial(expand_folders, endings=endings) if endings else None
    with _read(texts, file, lines, activity, size, total, expand) as found:
        yield found


@contextmanager
def _read(texts: list[str] | None, file: Path | None, lines: "Callable[[Path], Iterator[Item]]", activity: str, size: int,
          total: float | None, expand: "Callable[[Iterator[str | Item]], Iterator[str | Item]] | None" = None,
          ) -> "Iterator[tuple[Iterator[list[str | Item]], Count]]":  # fmt: skip
    if texts and file:
        raise ValueError("texts and --input were both given; give one of them")
    interactive = not texts and file is None and sys.stdin is not None and sys.stdin.isatty()
    if interactive:
        note("regard: type one text per line, Ctrl-D ends")
    items: Iterator[str | Item] = iter(texts) if texts else lines(file or Path("-"))
    items = expand(items) if expand else items
    size = 1 if interactive else size
    with show_progress(activity, enabled=not interactive, total=total) as count:
        yield _warn_if_empty(iter(lambda: list(islice(items, size)), [])), count


def expand_folders(names: "Iterable[str | BadInput]", endings: Collection[str]) -> "Iterator[str | BadInput]":
    """Each name; a folder is replaced by its files with these endings, also in folders inside it, in the order of their names."""
    from regard.cli.failures import BadInput

    for name in names:
        if isinstance(name, BadInput) or not os.path.isdir(name):
            yield name
            continue
        found = sorted(
            os.path.join(folder, file) for folder, _, files in os.walk(name) for file in files
            if not file.startswith(".") and os.path.splitext(file)[1].lower() in endings
        )  # fmt: skip
        if not found:
            usual = endings if isinstance(endings, tuple) else sorted(endings)
            yield BadInput(name, f"the folder {name} holds no file that ends in {', '.join(usual[:6])} …; "
                                 f"give another folder, or files by name")  # fmt: skip
        yield from found


def _warn_if_empty(chunks: Iterator[list[Item]]) -> Iterator[list[Item]]:
    first = next(chunks, None)
    if first is None:
        note("regard: nothing to read")
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
    columns: list[ProgressColumn] = [
        SpinnerColumn(),
        TextColumn("{task.description}: {task.completed:,}", markup=False),
        TimeElapsedColumn(),
    ]
    if total:
        columns[2:] = [TextColumn("of {task.total:,.0f}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(printable(activity, keep=""), total=total)
        yield lambda before, done: progress.update(task, completed=before + done)
