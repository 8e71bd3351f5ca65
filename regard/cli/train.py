"""Verbs that train and score: train, recipes, score."""

import json
import os
import shlex
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.io import counting
from regard.cli.options import Beam, Changes, Device, Json, Out, Penalty, Precision, Recipe, RunFolder, Split

if TYPE_CHECKING:
    from regard.config import Run
    from regard.train.metrics import Score

__all__ = ["recipes", "score", "train"]


def train(
    what: Recipe,
    changes: Changes = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint, to the same bits.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away an earlier run of the same name.")] = False,
) -> None:  # fmt: skip
    """Learn a model from your data: pairs of sentences, text, texts with classes, or pictures.

    regard train multi30k train.steps=2000

    regard train sst2 init=runs/wikitext-bert

    regard train translate data.train=my.tsv data.valid=held.tsv

    regard train images data.train=photos/
    """
    from regard.config import load
    from regard.models import FAMILIES

    run = load(what, changes or (), FAMILIES)
    folder = out or Path("runs") / run.name
    from regard.train.parallel import first_process

    if not first_process():  # what there is to say, the first one says
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  until the end
    else:
        _check_folder(folder, resume, fresh)
    if resume and (folder / "run.toml").exists():
        run = _resumed(run, folder, changes or ())
    from regard.train.loop import Interrupted, fit

    try:
        done = fit(run, folder, fresh=fresh, command=shlex.join(["regard", "train", what, *(changes or ())]))
    except Interrupted as stop:
        print(f"regard: {stop}", file=sys.stderr)
        raise typer.Exit(130) from None
    if not first_process():
        return
    print(f"{run.name}: held-out loss {done.loss:.4f} after {done.steps:,} steps and {done.minutes:.1f} minutes")
    _print_scores(done.scores)
    print(f"saved in {folder}")


def _check_folder(folder: Path, resume: bool, fresh: bool) -> None:
    """Refuse to mix a run with another one, or with other things."""
    if resume and fresh:
        raise ValueError("--resume goes on, --fresh starts over; give one of them")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose another --out")
    if (folder / "run.toml").exists() and not resume and not fresh:
        raise ValueError(
            f"{folder} holds a run already; go on with --resume, start over with --fresh, or choose another --out"
        )
    if (folder / "run.toml").exists():
        return
    if fresh and folder.exists() and any(not file.name.startswith(".") for file in folder.iterdir()):
        raise ValueError(f"{folder} holds other things than a run, which --fresh will not delete; choose another --out")
    if resume:
        print(f"nothing to resume in {folder}; starting from the beginning", file=sys.stderr)


def _resumed(asked: "Run", folder: Path, changes: Iterable[str]) -> "Run":
    """The run a folder holds, with changes on top that leave its model and data alone."""
    from regard.config import load
    from regard.models import FAMILIES

    held = load(str(folder / "run.toml"), (), FAMILIES)
    run = load(str(folder / "run.toml"), changes, FAMILIES)
    kept = ("name", "family", "model", "task", "init", "data")
    if any(getattr(run, key) != getattr(held, key) for key in kept) or asked.name != held.name:
        raise ValueError(
            f"{folder} was trained as {held.name} with another model or other data; "
            f"--resume may change train and decode keys only"
        )
    return run


def recipes(json_: Json = False) -> None:
    """List the recipes that ship with regard.

    Each with its command, and the minutes and score to expect.

    regard recipes
    """
    from regard.config import recipes as all_recipes

    headers = {
        name: [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        for name, path in all_recipes().items()
    }
    if json_:
        print(json.dumps(headers))
    else:
        for name, lines in headers.items():
            print(name, *(f"    {line}" for line in lines), sep="\n")


def score(
    run: RunFolder,
    on: Split = "valid",
    beam: Beam = None,
    length_penalty: Penalty = None,
    device: Device = "auto",
    precision: Precision = "float32",
    json_: Json = False,
) -> None:  # fmt: skip
    """Score a run on held-out data.

    Translations with BLEU and chrF and their signatures, classes with accuracy and F1, language models with perplexity, pictures
    that are drawn with bits per pixel.

    regard score runs/multi30k --on test_2016_flickr
    """
    from regard.decode.folder import load
    from regard.train.metrics import score_split

    opened = load(run, device, precision)
    if precision != "float32" and opened.run.task not in ("translate", "class", "image"):
        raise ValueError(f"--precision {precision} is for translations and classes; {run} is scored in float32")
    how: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty} if opened.run.task == "translate" else {}
    for name, value in {"beam": beam, "length_penalty": length_penalty}.items():
        if value is not None and not how:
            raise ValueError(f"--{name.replace('_', '-')} {value} is for translations; {run} is scored without")
    with counting(f"scoring {on}") as count:
        say = partial(print, file=sys.stderr)
        if opened.run.task in ("translate", "class", "image"):
            how["progress"] = partial(count, 0)
        scores = score_split(opened, on, say=say, **how)
    if json_:
        print(json.dumps([s._asdict() for s in scores]))
    else:
        _print_scores(scores)


def _print_scores(scores: "Iterable[Score]") -> None:
    for s in scores:
        print(f"{s.value:6.2f}  {s.name}  ({s.signature})")
