"""Prepare text data as each task does."""

from pathlib import Path

from regard.data.text.config import TextData
from regard.data.text.dataset import TextDataset, prepare_labeled, prepare_pairs, prepare_text, require_special
from regard.data.text.tokenizer import SENTINELS

NEEDS = {  # task → special tokens that its tokenizer needs
    "translation": {"pad": True},
    "language_model": {},
    "masked_lm": {"mask": True},
    "span_corruption": {"sentinels": 2, "pad": True},
    "text_classification": {},
}


def ready(data: TextData, folder: Path, task: str = "translation") -> tuple[TextDataset, list[str], list[tuple[str, int]]]:
    """The data set, the lines reported, and the progress reported."""
    reports: list[str] = []
    progress: list[tuple[str, int]] = []
    file = folder / "tokenizer.json"
    how = {"task": task, "check": lambda tokenizer: require_special(tokenizer, file, task, **NEEDS[task])}
    prepare = {"translation": prepare_pairs, "text_classification": prepare_labeled}.get(task, prepare_text)
    if prepare is prepare_text:
        how["extra_tokens"] = {"masked_lm": ("[MASK]",), "span_corruption": SENTINELS}.get(task, ())
    return prepare(data, file, reports.append, lambda *what: progress.append(what), **how), reports, progress
