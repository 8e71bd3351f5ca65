"""The model card: what a run folder's README.md says of data, licence, scores and the command."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from regard.config import Run
from regard.data.sources import SOURCES
from regard.data.text.splits import licence_of
from regard.tasks import task_of
from regard.tasks.metrics import Score

__all__ = ["card"]


def card(run: Run, *, folder: Path, version: str, command: str, parameters: int, minutes: float, steps: int, loss: float,
         scores: Sequence[Score], batches: int) -> str:  # fmt: skip
    """Markdown with the front matter that model hubs read; `folder` is where the run is."""
    task, data = task_of(run), run.data
    pairs = SOURCES[data.source].pairs if data.source in SOURCES else ()
    languages = (data.pair or pairs[0]).split("-") if pairs else []
    facts = {
        "data": (data.source or data.train) + (" (lower-cased, tokenized text)" if getattr(data, "text", "raw") == "tok" else ""),
        "licence of the data": run.licence or licence_of(data),
        "parameters": f"{parameters:,}",
        "trained for": f"{steps:,} step{'s' * (steps != 1)} of up to {task.batch_text(run, batches)}, {minutes:.1f} minutes",
        **({"initialized from": run.init} if run.init else {}),
        **({"mixed in, with shares of the examples": data.mix} if getattr(data, "mix", "") else {}),
        "validation loss": f"{loss:.4f} nats per {task.unit}",
    }
    article = "An" if run.family[0] in "aeiou" else "A"
    language = f"language: [{', '.join(languages)}]\n" if languages else ""
    rows = "".join(f"| {key} | {value} |\n" for key, value in facts.items())
    table = "".join(_row(score) for score in scores)
    return f"""---
library_name: regard
tags: [{task.card.tag}, {run.family}]
{language}---
# {run.name}

{article} {run.family} that {task.card.does}, trained by regard {version}:

    {command}

| | |
|---|---|
{rows}
Scores on validation data{task.score_text(run)}:

| | | computed on, signature |
|---|---|---|
{table}
Use it on the command line, or in Python:

    regard {task.card.verb} {shlex.quote(str(folder))} {task.card.words}

    regard.load({json.dumps(str(folder), ensure_ascii=False)}).{task.card.call}
"""


def _row(score: Score) -> str:
    """A row of the table of scores; a bar of a signature would start another cell."""
    details = score.details.replace("|", "\\|")
    return f"| {score.name} | {score.value:.2f}{f' {score.unit}' if score.unit else ''} | `{details}` |\n"
