"""Is a ViT hungrier for data than a ResNet?  Both learn from 1, 10 and 100 % of CIFAR-10; one table, JSON and a picture.

All see the same number of pictures, a small share of them again and again, with the same changes (moved, mirrored), so that
what differs is how many there are.

    python benchmarks/data_hunger.py
"""

import argparse
from pathlib import Path
from typing import Any

import rig
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rig import say

from regard.tasks import read_run
from regard.tasks.load import load as open_run
from regard.tasks.metrics import score_split
from regard.train.loop import fit

STEPS = 1000
SHARES = (0.01, 0.1, 1.0)
RECIPES = {"ViT": "cifar10-vit", "ResNet": "cifar10-resnet"}
ALIKE = ("train.batch_size=64", "train.ema=0.998", "data.crop=4", "data.flip=true")
PICTURES = 45_000  # of CIFAR-10, without those held out
COLOURS = {"ViT": "#c8503c", "ResNet": "#3c6ec8"}


def main() -> None:
    """Train all, print the table, save the figures and the picture."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=STEPS)
    options.add_argument("--runs", type=Path, default=rig.HERE / ".cache" / "hunger")
    asked = options.parse_args()
    found = {name: [reach(recipe, share, asked) for share in SHARES] for name, recipe in RECIPES.items()}
    title = f"accuracy on CIFAR-10's test pictures after {asked.steps:,} steps, by the share of the training pictures"
    table = Table("", *(f"{share:.0%}" for share in SHARES), title=title)
    for name, accuracies in found.items():
        table.add_row(name, *(f"{one:.1f} %" for one in accuracies))
    Console(width=110).print(table)
    result: dict[str, Any] = {"steps": asked.steps, "shares": SHARES, "accuracy": found}
    if asked.steps == STEPS:  # a trial changes no published figure
        say(f"saved in {rig.named(rig.save('hunger', result))}")
        draw(result, rig.HERE.parent / "docs" / "hunger.png")


def reach(recipe: str, share: float, asked: Any) -> float:
    """Accuracy on the test pictures."""
    changes = (*ALIKE, f"data.fraction={share}", f"train.steps={asked.steps}", f"train.warmup={asked.steps // 10}",
               f"train.eval_every={asked.steps}", f"train.save_every={asked.steps}")  # fmt: skip
    done = fit(read_run(recipe, changes), asked.runs / f"{recipe}-{share}", fresh=True)
    accuracy = score_split(open_run(done.folder), "test")[0].value
    say(f"{recipe}, {share:.0%}: {accuracy:.1f} % after {done.minutes:.1f} minutes")
    return accuracy


def draw(result: dict[str, Any], file: Path) -> None:
    """Accuracy against the number of pictures to learn from."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    counts = [PICTURES * share for share in result["shares"]]
    for name, accuracies in result["accuracy"].items():
        axes.plot(counts, accuracies, marker="o", label=name, color=COLOURS[name])
        axes.annotate(f"{accuracies[-1]:.1f}", (counts[-1], accuracies[-1]), xytext=(6, 0), textcoords="offset points")
    axes.set_xscale("log")
    axes.set_xticks(counts, [f"{count:,.0f}" for count in counts])
    axes.minorticks_off()
    axes.set_xlabel("pictures to learn from")
    axes.set_ylabel("accuracy on test, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=160)


if __name__ == "__main__":
    main()
