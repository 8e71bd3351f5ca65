"""`regard verify`: what it prints, lists, explains and writes."""

import json
import re
from pathlib import Path

import pytest
from cli_checks import assert_refused

from regard.verify.catalogue import CHAPTERS, all_claims
from regard.verify.report import CORRECTIONS, ROWS


def test_a_claim_is_printed_with_its_verdict_notes_and_measurements(regard):
    result = regard("verify", 25)
    assert result.code == 0
    assert re.search(r"^  25  holds  notes 001 002 004$", result.out, re.MULTILINE)
    assert "has variance d" in result.out
    assert "expected 1 ±" in result.out
    assert f"1 of {ROWS} rows of the inventory" in result.out
    assert "seed 0" in result.out


def test_all_rows_and_corrections_are_listed(regard):
    result = regard("verify", "--list", "--slow")
    rows = {line.split()[0] for line in result.out.splitlines()}
    assert rows == {*map(str, range(1, ROWS + 1)), *(f"c{n}" for n in range(1, CORRECTIONS + 1))}
    assert f"{ROWS} of {ROWS} rows of the inventory and {CORRECTIONS} of {CORRECTIONS} corrections" in result.err


def test_the_list_has_slow_checks_only_with_slow_and_those_of_one_chapter_or_file_alone(regard):
    quick = [json.loads(line) for line in regard("verify", "--list", "--json").out.splitlines()]
    assert quick
    assert not any(claim["slow"] for claim in quick)
    chapter = [
        json.loads(line) for line in regard("verify", "--list", "--json", "--only", "scaling", "--notes", "004").out.splitlines()
    ]
    assert chapter == [claim for claim in quick if claim["chapter"] == "scaling" and "004" in claim["notes"]] != []


def test_json_has_a_line_for_each_check_with_its_measurements(regard):
    [line] = regard("verify", 26, "--json", "--seed", 1).out.splitlines()
    found = json.loads(line)
    assert (found["row"], found["verdict"], found["notes"]) == ("26", "holds", ["004"])
    assert all(each["holds"] and each["measured"] and each["expected"] for each in found["measurements"])


def test_explain_prints_the_code_all_measurements_and_the_plot(regard):
    result = regard("verify", 26, "--explain")
    assert "def softmax_of_unscaled_scores_is_peaked" in result.out
    assert "█" in result.out
    assert "@claim" not in result.out


def test_html_is_one_page_without_scripts_or_other_files(regard, tmp_path: Path):
    page = tmp_path / "report.html"
    assert regard("verify", 25, 26, "--html", page).code == 0
    text = page.read_text(encoding="utf-8")
    assert text.count("<article") == 2
    assert text.count("<svg") == 2
    assert not re.search(r"<script|<link|<img|src=|href=\"http|url\(http|@import", text)


def test_a_check_that_fails_is_exit_code_1_and_shows_what_was_measured(regard, monkeypatch):
    from regard.verify import scaling

    monkeypatch.setattr(scaling, "scores_of", lambda q, k: q @ k.transpose(-2, -1))
    result = regard("verify", 25)
    assert result.code == 1
    assert "does not hold" in result.out
    assert "✗ variance of the scores of our attention, d = 512" in result.out


@pytest.mark.parametrize(("words", "parts"), [
    (("99",), ("no claim '99'", "1 to 88", "--list")),
    (("c29",), ("no claim 'c29'",)),
    (("25", "--notes", "005"), ("no notes '005'", "000, 001, 002, 003, 004")),
    (("--only", "complexty"), ("no chapter 'complexty'", "did you mean 'complexity'")),
    (("25", "--only", "words"), ("no claim has this row",)),
    (("25", "--html", "report.pdf"), ("report.pdf", ".html")),
])  # fmt: skip
def test_what_does_not_exist_is_refused(regard, words: tuple[str, ...], parts: tuple[str, ...]):
    assert_refused(regard("verify", *words), *parts)


def test_every_chapter_has_claims():
    assert {claim.chapter for claim in all_claims()} == set(CHAPTERS)
