"""What accuracy does each image model reach on CIFAR-10 in the same training time?  One table, and JSON.

For each recipe `cifar10-…` some steps are timed first; then it is trained from scratch for the number of steps that fit the
given minutes, with its schedule ending there, and scored on the test set.  Models run one after another.  Minutes count
training steps, not evaluations.

    python benchmarks/families.py --minutes 10
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import rig
from rich.console import Console
from rich.table import Table
from rig import say

from regard.tasks import read_run, task_of
from regard.tasks.load import load as open_run
from regard.tasks.task import ScoreOptions
from regard.train.loop import fit
from regard.view.cost import image_cost

RECIPES = ("resnet", "attention-cnn", "lrnet", "vit", "swin", "mvit")
TRIED = 30  # timed steps, after the same number of warm-up steps


def main() -> None:
    """Train all, print the table, save the results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=10)
    options.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    options.add_argument("--runs", type=Path, default=rig.HERE / ".cache" / "families")
    asked = options.parse_args()
    rows: list[dict[str, Any]] = []
    for name in asked.recipes:
        row = train(f"cifar10-{name}", asked.minutes, asked.runs)
        say(f"{row['recipe']}: {row['accuracy']:.1f} % after {row['minutes']:.1f} minutes")
        rows.append(row)
    show(rows, asked.minutes)
    if asked.recipes == list(RECIPES):
        say(f"saved in {rig.named(rig.save('families', {'minutes asked': asked.minutes, 'rows': rows}))}")


def train(recipe: str, minutes: float, runs: Path) -> dict[str, Any]:
    """Train a recipe for the given minutes; return its row of the table."""
    seconds = time_steps(recipe, runs / "trial")
    steps = max(200, round(60 * minutes / seconds))
    say(f"{recipe}: {1000 * seconds:.0f} ms a step, {steps:,} steps")
    changes = (f"train.steps={steps}", f"train.warmup={min(300, steps // 10)}", f"train.eval_every={steps}",
               f"train.save_every={steps}")  # fmt: skip
    done = fit(read_run(recipe, changes), runs / recipe, fresh=True)
    opened = open_run(done.folder)
    accuracy = task_of(opened.run).score(opened, "test", ScoreOptions())[0].value
    size = image_cost(opened.run.family, opened.run.model).whole.parameters
    return {"recipe": recipe, "parameters": size, "steps": steps, "minutes": stepping(done.folder, opened.run.train.batch_size),
            "accuracy": accuracy, "images": steps * opened.run.train.batch_size}  # fmt: skip


def stepping(folder: Path, images: int) -> float:
    """Minutes spent in training steps, from the speeds in the log."""
    seconds, before = 0.0, 0
    for line in logged(folder):
        seconds += (line["step"] - before) * images / line["tokens_per_s"]
        before = line["step"]
    return seconds / 60


def logged(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log that have a speed."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if "tokens_per_s" in line]


def time_steps(recipe: str, folder: Path) -> float:
    """Seconds per step, without evaluations."""
    changes = (f"train.steps={2 * TRIED}", f"train.log_every={TRIED}", f"train.eval_every={4 * TRIED}",
               f"train.save_every={4 * TRIED}")  # fmt: skip
    start = time.monotonic()
    done = fit(read_run(recipe, changes), folder, fresh=True)
    say(f"{recipe}: timed in {time.monotonic() - start:.0f} s")
    return read_run(recipe).train.batch_size / float(logged(done.folder)[-1]["tokens_per_s"])


def show(rows: list[dict[str, Any]], minutes: float) -> None:
    """Print the table, best first."""
    table = Table("", "parameters", "minutes", "images processed", "accuracy on test",
                  title=f"CIFAR-10, about {minutes:g} minutes each, {rig.threads()} cores")  # fmt: skip
    for row in sorted(rows, key=lambda row: -row["accuracy"]):
        table.add_row(row["recipe"], f"{row['parameters']:,}", f"{row['minutes']:.1f}", f"{row['images']:,}",
                      f"{row['accuracy']:.1f} %")  # fmt: skip
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
