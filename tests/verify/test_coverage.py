"""Every claim of the notes and every correction has an entry, and each entry says all that its verdict needs."""

from collections import Counter

import pytest

from regard.verify.catalogue import CHAPTERS, all_claims
from regard.verify.claim import NOTES, Claim, Verdict
from regard.verify.report import CORRECTIONS, ROWS, coverage

CLAIMS = all_claims()
NAMED = [pytest.param(claim, id=claim.name) for claim in CLAIMS]
NUMBERS = [*(f"{n + 1}" for n in range(ROWS)), *(f"c{n + 1}" for n in range(CORRECTIONS))]


def test_every_claim_of_the_notes_and_every_correction_has_an_entry(regard):
    rows = {claim.row for claim in CLAIMS}
    assert [number for number in NUMBERS if number not in rows] == []
    assert rows <= set(NUMBERS)
    assert coverage(CLAIMS).endswith(": 88 of 88 claims of the notes and 28 of 28 corrections")
    assert regard("verify", "--list").err == f"{coverage(CLAIMS)}\n"


def test_no_claim_has_slow_checks_alone():
    assert {claim.row for claim in CLAIMS} - {claim.row for claim in CLAIMS if not claim.slow} == set()


def test_names_are_unique_and_every_chapter_has_claims():
    assert [name for name, count in Counter(claim.name for claim in CLAIMS).items() if count > 1] == []
    assert {claim.chapter for claim in CLAIMS} == set(CHAPTERS)


@pytest.mark.parametrize("claim", NAMED)
def test_an_entry_says_all_that_its_verdict_needs(claim: Claim):
    assert claim.notes
    assert set(claim.notes) <= set(NOTES)
    assert list(claim.notes) == sorted(set(claim.notes))
    assert len(claim.says) > 15
    assert claim.says.endswith((".", "?", "!", "…"))
    assert not claim.says.startswith(" ")
    assert bool(claim.condition) == (claim.intended is Verdict.CONDITION)
    assert bool(claim.right) == (claim.intended is Verdict.WRONG)
    assert bool(claim.why_not) == (claim.intended is Verdict.NOT_CHECKABLE)
    for text in (claim.condition, claim.right):  # each is printed as a sentence, with a period
        assert not text.endswith(".")
        assert text == text.strip()
    if claim.condition:  # "It holds ..."
        assert claim.condition[0].islower() or claim.condition[0].isdigit(), claim.condition
    if claim.right.partition(" ")[0].isalpha() and len(claim.right.partition(" ")[0]) > 1:  # "Right: it is ...", or a formula
        assert claim.right[0].islower(), claim.right
    if claim.row.startswith("c"):
        assert claim.right or claim.why_not, "a correction says what is right"
