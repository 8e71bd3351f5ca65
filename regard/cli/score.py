"""Verbs that score: score, compare; and scores on the terminal."""

import dataclasses
import json
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.io import note, open_run, show_progress, write, write_json_text
from regard.cli.options import Beam, Device, EnsembleRuns, Json, LengthPenalty, Precision, RunPath, Split

if TYPE_CHECKING:
    from regard.tasks.errors import ErrorAnalysis
    from regard.tasks.metrics import Score
    from regard.tasks.predictors import Predictor
    from regard.view.compare import Comparison

__all__ = ["compare", "print_scores", "score"]

SHOWN = 20  # worst examples in --json

Errors = Annotated[bool, typer.Option("--errors", help="Also show where it is wrong: confused classes, the worst examples.")]
ErrorsFile = Annotated[Path | None, typer.Option(
    help="Write every example with its answer to a .tsv or .json file, or draw the confusion matrix: .png, .svg, .pdf.",
    show_default=False)]  # fmt: skip
Bootstrap = Annotated[int, typer.Option(
    min=0, max=100_000, help="Resamples for confidence intervals of BLEU and chrF, such as 1000; 0 computes none.")]  # fmt: skip


def score(run: RunPath, on: Split = "valid", beam: Beam = None, length_penalty: LengthPenalty = None, device: Device = "auto",
          precision: Precision = "float32", ensemble: EnsembleRuns = None, errors: Errors = False, out: ErrorsFile = None,
          bootstrap: Bootstrap = 0, json_: Json = False) -> None:  # fmt: skip
    """Score a run on validation or test data.

    Translations by BLEU and chrF with their signatures, classes by accuracy and F1, language models by perplexity, generated
    images by bits per pixel, word vectors by Spearman's correlation with human ratings (--on wordsim353, simlex999, men3000 …),
    captions by BLEU-1 to BLEU-4, transcripts by word and character error rate.  Examples that are in the training data are
    counted.  --on may name another run: its validation data.

    regard score runs/multi30k --on test_2016_flickr
    """
    from regard.tasks import task_of
    from regard.tasks.load import load
    from regard.tasks.task import ScoreOptions

    predictor = load(run, device, precision)
    task = task_of(predictor.run)
    if precision != "float32" and not task.int8:
        raise ValueError(f"--precision {precision} is for translations and classes; {run} is scored in float32")
    searched = {"beam": beam, "length-penalty": length_penalty, "bootstrap": bootstrap or None}
    for name, value in searched.items():
        if value is not None and not task.scored_by_search:
            raise ValueError(f"--{name} {value} is for translations; {run} does not translate")
    for name, wanted in {"errors": errors, f"out {out}": out}.items():
        if wanted and not task.analyses_errors:
            raise ValueError(f"--{name} is for translations and classes; {run} has no such analysis")
    if ensemble:
        if not hasattr(predictor, "ensemble"):
            raise ValueError(f"--ensemble {' '.join(ensemble)} is for translations; {run} does not translate")
        predictor = predictor.ensemble(*(open_run(other, "translate", device, precision) for other in ensemble))
        note(f"scored as an ensemble of {', '.join([run, *ensemble])}")
    if out:
        from regard.view.errors import check_file

        check_file(out, classes=bool(getattr(predictor, "labels", ())))
    trained_on = predictor.run
    predictor, split = _on_run(predictor, on)
    analyses: list[ErrorAnalysis] = []
    collect = analyses.append if errors or out else None
    with show_progress(f"scoring {on}") as count:
        options = ScoreOptions(None, beam, length_penalty, note, partial(count, 0), bootstrap, trained_on, collect)
        scores = task.score(predictor, split, options)
    if not analyses:
        if json_:
            print(json.dumps([s.to_json() for s in scores]))
        else:
            print_scores(scores)
        return
    _show_errors(scores, analyses, out, errors, json_)


def _on_run(predictor: "Predictor", on: str) -> "tuple[Predictor, str]":
    """A predictor that reads the data of another run, and "valid", if `on` is a run folder; else as they came."""
    from regard.run_folder import RunFolder
    from regard.tasks import read_run

    if not RunFolder.find(on).run.is_file():
        return predictor, on
    mine, other = predictor.run, read_run(RunFolder.find(on).run)
    if type(other.data) is not type(mine.data) or other.task != mine.task:
        raise ValueError(f"{on} was trained on task {other.task}, this run on {mine.task}; --on takes a run of the same task")
    kept = {key: getattr(mine.data, key) for key in (*mine.data.INHERITED, "max_len") if hasattr(mine.data, key)}
    if hasattr(other.data, "bpe_dropout"):  # of its training, and perhaps not of this tokenizer
        kept["bpe_dropout"] = 0.0
    return dataclasses.replace(predictor, run=dataclasses.replace(mine, data=dataclasses.replace(other.data, **kept))), "valid"


def _show_errors(scores: "list[Score]", analyses: "list[ErrorAnalysis]", out: Path | None, errors: bool, json_: bool) -> None:
    """Print scores and errors; of a mixture, the examples of all its sets."""
    from regard.tasks.errors import ErrorAnalysis
    from regard.view.errors import to_file, to_json, to_text

    analysis = ErrorAnalysis([example for part in analyses for example in part.examples], analyses[0].labels)
    if json_:
        print(json.dumps(to_json(analysis, scores, SHOWN)))
    else:
        print_scores(scores)
        if errors:
            write(to_text(analysis))
    if out:
        _report_saved(to_file(analysis, scores, out), out, json_)


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
        options = ScoreOptions(None, beam, length_penalty, note, partial(count, 0))
        found = compare_runs(runs, lambda run: open_run(run, "translate", device), on, options, by_length=by == "length")
    if json_:
        write_json_text(found.to_json())
    else:
        _print_comparison(found)
    if out:
        _report_saved(to_file(found, out), out, json_)


def _report_saved(notes: Iterable[str], out: Path, json_: bool) -> None:
    """Say what was noted while drawing, and where the file is; with --json, standard output is JSON only."""
    for line in notes:
        note(line)
    (note if json_ else write)(f"saved {out}")


def _print_comparison(found: "Comparison") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from regard.data.terminal import printable

    # As Text, brackets in the name of a folder or file are not markup.
    title = printable(f"{found.title}: {found.metric} of {found.whole.sentences:,} sentences", keep="")
    table = Table(title=Text(title), title_justify="left")
    for heading in ("words", "sentences", *found.runs):
        table.add_column(Text(printable(heading, keep="")), justify="right")
    for bucket in found.buckets:
        table.add_row(bucket.words, f"{bucket.sentences:,}", *(f"{score:.2f}" for score in bucket.bleu))
    table.add_section()
    table.add_row("all", f"{found.whole.sentences:,}", *(f"{score:.2f}" for score in found.whole.bleu))
    table.add_row("chrF", "", *(f"{score:.2f}" for score in found.whole.chrf))
    Console(width=None if sys.stdout.isatty() else 130).print(table)
    write(found.signature)  # not in the table, which would break it


def print_scores(scores: "Iterable[Score]") -> None:
    """One line for each score: value, name, how it was computed."""
    from regard.data.terminal import printable

    for s in scores:
        print(printable(f"{s.value:6.2f}{f' {s.unit}' if s.unit else ''}  {s.name}  ({s.details})", keep=""))
