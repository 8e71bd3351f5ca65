"""`data.mix`: fine-tuning on new data with the old mixed in, the old validation loss and score reported with the new ones."""

import json

import pytest
from safetensors.torch import load_file
from tiny_tasks import tiny_run, write_data

from regard.data.text.mixture import MixedStore
from regard.tasks import read_run, task_of
from regard.tasks.metrics import evaluate
from regard.tasks.mixing import advise_mixing, mix_parts, training_data
from regard.train.loop import fit


def log_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def new_data(folder):
    """Other pairs of the same kind."""
    new = folder / "new"
    new.mkdir()
    for split, count in (("train", 24), ("valid", 6)):
        (new / f"{split}.tsv").write_text("".join(f"the bird {i} sang\t{('for', 'against')[i % 2]}\n" for i in range(count)))
    return new


def fine_tuned(task, folder, mix, **train):
    new = folder / "new"
    data = {"train": f"{new}/train.tsv", "valid": f"{new}/valid.tsv", "max_len": 20, "mix": mix}
    steps = {"steps": 6, "batch_tokens": 60, "eval_every": 3, "save_every": 2, "average": 1, "device": "cpu", "warmup": 3}
    return tiny_run(task, folder, init=str(folder / "old"), data=data, train={**steps, **train})


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """An old run of each task, and new data."""
    homes = {}
    for task in ("translation", "text_classification"):
        homes[task] = folder = tmp_path_factory.mktemp(task)
        write_data(folder)
        new_data(folder)
        fit(tiny_run(task, folder), folder / "old")
    return homes


@pytest.mark.parametrize("task", ["translation", "text_classification"])
def test_the_old_validation_loss_and_score_are_reported_with_the_new_ones(home, task, capsys):
    folder = home[task]
    old = str(folder / "old")
    done = fit(fine_tuned(task, folder, f"{old}:0.5"), folder / "mixed")
    key = f"valid_loss_mix/{old}"
    log = log_of(folder / "mixed")
    assert [line["step"] for line in log if key in line] == [0, 3, 6]
    told = capsys.readouterr().err.replace("\n", "")
    assert f"({old}: {next(line[key] for line in log if line['step'] == 6 and key in line):.4f}, was {log[0][key]:.4f})" in told
    assert f"mixed in from {old}: 24 examples in an epoch of 48, of its 160" in told
    assert f"{old}: {folder}/valid.tsv: " in told  # whose validation data it is
    names = [score.name for score in done.scores]
    main = {"translation": "BLEU", "text_classification": "accuracy"}[task]
    assert {main, f"{old}: {main}", f"{old}: {main} before"} <= {*names}
    before = next(score.value for score in done.scores if score.name == f"{old}: {main} before")
    assert before == log_of(folder / "old")[-1][main]
    card = (folder / "mixed/README.md").read_text()
    assert f"| {old}: {main} |" in card

    # The loss of step 0 is that of the old run's own weights on its own validation data.
    first = next(line[key] for line in log if line["step"] == 0)
    assert first == pytest.approx(_old_loss(folder, task), rel=1e-5) or task == "text_classification"  # whose head is new


def _old_loss(folder, task):
    import regard

    predictor = regard.load(folder / "old", device="cpu")
    run = predictor.run
    what = task_of(run)
    dataset = what.prepare(run, folder / "old/tokenizer.json", lambda text: None, lambda what, done: None)
    return evaluate(predictor.model, what.validation(run, dataset), what.loss)


@pytest.mark.parametrize("task", ["translation", "text_classification"])
def test_a_mixture_resumes_bit_for_bit(home, task):
    folder = home[task]
    run = fine_tuned(task, folder, f"{folder}/old:0.6")
    fit(run, folder / "whole")
    fit(fine_tuned(task, folder, f"{folder}/old:0.6", steps=2, eval_every=3), folder / "halves")
    fit(run, folder / "halves")
    whole, halves = (load_file(folder / name / "model.safetensors") for name in ("whole", "halves"))
    assert all(weight.equal(halves[name]) for name, weight in whole.items())
    first = [line for line in log_of(folder / "halves") if line["step"] == 0]
    assert len(first) == 1  # the losses before fine-tuning are computed once


def test_a_share_of_0_shows_the_old_score_and_mixes_nothing(home):
    folder = home["translation"]
    old = f"{folder}/old"
    fit(fine_tuned("translation", folder, f"{old}:0"), folder / "shown")
    fit(fine_tuned("translation", folder, ""), folder / "plain")
    shown, plain = (load_file(folder / name / "model.safetensors") for name in ("shown", "plain"))
    assert all(weight.equal(plain[name]) for name, weight in shown.items())
    assert f"valid_loss_mix/{old}" in log_of(folder / "shown")[-2]
    assert not any("mix" in key for line in log_of(folder / "plain") for key in line)


def test_fine_tuning_on_other_data_names_the_mixture_that_prevents_forgetting(home, capsys):
    folder = home["translation"]
    fit(fine_tuned("translation", folder, "", steps=1), folder / "advised")
    assert f"data.mix={folder}/old:0.5 mixes its training data in" in capsys.readouterr().err.replace("\n", "")
    assert advise_mixing(fine_tuned("translation", folder, f"{folder}/old:0")) == ""
    assert advise_mixing(read_run(folder / "old/run.toml")) == ""


def test_files_and_named_sets_can_be_mixed_in(home):
    folder = home["translation"]
    run = fine_tuned("translation", folder, f"{folder}/train.tsv:0.3,reverse:0.2")
    parts = mix_parts(run)
    assert [(part.data.train, part.data.source, part.share) for part in parts] == [
        (f"{folder}/train.tsv", "", 0.3), ("", "reverse", 0.2)]  # fmt: skip
    dataset = task_of(run).prepare(run, folder / "old/tokenizer.json", lambda text: None, lambda what, done: None)
    assert isinstance(dataset.train, MixedStore)
    assert dataset.train.counts == [14, 10]  # 24 own pairs are half


def test_a_run_that_mixes_in_others_brings_them_along(home):
    folder = home["translation"]
    fit(fine_tuned("translation", folder, f"{folder}/old:0.5", steps=1), folder / "second")
    parts = mix_parts(fine_tuned("translation", folder, f"{folder}/second:0.4"))
    assert [(part.name, part.share) for part in parts] == [(f"{folder}/second", 0.2), (f"{folder}/old", 0.2)]
    read = [data.train for data in training_data(read_run(folder / "second/run.toml"))]
    assert read == [f"{folder}/new/train.tsv", f"{folder}/train.tsv", f"{folder}/train.tsv"]  # own, mixed in, of its init


def test_classes_that_only_the_old_data_has_are_kept(home):
    folder = home["text_classification"]
    (folder / "other.tsv").write_text("".join(f"the door {i} sang\tundecided\nthe mat {i} sang\tfor\n" for i in range(20)))
    run = fine_tuned("text_classification", folder, f"{folder}/other.tsv:0.5", steps=1)
    fit(run, folder / "classes")
    assert (folder / "classes/labels.txt").read_text().split() == ["against", "for", "undecided"]


def test_what_cannot_be_mixed_is_refused_in_one_line(home, tmp_path):
    folder = home["translation"]
    with pytest.raises(ValueError, match="image_classification cannot mix data: put the old and the new data into one folder"):
        read_run("images", ("data.train=photos", "data.mix=runs/x:0.5"))
    write_data(tmp_path)
    gpt = tiny_run("language_model", tmp_path)
    plain = read_run("gpt", (f"data.train={tmp_path}/train.txt", f"data.valid={tmp_path}/valid.txt", "data.mix=old.txt:0.5"))
    with pytest.raises(ValueError, match="language_model reads one plain text: put both texts into one file"):
        fit(plain, tmp_path / "gpt")
    assert gpt.data.mix == ""
    with pytest.raises(ValueError, match="was trained on task text_classification, this run on translation"):
        fit(fine_tuned("translation", folder, f"{home['text_classification']}/old:0.5"), tmp_path / "run")
    with pytest.raises(ValueError, match="is a folder without run"):
        fit(fine_tuned("translation", folder, f"{tmp_path}:0.5"), tmp_path / "run")
    with pytest.raises(ValueError, match="no file"):
        fit(fine_tuned("translation", folder, f"{tmp_path}/gone.tsv:0.5"), tmp_path / "run")


def test_the_loss_of_photos_is_not_turned_into_that_of_words(tmp_path, capsys):
    from PIL import Image

    for label, value in (("dark", 20), ("light", 220)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(8):
            Image.new("RGB", (8, 8), (value + i, value, value)).save(tmp_path / "photos" / label / f"{i}.png")
    sizes = ("model=vit-tiny", "model.image=8", "model.depth=1", "model.dim=16", "model.heads=2", "model.patch=4")
    run = read_run("images", (*sizes, f"data.train={tmp_path}/photos", "train.steps=2", "train.eval_every=2"))
    fit(run, tmp_path / "run")
    told = capsys.readouterr().err
    assert "validation loss" in told
    assert "accuracy" in told
    assert "perplexity" not in told + (tmp_path / "run/log.jsonl").read_text()
