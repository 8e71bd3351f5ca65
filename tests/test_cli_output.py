"""What is printed: exact in a pipe, without control characters on a terminal."""

import json
import sys

import pytest

from regard.cli.io import note, write, write_json

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
