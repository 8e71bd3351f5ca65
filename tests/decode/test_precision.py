"""8 bits where the machine can, and a word to the user where it cannot."""

import signal
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.data.text.toys import toy_pairs
from regard.decode.precision import PrecisionProbe
from regard.layers.linear import Int8Linear
from regard.tasks.load import load
from regard.tasks.translation import Translator


@pytest.fixture(scope="module")
def translators(small_run) -> tuple[Translator, Translator]:
    """A run in float32 and in int8."""
    return load(small_run), load(small_run, precision="int8")


@pytest.fixture
def instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Let the child of a trial be a shell script."""

    def run(script: str) -> None:
        file = tmp_path / "python"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(file))

    return run


# Where it can


def test_float32_has_the_same_numbers_and_needs_no_trial(instead):
    instead("exit 1")
    model = nn.Sequential(nn.Linear(2, 3))
    wanted = model[0].weight.detach().clone()
    with PrecisionProbe("float32") as trial:
        assert trial.passed(model) is model
    assert torch.equal(model[0].weight, wanted)
    assert not any(p.requires_grad for p in model.parameters())  # all of it is for decoding, not a part


def test_a_child_that_ends_well_lets_the_model_have_8_bits(instead):
    instead("echo some words >&2; exit 0")
    with PrecisionProbe("int8") as trial:
        assert isinstance(trial.passed(nn.Sequential(nn.Linear(2, 2)))[0], Int8Linear)


def test_a_run_that_cannot_be_opened_leaves_no_child_behind(instead):
    instead("exec sleep 60")
    with PrecisionProbe("int8") as trial:  # left before anybody asks how it went
        child = trial.child
    assert child.returncode == -signal.SIGKILL


def test_a_run_in_int8_answers_mostly_as_in_float32(translators):
    plain, small = translators
    assert any(isinstance(part, Int8Linear) for part in small.model.modules())
    assert not any(isinstance(part, Int8Linear) for part in plain.model.modules())
    texts = [source for source, _ in toy_pairs("reverse", "test", 200)]
    wanted, got = (t.translate(texts, beam=1, scored=True) for t in translators)
    assert len({one.text for one in wanted}) > 20  # ten steps leave it stupid, but not to one answer
    assert sum(one.text == other.text for one, other in zip(got, wanted, strict=True)) >= 0.9 * len(texts)
    assert [one.score for one in got] != [one.score for one in wanted]


def test_the_log_probabilities_of_a_run_in_int8_are_near_those_in_float32(translators):
    plain, small = (t.model for t in translators)
    torch.manual_seed(0)
    source, target = torch.randint(4, plain.config.vocab, (20, 8)), torch.randint(4, plain.config.vocab, (20, 8))
    with torch.inference_mode():
        wanted, got = (model(source, target).log_softmax(-1) for model in (plain, small))
    assert (got - wanted).std() < 0.03 * wanted.std()
    assert (got - wanted).std() > 0


# Where it cannot


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 132", "132"),
        ("kill -ILL $$", f"-{int(signal.SIGILL)}"),
        ("echo first >&2; echo 'RuntimeError: no such engine' >&2; exit 1", "no such engine"),
    ],
    ids=["exit", "signal", "words"],
)
def test_a_child_that_dies_is_an_error_with_the_way_out(small_run, instead, script, why):
    instead(script)
    with pytest.raises(ValueError, match="int8 does not run on this machine") as error:
        load(small_run, precision="int8")
    assert why in str(error.value)
    assert "first" not in str(error.value)
    assert "use --precision float32" in str(error.value)


def test_an_unknown_precision_is_refused_with_the_known_ones(small_run):
    with pytest.raises(ValueError, match="precision 'int4'; use float32 or int8"):
        load(small_run, precision="int4")


def test_int8_is_for_the_cpu(small_run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="precision int8 on cuda; it is for the cpu"):
        load(small_run, device="cuda", precision="int8")
