"""The model card: what a run folder's README.md says of data, licence, scores and the command."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # a card is read without torch
    from regard.config import Run
    from regard.tasks.metrics import Score

__all__ = ["WEIGHTS_LICENCE", "CardFacts", "ScoreTable", "card", "read_card", "score_table", "usage"]

WEIGHTS_LICENCE = "licence of the weights"  # a row of the cards of models that ship with regard


def card(run: "Run", *, folder: Path, version: str, command: str, parameters: int, minutes: float, steps: int, loss: float,
         scores: "Sequence[Score]", batches: int) -> str:  # fmt: skip
    """Markdown with the front matter that model hubs read; `folder` is where the run is."""
    from regard.data.sources import SOURCES
    from regard.data.text.splits import licence_of
    from regard.tasks import task_of

    task, data = task_of(run), run.data
    pairs = SOURCES[data.source].pairs if data.source in SOURCES else ()
    pair = run.languages or ((data.pair or pairs[0]) if pairs else "")
    languages = pair.split("-") if pair else []
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
{score_table(f"validation data{task.score_text(run)}", scores)}
Use it on the command line, or in Python:

{usage(run, str(folder))}
"""


def score_table(on: str, scores: "Sequence[Score]") -> str:
    """Scores as a table with a heading; `on` says on which data, and how."""
    rows = "".join(_row(score) for score in scores)
    return f"Scores on {on}:\n\n| | | computed on, signature |\n|---|---|---|\n{rows}"


def usage(run: "Run", name: str) -> str:
    """How a run is used, on the command line and in Python; `name` is its folder, or that of a shipped model."""
    from regard.tasks import task_of

    about = task_of(run).card
    return f"""    regard {about.verb} {shlex.quote(name)} {about.words}

    regard.load({json.dumps(name, ensure_ascii=False)}).{about.call}"""


class ScoreTable(NamedTuple):
    """Scores, and what they were computed on."""

    on: str = ""  # which data, and how
    scores: tuple[tuple[str, str, str], ...] = ()  # name, value, and the number of examples with a signature


NO_SCORES = ScoreTable()


@dataclass(frozen=True)
class CardFacts:
    """What a card says; empty where it says nothing."""

    does: str = ""
    languages: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()  # the rows of its first table
    valid: ScoreTable = NO_SCORES
    test: ScoreTable = NO_SCORES  # of another split, if the run was scored on one when it was exported
    usage: str = ""  # the command

    def fact(self, key: str) -> str:
        """The value of a row of the first table."""
        return dict(self.facts).get(key, "")


def read_card(text: str) -> CardFacts:
    """Read what `card` has written."""
    does = re.search(r"^An? \S+ that (.+?), trained by regard", text, flags=re.M)
    command = re.search(r"^Use it .*\n\n +(.*)$", text, flags=re.M)
    languages = re.search(r"^language: \[(.*)\]$", text, flags=re.M)
    facts, *tables = re.split(r"^Scores on (?=.*:$)", text, flags=re.M)
    scores = [ScoreTable(table.partition(":\n")[0], tuple((a, b, c) for a, b, c in _cells(table, 3))) for table in tables]
    return CardFacts(
        does[1] if does else "",
        tuple(languages[1].split(", ")) if languages else (),
        tuple((a, b) for a, b in _cells(facts, 2)),
        scores[0] if scores else NO_SCORES,
        scores[1] if scores[1:] else NO_SCORES,
        command[1] if command else "",
    )


def _cells(text: str, columns: int) -> list[list[str]]:
    """The cells of the rows of a table that have a name and so many columns."""
    rows = [re.split(r"(?<!\\)\|", line.strip()[1:-1]) for line in text.splitlines() if re.match(r"\| [^|]", line)]
    cells = [[cell.strip().strip("`").replace("\\|", "|") for cell in row] for row in rows]
    return [row for row in cells if len(row) == columns and row[0]]


def _row(score: "Score") -> str:
    """A row of the table of scores; a bar of a signature would start another cell."""
    details = score.details.replace("|", "\\|")
    return f"| {score.name} | {score.value:.2f}{f' {score.unit}' if score.unit else ''} | `{details}` |\n"
