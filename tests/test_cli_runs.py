"""`regard runs` lists runs and deletes only what they no longer need."""

import json
import os
import shutil

import pytest
from cli_checks import assert_refused
from small import SMALL

from regard.run_folder import RunFolder


@pytest.fixture
def home(small_run, tmp_path, monkeypatch):
    """A working directory with a finished run in runs/done."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_run, tmp_path / "runs" / "done")
    return tmp_path


def interrupt(run):
    """Leave a run as a kill in its step 12 would: the log is torn, nothing is averaged or scored."""
    run.joinpath("README.md").unlink()
    lines = run.joinpath("log.jsonl").read_text().splitlines()
    run.joinpath("log.jsonl").write_text("\n".join(lines[:-1]) + '\n{"step": 12, "lo')


def listed(regard, *words) -> dict[str, dict]:
    result = regard("runs", *words, "--json")
    assert result.code == 0, result.err
    return {os.path.basename(run["folder"]): run for run in json.loads(result.out)}


def content(folder):
    return {file.relative_to(folder): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_a_finished_run_is_listed_with_what_it_is_and_what_it_reached(regard, home):
    run = listed(regard)["done"]
    assert (run["status"], run["task"], run["family"]) == ("finished", "translation", "transformer")
    assert (run["step"], run["steps"], run["parameters"]) == (10, 10, 6544)
    inodes = {file.stat().st_ino: file.stat().st_size for file in (home / "runs/done").rglob("*") if file.is_file()}
    assert run["bytes"] == sum(inodes.values())
    final = json.loads((home / "runs/done/log.jsonl").read_text().splitlines()[-1])
    assert run["scores"]["BLEU"] == final["BLEU"]
    assert run["loss"] == final["final_loss"]
    line = next(line for line in regard("runs").out.splitlines() if "runs/done" in line)
    assert all(word in line for word in ("translation", "6,544", "BLEU", "10 of 10", run["date"][:10], "finished"))


def test_the_parameters_are_those_of_the_card(regard, home):
    card = (home / "runs/done/README.md").read_text()
    assert f"| parameters | {listed(regard)['done']['parameters']:,} |" in card


def test_the_states_of_a_run_are_told_apart(regard, home, small_run):
    runs = home / "runs"
    interrupt(shutil.copytree(small_run, runs / "killed"))
    begun = shutil.copytree(small_run, runs / "begun")
    for name in ("checkpoints", "events"):
        shutil.rmtree(begun / name)
    for name in ("model.safetensors", "log.jsonl", "README.md"):
        (begun / name).unlink()
    shutil.copytree(begun, runs / "diverged")
    (runs / "diverged/events").mkdir()
    imported = shutil.copytree(small_run, runs / "imported")
    shutil.rmtree(imported / "checkpoints")
    (imported / "log.jsonl").unlink()
    (shutil.copytree(small_run, runs / "halved") / "run.toml").unlink()
    (runs / "photos").mkdir()
    (runs / "note.txt").write_text("no folder")
    with RunFolder(runs / "killed").locked():
        assert listed(regard)["killed"]["status"] == "running"
    states = {name: run["status"] for name, run in listed(regard).items()}
    assert states == {"done": "finished", "killed": "interrupted", "begun": "not started", "diverged": "no checkpoint",
                      "imported": "imported", "halved": "left over", "photos": "not a run"}  # fmt: skip
    assert "interrupted at step 10" in regard("runs").out


@pytest.mark.parametrize(("name", "spoiled"), [
    ("run.toml", b"\xff\xfe"), ("run.toml", b"steps = ["), ("config.json", b"[" * 100_000), ("config.json", b"{}"),
    ("model.safetensors", b"\xff" * 8), ("model.safetensors", b""), ("log.jsonl", b"\0\n[]\n1\n"), ("run.toml", b'train = "x"'),
])  # fmt: skip
def test_a_damaged_run_is_one_line_and_the_others_are_listed(regard, home, small_run, name, spoiled):
    (shutil.copytree(small_run, home / "runs/bad") / name).write_bytes(spoiled)
    found = listed(regard)
    assert found["done"]["status"] == "finished"
    if name != "log.jsonl":
        assert found["bad"]["status"] == "damaged"
    assert len([line for line in regard("runs").out.splitlines() if "runs/bad" in line]) == 1
    before = content(home / "runs/bad")
    regard("runs", "--prune", "--yes", "runs/bad")
    assert content(home / "runs/bad").keys() >= before.keys() or name == "log.jsonl"


def test_control_characters_in_a_name_are_shown_as_escapes(regard, home):
    shutil.copytree(home / "runs/done", home / "runs" / "a\x1b[2Jb")
    result = regard("runs")
    assert "\x1b" not in result.out
    assert "a\\x1b[2Jb" in result.out


def test_a_run_may_be_given_itself_and_a_folder_may_be_missing(regard, home):
    assert list(listed(regard, "runs/done")) == ["done"]
    assert_refused(regard("runs", "nowhere"), "no folder nowhere")
    (home / "runs").rename(home / "others")
    result = regard("runs")
    assert (result.code, result.out) == (0, "")
    assert "no folder runs/" in result.err


# --- prune


def test_pruning_needs_a_yes_and_a_dry_run_changes_nothing(regard, home):
    before = content(home)
    result = regard("runs", "--prune", "--dry-run")
    assert (result.code, content(home)) == (0, before)
    assert "would free" in result.out
    assert_refused(regard("runs", "--prune"), "--yes", "--dry-run")
    assert content(home) == before
    assert_refused(regard("runs", "--yes"), "--prune")


def test_a_pruned_finished_run_predicts_as_before_and_frees_what_was_said(regard, home):
    said = json.loads(regard("runs", "--prune", "--dry-run", "--json").out)["freed"]["runs/done"]
    answers, size = regard("translate", "runs/done", "a b c").out, listed(regard)["done"]["bytes"]
    kept = {name: data for name, data in content(home).items() if "checkpoints" not in name.parts}
    assert regard("runs", "--prune", "--yes").code == 0
    assert size - listed(regard)["done"]["bytes"] == said > 0
    assert content(home) == kept
    assert not (home / "runs/done/checkpoints").exists()
    assert regard("translate", "runs/done", "a b c").out == answers
    assert listed(regard)["done"]["status"] == "finished"
    assert "freed 0 bytes" in regard("runs", "--prune").out  # nothing to ask for


def test_a_pruned_interrupted_run_resumes_to_the_same_bits(regard, home, small_run):
    for name in ("pruned", "whole"):
        interrupt(shutil.copytree(small_run, home / "runs" / name))
    assert regard("runs", "--prune", "--yes", "runs/pruned").code == 0
    assert not (home / "runs/pruned/checkpoints/step-00000005/optimizer.safetensors").exists()
    for name in ("pruned", "whole"):
        result = regard("train", f"runs/{name}", "train.steps=15", "--resume")
        assert result.code == 0, result.err
        assert "resumed at step 10" in result.err
    assert (home / "runs/pruned/model.safetensors").read_bytes() == (home / "runs/whole/model.safetensors").read_bytes()


def test_an_interrupted_run_whose_newest_checkpoint_is_damaged_keeps_the_one_before_it(regard, home, small_run):
    run = shutil.copytree(small_run, home / "runs/killed")
    interrupt(run)
    os.truncate(run / "checkpoints/step-00000010/optimizer.safetensors", 100)
    assert regard("runs", "--prune", "--yes").code == 0
    result = regard("train", run, "--resume")
    assert result.code == 0, result.err
    assert "resumed at step 5" in result.err


def test_files_of_others_and_running_trainings_are_left_alone(regard, home):
    run = home / "runs/done"
    mine = run / "checkpoints/step-00000005/notes.txt"
    mine.write_text("mine")
    (run / "checkpoints/step-ladder").mkdir()
    (home / "elsewhere").mkdir()
    (home / "elsewhere/state.json").write_text("not of the run")
    (run / "checkpoints/step-00000001").symlink_to(home / "elsewhere")
    before = content(home)
    with RunFolder(shutil.copytree(run, home / "runs/busy", symlinks=False)).locked():
        result = regard("runs", "--prune", "--yes")
        assert "busy: left alone, running" in result.err
    assert "leads out of the run folder" in result.err
    assert {name: data for name, data in content(home).items() if "busy" not in name.parts} == before
    (run / "checkpoints/step-00000001").unlink()
    assert regard("runs", "--prune", "--yes", "runs/done").code == 0
    assert mine.read_text() == "mine"
    assert (run / "checkpoints/step-ladder").is_dir()
    assert [path.name for path in mine.parent.iterdir()] == ["notes.txt"]


def test_checkpoints_in_another_folder_are_counted_and_pruned(regard, home):
    elsewhere = f"train.checkpoints={home}/disk"
    assert regard("train", "reverse", *SMALL, "train.steps=5", elsewhere, "--out", "runs/other").code == 0
    before = listed(regard)["other"]["bytes"]
    assert before > sum(file.stat().st_size for file in (home / "disk").rglob("*.safetensors"))
    assert regard("runs", "--prune", "--yes", "runs/other").code == 0
    assert not list((home / "disk").rglob("*.safetensors"))
