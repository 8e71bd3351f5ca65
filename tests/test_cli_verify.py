"""`regard verify`: what it prints, lists, explains and writes, and what it refuses."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_checks import assert_refused

from regard.verify.catalogue import all_claims
from regard.verify.report import CORRECTIONS, ROWS


def test_a_claim_is_printed_with_its_verdict_notes_and_measurements(regard):
    result = regard("verify", 25)
    assert result.code == 0
    assert re.search(r"^  25  holds  notes 001 002 004$", result.out, re.MULTILINE)
    assert "has variance d" in result.out
    assert "expected 1 ±" in result.out
    assert f"1 of {ROWS} claims of the notes and 0 of {CORRECTIONS} corrections" in result.out
    assert re.search(r"1 thread, torch .*, seed 0$", result.out, re.MULTILINE)


def test_a_condition_and_what_is_right_are_printed_as_sentences(regard):
    assert "      It holds in the limit of sharp weights; otherwise" in regard("verify", 32).out
    wrong = regard("verify", "C19").out  # corrections in capitals too
    assert " c19  the notes are wrong  notes 002" in wrong
    assert "      Right: d_k is the width of queries and keys" in wrong
    assert "width of a key: 64, the notes: 512" in wrong


def test_the_list_has_all_claims_or_those_of_one_chapter_or_file(regard):
    listed = [json.loads(line) for line in regard("verify", "--list", "--json").out.splitlines()]
    assert [claim["name"] for claim in listed] == [claim.name for claim in all_claims()]
    assert {claim["slow"] for claim in listed} == {True, False}
    lines = regard("verify", "--list", "--json", "--only", "scaling", "--notes", "004").out.splitlines()
    assert (
        [json.loads(line) for line in lines]
        == [claim for claim in listed if claim["chapter"] == "scaling" and "004" in claim["notes"]]
        != []
    )
    result = regard("verify", "--list", 25, 88)
    assert re.search(r"^  25  scaling        001 002 004          quick          The dot product", result.out, re.MULTILINE)
    assert re.search(r"^  88  \w+ +001                  not checkable  ", result.out, re.MULTILINE)


def test_json_has_a_line_for_each_check_with_its_measurements(regard):
    [line] = regard("verify", 26, "--json", "--seed", 1).out.splitlines()
    found = json.loads(line)
    assert (found["row"], found["verdict"], found["notes"]) == ("26", "holds", ["004"])
    assert all(each["holds"] and each["measured"] and each["expected"] for each in found["measurements"])


def test_explain_prints_the_code_all_measurements_and_the_plot(regard):
    result = regard("verify", 26, "--explain")
    assert "def softmax_of_unscaled_scores_is_peaked" in result.out
    assert "entropy in nats; width d of a head from 4 to 1024" in result.out
    assert "█" in result.out
    assert "@claim" not in result.out


def test_html_is_one_page_without_scripts_or_other_files(regard, tmp_path: Path):
    page = tmp_path / "report.html"
    result = regard("verify", 11, 26, "--html", page, "--seed", 2)
    assert (result.code, result.err) == (0, f"saved {page}\n")
    text = page.read_text(encoding="utf-8")
    assert text.count("<article") == 3
    assert text.count("<svg") == 1
    assert not re.search(r"<script|<link|<img|src=|href=\"http|url\(http|@import", text)
    assert re.search(rf"by <code>regard verify 11 26 --html {page} --seed 2</code>, seed 2; .*1 thread, torch", text)


def test_a_check_that_fails_is_exit_code_1_and_shows_what_was_measured(regard, monkeypatch):
    from regard.verify import scaling

    monkeypatch.setattr(scaling, "scores_of", lambda q, k: q @ k.transpose(-2, -1))
    result = regard("verify", 25)
    assert result.code == 1
    assert "does not hold" in result.out
    assert "✗ variance of the scores of our attention, d = 512" in result.out


def test_a_check_that_raises_is_exit_code_1_and_says_nothing_about_the_claim(regard, monkeypatch):
    from regard.verify import scaling

    monkeypatch.setattr(scaling, "torch", None)
    result = regard("verify", 25, "--json")
    assert result.code == 1
    for line in result.out.splitlines():
        found = json.loads(line)
        assert (found["verdict"], found["reason"].startswith("AttributeError: ")) == ("could not be measured", True)
    assert " 25  could not be measured" in regard("verify", 25).out


@pytest.mark.parametrize(("words", "parts"), [
    (("99",), ("no claim '99'", "1 to 88", "--list")),
    (("abc",), ("no claim 'abc'",)),
    (("c29",), ("no claim 'c29'",)),
    (("25", "--notes", "7"), ("no notes '7'", "000, 001, 002, 003, 004")),
    (("--only", "complxity"), ("no chapter 'complxity'", "did you mean 'complexity'")),
    (("25", "--only", "words"), ("no claim has this number",)),
    (("25", "--html", "report.pdf"), ("report.pdf", ".html")),
    (("25", "--html", "missing/report.html"), ("no folder missing", "make it")),
    (("25", "--html", "/proc/report.html"), ("/proc/report.html cannot be written", "choose another folder")),
    (("--list", "--html", "report.html"), ("--list measures nothing",)),
    (("25", "--seed", "-1"), ("--seed", "greater than or equal to 0")),
    (("25", "--seed", str(2**32)), ("--seed", "less than or equal to")),
])  # fmt: skip
def test_what_cannot_be_done_is_refused_before_anything_is_measured(regard, words: tuple[str, ...], parts: tuple[str, ...]):
    assert_refused(regard("verify", *words), *parts)


def test_html_is_neither_a_folder_nor_in_one_that_is_read_only(regard, tmp_path: Path, monkeypatch):
    (tmp_path / "folder.html").mkdir()
    assert_refused(regard("verify", 25, "--html", tmp_path / "folder.html"), "is a folder", "report.html")

    def refuse(**options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # the tests may run as root, who may write everywhere
    assert_refused(regard("verify", 25, "--html", tmp_path / "a.html"), "a.html cannot be written: Permission denied")


def test_an_interrupt_between_two_checks_is_one_line_and_exit_code_130(regard, monkeypatch, tmp_path: Path):
    from regard.verify import run

    verify_one = run._verify

    def interrupted(claim):
        if claim.row == "26":
            os.kill(os.getpid(), signal.SIGINT)
        return verify_one(claim)

    monkeypatch.setattr(run, "_verify", interrupted)
    result = regard("verify", 25, 26, "--html", tmp_path / "report.html")
    assert (result.code, result.err) == (130, "regard: interrupted\n")
    assert "  25  holds" in result.out
    assert not list(tmp_path.iterdir())


def test_progress_is_on_the_terminal_and_results_are_in_the_pipe():
    terminal, stderr = pty.openpty()
    command = [sys.executable, "-m", "regard", "verify", "11", "26"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, env={**os.environ, "TERM": "xterm", "COLUMNS": "80"})
    os.close(stderr)
    shown = bytearray()
    try:
        while part := os.read(terminal, 65536):
            shown += part
    except OSError:  # the end, on Linux
        pass
    os.close(terminal)
    assert done.returncode == 0
    assert done.stdout.decode().count("  holds  notes") == 3
    assert b"holds" not in shown
    assert b"checking 26" in shown
    assert b"2/3" in shown
