"""Every task that reads text or transcripts trains, scores, resumes to the same bits, and refuses data it cannot learn from."""

import dataclasses
import io
import json
import math
import re
import shutil

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tiny_tasks import BERT_SHAPE, EVERY_TASK, SHAPES, WORDS, tiny_run, write_data

import regard
from regard.data.position import DataPosition
from regard.models import FAMILIES
from regard.run_folder import RunFolder
from regard.tasks import TASKS
from regard.train.loop import fit


@pytest.mark.parametrize(
    ("task", "optimizer"),
    [*((task, "adam") for task in SHAPES), ("span_corruption", "adafactor"), ("language_model", "adafactor")],
)
def test_a_run_that_is_resumed_midway_ends_with_the_same_bits(task, optimizer, tmp_path):
    write_data(tmp_path)
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train = {**vars(tiny_run(task, tmp_path).train), "optimizer": optimizer}
    run = tiny_run(task, tmp_path, train=train)
    fit(run, whole)
    fit(run, halves)
    for name in ("model.safetensors", "README.md"):
        (halves / name).unlink()
    shutil.rmtree(halves / "checkpoints" / "step-00000006")
    fit(run, halves)
    wanted, got = (load_file(folder / "model.safetensors") for folder in (whole, halves))
    assert wanted.keys() == got.keys()
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)


def regularized(tmp_path, train=None, **data):
    """A tiny translation run with R-Drop or BPE-dropout."""
    run = tiny_run("translation", tmp_path)
    return dataclasses.replace(
        run,
        model=dataclasses.replace(run.model, dropout=0.2),
        train=dataclasses.replace(run.train, **(train or {})),
        data=dataclasses.replace(run.data, **data),
    )


def test_r_drop_and_bpe_dropout_resume_to_the_same_bits_and_change_the_training(tmp_path):
    write_data(tmp_path)
    trained = {}
    for name, changes in {"plain": {}, "r_drop": {"train": {"r_drop": 5.0}}, "bpe_dropout": {"bpe_dropout": 0.3}}.items():
        run, folder = regularized(tmp_path, **changes), tmp_path / name
        fit(run, folder)
        trained[name] = (folder / "model.safetensors").read_bytes()
        for file in ("model.safetensors", "README.md"):
            (folder / file).unlink()
        shutil.rmtree(folder / "checkpoints" / "step-00000006")
        fit(run, folder)
        assert (folder / "model.safetensors").read_bytes() == trained[name]
    assert len(set(trained.values())) == 3


def test_r_drop_without_dropout_or_of_another_task_is_refused(tmp_path):
    write_data(tmp_path)
    run = regularized(tmp_path, train={"r_drop": 5.0})
    with pytest.raises(ValueError, match=r"train\.r_drop=5 compares two dropout masks, but model\.dropout is 0"):
        fit(dataclasses.replace(run, model=dataclasses.replace(run.model, dropout=0.0, attention_dropout=0.0)), tmp_path / "run")
    other = tiny_run("language_model", tmp_path)
    with pytest.raises(ValueError, match="task language_model does not offer; leave it out"):
        fit(dataclasses.replace(other, train=run.train), tmp_path / "run")
    with pytest.raises(ValueError, match="task language_model does not offer it: leave it out"):
        fit(dataclasses.replace(other, data=dataclasses.replace(other.data, tokenizer="bpe", bpe_dropout=0.1)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@EVERY_TASK
def test_a_trained_run_opens_answers_and_has_a_card(task, tmp_path):
    write_data(tmp_path)
    done = fit(tiny_run(task, tmp_path), tmp_path / "run")
    opened = regard.load(tmp_path / "run")
    answer = {
        "language_model": lambda: opened.generate("the cat", tokens=5),
        "masked_lm": lambda: opened.fill("the [MASK] sat").text,
        "bidirectional_lm": lambda: opened.embed_word(["the cat sat", "a cat"], "cat"),
        "span_corruption": lambda: opened.translate(["the cat <extra_id_0> mat"])[0].text,
        "speech": lambda: opened.transcribe([tmp_path / "valid0.wav"], beam=2)[0].text,
        "text_classification": lambda: opened.classify(["a good film"])[0][0].text,
        "translation": lambda: opened.translate(["a good film"])[0].text,
        "word_vectors": lambda: opened.neighbors("cat", top=1)[0].word,
    }[task]()
    assert {
        "language_model": lambda: 0 < len(opened.tokenizer.encode([answer])[0]) <= 5,
        "masked_lm": lambda: answer.startswith("the ") and answer.endswith(" sat") and "MASK" not in answer,
        "bidirectional_lm": lambda: answer.vectors.shape == (2, 16) and answer.occurrences == [(0, 4, 7), (1, 2, 5)],
        "span_corruption": lambda: len(opened.tokenizer.encode([answer])[0]) <= opened.max_answer(5),
        "speech": lambda: set(answer) <= set(" ".join(WORDS)),
        "text_classification": lambda: answer in ("for", "against"),
        "translation": lambda: len(opened.tokenizer.encode([answer])[0]) <= opened.max_answer(3),
        "word_vectors": lambda: answer in WORDS and answer != "cat",
    }[task]()
    assert done.scores
    assert not any(math.isnan(score.value) for score in done.scores)
    card = (tmp_path / "run" / "README.md").read_text()
    assert all(f"| {score.name} |" in card for score in done.scores)
    if task == "text_classification":
        assert (tmp_path / "run" / "labels.txt").read_text() == "against\nfor\n"


def test_every_task_has_a_family_and_every_family_a_task():
    kinds = {family.kind for family in FAMILIES.values()}
    assert all(kinds & set(task.kinds) for task in TASKS.values())
    assert kinds == {kind for task in TASKS.values() for kind in task.kinds}


def test_classes_are_learnt(tmp_path):
    write_data(tmp_path)
    done = fit(tiny_run("text_classification", tmp_path, steps=60), tmp_path / "run")
    assert {score.name: score.value for score in done.scores}["accuracy"] == 100
    predictions = regard.load(tmp_path / "run").classify(["a lovely film", "a dull film"])
    assert [best.text for [best] in predictions] == ["for", "against"]


# Data that a task cannot learn from


def lm_run(folder, max_len):
    return tiny_run("language_model", folder, data={**vars(tiny_run("language_model", folder).data), "max_len": max_len})


def test_a_window_longer_than_the_context_is_refused(tmp_path):
    write_data(tmp_path)
    with pytest.raises(ValueError, match=r"data\.max_len=30 .*set data\.max_len=20 or model\.max_len=30"):
        fit(lm_run(tmp_path, 30), tmp_path / "run")


def test_positions_that_no_window_reaches_are_refused(tmp_path):
    write_data(tmp_path)
    wanted = r"data\.max_len=10 .*positions 11 to 20 .*set model\.max_len=10 too, or data\.max_len=20"
    with pytest.raises(ValueError, match=wanted):
        fit(lm_run(tmp_path, 10), tmp_path / "run")


@pytest.mark.parametrize(
    ("task", "split"),
    [("language_model", "train"), ("language_model", "valid"), ("masked_lm", "train"), ("span_corruption", "train")],
)
def test_a_text_too_short_deletes_no_earlier_run_and_leaves_no_new_one(tmp_path, task, split):
    write_data(tmp_path)
    fit(tiny_run(task, tmp_path), tmp_path / "old")
    before = (tmp_path / "old/model.safetensors").read_bytes()
    (tmp_path / "short.txt").write_text("a")
    data = {**vars(tiny_run(task, tmp_path).data), split: str(tmp_path / "short.txt")}
    for name in ("old", "new"):
        with pytest.raises(ValueError, match=r"a text of \d tokens? has no"):
            fit(tiny_run(task, tmp_path, data=data), tmp_path / name, fresh=True)
    assert (tmp_path / "old/model.safetensors").read_bytes() == before
    assert (tmp_path / "old/run.toml").exists()
    assert not (tmp_path / "new").exists()


def labelled_run(folder, file):
    data = {**vars(tiny_run("text_classification", folder).data), "train": str(file), "valid": str(file)}
    return tiny_run("text_classification", folder, data=data)


def test_a_file_in_which_each_text_has_its_own_class_is_refused(tmp_path):
    (tmp_path / "ids.tsv").write_text("".join(f"film {n}\ta film {n}\tfor\n" for n in range(60)))
    wanted = "has 60 different classes in its first 60 texts; wanted text, a tab, and one of a few"
    with pytest.raises(ValueError, match=wanted):
        fit(labelled_run(tmp_path, tmp_path / "ids.tsv"), tmp_path / "run")


def test_a_class_of_two_lines_is_joined_and_reported(tmp_path):
    rows = [{"source": "a b", "target": label} for label in ("for\nit", "against")] * 5
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = io.StringIO()
    fit(labelled_run(tmp_path, tmp_path / "rows.jsonl"), tmp_path / "run", console=Console(file=output, width=400))
    assert "rows.jsonl: 5 rows with line breaks inside a cell, read as spaces" in output.getvalue()
    assert RunFolder(tmp_path / "run").read_labels() == ("against", "for it")


def test_classes_are_counted_and_overfitting_is_reported(tmp_path):
    write_data(tmp_path)
    output = io.StringIO()
    train = {**vars(tiny_run("text_classification", tmp_path).train), "steps": 30, "eval_every": 1, "save_every": 30}
    rows = [row.split("\t") for row in (tmp_path / "train.tsv").read_text().splitlines()]
    other = {"for": "against", "against": "for"}  # the better it learns, the higher its validation loss
    (tmp_path / "valid.tsv").write_text("".join(f"{text}\t{other[label]}\n" for text, label in rows))
    run = tiny_run("text_classification", tmp_path, train=train)
    fit(run, tmp_path / "run", console=Console(file=output, width=400))
    assert "classes: 'against' 80, 'for' 80" in output.getvalue()
    wanted = r"the validation loss was lowest, 0\.\d+, at step \d+, and rose after it: give more data"
    assert re.search(wanted, output.getvalue())


def test_a_sample_longer_than_the_context_is_truncated(tmp_path):
    write_data(tmp_path)
    run = tiny_run("masked_lm", tmp_path, model={**BERT_SHAPE, "max_len": 5},
                   data={**vars(tiny_run("masked_lm", tmp_path).data), "max_len": 5})  # fmt: skip
    assert fit(run, tmp_path / "run").steps == 6


# The order of batches


@EVERY_TASK
def test_a_stream_that_starts_at_a_position_gives_the_batches_that_follow_it(tmp_path, task):
    write_data(tmp_path)
    run, learnt = tiny_run(task, tmp_path), TASKS[task]
    dataset = learnt.prepare(run, tmp_path / f"{task}.json", lambda text: None, lambda what, n: None)
    stream = learnt.batches(run, dataset, DataPosition())
    for _ in range(25):
        _, position = next(stream)
        wanted, _ = next(stream)
        got, _ = next(learnt.batches(run, dataset, position))
        pairs = [(a, b) for a, b in zip(wanted(), got(), strict=True) if isinstance(a, torch.Tensor)]
        assert pairs
        assert all(torch.equal(a, b) for a, b in pairs)
