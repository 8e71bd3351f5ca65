"""A run that meets a damaged checkpoint or a full disk fails with one line and resumes to the same bits."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from resume_bench import Bench, flip, one_line

# --- a faulty disk -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(bench):
    """A run killed in step 23: its checkpoints of steps 15 and 20 can be resumed."""
    run = bench.new()
    bench.train(run, step=23)
    return run


def skip_a_batch(file: Path) -> None:
    state = json.loads(file.read_text())
    state["position"][2] += 1
    file.write_text(json.dumps(state, indent=1))


DAMAGES = {
    "a truncated model": ("model.safetensors", lambda file: os.truncate(file, 1000)),
    "a flipped bit of the model": ("model.safetensors", flip),
    "a flipped bit of the optimizer": ("optimizer.safetensors", flip),
    "a lost optimizer": ("optimizer.safetensors", Path.unlink),
    "a lost state": ("state.json", Path.unlink),
    "a garbled state": ("state.json", lambda file: file.write_bytes(b"\x93garbage")),
    "a changed digit of the state": ("state.json", skip_a_batch),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_gives_the_same_bits(bench, killed, damage):
    run = shutil.copytree(killed, bench.new())
    name, spoil = DAMAGES[damage]
    spoil(run / "checkpoints" / "step-00000020" / name)
    output = bench.finish(run).replace("\n", "")
    assert "step-00000020 is damaged" in output
    assert "resumed at step 15" in output


def test_with_no_intact_checkpoint_the_error_states_what_to_do(bench, killed):
    run = shutil.copytree(killed, bench.new())
    for file in run.glob("checkpoints/*/model.safetensors"):
        flip(file)
    ended = bench.train(run)
    assert ended["status"] == 2
    assert "Traceback" not in ended["output"]
    assert "is intact; train again with --fresh, or restore" in ended["output"]


def test_changed_training_data_is_refused(bench, killed):
    run, file = shutil.copytree(killed, bench.new()), bench.folder / "train.tsv"
    before = file.read_text()
    file.write_text(before.replace("a", "b"))
    try:
        ended = bench.train(run)
    finally:
        file.write_text(before)
    assert ended["status"] == 2
    assert "the training data has changed since step 20; restore it, or start over with --fresh" in ended["output"]
    bench.finish(run)


# --- a full disk -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    ["save_file model.safetensors", "save_file optimizer.safetensors", "os.fsync optimizer.safetensors",
     "os.fsync .state.json.PID.part", "Path.mkdir .part"],
)  # fmt: skip
def test_a_disk_full_in_a_checkpoint_is_one_line_and_the_one_before_it_stays(bench, call):
    calls = bench.whole()["calls"]
    third = [number for number, made in enumerate(calls) if made == call][2]
    run = bench.new()
    ended = bench.train(run, call=third, how="full")
    assert "No space left on device" in one_line(ended)
    assert "--resume" in one_line(ended)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000005", "step-00000010"]
    assert not list(run.rglob("*.part"))
    assert "resumed at step 10" in bench.finish(run)


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of a size in KiB, then make it larger."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size: int, *options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", ",".join((f"size={size}k", *options)), "tmpfs", str(folder)]
        if os.geteuid() or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("a small file system is mounted here to be filled; run as root where mount is allowed")
        return folder

    mount.folder = folder
    yield mount
    if os.path.ismount(folder):
        subprocess.run(["umount", str(folder)], check=True)


def fill_and_go_on(bench: Bench, mount, size: int) -> str | None:
    """Train on a disk of `size` KiB until it is full, then on a larger one to the end; returns the error, if any."""
    disk = mount(size)
    run = disk / "run"
    ended = bench.train(run)
    error = None
    if ended["status"]:
        error = one_line(ended)
        assert "No space left on device" in error
        assert not list(run.rglob("*.part"))
    mount(100_000, "remount")
    bench.finish(run)
    shutil.rmtree(run)
    return error


@pytest.mark.parametrize("fraction", [0.4, 0.8])
def test_a_full_file_system_is_one_line_and_the_run_resumes_when_there_is_room(bench, small_disk, fraction):
    disk = small_disk(100_000)
    assert bench.train(disk / "run")["status"] == 0
    used = shutil.disk_usage(disk).used // 1024
    shutil.rmtree(disk / "run")
    subprocess.run(["umount", str(disk)], check=True)
    assert fill_and_go_on(bench, small_disk, int(used * fraction))


@pytest.mark.slow
def test_a_disk_of_any_size_that_is_full_lets_the_run_resume_when_there_is_room(bench, small_disk):
    errors, size = [], 4
    while not errors or errors[-1]:
        errors.append(fill_and_go_on(bench, small_disk, size))
        subprocess.run(["umount", str(small_disk.folder)], check=True)
        size += 4
    print(f"{len(errors) - 1} sizes were too small, {size - 4} KiB was enough")
    assert len(errors) > 20
