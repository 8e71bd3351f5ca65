"""A model, a task or a data set is added by one file or entry and one line; CONTRIBUTING.md's examples run as written."""

import gzip
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from regard import load
from regard.config import Family
from regard.data.sources import SOURCES, Source
from regard.models import FAMILIES
from regard.tasks import TASKS, read_run, task_of

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
TEXT = "the cat sat on the mat and the dog sat on the log\n" * 200
FEW = ("data.vocab=300", "train.batch_tokens=512", "train.eval_every=2", "train.device=cpu")

PERCEPTRON = """
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT


@dataclass(frozen=True, config=STRICT)
class PerceptronConfig:
    width: int = 5
    classes: int = 7  # the data decides


SIZES = {"tiny": PerceptronConfig()}


class Perceptron(nn.Module):
    def __init__(self, c: PerceptronConfig):
        super().__init__()
        self.config, self.output = c, nn.Linear(c.width, c.classes)

    def forward(self, bits: Tensor) -> Tensor:
        return self.output(bits)
"""

MAJORITY = '''
import hashlib
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from pydantic.dataclasses import dataclass

from regard.config import STRICT
from regard.data.position import DataPosition
from regard.tasks.loss import class_cross_entropy
from regard.tasks.metrics import classification_scores
from regard.tasks.task import Card, Task

LABELS = ("zeros", "ones")


@dataclass(frozen=True, config=STRICT)
class BitsData:
    INHERITED: ClassVar = ()
    source: str = ""
    train: str = "generated bits"
    rows: int = 16


class BitsBatch(NamedTuple):
    bits: torch.Tensor
    label: torch.Tensor

    @property
    def tokens(self):
        return len(self.label)


class Split(NamedTuple):
    digest: str


class Bits(NamedTuple):
    train: Split
    labels: tuple = LABELS
    tokenizer: None = None


class Majority(NamedTuple):
    """The predictor."""

    model: torch.nn.Module
    run: object
    labels: tuple

    def predict(self, bits):
        return self.labels[int(self.model(torch.tensor(bits, dtype=torch.float32)).argmax())]


def make(run, seed):
    bits = torch.randint(0, 2, (run.data.rows, run.model.width), generator=torch.Generator().manual_seed(seed)).float()
    return BitsBatch(bits, (bits.mean(1) > 0.5).long())


def batches(run, dataset, position):
    step = position.batch
    while True:
        yield partial(make, run, run.train.seed + step), DataPosition(0, 0, step := step + 1)


def score(predictor, split, options):
    batch = make(predictor.run, -1 - len(split))
    wanted = [LABELS[n] for n in batch.label.tolist()]
    return classification_scores([predictor.predict(row.tolist()) for row in batch.bits], wanted, LABELS, "rows")


TASK = Task(
    name="majority",
    kinds=("perceptron",),
    data=BitsData,
    card=Card("counts bits", "tabular-classification", "score", "predict([0, 1])"),
    prepare=lambda run, tokenizer, report, progress: Bits(Split(hashlib.sha256(str(run.data).encode()).hexdigest())),
    batches=batches,
    validation=lambda run, dataset: iter([make(run, -1)]),
    loss=lambda model, batch, label_smoothing: class_cross_entropy(model(batch.bits), batch.label, label_smoothing),
    predictor=lambda model, run, tokenizer, labels: Majority(model, run, labels),
    score=score,
    samples=lambda predictor, dataset: [f"1 1 1 1 0 → {predictor.predict([1, 1, 1, 1, 0])}"],
    batch_text=lambda run, batches: f"{batches * run.data.rows} rows",
    unit="row",
    decodes=False,
)
'''


@pytest.fixture
def import_file(tmp_path, monkeypatch):
    """Write a file of Python and import it, for this test only."""

    def write(name, code):
        file = tmp_path / f"{name}.py"
        file.write_text(code)
        folder = "tasks" if "TASK = " in code else "models"
        spec = importlib.util.spec_from_file_location(f"regard.{folder}.{name}", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return write


@pytest.fixture
def added(import_file, monkeypatch, tmp_path):
    """A toy model and a toy task of its own kind, each one file and one line; and a recipe."""
    perceptron, majority = import_file("perceptron", PERCEPTRON), import_file("majority", MAJORITY)
    family = Family(perceptron.PerceptronConfig, perceptron.SIZES, perceptron.Perceptron, "perceptron")
    monkeypatch.setitem(FAMILIES, "perceptron", family)
    monkeypatch.setitem(TASKS, "majority", majority.TASK)
    recipe = tmp_path / "majority.toml"
    recipe.write_text(
        '[model]\nfamily = "perceptron"\n[train]\nsteps = 40\nlr = 0.1\nwarmup = 5\naverage = 1\neval_every = 20\n'
        'save_every = 20\nlabel_smoothing = 0.0\ndevice = "cpu"\n'
    )
    return recipe


def test_a_new_task_with_a_new_model_trains_resumes_scores_and_predicts(added, regard, tmp_path):
    run = tmp_path / "run"
    assert read_run(added).task == "majority"
    result = regard("train", added, "--out", run)
    assert result.code == 0, result.err
    assert "1 1 1 1 0 → ones" in result.err
    assert (run / "labels.txt").read_text() == "zeros\nones\n"
    assert "A perceptron that counts bits" in (run / "README.md").read_text()
    assert float(re.search(r"([\d.]+) %  accuracy", regard("score", run).out)[1]) > 80
    predictor = load(run)
    assert [predictor.predict(bits) for bits in ([1, 1, 1, 1, 0], [0, 0, 0, 1, 0])] == ["ones", "zeros"]
    result = regard("train", added, "train.steps=60", "--resume", "--out", run)
    assert result.code == 0, result.err
    assert "resumed at step 40" in result.err
    assert regard("train", added, "train.steps=60", "--out", tmp_path / "whole").code == 0
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_a_task_refuses_keys_and_models_that_are_not_its_own(added):
    with pytest.raises(ValueError, match=r"unknown key data\.vocab.*keys of data are source, train, rows"):
        read_run(added, ["data.vocab=10"])
    with pytest.raises(ValueError, match="a perceptron does not learn task 'translation'; it learns majority"):
        read_run(added, ["task=translation"])
    with pytest.raises(ValueError, match="a gpt does not learn task 'majority'"):
        read_run("gpt", ["task=majority"])


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_registered_under_its_own_name(name):
    assert TASKS[name].name == name
    assert any(family.kind in TASKS[name].kinds for family in FAMILIES.values())


# --- the examples of CONTRIBUTING.md


def example(heading, wanted):
    """The block of Python under a heading of CONTRIBUTING.md that contains a string."""
    section = CONTRIBUTING.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    [code] = [block for block in re.findall(r"^```python\n(.*?)^```", section, flags=re.M | re.S) if wanted in block]
    return code


def entry(line, **names):
    """The name and the value that one line adds to a registry."""
    [(name, value)] = eval("{" + line + "}", names).items()
    return name, value


@pytest.fixture
def text_file(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return f"data.train={tmp_path}/text.txt", f"data.valid={tmp_path}/text.txt"


def test_the_model_of_contributing_is_one_file_and_one_line(import_file, monkeypatch, regard, text_file, tmp_path):
    toy = import_file("toy", example("Add a model", "class Toy"))
    monkeypatch.setitem(FAMILIES, *entry(example("Add a model", '"toy": ')))
    result = regard("train", "gpt", "model=toy-tiny", *text_file, *FEW, "train.steps=4", "--out", tmp_path / "run")
    assert result.code == 0, result.err
    assert isinstance(load(tmp_path / "run").model, toy.Toy)
    result = regard("generate", tmp_path / "run", "the cat", "--tokens", 10)
    assert result.code == 0, result.err
    assert result.out.strip()


def test_the_task_of_contributing_is_one_file_and_one_line(import_file, monkeypatch, regard, text_file, tmp_path):
    next_token = import_file("next_token", example("Add a task", "TASK = Task("))
    monkeypatch.setitem(TASKS, *entry(example("Add a task", '"next_token": ')))
    small = ("model.dim=16", "model.depth=1", "model.heads=2", "train.steps=4")
    result = regard("train", "gpt", "task=next_token", *small, *text_file, *FEW, "--out", tmp_path / "run")
    assert result.code == 0, result.err
    predictor = load(tmp_path / "run")
    assert task_of(predictor.run) is next_token.TASK
    assert predictor.generate("the cat", tokens=5)
    assert "perplexity" in regard("score", tmp_path / "run").out


def test_the_data_set_of_contributing_is_one_entry(monkeypatch, regard, tmp_path):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    (tmp_path / "my-text").mkdir()
    for split in ("train", "valid", "test"):
        (tmp_path / "my-text" / f"{split}.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    monkeypatch.setitem(SOURCES, *entry(example("Add a data set", "my-text"), Source=Source))
    small = ("model.dim=16", "model.depth=1", "model.heads=2", "train.steps=2")
    result = regard("train", "gpt", "data.source=my-text", *small, *FEW, "--out", tmp_path / "run")
    assert result.code == 0, result.err
    assert "CC0" in (tmp_path / "run" / "README.md").read_text()
    assert regard("score", tmp_path / "run", "--on", "test").code == 0
