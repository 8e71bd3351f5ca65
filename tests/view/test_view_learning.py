"""The curves of a run are what its log says, and checkpoints are kept as asked."""

import json

import pytest
from rich.console import Console
from safetensors.torch import load_file
from small import SMALL

from regard.run_folder import RunFolder
from regard.tasks import read_run
from regard.train.loop import fit
from regard.view import learning
from regard.view.learning import LossPoint, read_learning

SHORT = (*SMALL, "train.steps=12", "train.save_every=2", "train.eval_every=4", "train.log_every=3", "train.average=2")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run that kept the weights of steps 4 and 8."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    fit(read_run("reverse", (*SHORT, "train.keep_every=4")), folder, console=Console(quiet=True))
    return folder


def write_log(folder, *lines: object):
    (folder / "log.jsonl").write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return folder


def test_the_curves_are_those_of_the_log(kept):
    lines = [json.loads(line) for line in (kept / "log.jsonl").read_text().splitlines()]
    curve = read_learning(kept)
    assert [(point.step, point.loss) for point in curve.points] == [(n["step"], n["loss"]) for n in lines if "loss" in n]
    assert [point.step for point in curve.points] == [3, 6, 9, 12]
    valid = [n for n in lines if "valid_loss" in n]
    assert [(point.step, point.loss) for point in curve.validation] == [(n["step"], n["valid_loss"]) for n in valid]
    assert [point.scores["perplexity"] for point in curve.validation] == [n["perplexity"] for n in valid]
    assert (curve.final.step, curve.final.loss) == (12, lines[-1]["final_loss"])
    assert {"BLEU", "chrF"} <= set(curve.final.scores)
    assert "minutes" not in curve.final.scores


def test_torn_lines_and_numbers_that_are_none_are_left_out(tmp_path):
    torn = ('{"step": 40, "loss": 2.', '{"step": 60, "loss": NaN}', "[1]", "7", "", {"loss": 1.0}, {"step": "x", "loss": 1.0})
    write_log(tmp_path, {"step": 20, "loss": 3.0}, *torn, {"step": 80, "valid_loss": 2.5, "perplexity": "many", "BLEU": 3.5})
    curve = read_learning(tmp_path)
    assert curve.points == [LossPoint(20, 3.0)]
    assert [(point.step, point.loss, point.scores) for point in curve.validation] == [(80, 2.5, {"BLEU": 3.5})]
    assert curve.final is None


def test_a_long_curve_is_thinned_by_means(tmp_path):
    write_log(tmp_path, *({"step": step, "loss": float(step)} for step in range(1, 12)))
    assert read_learning(tmp_path, 4).points == [LossPoint(3, 2.0), LossPoint(6, 5.0), LossPoint(9, 8.0), LossPoint(11, 10.5)]


def test_a_run_without_a_log_has_empty_curves(tmp_path):
    assert read_learning(tmp_path) == learning.LearningCurve([], [], None)


def test_an_endless_log_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "MAX_BYTES", 100)
    with pytest.raises(ValueError, match="not the log of a training"):
        read_learning(write_log(tmp_path, *({"step": step, "loss": 1.0} for step in range(100))))


def test_the_weights_of_every_nth_step_are_kept_and_nothing_else_changes(kept, tmp_path):
    plain = tmp_path / "run"
    fit(read_run("reverse", SHORT), plain, console=Console(quiet=True))
    assert [saved.step for saved in RunFolder(plain).saved()] == [10, 12]
    saved = RunFolder(kept).saved()
    assert [each.step for each in saved] == [4, 8, 10, 12]
    assert [each.step for each in saved if each.optimizer.exists()] == [10, 12]
    mine, theirs = load_file(kept / "model.safetensors"), load_file(plain / "model.safetensors")
    assert all(mine[name].equal(theirs[name]) for name in (*mine, *theirs))  # the average is over the same checkpoints
    steps = [load_file(each.weights) for each in saved]
    assert not any(one.equal(other) for one, other in zip(steps[0].values(), steps[1].values(), strict=True) if one.ndim > 1)


def test_a_step_that_is_never_saved_cannot_be_kept():
    said = (
        r"keep_every is 3, and a checkpoint is written every 2 steps \(save_every\); use a multiple of that, train.save_every=3"
    )
    with pytest.raises(ValueError, match=said):
        read_run("reverse", (*SHORT, "train.keep_every=3"))
