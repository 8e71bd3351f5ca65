"""What is printed: exact in a pipe, without control characters on a terminal."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.cli.failures import BadInput, Failures, answer_each
from regard.cli.io import note, show_progress, write, write_json
from regard.tasks.text_classification import TextClassifier

NASTY = "a\x1b[31mb\x07\x7f\x9bc\u202ed"


def test_a_result_in_a_pipe_is_exact(capsys):
    write("label", NASTY)
    assert capsys.readouterr().out == f"label\t{NASTY}\n"


def test_a_result_on_a_terminal_shows_control_characters_as_escapes(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    write("label", NASTY)
    assert capsys.readouterr().out == "label\ta\\x1b[31mb\\x07\\x7f\\x9bc\\u202ed\n"


def test_json_is_the_same_data_and_has_no_control_characters(capsys):
    write_json({"text": NASTY, "name": "\udc80"})
    line = capsys.readouterr().out
    assert line[:-1].isprintable()
    assert json.loads(line) == {"text": NASTY, "name": "\udc80"}


@pytest.mark.parametrize("text", [NASTY, "two\nlines"])
def test_a_note_is_one_line_without_control_characters(capsys, text):
    note(f"regard: {text}")
    assert capsys.readouterr().err[:-1].isprintable()


def test_failures_are_counted_and_the_first_are_listed(capsys):
    failures = Failures()
    for number in range(1000):
        failures.skip(BadInput(f"{number}", f"error {number}"), f"mark {number}")
    assert len(repr(vars(failures))) < 4000
    failures.success()
    write("answer")
    assert failures.code() == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [*(f"mark {number}" for number in range(1000)), "answer"]
    assert "skipped 1,000 of 1,001" in err
    assert "error 49\n" in err
    assert "and 950 more" in err


def test_the_same_failure_of_all_inputs_is_one_line_and_no_output(capsys):
    failures = Failures()
    for _ in range(3):
        failures.skip(BadInput("a", "no"), "mark")
    assert failures.code() == 2
    assert capsys.readouterr() == ("", "regard: no\n")


@given(st.lists(st.booleans(), max_size=40))
def test_inputs_that_are_refused_leave_the_answers_to_the_others(good):
    def predict(some: list[str]) -> list[str]:
        if "bad" in some:
            raise ValueError("refused")
        return [item.upper() for item in some]

    items = ["good" if each else "bad" for each in good]
    found = [answer for _, answer in answer_each(items, predict)]
    assert found == ["GOOD" if each else BadInput("bad", "refused") for each in good]


@pytest.mark.parametrize(
    "words",
    [
        ("export", "RUN", "OUT", "--to", "hf"),
        ("positions", "RUN", "--out", "OUT.png"),
        ("score", "RUN", "--errors", "--out", "OUT.tsv", "--on", "PAIRS"),
        ("compare", "RUN", "--json", "--beam", "1", "--out", "OUT.json", "--on", "PAIRS"),
        ("trace", "RUN", "a \x9b \u202e b", "--json", "--beam", "1"),
    ],
    ids=lambda words: words[0],
)
def test_no_verb_sends_control_characters_to_a_terminal(regard, small_run, tmp_path, monkeypatch, words):
    pairs, out = tmp_path / "pairs\x1b[31m.tsv", tmp_path / "out\x1b[31m\u202e"
    pairs.write_text("a b c\tc b a\nd \x9b e\te d\n")
    names = {"RUN": str(small_run), "PAIRS": str(pairs)}
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    found = regard(*(names.get(word, word.replace("OUT", str(out))) for word in words))
    assert found.code == 0, found.err
    assert not [letter for letter in found.out + found.err if not letter.isprintable() and letter not in "\n\t"]


def test_progress_shows_braces_brackets_and_control_characters_as_they_are(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with show_progress("a {b} [c]\x07") as count:
        count(0, 5)
    assert "a {b} [c]\\x07: 5" in capsys.readouterr().err


def test_texts_that_are_truncated_are_noted_once_if_each_is_tried_again(regard, text_runs, monkeypatch):
    classify = TextClassifier.classify

    def refuse_batches(self, texts, **how):
        if len(texts) > 1:
            raise ValueError("one at a time")
        return classify(self, texts, **how)

    monkeypatch.setattr(TextClassifier, "classify", refuse_batches)
    found = regard("classify", text_runs / "classes", *["a good film " * 400] * 3)
    assert found.code == 0
    assert len(found.out.splitlines()) == 3
    assert found.err.count("truncated") == 1
