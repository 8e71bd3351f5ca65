"""The model card: what a run folder's README.md says of data, licence, scores and the command."""

from collections.abc import Sequence
from typing import Any

from regard.config import Run
from regard.data.corpus import licence_of
from regard.data.sources import SOURCES
from regard.train.metrics import Score

__all__ = ["card"]


def card(run: Run, *, version: str, command: str, parameters: int, minutes: float, steps: int, loss: float,
         on: str, scores: Sequence[Score]) -> str:  # fmt: skip
    """Markdown with the front matter that model hubs read."""
    where = run.data.source or run.data.train
    known = SOURCES[run.data.source].pairs[0] if run.data.source in SOURCES else ""
    languages = (run.data.pair or known).split("-") if known else []
    head = ["---", "library_name: regard", "tags: [translation, transformer]",
            *(["language: [" + ", ".join(languages) + "]"] if languages else []), "---"]  # fmt: skip
    facts: list[tuple[str, Any]] = [
        ("data", f"{where}{' (lower-cased, tokenised text)' if run.data.text == 'tok' else ''}"),
        ("licence of the data", run.licence or licence_of(run.data)),
        ("parameters", f"{parameters:,}"),
        (
            "trained for",
            f"{steps:,} steps of up to {run.train.tokens * run.train.accumulate:,} tokens, {minutes:.1f} minutes",
        ),
        ("held-out loss", f"{loss:.4f} nats a token"),
    ]
    lines = [
        *head,
        f"# {run.name}",
        "",
        f"A Transformer that translates, trained by regard {version}:",
        "",
        f"    {command}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {key} | {value} |" for key, value in facts),
        "",
        f"Scores on {on}, beam {run.decode.beam}, length penalty {run.decode.length_penalty}:",
        "",
        "| | | signature |",
        "|---|---|---|",
        *(f"| {s.name} | {s.value:.2f} | `{s.signature}` |" for s in scores),
        "",
        "Use it with `regard translate` on this folder, or in Python:",
        "",
        '    regard.load("this/folder").translate(["…"])',
        "",
    ]
    return "\n".join(lines)
