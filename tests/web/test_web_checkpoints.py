"""Runs at earlier steps of their training."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small import SMALL

from regard.models import saved_tensors
from regard.tasks import read_run
from regard.tasks.load import load
from regard.train.loop import fit
from regard.web.endpoints import call
from regard.web.explorer import LOADED, Explorer, ServedRun
from regard.web.routes import BadRequest

STILL = ("train.lr=0.0", "train.steps=10", "train.device=cpu", "data.vocab=40")  # a learning rate of 0 changes nothing


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("still") / "run"
    fit(read_run("reverse", (*SMALL, *STILL)), folder)
    return folder


def tensors(predictor: object) -> dict[str, torch.Tensor]:
    return saved_tensors(predictor.model)


def test_step_0_has_the_weights_that_training_started_from(still: Path):
    torch.manual_seed(99)
    before = torch.get_rng_state()
    untrained = load(still, "cpu", step=0)
    assert torch.equal(torch.get_rng_state(), before)  # the seed of the run is not that of the process
    torch.testing.assert_close(tensors(untrained), tensors(load(still, "cpu", step=10)), rtol=0, atol=0)


def test_step_0_restores_the_generators_of_all_gpus(still: Path, monkeypatch: pytest.MonkeyPatch):
    forked = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext(forked.extend(devices)))
    load(still, "cpu", step=0)
    assert forked == [0, 1]


def test_checkpoints_have_the_weights_of_their_step(runs: dict[str, Path]):
    run = ServedRun.open(runs["learner"], device="cpu")
    assert run.checkpoints == [0, 50, 100, 150]
    for step in (50, 150):
        saved = load_file(runs["learner"] / "checkpoints" / f"step-{step:08d}" / "model.safetensors")
        found = tensors(run.at(step))
        for name, weight in saved.items():
            torch.testing.assert_close(found[name], weight, rtol=0, atol=0)


def test_few_checkpoints_stay_in_memory(runs: dict[str, Path]):
    run = ServedRun.open(runs["learner"], device="cpu")
    first = run.at(0)
    assert run.at(0) is first
    for step in (50, 100, 150):
        run.at(step)
    assert len(run._loaded) == LOADED
    assert run.at(0) is not first
    assert run.at(None) is run.predictor


def test_a_step_without_a_checkpoint_is_refused_with_those_there_are(runs: dict[str, Path]):
    with pytest.raises(ValueError, match="no checkpoint of step 75; it has steps 0, 50, 100, 150"):
        load(runs["learner"], "cpu", step=75)
    run = ServedRun.open(runs["learner"], device="cpu")
    loaded = [run.at(50), run.at(100)]
    with pytest.raises(BadRequest, match=r"^learner has no checkpoint of step 75; it has steps 0, 50, 100, 150$"):
        run.at(75)
    assert [run.at(50), run.at(100)] == loaded, "a wrong step unloads no model"


def test_a_checkpoint_has_the_precision_of_its_run(runs: dict[str, Path]):
    run = ServedRun.open(runs["learner"], device="cpu", precision="int8")
    kinds = [{type(part) for part in predictor.model.modules()} for predictor in (run.predictor, run.at(50))]
    assert kinds[0] == kinds[1] != {type(part) for part in load(runs["learner"], "cpu").model.modules()}


def test_step_0_of_a_fine_tuned_run_is_refused(still: Path, tmp_path: Path):
    changes = ("train.steps=5", "train.save_every=5", "train.device=cpu", f"init={still}", "data.pairs=300",
               "train.batch_tokens=256")  # fmt: skip
    fit(read_run("reverse", changes), tmp_path / "tuned")
    run = ServedRun.open(tmp_path / "tuned", device="cpu")
    assert run.checkpoints == [5]
    with pytest.raises(ValueError, match=r"step 0 of .* cannot be made again: it started from the weights of"):
        load(tmp_path / "tuned", "cpu", step=0)
    with pytest.raises(BadRequest, match="tuned has no checkpoint of step 0; it has steps 5"):
        run.at(0)


def test_a_run_whose_folder_is_gone_stays_and_has_no_checkpoints(runs: dict[str, Path], tmp_path: Path):
    shutil.copytree(runs["learner"], tmp_path / "moved")
    explorer = Explorer([ServedRun.open(tmp_path / "moved", device="cpu"), ServedRun.open(runs["gpt"], device="cpu")])
    shutil.rmtree(tmp_path / "moved")
    moved, gpt = call(explorer, "GET", "/runs")["runs"]
    assert (moved["name"], moved["checkpoints"], gpt["name"]) == ("moved", [], "gpt")
    assert call(explorer, "POST", "/runs/moved/inspect", body={"text": "I love you"})["answer"]["text"]


def test_a_predictor_without_a_folder_has_no_checkpoints(still: Path):
    run = ServedRun("run", None, load(still, "cpu"))
    assert run.checkpoints == []
    with pytest.raises(BadRequest, match="not loaded from a run folder"):
        run.at(5)
