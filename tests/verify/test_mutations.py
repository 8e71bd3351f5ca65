"""Each check fails when its claim is broken, and holds when nothing is, with other random numbers too."""

import pytest
from mutation import Mutation, all_mutations

from regard.verify.catalogue import all_claims
from regard.verify.claim import Claim
from regard.verify.run import verify

CLAIMS = {claim.name: claim for claim in all_claims()}
CHECKED = [claim for claim in CLAIMS.values() if claim.check]


def slow_if(slow: bool) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if slow else []


@pytest.mark.parametrize("claim", [pytest.param(claim, id=claim.name, marks=slow_if(claim.slow)) for claim in CHECKED])
def test_the_claim_has_its_verdict(claim: Claim):
    [found] = verify([claim])
    red = [f"{m.what}: {m.measured}, expected {m.expected}" for m in found.measurements if not m.holds]
    assert found.verdict is claim.intended, found.reason or "; ".join(red)
    if claim.right:
        assert {measurement.refutes for measurement in found.measurements} == {True, False}, "what is wrong, and what is right"


@pytest.mark.parametrize("mutation", [pytest.param(each, id=each.what, marks=slow_if(each.slow)) for each in all_mutations()])
def test_a_mutation_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch):
    mutation.apply(monkeypatch)
    found = {  # a false measurement, not only an error, which any broken code may raise
        result.claim.name: result.reason if all(m.holds for m in result.measurements) else "false"
        for result in verify(CLAIMS[name] for name in mutation.catches)
    }
    assert found == dict.fromkeys(mutation.catches, "false")


def test_every_check_is_broken_by_a_mutation():
    caught = {name for mutation in all_mutations() for name in mutation.catches}
    assert {claim.name for claim in CHECKED} <= caught


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("claim", [pytest.param(claim, id=claim.name) for claim in CHECKED])
def test_the_verdict_stays_with_another_seed(claim: Claim, seed: int):
    [found] = verify([claim], seed)
    red = [f"{m.what}: {m.measured}, expected {m.expected}" for m in found.measurements if not m.holds]
    assert found.verdict is claim.intended, found.reason or "; ".join(red)
