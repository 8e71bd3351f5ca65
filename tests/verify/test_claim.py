"""Measurements, and the verdict that follows from them."""

from collections.abc import Iterator

import pytest
import torch

from regard.verify.claim import Claim, Finding, Measurement, Verdict, at_least, at_most, between, close, equals, number, refutes
from regard.verify.run import verify


def made(*findings: Finding, **options: object) -> Claim:
    def check() -> Iterator[Finding]:
        yield from findings

    return Claim("1", "made", "words", ("001",), "A claim.", check, **options)


def verdict_of(claim: Claim) -> Verdict:
    [result] = verify([claim])
    return result.verdict


@pytest.mark.parametrize(("measurement", "holds"), [
    (equals("n", 3, 3), True), (equals("n", 3, 4), False), (equals("list", [1, 2], [1, 2]), True),
    (close("x", 1.04, 1.0, within=0.05), True), (close("x", 1.06, 1.0, within=0.05), False),
    (close("x", 104, 100, rel=0.05), True), (close("x", 106, 100, rel=0.05), False),
    (close("x", float("nan"), 0, within=1), False),
    (close("t", torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1]), within=0.2), True),
    (close("t", torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1]), within=0.05), False),
    (close("t", torch.tensor([float("nan"), 2.0]), torch.tensor([1.0, 2.0]), within=0.2), False),
    (at_most("x", 1.0, 1.0), True), (at_most("x", 1.1, 1.0), False),
    (at_least("x", 1.0, 1.0), True), (at_least("x", 0.9, 1.0), False),
    (between("x", 0.5, 0.0, 1.0), True), (between("x", 1.5, 0.0, 1.0), False),
    (refutes("x", 1.0, 2.0), True), (refutes("x", 1.0, 1.0), False), (refutes("x", 1.0, 1.05, by=0.1), False),
    (refutes("t", torch.ones(2), torch.zeros(2)), True), (refutes("t", torch.ones(2), torch.ones(2)), False),
    (refutes("w", "equivariant", "invariant"), True), (refutes("w", "same", "same"), False),
], ids=lambda value: value.what + value.measured if isinstance(value, Measurement) else str(value))  # fmt: skip
def test_a_measurement_holds_if_it_is_what_was_expected(measurement: Measurement, holds: bool):
    assert measurement.holds is holds


def test_tensors_of_different_shapes_are_never_close():
    [result] = verify([made_of(lambda: close("t", torch.ones(2, 3), torch.ones(3), within=1.0))])
    assert result.verdict is Verdict.FAILS


def made_of(make) -> Claim:
    def check() -> Iterator[Finding]:
        yield make()

    return Claim("1", "made", "words", ("001",), "A claim.", check)


def test_the_verdict_is_the_declared_one_only_if_every_measurement_holds():
    good, bad = equals("n", 1, 1), equals("n", 1, 2)
    assert verdict_of(made(good)) is Verdict.HOLDS
    assert verdict_of(made(good, condition="only if …")) is Verdict.CONDITION
    assert verdict_of(made(good, right="…")) is Verdict.WRONG
    for options in ({}, {"condition": "only if …"}, {"right": "…"}):
        assert verdict_of(made(good, bad, **options)) is Verdict.FAILS


def test_a_check_that_measures_nothing_or_raises_has_not_measured_the_claim():
    [result] = verify([made()])
    assert (result.verdict, result.reason) == (Verdict.ERROR, "the check measured nothing")
    [result] = verify([made_of(lambda: 1 / 0)])
    assert (result.verdict, result.reason) == (Verdict.ERROR, "ZeroDivisionError: division by zero")


@pytest.mark.parametrize(("expected", "verdict"), [(1, Verdict.ERROR), (2, Verdict.FAILS)])
def test_a_check_that_raises_after_a_false_measurement_does_not_hold(expected: int, verdict: Verdict):
    def check() -> Iterator[Finding]:
        yield equals("n", 1, expected)
        raise RuntimeError("broken")

    [result] = verify([Claim("1", "made", "words", ("001",), "A claim.", check)])
    assert (result.verdict, result.reason) == (verdict, "RuntimeError: broken")


def test_a_check_without_its_data_is_not_run_and_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    [result] = verify([made(equals("n", 1, 1), data=("multi30k",))])
    assert result.verdict is Verdict.SKIPPED
    assert "multi30k" in result.reason
    assert result.reason.endswith(". Run a recipe that reads it to download it.")


def test_checks_neither_see_nor_change_the_random_numbers_of_others():
    def draw() -> Measurement:
        return equals("a random number", torch.rand(()).item(), first)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = torch.rand(()).item()
    before = torch.random.get_rng_state()
    assert [result.verdict for result in verify([made_of(draw), made_of(draw)])] == [Verdict.HOLDS] * 2
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(("value", "text"), [
    (3.0, "3"), (150528, "150,528"), (0.97345, "0.9735"), (-0.49, "-0.49"), (1.5e-7, "1.50e-07"), (0.0, "0"),
    (float("inf"), "inf"), (float("nan"), "nan"),
])  # fmt: skip
def test_numbers_are_written_as_people_read_them(value: float, text: str):
    assert number(value) == text
