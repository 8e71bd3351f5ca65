"""The model card: what a run folder's README.md says of data, licence, scores and the command."""

from collections.abc import Sequence

from regard.config import Run
from regard.data.sources import SOURCES
from regard.data.text.splits import licence_of
from regard.tasks import task_of
from regard.tasks.metrics import Score

__all__ = ["card"]


def card(run: Run, *, version: str, command: str, parameters: int, minutes: float, steps: int, loss: float,
         scores: Sequence[Score], batches: int) -> str:  # fmt: skip
    """Markdown with the front matter that model hubs read."""
    task, data = task_of(run), run.data
    pairs = SOURCES[data.source].pairs if data.source in SOURCES else ()
    languages = (data.pair or pairs[0]).split("-") if pairs else []
    facts = {
        "data": (data.source or data.train) + (" (lower-cased, tokenized text)" if getattr(data, "text", "raw") == "tok" else ""),
        "licence of the data": run.licence or licence_of(data),
        "parameters": f"{parameters:,}",
        "trained for": f"{steps:,} steps of up to {task.batch_text(run, batches)}, {minutes:.1f} minutes",
        **({"initialized from": run.init} if run.init else {}),
        "validation loss": f"{loss:.4f} nats per {task.unit}",
    }
    article = "An" if run.family[0] in "aeiou" else "A"
    language = f"language: [{', '.join(languages)}]\n" if languages else ""
    rows = "".join(f"| {key} | {value} |\n" for key, value in facts.items())
    table = "".join(f"| {score.name} | {score.value:.2f} | `{score.signature}` |\n" for score in scores)
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

| | | signature |
|---|---|---|
{table}
Use it with `regard {task.card.verb}` on this folder, or in Python:

    regard.load("this/folder").{task.card.call}
"""
