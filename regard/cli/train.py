"""Verbs that train: train, recipes."""

import json
import os
import shlex
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.limits import describe_limits
from regard.cli.options import Changes, Json, Out, Recipe
from regard.cli.score import print_scores
from regard.data.terminal import printable

if TYPE_CHECKING:
    from regard.run_folder import RunFolder

__all__ = ["recipes", "train"]


def train(
    what: Recipe, changes: Changes = None, out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint, bit for bit.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete an earlier run in the same folder.")] = False,
) -> None:  # fmt: skip
    """Train a model on your data: sentence pairs, text, labelled texts, images, captions, or speech.

    regard train multi30k train.steps=2000

    regard train sst2 init=runs/wikitext-bert

    regard train translate data.train=my.tsv data.valid=valid.tsv

    regard train images data.train=photos/

    regard train captions data.train=captions.tsv

    regard train speech data.train=speech.tsv

    regard train runs/multi30k --resume
    """
    from regard.run_folder import RunFolder
    from regard.tasks import read_run, run_name
    from regard.train.parallel import first_process
    from regard.train.resume import resumed_run, run_folder_of

    changes, folder = changes or [], run_folder_of(what)
    if folder is not None and not what.endswith(".toml"):
        if not (resume or fresh or out):
            raise ValueError(f"{what} is a run; continue it with --resume, start it over with --fresh, or train the same in "
                             f"another folder with --out")  # fmt: skip
        what = str(RunFolder(folder).run)
    elif RunFolder(what).remains:
        raise ValueError(f"{what} holds what is left of a run that was being replaced; repeat that command with its recipe: "
                         f"regard train RECIPE --out {what} --fresh")  # fmt: skip
    here = folder if resume or fresh else None  # the run of that folder, wherever it is now
    files = RunFolder(out or here or Path("runs") / run_name(what, changes))
    resuming = resume and not fresh and files.started
    run = resumed_run(what, changes, files) if resuming else read_run(what, changes)
    if not first_process():  # only the first process reports
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 open until exit
    else:
        _check_folder(files, resume, fresh)
    from regard.train.loop import Interrupted, fit

    try:
        place, notes = ["--out", str(out)] if out else [], [] if resuming else describe_limits(run)
        command = shlex.join(["regard", "train", what, *changes, *place])
        done = fit(run, files.path, fresh=fresh, command=command, notes=notes)
    except Interrupted as stop:
        print(f"regard: {printable(stop)}", file=sys.stderr)
        raise typer.Exit(130) from None
    if not first_process():
        return
    steps = f"{done.steps:,} step{'s' * (done.steps != 1)}"
    print(f"{run.name}: validation loss {done.loss:.4f} after {steps} and {done.minutes:.1f} minutes")
    print_scores(done.scores)
    print(f"saved in {printable(files.path)}")


def _check_folder(files: "RunFolder", resume: bool, fresh: bool) -> None:
    """Refuse to mix a run with another one, or with other files."""
    folder = files.path
    if resume and fresh:
        raise ValueError("--resume continues, --fresh starts over; give one of them")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose another --out")
    if files.started and not resume and not fresh:
        raise ValueError(f"{folder} holds a run already; continue with --resume, start over with --fresh, "
                         f"or choose another --out")  # fmt: skip
    if files.started:
        return
    if fresh and not files.remains and folder.exists() and any(not file.name.startswith(".") for file in folder.iterdir()):
        raise ValueError(f"{folder} holds other files than a run, which --fresh will not delete; choose another --out")
    if resume:
        print(f"nothing to resume in {printable(folder)}; starting from step 0", file=sys.stderr)


def recipes(json_: Json = False) -> None:
    """List the recipes that ship with regard: command, expected minutes and score.

    regard recipes
    """
    from regard.config import recipes as all_recipes
    from regard.data.sources import describe_download

    headers = {
        name: [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        for name, path in all_recipes().items()
    }
    if json_:
        print(json.dumps(headers))
    else:
        for name, path in all_recipes().items():
            source = str(tomllib.loads(path.read_text(encoding="utf-8")).get("data", {}).get("source", ""))
            data = [f"data: {what}" for one in source.split(",") if (what := describe_download(one.strip()))]
            print(name, *(f"    {line}" for line in (*headers[name], *data)), sep="\n")
