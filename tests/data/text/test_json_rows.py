"""JSONL with nested keys, and JSON arrays that are never read at once."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.data.text import json_rows
from regard.data.text.readers import read_pairs
from regard.data.text.rows import ReadNotes

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))


def test_nested_keys_have_dots(tmp_path):
    rows = [{"id": 1, "translation": {"en": "A", "de": "B", "more": {"x": ["C"]}}, "a.b": "D"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for columns, wanted in {"translation.en,translation.de": ("A", "B"), "translation.more.x.1,a.b": ("C", "D")}.items():
        assert list(read_pairs([tmp_path / "a.jsonl"], columns)) == [wanted]
    with pytest.raises(
        ValueError, match=r"line 1 needs text under 'translation\.fr' and 'translation\.de', it has id, translation"
    ):
        list(read_pairs([tmp_path / "a.jsonl"], "translation.fr,translation.de"))


def test_nested_keys_are_suggested(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"id": 1, "translation": {"en": "A", "it": "B"}}) + "\n")
    with pytest.raises(ValueError, match=r"keys in data\.columns, such as data\.columns=translation\.en,translation\.it"):
        list(read_pairs([tmp_path / "a.jsonl"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=st.lists(st.tuples(TEXT, TEXT), max_size=5), size=st.integers(1, 40), indent=st.sampled_from([None, 2]),
       ascii_only=st.booleans())  # fmt: skip
def test_an_array_is_read_as_it_was_written(tmp_path, monkeypatch, rows, size, indent, ascii_only):
    monkeypatch.setattr(json_rows, "CHUNK", size)
    content = json.dumps([{"source": a, "target": b} for a, b in rows], indent=indent, ensure_ascii=ascii_only)
    (tmp_path / "a.json").write_text(content)
    assert list(read_pairs([tmp_path / "a.json"])) == rows


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.jsonl", b"[" * 200_000, "line 1 is nested too deeply or has a number too long; give an object with two texts"),
    ("a.jsonl", b'{"source": ' + b"1" * 5000 + b"}", "line 1 is nested too deeply or has a number too long"),
    ("a.json", b"[" * 200_000, "is nested too deeply in its object 1"),
    ("a.json", b'{"source": "a", "target": "b"}', r"does not start with \[; wanted an array of objects"),
    ("a.json", b'[{"source": "a", "target": "b"}, {"sou', "object 2 is not JSON"),
    ("a.json", b'[{"source": "' + b"a" * 2_000_000 + b'", "target": "b"}]', "object 1 has over 1,048,576 characters"),
    ("a.json", b'[{"source": "\xff"}]', "is not UTF-8; save it as UTF-8"),
])  # fmt: skip
def test_other_json_is_refused_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        list(read_pairs([tmp_path / name]))
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)


def test_one_bad_object_among_many_is_left_out(tmp_path):
    good = '{"source": "a", "target": "b"}\n'
    (tmp_path / "a.jsonl").write_text(good * 5 + "[" * 100_000 + "\n" + '{"source": "a"}\n' + good * 5)
    notes = ReadNotes()
    assert len(list(read_pairs([tmp_path / "a.jsonl"], notes=notes))) == 10
    assert "2 lines left out (is nested too deeply or has a number too long: line 6; needs text" in notes.lines()[0]
