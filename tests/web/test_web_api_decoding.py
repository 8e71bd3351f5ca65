"""The steps of three searches as the page gets them."""

import json

import pytest
import torch
from tiny_runs import TEXTS

from regard.tasks.translation import Sampling
from regard.view.record import Answer, Axis, Record
from regard.view.trace import trace_decoding
from regard.web import api_decoding
from regard.web.endpoints import check_values
from regard.web.explorer import Explorer, ServedRun
from regard.web.routes import BadRequest

[ENDPOINT] = api_decoding.ENDPOINTS


@pytest.fixture(scope="module")
def explorer(runs):
    names = ("transformer", "gpt", "captioner", "conformer", "bert")
    return Explorer([ServedRun.open(runs[name], device="cpu") for name in names])


def kept(explorer: Explorer, run: str, **given) -> str:
    """The id of a record that stands for an inspected input; decoding reads the input, not the attention."""
    axis = {"tokens": Axis("tokens", 1, ["a"])}
    answer = Answer("none", "", [])
    record = Record(run, answer, axis, [], torch.zeros(1, 1), ("tokens", "tokens"), "", rerun=None)
    served = explorer.run(run)
    return explorer.keep(served, served.predictor, record, **given).id


def ask(explorer: Explorer, record: str, **body):
    values = check_values(ENDPOINT.body, body, "body")
    answer = ENDPOINT.answer(explorer, record=record, **values)
    json.dumps(answer, allow_nan=False)
    return answer


@pytest.mark.parametrize("run", ["transformer", "gpt"])
def test_the_three_searches_are_those_of_the_command_line(explorer, run):
    how = {"temperature": 0.8, "top_k": 7, "top_p": 0.9, "seed": 4}
    found = ask(explorer, kept(explorer, run, text=TEXTS[run]), beam=3, top=4, tokens=6, **how)
    predictor, given = explorer.run(run).predictor, {"top": 4, "tokens": 6}
    for name, more in (("greedy", {"beam": 1}), ("beam", {"beam": 3}), ("sample", {"sampling": Sampling(**how)})):
        trace = trace_decoding(predictor, TEXTS[run], **given, **more)
        assert found[name] == json.loads(trace.to_json())
    assert found["greedy"]["beam_size"] == 1
    assert found["beam"]["beam_size"] == 3
    assert found["sample"]["sampling"]["seed"] == 4
    if run == "transformer":
        [translated] = predictor.translate([TEXTS[run]], beam=3, tokens=6)
        assert found["beam"]["text"] == translated.text


def test_without_options_the_beam_is_that_of_the_run_and_at_least_two(explorer):
    assert ask(explorer, kept(explorer, "transformer", text="the dog"))["beam"]["beam_size"] == 2
    assert all(len(beam["top"]) == 8 for step in ask(explorer, kept(explorer, "gpt", text="the dog"))["beam"]["steps"]
               for beam in step["beams"])  # fmt: skip


def test_a_picture_is_captioned_again_from_the_file_that_was_given(explorer, inputs):
    path = inputs["picture.png"]
    found = ask(explorer, kept(explorer, "captioner", name="a.png", file=path.read_bytes()), beam=2)
    [caption] = explorer.run("captioner").predictor.caption([path], beam=2)
    assert (found["beam"]["text"], found["beam"]["read"]) == (caption.text, "image")
    assert found["beam"]["score"] == pytest.approx(caption.score, abs=1e-5)


def test_the_steps_that_are_sent_are_bounded(explorer, monkeypatch):
    monkeypatch.setattr(api_decoding, "MAX_TOKENS", 3)
    found = ask(explorer, kept(explorer, "transformer", text="the old dog runs"))
    assert {len(found[search]["steps"]) for search in ("greedy", "beam", "sample")} == {3}


@pytest.mark.parametrize(("run", "given", "message"), [
    ("bert", {"text": "the [MASK]"}, "without decoding steps; use a run that translates"),
    ("transformer", {"text": "dog " * 400}, "this model takes at most"),
    ("gpt", {"text": "the dog " * 60}, "context length is"),
])  # fmt: skip
def test_what_cannot_be_traced_is_refused_in_one_line(explorer, run, given, message):
    with pytest.raises(BadRequest, match=message) as refused:
        ask(explorer, kept(explorer, run, **given))
    assert refused.value.status == 400
    assert "\n" not in str(refused.value)


def test_sound_that_ctc_transcribes_has_no_steps(explorer, inputs):
    with pytest.raises(BadRequest, match="reads the answer out by CTC"):
        ask(explorer, kept(explorer, "conformer", name="sound.wav", file=inputs["sound.wav"].read_bytes()))


@pytest.mark.parametrize("body", [{"beam": 0}, {"beam": 13}, {"top": 0}, {"top": 21}, {"temperature": 0}, {"top_p": 0.0},
                                  {"seed": -1}, {"tokens": 257}, {"top_k": -1}, {"width": 3}, {"beam": "3"}])  # fmt: skip
def test_options_out_of_bounds_are_refused(explorer, body):
    with pytest.raises(BadRequest) as refused:
        ask(explorer, kept(explorer, "transformer", text="the dog"), **body)
    assert refused.value.status == 422


def test_an_expired_record_says_so(explorer):
    with pytest.raises(BadRequest) as refused:
        ask(explorer, "none")
    assert (refused.value.status, refused.value.expired) == (404, True)
