"""Endpoints of "Step by step" and "What if", and the page's own arithmetic, against the tensors they come from."""

import base64
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from page_node import require_node

import regard.web
from regard.tasks.load import load
from regard.view.ablation import ablate_record, importance
from regard.view.attention_steps import attention_steps, lecture_steps
from regard.web.endpoints import call
from regard.web.explorer import Explorer, ServedRun
from regard.web.routes import BadRequest

PAGE = Path(regard.web.__file__).parent / "page"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    from tiny_runs import write_inputs, write_runs

    home = tmp_path_factory.mktemp("api-steps")
    return write_runs(home), write_inputs(home)


@pytest.fixture(scope="module")
def explorer(home):
    runs, _ = home
    return Explorer(
        [ServedRun(name, runs[name], load(runs[name], device="cpu")) for name in ("transformer", "vit", "bahdanau", "t5")]
    )


@pytest.fixture(scope="module")
def record(explorer) -> str:
    """The id of a translated sentence."""
    return call(explorer, "POST", "/runs/transformer/inspect", body={"text": "they want the old dog"})["id"]


def unpack(matrix: dict) -> torch.Tensor:
    values = np.frombuffer(base64.b64decode(matrix["values"]), "<f4").copy()
    return torch.from_numpy(values).view(matrix["rows"], matrix["columns"])


def inspected(explorer, record: str):
    found = explorer.record(record)
    return found.predictor.model, found.record


@pytest.mark.parametrize("change", [{}, {"positions": False}, {"shuffle": 5}])
def test_steps_are_the_tensors_of_the_head(change, explorer, record):
    found = call(explorer, "POST", f"/records/{record}/steps", body={"layer": 5, "head": 2, **change})
    wanted = attention_steps(*inspected(explorer, record), 5, 2, **change)
    for name in ("x", "memory", "q", "k", "v", "scores", "weights", "output"):
        assert torch.equal(unpack(found[name]), getattr(wanted, name))
    assert (found["queries"], found["keys"], found["formula"], found["scale"]) == (wanted.queries, wanted.keys, "dot", 0.5)
    assert (found["layer"], found["head"], found["mask"], found["bias"]) == (5, 2, None, None)
    json.dumps(found)


def test_a_mask_is_sent_as_bytes(explorer, record):
    found = call(explorer, "POST", f"/records/{record}/steps", body={"layer": 2, "head": 0})
    mask = np.frombuffer(base64.b64decode(found["mask"]), np.uint8).reshape(len(found["queries"]), len(found["keys"]))
    assert (mask == np.tril(np.ones_like(mask))).all()


def test_the_lecture_needs_no_record(explorer):
    found = call(explorer, "POST", "/lecture/steps", body={"positions": False, "shuffle": 1})
    wanted = lecture_steps(positions=False, shuffle=1)
    assert torch.equal(unpack(found["weights"]), wanted.weights)
    assert found["queries"] == wanted.queries
    assert call(Explorer([]), "POST", "/lecture/steps")["keys"] == ["YOUR", "CAT", "IS", "A", "LOVELY", "CAT"]


def test_ablations_and_importance_are_sent_as_they_are_computed(explorer, record):
    body = {"heads": [[5, 1]], "layers": [0], "words": [[0, 1]]}
    found = call(explorer, "POST", f"/records/{record}/ablate", body=body)
    wanted = ablate_record(*inspected(explorer, record), heads=[(5, 1)], layers=[0], words=[(0, 1)])
    assert found["answer"]["text"] == wanted.answer.text
    assert found["base"] == {"logprob": wanted.base.logprob, "probabilities": wanted.base.probabilities}
    assert found["changed"]["logprob"] == wanted.changed.logprob
    ranked = call(explorer, "POST", f"/records/{record}/importance", body={})
    losses = importance(*inspected(explorer, record))
    assert [(row["layer"], row["head"]) for row in ranked["heads"]] == [(loss.layer, loss.head) for loss in losses.heads]
    assert ranked["heads"][0]["drop"] == pytest.approx(losses.heads[0].drop)
    assert ranked["heads"][0]["answer_changes"] is (losses.heads[0].answer != explorer.record(record).record.answer.text)
    assert ranked["heads"][-1]["answer_changes"] is None
    assert ranked["total"] == 24


@pytest.mark.parametrize(("path", "body", "status", "message"), [
    ("steps", {"layer": 99}, 400, "no layer 99"),
    ("steps", {"head": -1}, 422, "greater than or equal to 0"),
    ("steps", {"head": "mean"}, 422, "integer"),
    ("steps", {"shuffle": 2**60}, 422, "less than"),
    ("steps", {"what": 1}, 422, "what"),
    ("ablate", {"heads": [[0]]}, 422, "at least 2"),
    ("ablate", {"heads": [[0, 99]]}, 400, "no head 99"),
    ("ablate", {"words": [[0, 7]]}, 400, "keep at least one"),
    ("ablate", {"layers": [0] * 20_000}, 422, "at most 10000"),
    ("importance", {"what": 1}, 422, "what"),
])  # fmt: skip
def test_bad_requests_are_answered_with_one_line(path, body, status, message, explorer, record):
    with pytest.raises(BadRequest, match=message) as refused:
        call(explorer, "POST", f"/records/{record}/{path}", body=body)
    assert refused.value.status == status
    assert "\n" not in str(refused.value)


def test_an_image_has_steps_and_importance_but_no_words(explorer, home):
    content = base64.b64encode(home[1]["picture.png"].read_bytes()).decode()
    image = call(explorer, "POST", "/runs/vit/inspect", body={"file": content, "name": "picture.png"})["id"]
    found = call(explorer, "POST", f"/records/{image}/steps", body={"layer": 1, "head": 0, "query": 3})
    assert found["queries"][:2] == ["class token", "1,1"]
    with pytest.raises(BadRequest, match="not text"):
        call(explorer, "POST", f"/records/{image}/ablate", body={"words": [[0, 1]]})
    assert len(call(explorer, "POST", f"/records/{image}/importance", body={})["heads"]) == 6


# The arithmetic of the page

SCRIPT = """
import { unpackSteps, attentionStages, ownSwitches } from "./steps_math.js";
import { readFileSync } from "node:fs";
const { packed, switches } = JSON.parse(readFileSync(0, "utf8"));
const steps = unpackSteps(packed);
const stages = attentionStages(steps, { ...ownSwitches(steps), ...switches });
console.log(JSON.stringify(Object.fromEntries(Object.entries(stages).map(([name, m]) => [name, Array.from(m.values, String)]))));
"""


def stages_of_the_page(tmp_path: Path, packed: dict, **switches: object) -> dict[str, torch.Tensor]:
    """What steps_math.js computes, run by node."""
    if not (tmp_path / "package.json").exists():
        shutil.copytree(PAGE, tmp_path, dirs_exist_ok=True)
        (tmp_path / "package.json").write_text('{"type": "module"}')
        (tmp_path / "run.js").write_text(SCRIPT)
    given = json.dumps({"packed": packed, "switches": switches})
    out = subprocess.run([require_node(), "run.js"], cwd=tmp_path, input=given, capture_output=True, text=True, check=True).stdout
    return {
        name: torch.tensor([float(value.replace("Infinity", "inf")) for value in values], dtype=torch.float64)
        for name, values in json.loads(out).items()
    }


def softmax(scores: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return (scores - scores.amax(-1, keepdim=True)).exp() / (scores - scores.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)


@pytest.mark.parametrize("layer", [0, 2, 5])
def test_the_page_computes_what_the_model_does(layer, explorer, record, tmp_path):
    packed = call(explorer, "POST", f"/records/{record}/steps", body={"layer": layer, "head": 1})
    stages = stages_of_the_page(tmp_path, packed)
    for name in ("weights", "output"):
        torch.testing.assert_close(stages[name], unpack(packed[name]).flatten().double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("run", ["bahdanau", "t5"])
def test_the_page_computes_other_formulas_too(run, explorer, tmp_path):
    record = call(explorer, "POST", f"/runs/{run}/inspect", body={"text": "they want the old dog"})["id"]
    packed = call(explorer, "POST", f"/records/{record}/steps", body={})
    stages = stages_of_the_page(tmp_path, packed)
    for name in ("weights", "output"):
        torch.testing.assert_close(stages[name], unpack(packed[name]).flatten().double(), rtol=1e-4, atol=1e-5)


def test_each_switch_changes_what_it_should_and_nothing_else(explorer, record, tmp_path):
    packed = call(explorer, "POST", f"/records/{record}/steps", body={"layer": 2, "head": 0})  # masked self-attention
    plain, scores, scale = stages_of_the_page(tmp_path, packed), unpack(packed["scores"]).double(), packed["scale"]
    length, v = len(packed["queries"]), unpack(packed["v"]).double()
    past = torch.ones(length, length, dtype=torch.bool).tril()
    wanted = {
        "scaled": (softmax(scores, past), {"scaled"}),
        "masked": (softmax(scores * scale), set()),
        "temperature": (softmax(scores * scale / 2.5, past), set()),
    }
    for switch, value in (("scaled", False), ("masked", False), ("temperature", 2.5)):
        found = stages_of_the_page(tmp_path, packed, **{switch: value})
        weights, also = wanted[switch]
        torch.testing.assert_close(found["weights"].view(length, length), weights, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found["output"].view(length, -1), weights @ v, rtol=1e-4, atol=1e-5)
        assert torch.equal(found["scaled"], plain["scaled"]) is ("scaled" not in also)
        if switch == "temperature":
            assert torch.equal(found["masked"], plain["masked"])


def test_the_mask_of_the_lecture_hides_later_words(tmp_path):
    packed = call(Explorer([]), "POST", "/lecture/steps", body={})
    found = stages_of_the_page(tmp_path, packed, masked=True)["weights"].view(6, 6)
    steps = lecture_steps()
    torch.testing.assert_close(
        found, softmax(steps.scores.double() * steps.scale, torch.ones(6, 6).tril().bool()), rtol=1e-4, atol=1e-5
    )
    plain = stages_of_the_page(tmp_path, packed)["weights"].view(6, 6)
    torch.testing.assert_close(plain, steps.weights.double(), rtol=1e-4, atol=1e-5)
