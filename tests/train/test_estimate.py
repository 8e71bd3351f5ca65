"""What a training will need: estimates of time, memory and disk, and how they are shown."""

import io
import json
import re
import shutil

import pytest
from rich.console import Console
from small import SMALL

from regard.config import TrainConfig
from regard.data.machine import Memory
from regard.data.units import format_duration, format_size
from regard.models import FAMILIES
from regard.run_folder import RunFolder
from regard.tasks import read_run
from regard.train import estimate, log
from regard.train.estimate import StepTimer, checkpoint_bytes, memory_bytes
from regard.train.loop import fit


def test_the_time_left_is_known_from_the_first_step_on_and_leaves_the_slow_start_out():
    timer = StepTimer(TrainConfig(steps=102))
    assert timer.left(0) == 0.0
    timer.step(9.0)
    assert timer.left(1) == 9.0 * 101
    timer.step(5.0)
    for _ in range(5):
        timer.step(1.0)
    assert timer.ready
    assert timer.left(7) == 95.0


def test_evaluations_and_checkpoints_count_once_they_are_known():
    timer = StepTimer(TrainConfig(steps=100))
    for _ in range(10):
        timer.step(1.0)
    timer.pause("evaluation", 10, 4.0)
    timer.pause("checkpoint", 10, 2.0)
    assert timer.left(10) == 90 + 9 * (4 + 2)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (42.4, "42 s"), (719, "12 min"), (12_000, "3 h 20 min"), (187_200, "2 d 4 h")]
)
def test_times_are_readable(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(812, "812 bytes"), (3_400, "3.4 kB"), (21_700_000, "22 MB"), (3.44e9, "3.4 GB"), (2e13, "20.0 TB")]
)
def test_sizes_are_readable(count, text):
    assert format_size(count) == text


@pytest.mark.parametrize(
    "changes",
    [(), ("train.ema=0.9",), ("train.average=1",), ("train.keep_every=6",), ("train.optimizer=adafactor", "train.lr=0.03")],
)
def test_checkpoints_take_no_more_disk_than_was_estimated(tmp_path, monkeypatch, changes):
    run = read_run("reverse", (*SMALL, "train.steps=30", "train.save_every=3", *changes))
    seen = []
    save = shutil.rmtree  # before anything is deleted, most is on disk

    def measure(path, *rest, **named):
        inodes = {file.stat().st_ino: file.stat().st_size for file in tmp_path.rglob("*.safetensors")}
        seen.append(sum(inodes.values()))
        return save(path, *rest, **named)

    monkeypatch.setattr(shutil, "rmtree", measure)
    fit(run, tmp_path / "run", console=Console(quiet=True))
    model = FAMILIES[run.family].build(read_run(tmp_path / "run" / "run.toml").model)
    headers = 100_000  # names and shapes of tensors, random state
    assert 0.5 * max(seen) < checkpoint_bytes(model, run.train) + headers
    assert max(seen) < checkpoint_bytes(model, run.train) + headers


def test_the_least_memory_is_that_of_weights_gradients_and_moments():
    run = read_run("reverse", SMALL)
    model = FAMILIES[run.family].build(run.model)
    weights = sum(4 * p.numel() for p in model.parameters())
    assert memory_bytes(model, TrainConfig()) == 4 * weights
    assert memory_bytes(model, TrainConfig(ema=0.9)) == 5 * weights
    assert memory_bytes(model, TrainConfig(optimizer="adafactor")) == 2 * weights


def test_a_disk_or_a_memory_that_is_too_small_is_said_before_training(monkeypatch, tmp_path):
    run = read_run("reverse", SMALL)
    model, files = FAMILIES[run.family].build(run.model), RunFolder(tmp_path / "run")
    assert estimate.shortages(model, run.train, files, on_cpu=True) == []
    monkeypatch.setattr(estimate, "free_disk", lambda path: 1000)
    monkeypatch.setattr(estimate, "read_memory", lambda: Memory(1000, 2000))
    disk, memory = estimate.shortages(model, run.train, files, on_cpu=True)
    assert disk.startswith("warning: checkpoints may need")
    assert "room for 1.0 kB" in disk
    assert "train.checkpoints=FOLDER" in disk
    assert memory.startswith("warning: training needs over")


def trained(tmp_path, *changes, **how) -> str:
    output = io.StringIO()
    fit(
        read_run("reverse", (*SMALL, "train.steps=12", *changes)),
        tmp_path / "run",
        console=Console(file=output, width=300, **how),
    )
    return output.getvalue()


def test_what_a_training_needs_is_said_before_it_and_its_minutes_after_the_first_steps(tmp_path):
    lines = trained(tmp_path).splitlines()
    before = next(
        n for n, line in enumerate(lines) if line.startswith("12 steps of up to 256 tokens; weights, gradients and optimizer")
    )
    about = next(n for n, line in enumerate(lines) if re.match(r"about \d+ s for 5 more steps of .* memory so far", line))
    assert before < about < next(n for n, line in enumerate(lines) if "validation loss" in line)


def test_without_a_terminal_lines_with_the_time_left_are_printed_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "SECONDS_PER_LINE", 0.0)
    text = trained(tmp_path)
    assert len(re.findall(r"^step \d+ of 12: loss \d\.\d{3}, [\d,]+ tokens/s, \d+ s left$", text, flags=re.M)) == 12
    assert "\n\n" not in text


def test_lines_are_rare(tmp_path):
    assert "left" not in trained(tmp_path)


def test_on_a_terminal_the_bar_has_the_time_left(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "SECONDS_PER_REFRESH", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    text = trained(tmp_path, force_terminal=True, force_interactive=True)
    assert re.search(r"tokens/s.* \d+ s left", text)


def test_the_log_has_the_seconds_left(tmp_path):
    trained(tmp_path)
    lines = [line for line in map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines()) if "loss" in line]
    assert [line["step"] for line in lines] == [5, 10, 12]
    assert all(line["seconds_left"] >= 0 for line in lines)
    assert lines[-1]["seconds_left"] == 0


def test_names_with_control_characters_reach_the_terminal_as_escapes(tmp_path):
    folder = tmp_path / "a\x1b[2Jb [bold]"
    folder.mkdir()
    for name in ("train", "valid"):
        (folder / f"{name}.tsv").write_text("".join(f"a {n}\tb {n}\n" for n in range(40)))
    text = trained(tmp_path, "data.source=", f"data.train={folder}/train.tsv", f"data.valid={folder}/valid.tsv")
    assert "\x1b" not in text
    assert "\\x1b[2Jb [bold]" in text


@pytest.mark.parametrize(("warmup", "told"), [(3, True), (2, False)])
def test_a_warmup_longer_than_the_training_is_reported(tmp_path, capsys, warmup, told):
    fit(read_run("reverse", (*SMALL, "train.steps=2", f"train.warmup={warmup}")), tmp_path / "run")
    line = "train.warmup=3 is longer than train.steps=2: the learning rate never reaches train.lr="
    assert (line in capsys.readouterr().err) == told
