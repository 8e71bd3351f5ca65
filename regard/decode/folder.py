"""Open a run folder, and get what it was trained for: a translator, a writer, a reader, a classifier, a painter."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from regard.config import Run
from regard.config import load as load_run
from regard.data.text.tokenizer import Tokenizer
from regard.decode.classifier import ImageClassifier
from regard.decode.painter import ImageGenerator
from regard.decode.precision import PrecisionProbe
from regard.decode.reader import Reader
from regard.decode.translator import Translator
from regard.decode.writer import TextGenerator
from regard.layers.conv import fold_batch_norms
from regard.models import FAMILIES, load_model

__all__ = ["USES", "load", "make_predictor", "pick_device", "read_labels"]

USES: dict[str, Any] = {"transformer": Translator, "t5": Translator, "gpt": TextGenerator, "bert": Reader}


def make_predictor(model: Any, tokenizer: Tokenizer | None, run: Run, labels: tuple[str, ...] = ()) -> Any:
    """A model with what it takes to answer; one of pictures has no tokenizer."""
    if run.task == "pixels":
        return ImageGenerator(model, run)
    if run.task == "image":
        return ImageClassifier(model, run, labels)
    assert tokenizer is not None
    if labels:
        return Reader(model, tokenizer, run, labels)
    return USES[run.family](model, tokenizer, run)


def pick_device(wanted: str) -> torch.device:
    """The device named, or the best there is: cuda, mps, cpu.  Numbers stay float32 on all of them."""
    have = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return torch.device(next(name for name, there in have.items() if there))
    kind, _, number = wanted.partition(":")
    if not have.get(kind) or (
        number and not (number.isdecimal() and kind == "cuda" and int(number) < torch.cuda.device_count())
    ):
        there = ", ".join(name for name, there in have.items() if there)
        raise ValueError(f"no device {wanted!r} on this machine; there is {there}, or auto")
    return torch.device(wanted)


def read_labels(folder: Path) -> tuple[str, ...]:
    """The names of the classes a run has learnt, a line each in its `labels.txt`; none if it has learnt none."""
    file = folder / "labels.txt"
    return tuple(file.read_text(encoding="utf-8").removesuffix("\n").split("\n")) if file.exists() else ()


def load(folder: str | Path, device: str = "auto", precision: str = "float32") -> Any:
    """Open a run folder: `regard.load("runs/multi30k").translate(["…"], beam=5)`.

    → a `Translator`, `Writer`, `Reader`, `Classifier` or `Painter`, for use, not for training on.  With `precision="int8"` its
    weights are rounded to 8 bits: faster on a CPU, and about as good; inputs are rounded together, so that an answer may differ
    with the batch it is in.
    """
    folder = Path(folder)
    where = torch.device("cpu") if precision == "int8" and device == "auto" else pick_device(device)
    if precision == "int8" and where.type != "cpu":
        raise ValueError(f"precision int8 on {where}; it is for the cpu")
    with PrecisionProbe(precision) as trial:
        model = load_model(folder)
        run = dataclasses.replace(load_run(str(folder / "run.toml"), (), FAMILIES), model=model.config)
        tokenizer = _tokenizer(folder, run) if hasattr(model.config, "vocab") else None
        labels = read_labels(folder)
        if len(labels) != (classes := getattr(model.config, "classes", 0)):
            raise ValueError(
                f"{folder}/labels.txt names {len(labels)} classes, the model has {classes}; "
                f"restore the file it was trained with"
            )
        if precision == "float32" and run.task == "image":  # nothing is decoded
            return make_predictor(fold_batch_norms(model.to(where)), None, run, labels)
        return make_predictor(trial.passed(model.to(where)), tokenizer, run, labels)


def _tokenizer(folder: Path, run: Run) -> Tokenizer:
    """The tokenizer of a run, if it is the one its model was trained with."""
    tokenizer, vocab = Tokenizer.load(folder / "tokenizer.json"), run.model.vocab
    imported = run.init or not (run.data.source or run.data.train)
    fits = tokenizer.vocab <= vocab if imported else tokenizer.vocab == vocab
    if not fits:  # an imported vocabulary may have been filled up to a round number
        raise ValueError(
            f"{folder}/tokenizer.json has {tokenizer.vocab:,} tokens, the model's vocabulary {vocab:,}; "
            f"they are not of the same run: restore the tokenizer it was trained with"
        )
    return tokenizer
