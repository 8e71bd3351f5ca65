"""Checkpoints are written, kept, found, restored and averaged."""

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import SMALL

from regard.data.position import DataPosition
from regard.models.transformer import Transformer, TransformerConfig
from regard.run_folder import RunFolder
from regard.tasks import read_run
from regard.train import checkpoint
from regard.train.loop import fit
from regard.train.optim import adam
from regard.train.state import TrainState

CONFIG = TransformerConfig(vocab=20, dim=8, depth=1, heads=2, mlp_ratio=1)


def trained(seed: int) -> tuple[Transformer, torch.optim.Adam]:
    """A model and its optimizer after two steps."""
    torch.manual_seed(seed)
    model = Transformer(CONFIG)
    optimizer = adam(model)
    optimizer.param_groups[0]["lr"] = 0.01
    for _ in range(2):
        model.features(torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 4))).square().sum().backward()
        optimizer.step()
    return model, optimizer


def state(step: int, best: float = 1.0) -> TrainState:
    return TrainState("a digest", "a machine", step, DataPosition(0, 1, 2), best)


def save(folder: Path, *steps: int, keep: int = 3) -> None:
    for step in steps:
        checkpoint.save(RunFolder(folder), state(step), *trained(step), keep)


def folders(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").iterdir())


def no_report(text: str) -> None:
    raise AssertionError(text)


def newest_step(folder: Path, report=no_report) -> int:
    return checkpoint.newest(RunFolder(folder), report)[1].step


def weights_saved(folder: Path) -> list[Path]:
    return checkpoint.intact_weights(RunFolder(folder), no_report)


def test_a_checkpoint_is_restored_as_it_was_saved(tmp_path):
    model, optimizer = trained(1)
    checkpoint.save(RunFolder(tmp_path), state(7, best=0.1 + 0.2), model, optimizer, 1)
    sampled = torch.rand(5)

    saved, found = checkpoint.newest(RunFolder(tmp_path), no_report)
    other, moments = trained(2)
    checkpoint.restore(saved, other, moments)
    assert found == state(7, best=0.1 + 0.2)
    assert (found.step, found.position, found.best) == (7, DataPosition(0, 1, 2), 0.1 + 0.2)
    assert torch.equal(torch.rand(5), sampled)
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name
        assert set(optimizer.state[p]) == set(moments.state[q])
        assert all(torch.equal(optimizer.state[p][key], moments.state[q][key]) for key in optimizer.state[p]), name


def test_a_restored_optimizer_takes_the_same_next_step(tmp_path):
    model, optimizer = trained(1)
    checkpoint.save(RunFolder(tmp_path), state(7), model, optimizer, 1)
    other = Transformer(CONFIG)
    moments = adam(other)
    checkpoint.restore(checkpoint.newest(RunFolder(tmp_path), no_report)[0], other, moments)
    for m, o in ((model, optimizer), (other, moments)):
        o.param_groups[0]["lr"] = 0.02
        o.zero_grad()
        sum(p.sin().sum() for p in m.parameters()).backward()
        o.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_a_tied_matrix_is_saved_once(tmp_path):
    save(tmp_path, 1)
    saved = load_file(tmp_path / "model.safetensors")
    assert sum(weight.numel() for weight in saved.values()) == sum(p.numel() for p in Transformer(CONFIG).parameters())


@pytest.mark.parametrize(("keep", "left", "resumable"), [
    (1, [4, 5], [4, 5]),  # two can be resumed from, however few are averaged
    (2, [4, 5], [4, 5]),
    (4, [2, 3, 4, 5], [4, 5]),
    (9, [1, 2, 3, 4, 5], [4, 5]),
])  # fmt: skip
def test_as_many_models_are_kept_as_are_averaged_and_two_optimizers(tmp_path, keep, left, resumable):
    save(tmp_path, 1, 2, 3, 4, 5, keep=keep)
    assert folders(tmp_path) == left
    has = [int(file.parent.name[5:]) for file in sorted(tmp_path.glob("checkpoints/*/optimizer.safetensors"))]
    assert has == resumable
    assert [file.parent.name for file in weights_saved(tmp_path)] == [f"step-{step:08d}" for step in left]


def test_checkpoints_are_ordered_by_step(tmp_path):
    save(tmp_path, 9, 10, 99_999_999)
    assert newest_step(tmp_path) == 99_999_999
    assert [int(file.parent.name[5:]) for file in weights_saved(tmp_path)] == [9, 10, 99_999_999]


def test_the_newest_weights_are_those_of_the_run(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
        newest = tmp_path / "checkpoints" / f"step-{step:08d}" / "model.safetensors"
        assert (tmp_path / "model.safetensors").read_bytes() == newest.read_bytes()


def test_the_newest_weights_are_copied_where_the_disk_cannot_link(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    save(tmp_path, 1)
    checkpoint_file = tmp_path / "checkpoints" / "step-00000001" / "model.safetensors"
    assert (tmp_path / "model.safetensors").read_bytes() == checkpoint_file.read_bytes()
    assert not (tmp_path / "model.safetensors").samefile(checkpoint_file)


def test_the_average_is_the_mean(tmp_path):
    torch.manual_seed(0)
    models = [{"a": torch.randn(3, 4), "b": torch.randn(5)} for _ in range(3)]
    files = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for model, file in zip(models, files, strict=True):
        save_file(model, file)
    mean = checkpoint.average(files)
    for name in ("a", "b"):
        wanted = torch.stack([model[name] for model in models]).double().mean(0)
        assert mean[name].dtype == torch.float32
        torch.testing.assert_close(mean[name].double(), wanted, rtol=1e-7, atol=1e-8)


def test_the_average_of_one_checkpoint_is_itself(tmp_path):
    save(tmp_path, 1)
    (file,) = weights_saved(tmp_path)
    wanted = load_file(file)
    mean = checkpoint.average([file])
    assert mean.keys() == wanted.keys()
    assert all(torch.equal(mean[name], wanted[name]) for name in mean)


@pytest.mark.parametrize("function", ["save_file", "flush", "_sha256", "write_atomic", "sync_folder"])
def test_a_save_that_fails_changes_nothing(tmp_path, monkeypatch, function):
    save(tmp_path, 1, 2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, function, full)
        with pytest.raises(OSError, match="No space"):
            save(tmp_path, 3)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()} == before
    save(tmp_path, 3)
    assert folders(tmp_path) == [1, 2, 3]


def test_what_a_killed_save_left_is_ignored_and_then_deleted(tmp_path):
    save(tmp_path, 1)
    part = tmp_path / "checkpoints" / ".part"
    part.mkdir()
    (part / "model.safetensors").write_bytes(b"half")
    assert newest_step(tmp_path) == 1
    save(tmp_path, 2)
    assert not part.exists()


def test_a_checkpoint_saved_again_replaces_the_damaged_one(tmp_path):
    save(tmp_path, 1, 2)
    os.truncate(tmp_path / "checkpoints" / "step-00000002" / "model.safetensors", 10)
    save(tmp_path, 2)
    assert newest_step(tmp_path) == 2


def test_a_checkpoint_just_saved_stays_though_a_damaged_one_is_newer(tmp_path):
    save(tmp_path, 10, 20)
    os.truncate(tmp_path / "checkpoints" / "step-00000020" / "model.safetensors", 10)
    model, optimizer = trained(1)
    checkpoint.save(RunFolder(tmp_path), state(17), model, optimizer, 3, every=10)  # Ctrl-C after a resume from step 10
    assert newest_step(tmp_path, lambda text: None) == 17


def test_a_folder_without_checkpoints_has_no_newest(tmp_path):
    assert checkpoint.newest(RunFolder(tmp_path), no_report) is None


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 0.999])
def test_one_wrong_bit_anywhere_is_found(tmp_path, name, where):
    save(tmp_path, 1, 2)
    file = tmp_path / "checkpoints" / "step-00000002" / name
    flip(file, int(file.stat().st_size * where))
    reports = []
    assert newest_step(tmp_path, reports.append) == 1
    assert len(reports) == 1
    assert str(file.parent) in reports[0]
    assert "damaged" in reports[0]


def test_a_wrong_digit_of_the_state_is_found(tmp_path):
    save(tmp_path, 1, 2)
    file = tmp_path / "checkpoints" / "step-00000002" / "state.json"
    file.write_text(file.read_text().replace('"step": 2', '"step": 3'))
    reports = []
    assert newest_step(tmp_path, reports.append) == 1
    assert len(reports) == 1


@pytest.mark.parametrize("state", ["", "{", "[]", "7", "null", "{}", '{"sha256": 1}', '{"sha256": []}', '{"sha256": {}}',
                                   "\x00\x00", "ÿ"])  # fmt: skip
def test_a_state_that_cannot_be_read_is_skipped(tmp_path, state):
    save(tmp_path, 1, 2)
    (tmp_path / "checkpoints" / "step-00000002" / "state.json").write_text(state, encoding="latin-1")
    reports = []
    assert newest_step(tmp_path, reports.append) == 1
    assert len(reports) == 1


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_with_every_checkpoint_damaged_the_error_states_what_to_do(tmp_path, name):
    save(tmp_path, 1, 2)
    for file in tmp_path.glob(f"checkpoints/*/{name}"):
        file.unlink()
    reports = []
    with pytest.raises(ValueError, match=r"no checkpoint of .* is intact; train again with --fresh, or restore .*00002"):
        checkpoint.newest(RunFolder(tmp_path), reports.append)
    assert len(reports) == 2


def test_an_older_checkpoint_without_its_optimizer_is_not_resumed_from(tmp_path):
    save(tmp_path, 1, 2, 3)
    for step in (2, 3):
        shutil.rmtree(tmp_path / "checkpoints" / f"step-{step:08d}")
    with pytest.raises(ValueError, match="is intact"):
        checkpoint.newest(RunFolder(tmp_path), lambda text: None)


def test_the_state_holds_the_checksums_of_the_other_files(tmp_path):
    save(tmp_path, 1)
    folder = tmp_path / "checkpoints" / "step-00000001"
    sums = json.loads((folder / "state.json").read_text())["sha256"]
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert sums[name] == hashlib.sha256((folder / name).read_bytes()).hexdigest()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_weights_have_the_mode_that_the_umask_gives(umask, mode, tmp_path):
    before = os.umask(umask)
    try:
        part, files = tmp_path / "step.safetensors", RunFolder(tmp_path / "run")
        files.path.mkdir()
        checkpoint._write_tensors({"a": torch.zeros(3)}, part)
        assert part.stat().st_mode & 0o777 == mode
        part.chmod(0o600)  # as an older version left it
        files.publish(part)
        assert files.weights.stat().st_mode & 0o777 == mode
        assert files.weights.stat().st_ino == part.stat().st_ino  # a hard link, not a copy
        assert [file.name for file in files.path.iterdir()] == ["model.safetensors"]
    finally:
        os.umask(before)


def test_checkpoints_saved_because_time_has_passed_leave_the_same_model(tmp_path, monkeypatch):
    run = read_run("reverse", (*SMALL, "train.steps=6", "train.save_every=3", "train.average=2"))
    fit(run, tmp_path / "a")
    saved, save = [], checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda files, state, *rest: saved.append(state.step) or save(files, state, *rest))
    monkeypatch.setattr("regard.train.loop.SAVE_SECONDS", 0.0)
    fit(run, tmp_path / "b")
    assert saved == [1, 2, 3, 4, 5, 6]
    a, b = (folder / "model.safetensors" for folder in (tmp_path / "a", tmp_path / "b"))
    assert a.read_bytes() == b.read_bytes()
    assert sorted(os.listdir(tmp_path / "b/checkpoints")) == sorted(os.listdir(tmp_path / "a/checkpoints"))
