"""Does a ViT need more data than a ResNet?  Both train on 1, 10 and 100 % of CIFAR-10; one table, JSON and a plot.

All runs have the same number of steps and the same augmentation (random crop, flip); only the number of distinct images differs.

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

from regard.tasks import read_run, task_of
from regard.tasks.load import load as open_run
from regard.tasks.task import ScoreOptions
from regard.train.loop import fit

STEPS = 1000
FRACTIONS = (0.01, 0.1, 1.0)
RECIPES = {"ViT": "cifar10-vit", "ResNet": "cifar10-resnet"}
ALIKE = ("train.batch_size=64", "train.ema=0.998", "data.crop=4", "data.flip=true")
IMAGES = 45_000  # of CIFAR-10, without the validation set
COLOURS = {"ViT": "#c8503c", "ResNet": "#3c6ec8"}


def main() -> None:
    """Train all, print the table, save the results and the plot."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=STEPS)
    options.add_argument("--runs", type=Path, default=rig.HERE / ".cache" / "hunger")
    asked = options.parse_args()
    found = {name: [reach(recipe, fraction, asked) for fraction in FRACTIONS] for name, recipe in RECIPES.items()}
    title = f"CIFAR-10 test accuracy after {asked.steps:,} steps, by fraction of the training images"
    table = Table("", *(f"{fraction:.0%}" for fraction in FRACTIONS), title=title)
    for name, accuracies in found.items():
        table.add_row(name, *(f"{accuracy:.1f} %" for accuracy in accuracies))
    Console(width=110).print(table)
    result: dict[str, Any] = {"steps": asked.steps, "fractions": FRACTIONS, "accuracy": found}
    if asked.steps == STEPS:  # a trial does not overwrite published results
        say(f"saved in {rig.named(rig.save('hunger', result))}")
        draw(result, rig.HERE.parent / "docs" / "hunger.png")


def reach(recipe: str, fraction: float, asked: Any) -> float:
    """Train, and return the test accuracy."""
    changes = (*ALIKE, f"data.fraction={fraction}", f"train.steps={asked.steps}", f"train.warmup={asked.steps // 10}",
               f"train.eval_every={asked.steps}", f"train.save_every={asked.steps}")  # fmt: skip
    done = fit(read_run(recipe, changes), asked.runs / f"{recipe}-{fraction}", fresh=True)
    opened = open_run(done.folder)
    accuracy = task_of(opened.run).score(opened, "test", ScoreOptions())[0].value
    say(f"{recipe}, {fraction:.0%}: {accuracy:.1f} % after {done.minutes:.1f} minutes")
    return accuracy


def draw(result: dict[str, Any], file: Path) -> None:
    """Plot accuracy against the number of training images."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    counts = [IMAGES * fraction for fraction in result["fractions"]]
    for name, accuracies in result["accuracy"].items():
        axes.plot(counts, accuracies, marker="o", label=name, color=COLOURS[name])
        axes.annotate(f"{accuracies[-1]:.1f}", (counts[-1], accuracies[-1]), xytext=(6, 0), textcoords="offset points")
    axes.set_xscale("log")
    axes.set_xticks(counts, [f"{count:,.0f}" for count in counts])
    axes.minorticks_off()
    axes.set_xlabel("training images")
    axes.set_ylabel("accuracy on test, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=160)


if __name__ == "__main__":
    main()
