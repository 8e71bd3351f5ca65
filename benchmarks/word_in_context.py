"""Do contextual vectors tell apart the senses of a word?  WiC, Word in Context: one table, and JSON.

Each example is a word in two sentences, in the same sense or not (chance is 50 %).  The two senses are the same if the cosine
of the word's two vectors reaches a threshold.  The threshold, and the layer that the vectors are of, are those with the highest
accuracy on the training set; nothing is chosen on the validation and the test set.  Intervals are Wilson's, 95 %.

    python benchmarks/word_in_context.py runs/wikitext-elmo runs/minilm

The data is in $REGARD_DATA/wic (Pilehvar and Camacho-Collados 2019, https://arxiv.org/abs/1808.09121).
"""

import argparse
import gzip
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import rig
import torch
from rich.console import Console
from rich.table import Table
from rig import say
from torch import Tensor, nn

from regard.models.bert import BERT
from regard.models.elmo import ELMo
from regard.tasks.load import load
from regard.tasks.text_embedding import Occurrence

SPLITS = ("train", "valid", "test")
Z = 1.959964  # of a 95 % interval
CONTEXTLESS = ("static", "embeddings")  # vectors below all layers that read the context


class Split(NamedTuple):
    """Examples: two sentences each, the place of the word in each of them, and whether its sense is the same."""

    texts: list[str]
    places: list[Occurrence]
    same: Tensor


@dataclass(frozen=True)
class Accuracy:
    """In percent, with a 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f} ({self.low:.1f} to {self.high:.1f})"


def main() -> None:
    """Score all runs, print the table, save the results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("runs", nargs="+", type=Path)
    folder = Path(os.environ.get("REGARD_DATA", ".")) / "wic"
    if not folder.is_dir():
        raise SystemExit(f"no folder {folder}; set REGARD_DATA to the folder that holds wic/")
    asked = options.parse_args()
    data = {name: read(folder / f"{name}.tsv.gz") for name in SPLITS}
    rows = [row for run in asked.runs for row in score(run, data)]
    table = Table(title="WiC: accuracy in percent, 95 % interval", title_justify="left")
    for heading in ("run", "vectors", "train", "valid", "test"):
        table.add_column(heading)
    for row in rows:
        table.add_row(row["run"], row["vectors"], *(str(row.get(name, "")) for name in SPLITS))
    Console(width=120).print(table)
    examples = {name: len(split.same) for name, split in data.items()}
    say(f"saved {rig.named(rig.save('word_in_context', {'examples': examples, 'rows': rows}))}")


def read(file: Path) -> Split:
    """Read a split; the place of a word is given by its index among the words between spaces."""
    texts, places, same = list[str](), list[Occurrence](), list[bool]()
    with gzip.open(file, "rt", encoding="utf8") as lines:
        for line in lines:
            label, _, _, first, second, *sentences = line.rstrip("\n").split("\t")
            for index, sentence in zip((int(first), int(second)), sentences, strict=True):
                words = sentence.split(" ")
                start = sum(len(word) + 1 for word in words[:index])
                places.append(Occurrence(len(texts), start, start + len(words[index])))
                texts.append(sentence)
            same.append(label == "T")
    return Split(texts, places, torch.tensor(same))


def score(folder: Path, data: dict[str, Split]) -> Iterator[dict[str, Any]]:
    """The training accuracy of every layer; of the best, and of what is below all layers, those of validation and test too."""
    predictor, found = load(folder), list[dict[str, Any]]()
    for name, layer in layers(predictor.model).items():
        with layer():
            seen = cosines(predictor, data["train"])
            threshold = best_threshold(seen, data["train"].same)
            found.append({"run": folder.name, "vectors": name, "threshold": threshold})
            found[-1]["train"] = accuracy(seen, threshold, data["train"].same)
            say(f"{folder.name}, {name}: {found[-1]['train']} on train")
    chosen = max((row for row in found if row["vectors"] not in CONTEXTLESS), key=lambda row: row["train"].value)
    for row in found:
        if row is chosen or row["vectors"] in CONTEXTLESS:
            with layers(predictor.model)[row["vectors"]]():
                for name in ("valid", "test"):
                    row[name] = accuracy(cosines(predictor, data[name]), row["threshold"], data[name].same)
        row["chosen on train"] = row is chosen
        yield row


def layers(model: nn.Module) -> dict[str, Any]:
    """What the vectors may be of, by name; each is a context in which `model.encode` gives those."""
    if isinstance(model, ELMo):
        depth = model.config.depth
        single = {f"layer {n}": only_layer(n, depth + 1) for n in range(1, depth + 1)}
        choices = {"static": only_layer(0, depth + 1), **single, "mean of all layers": torch.zeros(depth + 1)}
        return {name: lambda weights=weights: mixed(model, weights) for name, weights in choices.items()}
    assert isinstance(model, BERT), f"the layers of a {type(model).__name__} are not known"
    names = {n: f"layer {n}" if n else "embeddings" for n in range(model.config.depth + 1)}
    return {name: lambda n=n: cut(model, n) for n, name in names.items()}


def only_layer(index: int, count: int) -> Tensor:
    """Weights, before their softmax, of which one layer of `count` gets all."""
    return torch.where(torch.arange(count) == index, 0.0, -math.inf)


@contextmanager
def mixed(model: ELMo, weights: Tensor) -> Iterator[None]:
    """With these weights of the layers, before their softmax."""
    before = model.mix.weights.detach().clone()
    with torch.no_grad():
        model.mix.weights.copy_(weights)
        yield
        model.mix.weights.copy_(before)


@contextmanager
def cut(model: BERT, depth: int) -> Iterator[None]:
    """With the first `depth` blocks only; without any, a vector depends on the word and its position."""
    blocks = model.blocks
    model.blocks = blocks[:depth]
    yield
    model.blocks = blocks


def cosines(predictor: Any, split: Split) -> Tensor:
    """The cosine of the two vectors of each example, without the last digits, which depend on the batch."""
    vectors = predictor.embed_spans(split.texts, split.places)
    return (vectors[::2] * vectors[1::2]).sum(1).round(decimals=5)


def best_threshold(found: Tensor, same: Tensor) -> float:
    """The cosine from which on "the same sense" is right most often, of several the lowest; 2, which none reaches, for never."""
    values, index = found.unique(return_inverse=True)  # ascending
    right = torch.zeros(len(values), dtype=torch.long).index_add(0, index, same.long() * 2 - 1)  # less wrong, of each value
    gain = right.flip(0).cumsum(0).flip(0)  # of all that reach a value
    best = gain.argmax()
    return float(values[best]) if gain[best] > 0 else 2.0


def accuracy(found: Tensor, threshold: float, same: Tensor) -> Accuracy:
    return wilson(int(((found >= threshold) == same).sum()), len(same))


def wilson(right: int, total: int) -> Accuracy:
    """Wilson's interval of a proportion."""
    p, z2 = right / total, Z * Z
    middle = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = Z * math.sqrt(p * (1 - p) / total + z2 / (4 * total * total)) / (1 + z2 / total)
    return Accuracy(100 * p, 100 * (middle - half), 100 * (middle + half))


if __name__ == "__main__":
    main()
