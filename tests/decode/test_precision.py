"""int8 where the machine supports it, and a clear error where it does not."""

import signal
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import regard
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
def child_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Replace the child process by a shell script."""

    def run(script: str) -> None:
        file = tmp_path / "python"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(file))

    return run


# Supported


def test_float32_keeps_the_values_and_starts_no_child(child_script):
    child_script("exit 1")
    model = nn.Sequential(nn.Linear(2, 3))
    wanted = model[0].weight.detach().clone()
    with PrecisionProbe("float32") as probe:
        assert probe.passed(model) is model
    assert torch.equal(model[0].weight, wanted)
    assert not any(p.requires_grad for p in model.parameters())  # the model is for decoding only


def test_a_successful_child_gives_an_int8_model(child_script):
    child_script("echo some words >&2; exit 0")
    with PrecisionProbe("int8") as probe:
        assert isinstance(probe.passed(nn.Sequential(nn.Linear(2, 2)))[0], Int8Linear)


def test_leaving_the_probe_early_kills_the_child(child_script):
    child_script("exec sleep 60")
    with PrecisionProbe("int8") as probe:  # left without calling passed
        child = probe.child
    assert child.returncode == -signal.SIGKILL


def test_int8_translations_are_mostly_those_of_float32(translators):
    plain, small = translators
    assert any(isinstance(part, Int8Linear) for part in small.model.modules())
    assert not any(isinstance(part, Int8Linear) for part in plain.model.modules())
    texts = [source for source, _ in toy_pairs("reverse", "test", 200)]
    wanted, got = (t.translate(texts, beam=1, scored=True) for t in translators)
    assert len({translation.text for translation in wanted}) > 20  # barely trained, but outputs differ
    assert sum(a.text == b.text for a, b in zip(got, wanted, strict=True)) >= 0.9 * len(texts)
    assert [a.score for a in got] != [b.score for b in wanted]


def test_int8_log_probabilities_are_close_to_float32(translators):
    plain, small = (t.model for t in translators)
    torch.manual_seed(0)
    source, target = torch.randint(4, plain.config.vocab, (20, 8)), torch.randint(4, plain.config.vocab, (20, 8))
    with torch.inference_mode():
        wanted, got = (model(source, target).log_softmax(-1) for model in (plain, small))
    assert (got - wanted).std() < 0.03 * wanted.std()
    assert (got - wanted).std() > 0


# Not supported


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 132", "132"),
        ("kill -ILL $$", f"-{int(signal.SIGILL)}"),
        ("echo first >&2; echo 'RuntimeError: no such engine' >&2; exit 1", "no such engine"),
    ],
    ids=["exit", "signal", "words"],
)
def test_a_child_that_dies_raises_an_error_with_advice(small_run, child_script, script, why):
    child_script(script)
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


@pytest.mark.parametrize("users", [None, "", "/a:/b"])
def test_the_child_imports_this_package_even_if_it_is_not_installed(child_script, tmp_path, monkeypatch, users):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if users is not None:
        monkeypatch.setenv("PYTHONPATH", users)
    child_script(f'printf %s "$PYTHONPATH" > {tmp_path}/path')
    with PrecisionProbe("int8") as probe:
        probe.passed(nn.Sequential(nn.Linear(2, 2)))
    home = str(Path(regard.__file__).parents[1])
    assert (tmp_path / "path").read_text() == (f"{home}:{users}" if users else home)
