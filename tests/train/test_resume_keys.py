"""`regard train … --resume` accepts the command that started the run, and refuses model and data keys that differ."""

import json
import shutil

import numpy as np
import pytest
import tomli_w
from PIL import Image
from small import SMALL

from regard.tasks import read_run


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Three classes of small images."""
    home, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for label in ("a", "b", "c"):
        (home / label).mkdir()
        for number in range(4):
            Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(home / label / f"{number}.png")
    return home


SWIN = ("model=swin-tiny", "model.image=16", "model.patch=2", "model.window=2", "model.dim=8", "model.depths=[1, 1]",
        "model.heads=[1, 2]")  # fmt: skip
FEW = ("train.steps=2", "train.batch_size=4", "train.save_every=1", "train.eval_every=2", "data.crop=0", "data.augment=0.0")


@pytest.fixture
def images(photos, regard, tmp_path):
    """The command of a run that names a whole model, and its folder; the data has other classes than the model's default."""
    command = ("train", "images", f"data.train={photos}", *SWIN, *FEW, "--out", tmp_path / "run")
    result = regard(*command)
    assert result.code == 0, result.err
    assert json.loads((tmp_path / "run/config.json").read_text())["classes"] == 3
    return command


@pytest.fixture
def text(small_run, tmp_path):
    """A copy of the small run of `reverse`, after ten steps."""
    return shutil.copytree(small_run, tmp_path / "run")


def files(folder):
    return {file.relative_to(folder): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def refused(result, *words):
    assert result.code == 2, result.err
    assert result.err.count("\n") == 1, result.err
    assert all(word in result.err for word in words), result.err


def test_the_command_that_started_a_run_with_a_whole_model_resumes_it(regard, images):
    result = regard(*images, "--resume")
    assert result.code == 0, result.err
    assert "resumed at step 2" in result.err


def test_a_named_model_alone_is_compared_by_all_keys_but_the_counted_ones(regard, photos, tmp_path):
    command = ("train", "images", f"data.train={photos}", "model=resnet-18", "model.image=16", *FEW, "train.steps=1",
               "--out", tmp_path / "run")  # fmt: skip
    assert regard(*command).code == 0
    result = regard(*command, "train.steps=2", "--resume")
    assert result.code == 0, result.err
    assert "resumed at step 1" in result.err
    other = [word if word != "model=resnet-18" else "model=resnet-34" for word in command]
    refused(regard(*other, "--resume"), "model.depths=[2, 2, 2, 2]", "model.depths=[3, 4, 6, 3]", "--fresh")


@pytest.mark.parametrize("key", ["model", "model.size"])
def test_a_size_is_compared_by_all_its_keys(regard, small_run, tmp_path, key):
    command = ("train", "reverse", *SMALL, f"{key}=tiny", "--out", tmp_path / "run")
    assert regard(*command, "train.steps=5").code == 0
    result = regard(*command, "train.steps=6", "--resume")
    assert result.code == 0, result.err
    assert "resumed at step 5" in result.err
    other = [f"{key}=small" if word == f"{key}=tiny" else word for word in command]
    refused(regard(*other, "--resume"), "model.mlp_ratio=2", "model.mlp_ratio=4")


def test_another_family_is_refused_with_both_names(regard, images, tmp_path):
    before = files(tmp_path / "run")
    other = ["model=vit-tiny" if word == "model=swin-tiny" else word for word in images if "model." not in str(word)]
    refused(regard(*other, "model.image=16", "model.patch=2", "--resume"), "model.family=swin", "model.family=vit")
    assert files(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("change", "stored", "asked"),
    [
        ("model.dim=32", "model.dim=16", "model.dim=32"),
        ("model.norm=post", "model.norm=pre", "model.norm=post"),
        ("data.vocab=77", "data.vocab=", "data.vocab=77"),
        ("data.pairs=301", "data.pairs=300", "data.pairs=301"),
        ("data.max_len=99", "data.max_len=", "data.max_len=99"),
        ("init=elsewhere", "init=", "init=elsewhere"),
    ],
)
def test_a_key_that_differs_is_refused_with_its_name_and_both_values(regard, text, change, stored, asked):
    before = files(text)
    result = regard("train", "reverse", *SMALL, "--out", text, "--resume", change)
    if change == "init=elsewhere":  # read before it is compared
        refused(result, "elsewhere")
    else:
        refused(result, stored, f"{asked} was asked for", "--resume may change train and decode keys only", "--fresh")
    assert files(text) == before


@pytest.mark.parametrize("change", ["model.dim=16", "data.pairs=300", "model.heads=2"])
def test_a_model_or_data_key_with_the_same_value_is_accepted(regard, text, change):
    result = regard("train", "reverse", *SMALL, change, "train.steps=11", "--out", text, "--resume")
    assert result.code == 0, result.err
    assert "resumed at step 10" in result.err


def test_train_and_decode_keys_may_change(regard, text):
    changes = ("train.steps=12", "train.lr=0.0005", "train.save_every=1", "decode.beam_size=2")
    result = regard("train", "reverse", *changes, "--out", text, "--resume")
    assert result.code == 0, result.err
    assert "resumed at step 10" in result.err
    stored = (text / "run.toml").read_text()
    assert all(line in stored for line in ("steps = 12", "lr = 0.0005", "beam_size = 2", "pairs = 300", "dim = 16"))


def test_a_recipe_is_resumed_without_repeating_its_keys(regard, text, small_run, tmp_path):
    steps = "train.steps=15"
    result = regard("train", "reverse", steps, "--out", text, "--resume")
    assert result.code == 0, result.err
    assert "resumed at step 10" in result.err
    repeated = shutil.copytree(small_run, tmp_path / "repeated")
    assert regard("train", "reverse", *SMALL, steps, "--out", repeated, "--resume").code == 0
    assert (text / "model.safetensors").read_bytes() == (repeated / "model.safetensors").read_bytes()
    assert regard("train", "reverse", "--out", text, "--resume").code == 0  # nothing left to do


def test_a_finished_run_of_images_is_resumed_by_its_recipe_alone(regard, images, tmp_path):
    result = regard("train", "images", "--out", tmp_path / "run", "--resume")
    assert result.code == 0, result.err
    assert "resumed at step 2" in result.err


def test_an_unknown_key_is_refused_when_resuming_too(regard, text):
    refused(regard("train", "reverse", "train.step=12", "--out", text, "--resume"), "train.step", "'train.steps'")


def test_the_optimizer_of_a_run_cannot_be_changed(regard, text):
    result = regard("train", "reverse", "train.optimizer=adafactor", "--out", text, "--resume")
    refused(result, "train.optimizer=adam", "train.optimizer=adafactor")


def test_paths_are_compared_however_they_are_spelled(regard, images, photos):
    command = [word if not str(word).startswith("data.train=") else f"data.train={photos}/../{photos.name}/" for word in images]
    result = regard(*command, "--resume")
    assert result.code == 0, result.err


def test_keys_of_the_users_own_file_are_compared_and_applied(regard, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = {"model": {"dim": 16, "heads": 2, "depth": 1}, "data": {"source": "reverse", "pairs": 300, "vocab": 60},
             "train": {"steps": 4, "batch_tokens": 256, "save_every": 2, "eval_every": 4}}  # fmt: skip
    own = tmp_path / "mine.toml"
    own.write_text(tomli_w.dumps(table))
    assert regard("train", own).code == 0
    own.write_text(tomli_w.dumps({**table, "train": {**table["train"], "steps": 6}}))
    assert "after 6 steps" in regard("train", own, "--resume").out
    own.write_text(tomli_w.dumps({**table, "model": {**table["model"], "dim": 32}}))
    refused(regard("train", own, "--resume"), "model.dim=16", "model.dim=32")


def test_a_file_of_the_user_may_be_called_run_toml(regard, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(
        'name = "mine"\n[model]\ndim = 16\nheads = 2\ndepth = 1\n[data]\nsource = "reverse"\npairs = 300\n[train]\nsteps = 2\n'
    )
    assert regard("train", "run.toml").code == 0
    assert (tmp_path / "runs/mine/model.safetensors").exists()


def test_resuming_a_complete_run_leaves_what_it_says_of_its_training(regard, text):
    before = {name: (text / name).read_bytes() for name in ("run.toml", "README.md", "model.safetensors")}
    result = regard("train", "reverse", "train.lr=0.5", "--out", text, "--resume")
    assert result.code == 0, result.err
    assert "all steps are done; to train on, raise train.steps" in result.err
    assert {name: (text / name).read_bytes() for name in before} == before


def test_resuming_with_fewer_steps_than_are_done_says_that_nothing_is_left(regard, text):
    before = {name: (text / name).read_bytes() for name in ("run.toml", "README.md", "model.safetensors")}
    result = regard("train", text, "--resume", "train.steps=1")
    assert result.code == 0, result.err
    done = read_run(text / "run.toml").train.steps
    assert f"nothing is left to train: {done} steps are done, train.steps is 1; to train on, raise it" in result.err
    assert {name: (text / name).read_bytes() for name in before} == before
    (text / "README.md").unlink()  # as in a run that was stopped
    (text / "run.toml").write_text((text / "run.toml").read_text().replace(f"steps = {done}\n", "steps = 500\n", 1))
    assert regard("train", text, "--resume", "train.steps=1").code == 0
    assert f"{done} of {done}" in regard("runs", text.parent).out
    again = regard("train", "reverse", "train.steps=1", "--out", text, "--fresh")
    assert "1 step of up to" in again.err
    assert "after 1 step and" in again.out


# --- a run given by its folder


@pytest.mark.parametrize("what", ["run", "run/run.toml", "run/"])
def test_a_run_is_resumed_by_its_folder_or_its_file(regard, text, tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    result = regard("train", what, "train.steps=12", "--resume")
    assert result.code == 0, result.err
    assert "resumed at step 10" in result.err
    assert (text / "checkpoints" / "step-00000012").is_dir()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("how", ["copied", "moved"])
def test_a_run_that_was_moved_or_copied_is_resumed_where_it_is(regard, tmp_path, how):
    first, other = tmp_path / "first" / "run", tmp_path / "other" / "run"
    elsewhere = [f"train.checkpoints={tmp_path}/disk"] if how == "moved" else []
    assert regard("train", "reverse", *SMALL, "train.steps=5", *elsewhere, "--out", first).code == 0
    other.parent.mkdir()
    (shutil.move if how == "moved" else shutil.copytree)(first, other)
    before = files(first) if how == "copied" else None
    result = regard("train", other, "train.steps=10", "--resume")
    assert result.code == 0, result.err
    assert "resumed at step 5" in result.err
    assert (files(first) if how == "copied" else None) == before


def test_another_name_is_no_reason_to_refuse_and_the_run_keeps_its_own(regard, text):
    for change in ("name=other", "name=reverse"):
        result = regard("train", "reverse", *SMALL, "train.steps=11", "--out", text, "--resume", change)
        assert result.code == 0, result.err
        assert "resumed at step 1" in result.err
    assert 'name = "reverse"' in (text / "run.toml").read_text()


def test_a_run_with_a_name_of_its_own_is_resumed_by_its_recipe(regard, tmp_path):
    assert regard("train", "reverse", *SMALL, "name=mine", "train.steps=5", "--out", tmp_path / "run").code == 0
    result = regard("train", "reverse", "train.steps=6", "--out", tmp_path / "run", "--resume")
    assert result.code == 0, result.err
    assert "resumed at step 5" in result.err


def test_a_recipe_for_another_task_is_refused(regard, text):
    refused(regard("train", "gpt", "--out", text, "--resume"), "task=translation", "task=language_model")


def test_a_run_without_a_flag_is_refused_with_what_to_do(regard, text):
    refused(regard("train", text), "is a run", "--resume", "--fresh", "--out")


def test_a_run_is_started_over_by_its_folder(regard, text):
    result = regard("train", text, "train.steps=3", "--fresh")
    assert result.code == 0, result.err
    assert "after 3 steps" in result.out


def test_the_run_of_a_folder_is_trained_in_another(regard, text, tmp_path):
    before = files(text)
    result = regard("train", text, "--out", tmp_path / "again")
    assert result.code == 0, result.err
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (text / "model.safetensors").read_bytes()
    assert files(text) == before


def test_resuming_a_run_without_a_checkpoint_says_that_it_starts_over(regard, text):
    shutil.rmtree(text / "checkpoints")
    (text / "model.safetensors").unlink()
    result = regard("train", text, "--resume")
    assert result.code == 0, result.err
    assert f"no checkpoint in {text} yet; starting from step 0" in result.err
    assert "resumed" not in result.err
