"""The curves and the positions of a run as the page gets them."""

import base64
import json

import numpy as np
import pytest
from safetensors.torch import load_file

from regard.layers.positions import SinusoidalPositions
from regard.view.positions import map_positions
from regard.web import api_learning
from regard.web.endpoints import check_values
from regard.web.explorer import Explorer, ServedRun
from regard.web.routes import BadRequest

LOG, POSITIONS = api_learning.ENDPOINTS


@pytest.fixture(scope="module")
def explorer(runs):
    return Explorer([ServedRun.open(runs[name], device="cpu") for name in ("learner", "transformer", "gpt", "swin", "bahdanau")])


def positions(explorer: Explorer, run: str, **query):
    answer = POSITIONS.answer(explorer, run=run, **check_values(POSITIONS.query, query, "query"))
    json.dumps(answer, allow_nan=False)
    return answer


def numbers(matrix) -> np.ndarray:
    values = np.frombuffer(base64.b64decode(matrix["values"]), "<f4")
    return values.reshape(matrix["rows"], matrix["columns"])


def test_the_log_and_the_checkpoints_of_a_run(explorer, runs):
    found = LOG.answer(explorer, run="learner")
    json.dumps(found, allow_nan=False)
    lines = [json.loads(line) for line in (runs["learner"] / "log.jsonl").read_text().splitlines()]
    assert found["points"] == [{"step": n["step"], "loss": n["loss"]} for n in lines if "loss" in n]
    assert [point["loss"] for point in found["validation"]] == [n["valid_loss"] for n in lines if "valid_loss" in n]
    assert found["final"]["loss"] == lines[-1]["final_loss"]
    assert found["checkpoints"] == explorer.run("learner").checkpoints
    assert found["checkpoints"][0] == 0
    for step in found["checkpoints"]:  # each can be asked for, and has the weights of its file
        weights = explorer.run("learner").at(step).model.state_dict()
        if step:
            [saved] = [load_file(file) for file in runs["learner"].glob(f"checkpoints/step-{step:08d}/model.safetensors")]
            assert all(weights[name].equal(tensor) for name, tensor in saved.items())


def test_a_run_without_a_log_has_empty_curves(explorer):
    found = LOG.answer(explorer, run="transformer")
    assert (found["points"], found["validation"], found["final"], found["checkpoints"]) == ([], [], None, [])


def test_an_unknown_run_is_named(explorer):
    with pytest.raises(BadRequest, match="no run 'learned'") as refused:
        LOG.answer(explorer, run="learned")
    assert refused.value.status == 404


def test_sinusoids_are_sent_as_numbers(explorer):
    table, similarity = positions(explorer, "transformer", length=10)["panels"]
    wanted = SinusoidalPositions(12, 10)(0, 10).numpy()
    np.testing.assert_allclose(numbers(table["values"]), wanted, atol=1e-6)
    unit = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(numbers(similarity["values"]), unit @ unit.T, atol=1e-5)
    assert (table["kind"], similarity["kind"], table["across"], table["first"]) == ("table", "similarity", "dimension", [0, 0])


def test_the_query_is_that_of_an_address(explorer):
    assert positions(explorer, "transformer", length="7")["panels"][0]["values"]["rows"] == 7


def test_learned_positions_and_biases_are_those_of_the_run(explorer):
    table = explorer.run("gpt").predictor.model.embed.positions.table.detach()
    np.testing.assert_array_equal(numbers(positions(explorer, "gpt", length=9)["panels"][0]["values"]), table[:9])
    second = positions(explorer, "swin", layer=1)
    assert second["title"] == "positions of swin, layer 2 of 4"
    wanted = map_positions(explorer.run("swin").predictor, layer=2).panels
    for panel, own in zip(second["panels"], wanted, strict=True):
        np.testing.assert_allclose(numbers(panel["values"]), own.values, atol=1e-6)


@pytest.mark.parametrize(("run", "query", "message", "status"), [
    ("bahdanau", {}, "has no position embeddings or biases", 404), ("gpt", {"layer": 0}, "all layers of this model share", 404),
    ("swin", {"layer": 4}, "layer 5", 404), ("gpt", {"length": 1}, "length", 422), ("gpt", {"length": 257}, "length", 422),
])  # fmt: skip
def test_what_is_not_there_is_refused(explorer, run, query, message, status):
    with pytest.raises(BadRequest, match=message) as refused:
        positions(explorer, run, **query)
    assert refused.value.status == status
