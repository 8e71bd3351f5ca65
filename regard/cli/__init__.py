"""The verbs: `regard <verb> <what> [key=value ...]`.

Results go to standard output, progress and errors to standard error.  A user's mistake prints one line and exits 2.
Verbs import torch themselves, so that --help does not wait for it.
"""

import errno
import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from io import TextIOWrapper
from types import FrameType
from typing import Annotated

import typer

from regard.cli.convert import export, import_
from regard.cli.doctor import doctor
from regard.cli.embed import embed, neighbors
from regard.cli.inspect import cost, positions, show
from regard.cli.io import note
from regard.cli.models import models
from regard.cli.predict import ask, caption, classify, fill, generate, transcribe, translate
from regard.cli.runs import runs
from regard.cli.score import compare, score
from regard.cli.serve import serve
from regard.cli.trace import trace
from regard.cli.train import recipes, train
from regard.cli.verify import verify
from regard.version import VERSION

__all__ = ["app", "command", "main"]

Handler = Callable[[int, FrameType | None], object] | int | None

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Train, run and see inside Transformers, on your own data, on your own machine.",
)  # fmt: skip
VERBS = (train, recipes, translate, ask, generate, fill, classify, caption, transcribe, embed, neighbors, import_, export, score,
         compare, show, serve, trace, positions, cost, verify, runs, models, doctor)  # fmt: skip
for verb in VERBS:
    app.command(verb.__name__.rstrip("_"))(verb)


def _version(wanted: bool) -> None:
    if wanted:
        print(VERSION)
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


def command() -> int:
    """The program `regard`: a verb in a process of its own."""
    try:
        return main()
    finally:
        gc.freeze()  # else Python searches all that torch made for cycles before it exits, a quarter of a second


def main() -> int:
    """Run a verb; a user's mistake is one line on standard error and exit code 2."""
    # TensorBoard writes from its own thread; on a full disk our next write reports it in one line
    threading.excepthook = lambda failed: None if isinstance(failed.exc_value, OSError) else threading.__excepthook__(failed)
    if isinstance(sys.stdout, TextIOWrapper):
        # translations are not Latin-1, whatever the locale; a file name that is not UTF-8 is printed as it is
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    interrupts: list[int] = []
    handler = _record_interrupts(interrupts)
    try:
        code = int(app(sys.argv[1:] or ["--help"], standalone_mode=False) or 0)
        sys.stdout.flush()  # here, where a closed pipe is handled
        if code == 130 and interrupts:  # typer has turned Ctrl-C into an exit code
            print("regard: interrupted", file=sys.stderr)
        return code
    except (KeyboardInterrupt, typer.Abort):
        print("regard: interrupted", file=sys.stderr)
        return 130
    except (BrokenPipeError, SystemExit) as stop:
        if not isinstance(stop, BrokenPipeError) and not isinstance(stop.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader, such as `head`, has closed the pipe
        return 0
    except Exception as mistake:
        if interrupts:  # a library that was being imported may turn Ctrl-C into an error of its own
            print("regard: interrupted", file=sys.stderr)
            return 130
        line = _one_line(mistake)
        if line is None or os.environ.get("REGARD_DEBUG"):
            raise
        note(f"regard: {line}")
        return 2
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)


def _record_interrupts(interrupts: list[int]) -> Handler:
    """Record each Ctrl-C in a list; returns the previous handler, or None outside the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    try:
        return signal.signal(signal.SIGINT, stop)
    except ValueError:
        return None


def _one_line(mistake: Exception) -> str | None:
    """The message for a mistake the user can correct; None for a bug of ours."""
    message = mistake.format_message() if hasattr(mistake, "format_message") else ""
    if unknown := re.match(r"No such command (['\"])(.*?)\1", message):
        from regard.config import nearest

        verbs, wanted = [verb.__name__.rstrip("_") for verb in VERBS], unknown[2]
        return f"no command {wanted!r}{nearest(wanted, verbs)}; commands are {', '.join(verbs)}"
    if hasattr(mistake, "format_message"):  # typer's own, for an unknown option
        return f"{mistake.format_message().rstrip('.')}; see regard {' '.join([*sys.argv[1:2], '--help'])}"
    if isinstance(mistake, ValueError):
        return str(mistake)
    if isinstance(mistake, RuntimeError) and any(why in str(mistake) for why in ("allocate memory", "out of memory")):
        return "not enough memory; use a smaller --beam or --batch, train.batch_tokens or train.batch_size, or model.image"
    if isinstance(mistake, OSError):
        remedy = "check the path and its permissions"
        if mistake.errno in (errno.ENOSPC, errno.EDQUOT):
            resume = ", then continue with --resume: the last checkpoint is complete" if "train" in sys.argv[1:2] else ""
            remedy = f"free some space{resume}"
        return f"{mistake.strerror or mistake}{f': {mistake.filename}' if mistake.filename else ''}; {remedy}"
    return None
