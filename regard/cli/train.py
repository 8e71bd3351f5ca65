"""Verbs that train and score: train, recipes, score, compare."""

import json
import os
import shlex
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.io import open_run, show_progress
from regard.cli.limits import limits
from regard.cli.options import Beam, Changes, Device, Json, LengthPenalty, Out, Precision, Recipe, RunPath, Split
from regard.data.terminal import printable

if TYPE_CHECKING:
    from regard.run_folder import RunFolder
    from regard.tasks.metrics import Score
    from regard.view.compare import Comparison

__all__ = ["compare", "recipes", "score", "train"]


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
        notes = [] if resuming else limits(run)
        done = fit(run, files.path, fresh=fresh, command=shlex.join(["regard", "train", what, *changes]), notes=notes)
    except Interrupted as stop:
        print(f"regard: {printable(stop)}", file=sys.stderr)
        raise typer.Exit(130) from None
    if not first_process():
        return
    print(f"{run.name}: validation loss {done.loss:.4f} after {done.steps:,} steps and {done.minutes:.1f} minutes")
    _print_scores(done.scores)
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

    headers = {
        name: [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        for name, path in all_recipes().items()
    }
    if json_:
        print(json.dumps(headers))
    else:
        for name, lines in headers.items():
            print(name, *(f"    {line}" for line in lines), sep="\n")


def score(run: RunPath, on: Split = "valid", beam: Beam = None, length_penalty: LengthPenalty = None, device: Device = "auto",
          precision: Precision = "float32", json_: Json = False) -> None:  # fmt: skip
    """Score a run on validation or test data.

    Translations by BLEU and chrF with their signatures, classes by accuracy and F1, language models by perplexity, generated
    images by bits per pixel, word vectors by Spearman's correlation with human ratings (--on wordsim353, simlex999, men3000 …),
    captions by BLEU-1 to BLEU-4, transcripts by word and character error rate.

    regard score runs/multi30k --on test_2016_flickr
    """
    from regard.tasks import task_of
    from regard.tasks.load import load
    from regard.tasks.task import ScoreOptions

    predictor = load(run, device, precision)
    task = task_of(predictor.run)
    if precision != "float32" and not task.int8:
        raise ValueError(f"--precision {precision} is for translations and classes; {run} is scored in float32")
    for name, value in {"beam": beam, "length-penalty": length_penalty}.items():
        if value is not None and not task.scored_by_search:
            raise ValueError(f"--{name} {value} is for translations; {run} does not translate")
    with show_progress(f"scoring {on}") as count:
        options = ScoreOptions(None, beam, length_penalty, partial(print, file=sys.stderr), partial(count, 0))
        scores = task.score(predictor, on, options)
    if json_:
        print(json.dumps([s._asdict() for s in scores]))
    else:
        _print_scores(scores)


def compare(
    runs: Annotated[list[str], typer.Argument(help="Run folders of translation models.", show_default=False)],
    on: Split = "valid",
    by: Annotated[str | None, typer.Option(help="length: score short and long sentences apart.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help="Also draw it: .png, .svg, .pdf or .json.", show_default=False)] = None,
    beam: Beam = None, length_penalty: LengthPenalty = None, device: Device = "auto",
    json_: Json = False,
) -> None:  # fmt: skip
    """Compare translation models on the same test data, side by side.

    regard compare runs/multi30k-seq2seq runs/multi30k-bahdanau runs/multi30k --by length --out lengths.png
    """
    from regard.tasks.task import ScoreOptions
    from regard.view.compare import compare as compare_runs
    from regard.view.compare import to_file
    from regard.view.draw import check_file

    if by not in (None, "length"):
        raise ValueError(f"--by {by}; use --by length, or leave it out")
    if out:
        check_file(out)
    with show_progress(f"translating {on}") as count:
        options = ScoreOptions(None, beam, length_penalty, partial(print, file=sys.stderr), partial(count, 0))
        found = compare_runs(runs, lambda run: open_run(run, "translate", device), on, options, by_length=by == "length")
    if json_:
        print(found.to_json())
    else:
        _print_comparison(found)
    if out:
        for note in to_file(found, out):
            print(note, file=sys.stderr)
        print(f"saved {out}", file=sys.stderr if json_ else sys.stdout)


def _print_comparison(found: "Comparison") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # As Text, brackets in the name of a folder or file are not markup.
    table = Table(
        title=Text(f"{found.title}: {found.metric}"), title_justify="left", caption=found.signature, caption_justify="left"
    )
    for heading in ("words", "sentences", *found.runs):
        table.add_column(Text(heading), justify="right")
    for bucket in found.buckets:
        table.add_row(bucket.words, f"{bucket.sentences:,}", *(f"{score:.2f}" for score in bucket.bleu))
    table.add_section()
    table.add_row("all", f"{found.whole.sentences:,}", *(f"{score:.2f}" for score in found.whole.bleu))
    table.add_row("chrF", "", *(f"{score:.2f}" for score in found.whole.chrf))
    Console(width=None if sys.stdout.isatty() else 130).print(table)


def _print_scores(scores: "Iterable[Score]") -> None:
    for s in scores:
        print(f"{s.value:6.2f}  {s.name}  ({s.signature})")
