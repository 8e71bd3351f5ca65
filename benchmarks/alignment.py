"""How well do attention weights align words?  The alignment error rate of trained translators on 20 annotated sentence pairs.

The reference translation is forced through each model; every German word is linked to the English word that it attends to most.
A decoder layer aligns by the mean of its heads, and by each head alone.  The row of a target token is that of the step which
predicts it, or of the step which reads it: both are shown.  The best of them is chosen on the same 20 pairs, so it is a little
flattered.  The runs must be trained on the lower-cased tokens of Multi30k: `regard train multi30k-tok`.

    python benchmarks/alignment.py runs/multi30k-tok [RUN ...]
"""

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import rig
from rich.console import Console
from rich.table import Table
from rig import say

from regard.data.text.alignments import Link, WordAlignment, read_alignments
from regard.data.text.config import TextData
from regard.data.text.splits import find_split
from regard.tasks.load import load
from regard.tasks.metrics import alignment_error_rate
from regard.tasks.translation import Translator
from regard.view.alignment import PREDICTING, READING, Head, align, align_diagonally

ANNOTATED = rig.HERE.parent / "tests" / "alignments" / "multi30k.tsv"
DATA = TextData(source="multi30k", pair="en-de", text="tok")
SPLIT = "test_2016_flickr"
ROWS = {"predicting": PREDICTING, "reading": READING}
RESAMPLES = 1000

Links = list[frozenset[Link]]  # of each sentence pair


def main() -> int:
    """Align, print the table, save the results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    folders = options.parse_args().runs
    try:
        annotated = read_alignments(ANNOTATED, list(find_split(DATA, SPLIT).pairs()))
        diagonal: Links = [align_diagonally(len(pair.source.split()), len(pair.target.split())) for pair in annotated]
        runs = {folder.resolve().name: measure(folder, annotated) for folder in folders}
    except ValueError as error:
        say(str(error))
        return 2
    result = {
        "sentences": len(annotated), "sure": sum(len(pair.sure) for pair in annotated),
        "possible": sum(len(pair.possible) for pair in annotated), "diagonal": describe(diagonal, annotated), "runs": runs,
    }  # fmt: skip
    report(result)
    say(f"saved in {rig.named(rig.save('alignment', result))}")
    return 0


def error_rate(links: Links, annotated: list[WordAlignment], rows: list[int] | None = None) -> float:
    """The alignment error rate of some sentence pairs together, of all unless given; a pair may appear several times."""
    predicted, sure, possible = (
        {(place, *link) for place, row in enumerate(rows or range(len(annotated))) for link in every[row]}
        for every in (links, [pair.sure for pair in annotated], [pair.possible for pair in annotated])
    )
    return alignment_error_rate(predicted, sure, possible)


def describe(links: Links, annotated: list[WordAlignment]) -> dict[str, Any]:
    """The error rate, and the middle 95 % of those of sentence pairs drawn again with replacement."""
    draw, count = random.Random(0), len(annotated)
    rates = sorted(error_rate(links, annotated, draw.choices(range(count), k=count)) for _ in range(RESAMPLES))
    return {"aer": error_rate(links, annotated), "interval": [rates[RESAMPLES // 40], rates[-RESAMPLES // 40]]}


def measure(folder: Path, annotated: list[WordAlignment]) -> dict[str, Any]:
    """The error rates of one run: each layer, each head, each row."""
    translator = load(folder, device="cpu")
    if not isinstance(translator, Translator):
        raise ValueError(
            f"{folder} is a {type(translator).__name__}; give a translator, such as one of regard train multi30k-tok"
        )
    data = translator.run.data
    if (data.pair, data.text) != (DATA.pair, DATA.text):
        raise ValueError(
            f"{folder} was trained on {data.pair or 'own'} pairs of {data.text} text; wanted {DATA.pair} and {DATA.text}"
        )
    links: dict[tuple[str, Head], Links] = {}
    for name, offset in ROWS.items():
        for pair in annotated:
            for head, found in align(translator, pair.source, pair.target, offset).items():
                links.setdefault((name, head), []).append(found)
    rates = {key: error_rate(found, annotated) for key, found in links.items()}
    layers: dict[str, Any] = {}
    for (name, (module, head)), rate in rates.items():
        row = layers.setdefault(module, {}).setdefault(name, {"heads": []})
        if head is None:
            row["mean"] = rate
        else:
            row["heads"].append(rate)
    best = min((key for key in rates if key[1].head is None), key=rates.__getitem__)
    say(f"{folder.name}: {len(layers)} cross-attention layers")
    return {"family": translator.run.family, "layers": layers,
            "best": {"module": best[1].module, "row": best[0], **describe(links[best], annotated)}}  # fmt: skip


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    title = (f"Alignment error rate, %, on {result['sentences']} sentence pairs with {result['sure']} sure and "
             f"{result['possible']} possible links; the row of a word is the step that predicts it or reads it")  # fmt: skip
    table = Table("run", "cross-attention", *ROWS, *(f"best head, {name}" for name in ROWS), title=title)
    low, high = result["diagonal"]["interval"]
    table.add_row("diagonal", "no model", f"{100 * result['diagonal']['aer']:.1f} ({100 * low:.0f}–{100 * high:.0f})")
    for run, found in result["runs"].items():
        table.add_section()
        best = found["best"]
        for module, layer in found["layers"].items():
            cells = []
            for name in ROWS:
                text = f"{100 * layer[name]['mean']:.1f}"
                if (module, name) == (best["module"], best["row"]):
                    low, high = best["interval"]
                    text = f"[bold]{text} ({100 * low:.0f}–{100 * high:.0f}) ★[/bold]"
                cells.append(text)
            rates = [layer[name]["heads"] for name in ROWS]
            alone = [f"{100 * min(heads):.1f} (head {1 + heads.index(min(heads))})" if len(heads) > 1 else "" for heads in rates]
            table.add_row(run, module, *cells, *alone)
    Console(width=130).print(table)
    print("★ the best layer and row of a run; in brackets the 95 % interval over resampled sentence pairs")


if __name__ == "__main__":
    sys.exit(main())
