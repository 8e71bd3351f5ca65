"""The verb `runs`: list trainings, and delete what they no longer need."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Json
from regard.data.terminal import printable
from regard.data.units import format_size

if TYPE_CHECKING:
    from regard.train.inventory import RunSummary

__all__ = ["runs"]

Folders = Annotated[list[Path] | None, typer.Argument(
    metavar="[FOLDER]...", help="Run folders, or folders of them.  [default: runs/]", show_default=False)]  # fmt: skip
Prune = Annotated[bool, typer.Option("--prune", help="Delete checkpoints that neither predicting nor resuming needs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --prune: only say what would be deleted.")]
Yes = Annotated[bool, typer.Option("--yes", help="With --prune: do not ask.")]


def runs(folders: Folders = None, prune: Prune = False, dry_run: DryRun = False, yes: Yes = False, json_: Json = False) -> None:
    """List runs with task, model, parameters, size on disk, score, steps, date and status; free disk space.

    --prune keeps what predicting needs, and of an interrupted run what resuming needs.  A finished run cannot be trained on
    afterwards; it can still be fine-tuned with init=.  Nothing is deleted in a run that is being trained, nor files of others.

    regard runs

    regard runs --prune runs/multi30k
    """
    if (dry_run or yes) and not prune:
        raise ValueError(f"{'--dry-run' if dry_run else '--yes'} is for --prune; give both")
    found = _find(folders)
    if prune:
        _prune(found, dry_run, yes, json_)
    elif json_:
        print(json.dumps([_to_json(run) for run in found]))
    elif found:
        _print_table(found)


def _find(folders: list[Path] | None) -> list["RunSummary"]:
    from regard.train.inventory import find_runs

    if not folders and not Path("runs").exists():
        print("regard: no folder runs/ here; train something first, or give a folder", file=sys.stderr)
        return []
    found = {run.folder.resolve(): run for place in folders or [Path("runs")] for run in find_runs(place)}
    if not found:
        print(f"regard: no runs in {printable(', '.join(map(str, folders or [Path('runs')])))}", file=sys.stderr)
    return list(found.values())


def _to_json(run: "RunSummary") -> dict[str, object]:
    return {
        "folder": str(run.folder), "status": run.status, "note": run.note, "task": run.task, "family": run.family,
        "parameters": run.parameters, "bytes": run.bytes, "step": run.step, "steps": run.steps, "loss": run.loss,
        "scores": run.scores, "date": _date(run) if run.modified else None,
    }  # fmt: skip


def _date(run: "RunSummary") -> str:
    return datetime.fromtimestamp(run.modified).astimezone().isoformat(timespec="seconds")


def _print_table(found: list["RunSummary"]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("run", "task", "model", "parameters", "size", "score", "steps", "date", "status"):
        table.add_column(heading, justify="right" if heading in ("parameters", "size", "steps") else "left", overflow="fold")
    for run in found:
        table.add_row(*(Text(printable(cell, keep="")) for cell in _cells(run)))  # as Text, brackets are no markup
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _cells(run: "RunSummary") -> tuple[str, ...]:
    score = next((f"{value:.2f} {name}" for name, value in run.scores.items()), "")
    score = score or (f"loss {run.loss:.3f}" if run.loss is not None else "")
    status = f"interrupted at step {run.step:,}" if run.status == "interrupted" else run.status
    known = run.status != "imported" and run.steps
    return (
        str(run.folder), run.task, run.family, f"{run.parameters:,}" if run.parameters else "", format_size(run.bytes), score,
        f"{run.step:,} of {run.steps:,}" if known else "", _date(run)[:10] if run.modified else "",
        f"{status} ({run.note})" if run.note else status,
    )  # fmt: skip


def _prune(found: list["RunSummary"], dry_run: bool, yes: bool, json_: bool) -> None:
    """Say what deleting would free, ask, delete."""
    from regard.train.inventory import deletable, delete

    plans = [(run, *deletable(run)) for run in found]
    for run, paths, freed in plans:
        name = printable(run.folder, keep="")
        if paths:
            print(
                f"{name}: {format_size(freed)} of {format_size(run.bytes)} in {len(paths)} files of checkpoints", file=sys.stderr
            )
        elif run.status not in ("finished", "interrupted", "imported"):
            print(f"{name}: left alone, {run.status}", file=sys.stderr)
    plans = [plan for plan in plans if plan[1]]
    total = sum(freed for _, _, freed in plans)
    if plans and not dry_run and not yes:
        _ask(f"delete them, {format_size(total)} in all? Finished runs cannot be trained on afterwards")
    done = {}
    for run, _, freed in plans:
        try:
            done[str(run.folder)] = freed if dry_run else delete(run)
        except (OSError, ValueError) as error:  # a training has begun in it, or it holds links: the others are pruned
            print(f"{printable(run.folder, keep='')}: left alone, {printable(error, keep='')}", file=sys.stderr)
    if json_:
        print(json.dumps({"dry_run": dry_run, "freed": done}))
    else:
        print(f"{'would free' if dry_run else 'freed'} {format_size(sum(done.values()))}")


def _ask(question: str) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise ValueError("--prune deletes; confirm with --yes, or look first with --dry-run")
    typer.confirm(question, abort=True, err=True)
