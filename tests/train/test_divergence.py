"""A training that diverges stops before its weights replace good ones, and usual learning never does."""

import json
import math

import pytest
import torch
from cli_checks import assert_refused
from safetensors.torch import load_file
from small import SMALL
from torch import nn

from regard.config import TrainConfig
from regard.train.divergence import LIMIT, Divergence, unchanged

WILD = ("train.save_every=1", "train.warmup=1", "train.log_every=1")


def saved(run):
    return sorted(path.name for path in run.glob("checkpoints/step-*"))


def published(run):
    return (run / "model.safetensors").read_bytes()


@pytest.mark.parametrize("lr", ["10.0", "4.0"])
def test_ruined_weights_never_replace_a_good_checkpoint(regard, tmp_path, lr):
    run = tmp_path / "run"
    assert regard("train", "reverse", *SMALL, "train.steps=5", "--out", run).code == 0
    result = regard("train", run, "train.steps=30", *WILD, f"train.lr={lr}", "--resume")
    assert_refused(result, "diverges at step", "--resume and a lower train.lr than")
    newest = load_file(run / "checkpoints" / saved(run)[-1] / "model.safetensors")
    assert newest.keys() == load_file(run / "model.safetensors").keys()
    assert all(torch.equal(weight, newest[name]) for name, weight in load_file(run / "model.safetensors").items())
    losses = [line["loss"] for line in map(json.loads, (run / "log.jsonl").read_text().splitlines()) if "loss" in line]
    state = json.loads((run / "checkpoints" / saved(run)[-1] / "state.json").read_text())
    assert all(loss < LIMIT * 1.5 * state["first_loss"] for loss in losses[: state["step"]])
    result = regard("train", run, "train.steps=30", "train.lr=0.001", "train.warmup=100", "train.save_every=10", "--resume")
    assert result.code == 0, result.err


def test_the_first_step_may_be_the_one_that_diverges(regard, tmp_path):
    result = regard("train", "reverse", *SMALL, *WILD, "train.lr=10.0", "train.steps=3", "--out", tmp_path / "run")
    assert_refused(result, "at step 1:", "start over with --fresh and a lower train.lr than 10")
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("lr", ["1e9", "1e30", "nan", "inf", "-1.0", "10.5"])
def test_an_absurd_learning_rate_is_refused_before_anything_is_deleted(regard, small_run, lr):
    before = published(small_run)
    for how in ("--resume", "--fresh"):
        assert_refused(regard("train", small_run, f"train.lr={lr}", how), "lr is")
    assert published(small_run) == before


class Guess(nn.Module):
    """A model of 100 classes."""

    class config:
        classes = 100


def checks(first: float = 4.6, last: int = 7) -> Divergence:
    return Divergence(Guess(), TrainConfig(), first, lambda: last)


def test_neither_a_hard_batch_nor_a_slow_start_is_a_divergence():
    check = checks()
    for step in range(1, 200):
        check.check_step(step, 60.0 if step % 30 == 7 else 5.0, 1e4)
    fine_tuned = checks(first=0.01)  # trained already, and now on other data
    for step in range(1, 200):
        fine_tuned.check_step(step, 9.0, 1.0)
    large = checks(first=300.0)  # a first loss far above that of a guess, as a T5's
    for step in range(1, 200):
        large.check_step(step, 400.0, 1.0)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf), (1e6, 1.0)])
def test_a_ruined_loss_or_gradient_is_noticed_at_its_first_step(loss, norm):
    with pytest.raises(ValueError, match=r"diverges at step 3: .*continue from step 7 with --resume and a lower train\.lr"):
        checks().check_step(3, loss, norm)


def test_a_loss_that_stays_far_above_a_guess_is_noticed():
    check = checks()

    def train() -> None:
        for step in range(100):
            check.check_step(step, 20.0, 1.0)

    with pytest.raises(ValueError, match="untrained model"):
        train()


def test_weights_to_be_saved_must_be_finite_and_keep_the_loss_of_their_batch():
    good = [torch.ones(3), torch.tensor(2)]
    checks().check_weights(5, good, before=4.0, after=4.1, count=100, valid=0.0)
    checks().check_weights(5, good, before=40.0, after=39.0, count=1, valid=80.0)  # one hard image, and overfitting
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="weights are no longer finite"):
            checks().check_weights(5, [torch.tensor([1.0, bad])], before=4.0, after=4.0, count=100, valid=0.0)
        with pytest.raises(ValueError, match="took the loss from 4 to"):
            checks().check_weights(5, good, before=4.0, after=bad, count=100, valid=0.0)
        with pytest.raises(ValueError, match="validation loss"):
            checks().check_weights(5, good, before=4.0, after=4.0, count=100, valid=bad)
    with pytest.raises(ValueError, match="took the loss from 14 to 18"):
        checks().check_weights(5, good, before=14.0, after=18.0, count=100, valid=0.0)


def test_trying_new_weights_leaves_no_trace_in_the_training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    with unchanged(model):
        assert not model(torch.randn(8, 4)).requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
