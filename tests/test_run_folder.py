"""Nothing is written or deleted outside a run folder, and `train.checkpoints` puts checkpoints in another folder."""

import os
import shutil

import pytest
from small import SMALL

from regard.run_folder import RunFolder
from regard.tasks import read_run
from regard.train.loop import fit

KEEP = "a file of the user\n"


@pytest.fixture
def run(small_run, tmp_path):
    """A run after ten steps, with checkpoints of steps 5 and 10."""
    return shutil.copytree(small_run, tmp_path / "run")


def train(regard, run, *changes):
    return regard("train", "reverse", *SMALL, "train.steps=15", *changes, "--out", run)


def content(folder):
    return {file.relative_to(folder): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def refused_in_one_line(result, *words):
    assert result.code == 2, result.err
    assert result.err.count("\n") == 1, result.err
    assert result.err.startswith("regard: ")
    assert all(word in result.err for word in words), result.err


FILES = (".lock", "log.jsonl", "model.safetensors", "README.md", "config.json", "run.toml", "tokenizer.json", "labels.txt",
         ".tokenizer.part", "events/tfevents", "checkpoints/step-00000010/model.safetensors",
         "checkpoints/step-00000010/optimizer.safetensors", "checkpoints/step-00000010/state.json")  # fmt: skip


@pytest.mark.parametrize("how", ["--resume", "--fresh"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_a_link_out_of_the_folder_is_refused_and_its_target_is_untouched(regard, run, tmp_path, name, how):
    file, outside = run / name, tmp_path / "outside"
    outside.mkdir()
    if file.exists():
        shutil.move(file, outside / "precious")
    else:
        (outside / "precious").write_text(KEEP)
    file.symlink_to(outside / "precious")
    before, kept = content(outside), sorted(run.rglob("*"))
    refused_in_one_line(train(regard, run, how), str(file), "is a link that leads out of the run folder", "remove it")
    assert content(outside) == before
    assert sorted(run.rglob("*")) == kept
    assert file.is_symlink()


@pytest.mark.parametrize("how", ["--resume", "--fresh"])
@pytest.mark.parametrize("name", ["events", "checkpoints", "checkpoints/step-00000005", "checkpoints/step-00000010"])
def test_a_folder_that_is_a_link_out_of_the_run_is_refused_and_its_files_are_untouched(regard, run, tmp_path, name, how):
    folder, outside = run / name, tmp_path / "outside"
    outside.mkdir()
    shutil.move(folder, outside / "precious")
    folder.symlink_to(outside / "precious")
    before = content(outside)
    result = train(regard, run, how)
    refused_in_one_line(result, str(folder), "is a link that leads out of the run folder")
    assert ("train.checkpoints=FOLDER" in result.err) == (name == "checkpoints")
    assert content(outside) == before


def test_a_link_to_a_missing_file_outside_creates_no_file(regard, run, tmp_path):
    (run / ".lock").unlink(missing_ok=True)
    (run / ".lock").symlink_to(tmp_path / "created")
    refused_in_one_line(train(regard, run, "--resume"), ".lock is a link")
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize("name", [".part", ".model.safetensors.part", ".run.toml.1.part"])
def test_a_link_with_the_name_of_a_part_file_is_not_written_through(regard, run, tmp_path, name):
    (tmp_path / "precious").write_text(KEEP)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "precious").write_text(KEEP)
    link = run / "checkpoints" / name if name == ".part" else run / name
    link.symlink_to(tmp_path / ("folder" if name == ".part" else "precious"))
    train(regard, run, "--resume")
    assert (tmp_path / "precious").read_text() == KEEP
    assert content(tmp_path / "folder") == {(tmp_path / "folder" / "precious").relative_to(tmp_path / "folder"): KEEP.encode()}


def test_a_link_that_stays_inside_the_folder_is_followed(regard, run, small_run, tmp_path):
    (run / "logs").mkdir()
    shutil.move(run / "events", run / "logs" / "events")
    (run / "events").symlink_to("logs/events")
    assert train(regard, run, "--resume").code == 0
    plain = shutil.copytree(small_run, tmp_path / "plain")
    assert train(regard, plain, "--resume").code == 0
    assert (run / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    assert len(list((run / "logs" / "events").iterdir())) == len(list((plain / "events").iterdir()))


def test_a_run_folder_may_itself_be_a_link(regard, run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    assert train(regard, tmp_path / "link", "--resume").code == 0
    assert (run / "checkpoints" / "step-00000015").is_dir()


# --- checkpoints in another folder


def test_checkpoints_in_another_folder_resume_to_the_same_bits(regard, tmp_path):
    other, run, whole = tmp_path / "other disk" / "checkpoints of it", tmp_path / "run", tmp_path / "whole"
    elsewhere = f"train.checkpoints={other}"
    assert train(regard, run, elsewhere, "train.steps=10").code == 0
    assert not (run / "checkpoints").exists()
    assert sorted(path.name for path in (other / "run").glob("step-*")) == ["step-00000005", "step-00000010"]
    result = train(regard, run, elsewhere, "--resume")
    assert result.code == 0, result.err
    assert "resumed at step 10" in result.err
    assert train(regard, whole).code == 0
    for name in ("model.safetensors", "optimizer.safetensors"):
        found, wanted = (folder / "step-00000015" / name for folder in (other / "run", whole / "checkpoints"))
        assert found.read_bytes() == wanted.read_bytes()
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_run_resumed_without_its_checkpoints_key_finds_them(regard, tmp_path):
    other, run = tmp_path / "other", tmp_path / "run"
    assert train(regard, run, f"train.checkpoints={other}", "train.steps=10").code == 0
    result = train(regard, run, "--resume")
    assert "resumed at step 10" in result.err
    assert (other / "run" / "step-00000015").is_dir()
    assert not (run / "checkpoints").exists()


def test_fresh_deletes_nothing_but_checkpoints_in_another_folder(regard, tmp_path):
    other, run = tmp_path / "other", tmp_path / "run"
    for folder in (other, other / "run"):
        (folder / "step-ladder").mkdir(parents=True)
        (folder / "step-ladder" / "precious").write_text(KEEP)
        (folder / "precious").write_text(KEEP)
        (folder / "linked").symlink_to(folder / "step-ladder")
    elsewhere = f"train.checkpoints={other}"
    assert train(regard, run, elsewhere).code == 0
    assert train(regard, run, elsewhere, "train.steps=5", "--fresh").code == 0
    assert [path.name for path in (other / "run").glob("step-0*")] == ["step-00000005"]
    for folder in (other, other / "run"):
        assert (folder / "precious").read_text() == (folder / "step-ladder" / "precious").read_text() == KEEP
        assert (folder / "linked").is_symlink()


def test_a_checkpoint_in_another_folder_that_is_a_link_is_refused(regard, tmp_path):
    other, run = tmp_path / "other", tmp_path / "run"
    elsewhere = f"train.checkpoints={other}"
    assert train(regard, run, elsewhere, "train.steps=10").code == 0
    (tmp_path / "precious").write_text(KEEP)
    weights = other / "run" / "step-00000010" / "model.safetensors"
    weights.unlink()
    weights.symlink_to(tmp_path / "precious")
    refused_in_one_line(train(regard, run, elsewhere, "--resume"), str(weights), "is a link")
    assert (tmp_path / "precious").read_text() == KEEP


def test_the_checkpoints_of_another_run_are_refused(tmp_path):
    other = str(tmp_path / "other")
    run = read_run("reverse", (*SMALL, "train.steps=5", f"train.checkpoints={other}"))
    assert fit(run, tmp_path / "a" / "run").steps == 5
    with pytest.raises(ValueError, match=r"holds the checkpoints of .*/a/run; choose another train\.checkpoints"):
        fit(run, tmp_path / "b" / "run")
    assert fit(run, tmp_path / "b" / "second").steps == 5  # beside it, in a folder of its name


def test_the_checkpoints_of_a_run_that_is_not_there_now_are_not_deleted_by_a_new_one(tmp_path):
    run = read_run("reverse", (*SMALL, "train.steps=5", f"train.checkpoints={tmp_path / 'other'}"))
    assert fit(run, tmp_path / "a" / "run").steps == 5
    os.rename(tmp_path / "a", tmp_path / "unmounted")
    before = sorted((tmp_path / "other").rglob("*"))
    for fresh in (False, True):
        with pytest.raises(ValueError, match=r"holds the checkpoints of .*/a/run, which is not there now; choose another"):
            fit(run, tmp_path / "b" / "run", fresh=fresh)
    with pytest.raises(ValueError, match="which is not there now"):
        fit(run, tmp_path / "unmounted" / "run", fresh=True)
    assert sorted((tmp_path / "other").rglob("*")) == before
    more = read_run("reverse", (*SMALL, "train.steps=6", f"train.checkpoints={tmp_path / 'other'}"))
    assert fit(more, tmp_path / "unmounted" / "run").steps == 6  # it was moved, and is resumed


def test_the_tokenizer_of_the_answers_belongs_to_a_run(run):
    files = RunFolder(run)
    files.target_tokenizer.write_text("{}")
    files.run.unlink()
    assert files.remains
    shutil.copyfile(files.tokenizer, files.new_tokenizer)
    files.begin(text=True, labels=())
    assert not files.target_tokenizer.exists()  # the new run has one vocabulary


def test_a_target_tokenizer_of_the_user_is_foreign(tmp_path):
    (tmp_path / "target_tokenizer.json").write_text(KEEP)
    assert RunFolder(tmp_path).foreign == ["target_tokenizer.json"]


def test_a_model_whose_checkpoints_are_gone_is_not_trained_from_the_start(regard, run):
    shutil.rmtree(run / "checkpoints")
    before = (run / "model.safetensors").read_bytes()
    refused_in_one_line(train(regard, run, "--resume"), "holds a model", "no checkpoint", "--fresh")
    assert (run / "model.safetensors").read_bytes() == before


def test_a_run_stopped_before_its_first_checkpoint_starts_over(regard, run, small_run):
    for name in ("checkpoints", "events"):
        shutil.rmtree(run / name)
    (run / "model.safetensors").unlink()
    (run / "labels.txt").write_text("of other data\n")
    assert train(regard, run, "train.steps=10", "--resume").code == 0
    assert not (run / "labels.txt").exists()
    assert (run / "model.safetensors").read_bytes() == (small_run / "model.safetensors").read_bytes()


def test_a_training_that_cannot_begin_leaves_the_folder_of_the_user(regard, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for folder in ("mine", "link"):
        result = regard("train", "translate", "data.train=no.tsv", "data.valid=no.tsv", "--out", tmp_path / folder)
        refused_in_one_line(result, "no file no.tsv")
        assert (tmp_path / "mine").is_dir()


def test_two_trainings_cannot_share_a_run_folder(run):
    with RunFolder(run).locked(), pytest.raises(ValueError, match="another training is running in"), RunFolder(run).locked():
        pass
    with RunFolder(run).locked():  # a lock ends with its training
        pass


# --- a folder that holds part of a run, or files of others


def test_what_a_kill_has_left_of_a_run_is_recognised_at_each_deletion(run):
    files = RunFolder(run)
    for file in (files.run, files.config, files.weights, files.labels, files.card):  # as earlier versions delete, without a mark
        file.unlink(missing_ok=True)
        assert files.remains
        assert not files.foreign
    shutil.rmtree(files.checkpoints)
    assert files.foreign == ["log.jsonl", "tokenizer.json", "events"]  # nothing says whose they are


@pytest.mark.parametrize("how", [(), ("--fresh",), ("--resume",)])
@pytest.mark.parametrize("name", ["README.md", "config.json", "model.safetensors", "tokenizer.json", "log.jsonl"])
def test_a_file_of_the_user_with_the_name_of_one_of_a_run_is_not_replaced(regard, tmp_path, name, how):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text(KEEP)
    result = regard("train", "reverse", *SMALL, "train.steps=1", "--out", tmp_path / "mine", *how)
    assert result.code == 2
    assert "choose another --out" in result.err
    assert {file.name for file in (tmp_path / "mine").iterdir()} - {".lock"} == {name}
    assert (tmp_path / "mine" / name).read_text() == KEEP


def test_a_hugging_face_checkpoint_is_not_taken_for_what_is_left_of_a_run(tmp_path):
    for name in ("config.json", "model.safetensors", "tokenizer.json", "README.md"):
        (tmp_path / name).write_text('{"model_type": "gpt2"}')
    assert not RunFolder(tmp_path).remains


def test_a_folder_with_unrelated_files_of_the_user_takes_a_run(regard, tmp_path):
    (tmp_path / "notes.txt").write_text(KEEP)
    result = regard("train", "reverse", *SMALL, "train.steps=1", "--out", tmp_path)
    assert result.code == 0, result.err
    assert (tmp_path / "notes.txt").read_text() == KEEP
