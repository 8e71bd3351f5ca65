"""The model card: what a run folder's README.md says of data, licence, scores and the command."""

from collections.abc import Sequence
from typing import Any, cast

from regard.config import Run
from regard.data.sources import SOURCES
from regard.data.text.config import TextData
from regard.data.text.splits import licence_of
from regard.train.metrics import Score
from regard.train.tasks import TASKS

__all__ = ["card"]

_USES = {  # task → what the model does, what hubs call it, the verb, and the same in Python
    "translate": ("translates", "translation", "translate", 'translate(["…"])'),
    "next": ("continues a text", "text-generation", "generate", 'write("…")'),
    "masked": ("guesses hidden words", "fill-mask", "fill", 'fill("… [MASK] …")'),
    "spans": ("guesses spans cut out of a text", "text2text-generation", "ask", 'translate(["… <extra_id_0> …"])'),
    "class": ("classifies texts", "text-classification", "classify", 'classify(["…"])'),
    "image": ("classifies pictures", "image-classification", "classify", 'classify(["photo.jpg"])'),
    "pixels": ("draws pictures", "unconditional-image-generation", "generate", "draw(16)"),
}


def _how(run: Run) -> str:
    if run.task != "translate":
        return ""
    return f", at most 1,000 pairs of a set, beam {run.decode.beam_size}, length penalty {run.decode.length_penalty}"


def _step(run: Run) -> str:
    if run.task in ("image", "pixels"):
        return f"{run.train.batch_size * run.train.accumulate:,} pictures"
    return f"{run.train.batch_tokens * run.train.accumulate:,} tokens"


def card(run: Run, *, version: str, command: str, parameters: int, minutes: float, steps: int, loss: float,
         scores: Sequence[Score]) -> str:  # fmt: skip
    """Markdown with the front matter that model hubs read."""
    where = run.data.source or run.data.train
    known = SOURCES[run.data.source].pairs if run.data.source in SOURCES else ()
    languages = (run.data.pair or known[0]).split("-") if known else []
    what, tag, verb, code = _USES[run.task]
    head = ["---", "library_name: regard", f"tags: [{tag}, {run.family}]",
            *(["language: [" + ", ".join(languages) + "]"] if languages else []), "---"]  # fmt: skip
    facts: list[tuple[str, Any]] = [
        ("data", f"{where}{' (lower-cased, tokenised text)' if run.data.text == 'tok' else ''}"),
        ("licence of the data", run.licence or licence_of(cast(TextData, run.data))),
        ("parameters", f"{parameters:,}"),
        (
            "trained for",
            f"{steps:,} steps of up to {_step(run)}, {minutes:.1f} minutes",
        ),
        *([("begun from", run.init)] if run.init else []),
        ("held-out loss", f"{loss:.4f} nats a {TASKS[run.task].one}"),
    ]
    lines = [
        *head,
        f"# {run.name}",
        "",
        f"A {run.family} that {what}, trained by regard {version}:",
        "",
        f"    {command}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {key} | {value} |" for key, value in facts),
        "",
        f"Scores on held-out data{_how(run)}:",
        "",
        "| | | signature |",
        "|---|---|---|",
        *(f"| {s.name} | {s.value:.2f} | `{s.signature}` |" for s in scores),
        "",
        f"Use it with `regard {verb}` on this folder, or in Python:",
        "",
        f'    regard.load("this/folder").{code}',
        "",
    ]
    return "\n".join(lines)
