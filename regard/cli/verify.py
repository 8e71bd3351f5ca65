"""The verb `verify`: each statement of the lecture notes, measured."""

import dataclasses
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.io import write, write_json
from regard.cli.options import Json

if TYPE_CHECKING:
    from rich.console import Console

    from regard.verify.claim import Claim, Measurement
    from regard.verify.run import Result

__all__ = ["verify"]

Rows = Annotated[list[str] | None, typer.Argument(
    metavar="[ROW]...", show_default=False,
    help="Numbers of claims: 1 to 88, or c1 to c28 for corrections of the notes; by default all that are quick.")]  # fmt: skip
Notes = Annotated[str | None, typer.Option(help="Only claims of these notes: 000, 001, 002, 003 or 004.", show_default=False)]
Only = Annotated[str | None, typer.Option(help="Only this chapter, such as complexity (see --list).", show_default=False)]
Slow = Annotated[bool, typer.Option("--slow", help="Also the checks that take longer; claims given by number include theirs.")]
List = Annotated[bool, typer.Option("--list", help="List the claims, also those with slow checks, and measure nothing.")]
Explain = Annotated[bool, typer.Option("--explain", help="Print all measurements, the code of each check, and its plots.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a self-contained page with the plots.", show_default=False)]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed of each check.")]


def verify(rows: Rows = None, notes: Notes = None, only: Only = None, slow: Slow = False, list_: List = False,
           explain: Explain = False, html: Html = None, seed: Seed = 0, json_: Json = False) -> None:  # fmt: skip
    """Measure the claims of the lecture notes: what they say, what is expected, what is measured, and the verdict.

    The exit code is 1 if a claim does not hold or could not be measured, otherwise 0.

    regard verify

    regard verify --notes 001 --only complexity --html report.html

    regard verify --list

    regard verify 25 --explain
    """
    from regard.data.files import write_atomic
    from regard.verify.catalogue import choose
    from regard.verify.claim import Verdict
    from regard.verify.machine import describe_machine
    from regard.verify.report import About, page
    from regard.verify.run import Result
    from regard.verify.run import verify as run

    if html:
        _require_writable(html, list_)
    claims = choose(rows or (), notes, only, slow or list_)
    if not claims:
        raise ValueError("no claim has this number, these notes and this chapter together; see regard verify --list")
    if list_:
        _list(claims, json_)
        return
    console, results, start = _console(), list[Result](), time.perf_counter()
    with _progress(len(claims), enabled=not (json_ and sys.stdout.isatty())) as show:
        for claim in claims:
            show(len(results), claim)
            results += run([claim], seed)
            if json_:
                write_json(_as_json(results[-1]))
                sys.stdout.flush()
            else:
                _print(console, results[-1], explain)
    seconds = time.perf_counter() - start
    machine = describe_machine()
    if not json_:
        console.print(f"\n{_summary(results, seconds)}\n{machine}, seed {seed}", highlight=False, markup=False)
    if html:
        about = About(seed, machine, time.strftime("%Y-%m-%d"), seconds, shlex.join(["regard", *sys.argv[1:]]))
        write_atomic(html, page(results, about).encode())
        print(f"saved {html}", file=sys.stderr)
    if any(result.verdict in (Verdict.FAILS, Verdict.ERROR) for result in results):
        raise typer.Exit(1)


def _require_writable(html: Path, list_: bool) -> None:
    """Refuse a page that could not be written, before anything is measured."""
    if list_:
        raise ValueError("--list measures nothing, and --html writes what was measured; leave one of them out")
    if html.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--html {html} does not end in .html; use a name such as report.html")
    if html.is_dir():
        raise ValueError(f"--html {html} is a folder; give the name of a file, such as {html / 'report.html'}")
    if not html.parent.is_dir():
        raise ValueError(f"no folder {html.parent}; make it, or choose another --html")
    try:
        tempfile.TemporaryFile(dir=html.parent).close()
    except OSError as error:
        raise ValueError(f"--html {html} cannot be written: {error.strerror}; choose another folder") from None


def _console() -> "Console":
    from rich.console import Console

    return Console(soft_wrap=True)


@contextmanager
def _progress(total: int, enabled: bool) -> "Iterator[Callable[[int, Claim], None]]":
    """A bar on standard error, if that is a terminal; called with the number of checks done and the next claim."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not enabled or not console.is_terminal:
        yield lambda done, claim: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Results on the same terminal are printed above the bar; results in a pipe or a file stay there.
    with Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, claim: bar.update(task, completed=done, description=f"checking {claim.row}")


STYLES = {"holds": "green", "holds under a condition": "blue", "the notes are wrong": "yellow", "does not hold": "bold red",
          "could not be measured": "bold magenta"}  # fmt: skip


def _print(console: "Console", result: "Result", explain: bool) -> None:
    """A line for the claim, and below it the measurement that says most; or all of it."""
    from rich.text import Text

    claim, red = result.claim, [measurement for measurement in result.measurements if not measurement.holds]
    head = Text.assemble((f"{claim.row:>4}  ", "bold"), (f"{result.verdict}", STYLES.get(result.verdict, "dim")),
                         (f"  notes {' '.join(claim.notes)}", "dim"))  # fmt: skip
    console.print(head)
    console.print(f"      {claim.says}", highlight=False, markup=False)
    for text in (claim.condition and f"It holds {claim.condition}.", claim.right and f"Right: {claim.right}.", result.reason):
        if text:
            console.print(f"      {text}", highlight=False, markup=False)
    shown = result.measurements if explain else red or _telling(result)
    for found in shown:
        mark = " " if found.holds else "✗"
        wanted = f"the notes: {found.expected}" if found.refutes else f"expected {found.expected}"
        console.print(f"    {mark} {found.what}: {found.measured}, {wanted}", highlight=False, markup=False)
    if (more := len(result.measurements) - len(shown)) > 0:
        console.print(f"      and {more} more measurement{'s' if more > 1 else ''}", style="dim", highlight=False)
    if explain:
        _explain(console, result)


def _telling(result: "Result") -> "tuple[Measurement, ...]":
    """Two measurements at most: what the notes say if that is refuted, and the first of the others."""
    refuted = [found for found in result.measurements if found.refutes][:1]
    return (*refuted, *[found for found in result.measurements if not found.refutes][:1])


def _explain(console: "Console", result: "Result") -> None:
    from rich.syntax import Syntax

    from regard.verify.plots import to_text
    from regard.verify.report import code_of

    for plot in result.plots:
        console.print(f"\n{to_text(plot)}", highlight=False, markup=False)
    if result.claim.check:
        console.print()
        code = code_of(result.claim)
        if console.is_terminal:
            console.print(Syntax(code, "python", background_color="default", word_wrap=True), soft_wrap=False)
        else:
            write(code)
        console.print()


def _list(claims: "Sequence[Claim]", json_: bool) -> None:
    from regard.verify.report import coverage

    for claim in claims:
        if json_:
            write_json(_claim_as_json(claim))
        else:
            kind = "slow" if claim.slow else "quick" if claim.check else "not checkable"
            write(f"{claim.row:>4}", f"{claim.chapter:<13}", f"{' '.join(claim.notes):<19}", f"{kind:<13}", claim.says, sep="  ")
    if not json_:
        print(coverage(claims), file=sys.stderr)


def _summary(results: "Sequence[Result]", seconds: float) -> str:
    from regard.verify.claim import Verdict
    from regard.verify.report import coverage

    counts = Counter(result.verdict for result in results)
    found = ", ".join(f"{counts[verdict]} × {verdict}" for verdict in Verdict if verdict in counts)
    return f"{found}\n{coverage([result.claim for result in results])}; {seconds:.1f} s"


def _claim_as_json(claim: "Claim") -> dict[str, object]:
    return {"row": claim.row, "name": claim.name, "chapter": claim.chapter, "notes": list(claim.notes), "says": claim.says,
            "condition": claim.condition, "right": claim.right, "slow": claim.slow, "data": list(claim.data),
            "checkable": claim.check is not None}  # fmt: skip


def _as_json(result: "Result") -> dict[str, object]:
    measured = [dataclasses.asdict(found) for found in result.measurements]
    return {**_claim_as_json(result.claim), "verdict": str(result.verdict), "measurements": measured,
            "seconds": round(result.seconds, 3), "reason": result.reason}  # fmt: skip
