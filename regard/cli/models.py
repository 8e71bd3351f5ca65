"""The verb `models`: the models that ship with regard, by what their own folders say."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.io import write
from regard.cli.options import Json
from regard.data.units import format_size
from regard.shipped import shipped_models

if TYPE_CHECKING:  # nothing of a training is loaded before it is needed
    from regard.train.card import ScoreTable

__all__ = ["models"]

SHOWN = 3  # scores on the terminal; --json has all


def models(json_: Json = False) -> None:
    """List the models that ship with regard: what each does, parameters, size on disk, data and its licence, scores.

    regard models
    """
    found = [_describe(name, folder) for name, folder in shipped_models().items()]
    if json_:
        print(json.dumps(found, ensure_ascii=False))
    elif not found:
        print("regard: no models ship with this installation; `regard train phrasebook` trains a small one", file=sys.stderr)
    for about in () if json_ else found:
        write("\n".join(_lines(about)))


def _describe(name: str, folder: Path) -> dict[str, object]:
    """What the card, run.toml, the log and the weights of a folder say."""
    from regard.run_folder import RunFolder
    from regard.train.card import WEIGHTS_LICENCE, CardFacts, read_card
    from regard.train.inventory import summarize

    run, card = summarize(folder), RunFolder(folder).card
    about = read_card(card.read_text(encoding="utf-8", errors="replace")) if card.is_file() else CardFacts()
    return {
        "name": name, "folder": str(folder), "task": run.task, "family": run.family, "does": about.does,
        "languages": list(about.languages), "parameters": run.parameters, "bytes": run.bytes, "data": about.fact("data"),
        "licence": about.fact("licence of the data"), "licence_of_weights": about.fact(WEIGHTS_LICENCE),
        "trained": about.fact("trained for"),
        "scores": _scores(about.valid), "scored_on": about.valid.on,
        "test_scores": _scores(about.test), "tested_on": about.test.on, "usage": about.usage, "note": run.note,
    }  # fmt: skip


def _scores(table: "ScoreTable") -> list[dict[str, str]]:
    return [{"name": score, "value": value, "details": details} for score, value, details in table.scores]


def _lines(about: dict[str, object]) -> Iterator[str]:
    languages, on = about["languages"], about["tested_on"] or about["scored_on"]
    scores = about["test_scores"] or about["scores"]
    assert isinstance(languages, list)
    assert isinstance(scores, list)
    between = f" from {languages[0]} to {languages[1]}" if len(languages) == 2 else ""
    yield f"{about['name']}: {about['does'] or about['task']}{between}"
    size = format_size(int(str(about["bytes"])))
    yield f"    a {about['family']} of {about['parameters']:,} parameters, {size}, trained for {about['trained']}"
    yield f"    data: {about['data']}; licence: {about['licence']}"
    if about["licence_of_weights"]:
        yield f"    licence of the weights: {about['licence_of_weights']}"
    if scores:
        shown = ", ".join(f"{score['name']} {score['value']}" for score in scores[:SHOWN])
        yield f"    {shown} on {on}"
    if about["note"]:
        yield f"    {about['note']}"
    if about["usage"]:
        yield f"    {about['usage']}"
