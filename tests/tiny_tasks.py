"""A tiny run of each task that reads text or transcripts, with its data."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from regard.config import Run
from regard.tasks import make_run

WORDS = ["the", "cat", "sat", "on", "the", "mat", "and", "the", "dog", "ran", "to", "the", "door", "while", "a", "bird", "sang",
         "in", "the", "tree"]  # fmt: skip
GOOD, BAD = ["good", "fine", "lovely", "great"], ["bad", "poor", "awful", "dull"]

GPT_SHAPE = {"family": "gpt", "dim": 16, "depth": 1, "heads": 2, "max_len": 20, "dropout": 0.1}
BERT_SHAPE = {"family": "bert", "dim": 16, "depth": 1, "heads": 2, "max_len": 24}
T5_SHAPE = {"family": "t5", "dim": 16, "depth": 1, "heads": 2, "head_dim": 8, "mlp_dim": 32}
WORD2VEC_SHAPE = {"family": "word2vec", "dim": 8, "sample": 0.05}
ELMO_SHAPE = {"family": "elmo", "size": "mini", "dim": 16, "cells": 8, "filters": [4, 4], "output_vocab": 12}
CONFORMER_SHAPE = {"family": "conformer", "size": "tiny", "dim": 16, "depth": 1, "heads": 2, "kernel": 5, "subsample": 2,
                   "decoder_depth": 1, "ctc_weight": 0.3}  # fmt: skip
SHAPES = {
    "language_model": (GPT_SHAPE, "characters", "txt"),
    "masked_lm": (BERT_SHAPE, "wordpiece", "txt"),
    "bidirectional_lm": (ELMO_SHAPE, "words", "txt"),
    "span_corruption": (T5_SHAPE, "bpe", "txt"),
    "text_classification": (BERT_SHAPE, "wordpiece", "tsv"),
    "translation": (T5_SHAPE, "bpe", "tsv"),
    "speech": (CONFORMER_SHAPE, "characters", "speech.tsv"),
    "word_vectors": (WORD2VEC_SHAPE, "words", "txt"),
}
LACKS = {"speech": {"max_len"}, "word_vectors": {"tokenizer", "max_len", "label_smoothing"}}  # keys that a task does not take
EVERY_TASK = pytest.mark.parametrize("task", list(SHAPES))


def write_data(folder: Path) -> None:
    """Write a small text, small labelled texts and a few sounds with transcripts to a folder."""
    for split, count in (("train", 80), ("valid", 20)):
        lines = [" ".join(WORDS[(i * k) % len(WORDS)] for k in range(1, 9)) for i in range(count)]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
        rows = [
            (f"a {words[i % 4]} film {WORDS[i % 17]}", label)
            for i in range(count)
            for words, label in ((GOOD, "for"), (BAD, "against"))
        ]
        for i in range(8):
            sound = 0.1 * np.sin(np.arange(3200 + 160 * i) * (0.1 + 0.05 * i))
            soundfile.write(folder / f"{split}{i}.wav", sound, 16_000)
        lines = [f"{split}{i}.wav\t{word}\n" for i, word in enumerate(WORDS[:8])]
        (folder / f"{split}.speech.tsv").write_text("".join(lines))
        (folder / f"{split}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))


def tiny_run(task: str, folder: Path, steps: int = 6, **more: object) -> Run:
    """A run of a task on the data in a folder; `more` are tables that replace those here."""
    model, tokenizer, kind = SHAPES[task]
    data = {"train": f"{folder}/train.{kind}", "valid": f"{folder}/valid.{kind}", "tokenizer": tokenizer, "vocab": 120,
            "max_len": 20}  # fmt: skip
    smoothing = 0.0 if "label_smoothing" in LACKS.get(task, ()) else 0.1
    tables = {
        "task": task,
        "model": model,
        "data": {key: value for key, value in data.items() if key not in LACKS.get(task, ())},
        "train": {"steps": steps, "batch_tokens": 200, "lr": 0.01, "warmup": 3, "eval_every": 3, "save_every": 3, "average": 1,
                  "device": "cpu", "schedule": "cosine", "weight_decay": 0.01, "label_smoothing": smoothing},
        "decode": {"beam_size": 1},
        **more,
    }  # fmt: skip
    return make_run(task, tables)
