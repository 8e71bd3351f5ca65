"""Several files, patterns and folders; formats that hold pairs by themselves, and plain files that are aligned."""

import json

import pytest

from regard.data.text import formats
from regard.data.text.config import TextData
from regard.data.text.formats import expand_paths, is_aligned
from regard.data.text.readers import read_pairs
from regard.data.text.rows import ReadNotes
from regard.data.text.splits import find_split


def tsv(file, *names):
    file.write_text("".join(f"{name} source\t{name} target\n" for name in names))
    return file


def wanted(*names):
    return [(f"{name} source", f"{name} target") for name in names]


def test_two_files_with_tabs_are_read_one_after_the_other(tmp_path):
    for ending in ("tsv", "txt", "en"):
        files = [tsv(tmp_path / f"{name}.{ending}", *names) for name, names in (("a", "pq"), ("b", "rs"))]
        assert not is_aligned(files)
        assert list(read_pairs(files)) == wanted(*"pqrs")


def test_two_plain_files_stay_aligned(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("eins\nzwei\n")
    assert list(read_pairs([tmp_path / "a.txt", tmp_path / "b.txt"])) == [("one", "eins"), ("two", "zwei")]


def test_files_of_several_formats_are_read_in_turn(tmp_path):
    first = tsv(tmp_path / "a.tsv", "p")
    (tmp_path / "b.csv").write_text("q source;q target\n")
    (tmp_path / "c.jsonl").write_text(json.dumps({"source": "r source", "target": "r target"}))
    (tmp_path / "d.json").write_text(json.dumps([{"source": "s source", "target": "s target"}]))
    files = [first, *(tmp_path / name for name in ("b.csv", "c.jsonl", "d.json"))]
    assert list(read_pairs(files)) == wanted(*"pqrs")
    assert list(read_pairs(files[::-1])) == wanted(*"srqp")


def test_patterns_and_folders_are_sorted(tmp_path):
    folder = tmp_path / "data"
    (folder / "more").mkdir(parents=True)
    for name in ("c", "a", "b"):
        tsv(folder / f"{name}.tsv", name)
    tsv(folder / "more" / "d.tsv", "d")
    (folder / "notes.pdf").write_bytes(b"\0")
    (folder / ".hidden.tsv").write_text("no tab")
    names = [folder / f"{name}.tsv" for name in "abc"]
    assert expand_paths(f"{folder}/*.tsv") == names
    assert expand_paths(f"{folder}/**/*.tsv") == [*names, folder / "more" / "d.tsv"]
    assert expand_paths(str(folder)) == [*names, folder / "more" / "d.tsv"]
    assert expand_paths(f"{folder}/c.tsv,{folder}/[ab].tsv") == [names[2], *names[:2]]
    assert list(read_pairs(expand_paths(str(folder)))) == wanted(*"abcd")


@pytest.mark.parametrize("name", ["a.tsv", "a.txt", "a.csv"])
def test_stray_files_of_a_folder_are_named_and_not_read(tmp_path, name):
    folder = tmp_path / "data"
    folder.mkdir()
    for file in (name, f"b{name[1:]}"):
        (folder / file).write_text(f"one{',' if name == 'a.csv' else chr(9)}eins\n" * 3)
    for stray in ("notes.md", "licence.text", "scan.pdf"):
        (folder / stray).write_text("These are some notes.\n")
    notes = ReadNotes()
    rows = find_split(TextData(train=str(folder), valid=str(folder)), "train").rows(notes)
    assert list(rows) == [("one", "eins")] * 6
    assert notes.lines() == [f"{folder}: 2 files; not read: licence.text, notes.md, scan.pdf"]


def test_the_number_of_files_of_a_pattern_is_reported(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.tsv").write_text("one\teins\n")
    notes, own = ReadNotes(), str(tmp_path / "*.tsv")
    assert len(list(find_split(TextData(train=own, valid=own), "train").rows(notes))) == 3
    assert notes.lines() == [f"{own}: 3 files"]


def test_a_name_with_a_comma_is_one_file(tmp_path):
    assert expand_paths(str(tsv(tmp_path / "a,b.tsv", "p"))) == [tmp_path / "a,b.tsv"]


@pytest.mark.parametrize(("own", "message"), [
    ("{}/*.tsv", r"no file matches .*\*\.tsv; check the pattern"), ("{}/no.tsv", r"no file .*no\.tsv; check the path"),
    ("{}", "is a folder without text files .*; give a file"),
])  # fmt: skip
def test_paths_without_files_are_refused(tmp_path, own, message):
    with pytest.raises(ValueError, match=message):
        expand_paths(own.format(tmp_path))


def test_bad_lines_are_left_out_and_listed_with_their_number(tmp_path):
    lines = [f"a {n}\tb {n}" for n in range(1000)]
    for number in (16, 19, *range(100, 120)):
        lines[number] = "no tab"
    lines[500] = "x" * 2_000_000 + "\ty"
    content = "\n".join(lines).encode()
    (tmp_path / "a.tsv").write_bytes(content.replace(b"a 700\t", b"a \xff\t"))
    notes = ReadNotes()
    assert len(list(read_pairs([tmp_path / "a.tsv"], notes=notes))) == 1000 - 24
    assert notes.lines() == [
        f"{tmp_path}/a.tsv: 24 lines left out (has no tab: lines 17, 20, 101, 102, 103, 104, 105, 106, 107, 108 and 12 more; "
        "has over 1,048,576 bytes: line 501; is not UTF-8: line 701)"
    ]
    with pytest.raises(ValueError, match=r"a\.tsv line 17 has no tab; wanted source, a tab, target"):
        list(read_pairs([tmp_path / "a.tsv"], notes=ReadNotes(strict=True)))


def test_a_file_in_which_most_lines_are_bad_is_refused_before_its_end(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"a\tb\n" + b"no tab\n" * 500 + b"\0")  # the zero byte is never reached
    with pytest.raises(ValueError, match=r"line 2 has no tab; .* \(at least 100 lines cannot be read\)"):
        list(read_pairs([tmp_path / "a.tsv"]))


def test_a_file_in_another_encoding_is_refused_with_a_hint(tmp_path):
    text = "".join(f"word {n}\t{'grün' if n % 50 == 0 else 'rot'} {n}\n" for n in range(10_000))  # a fiftieth of the lines
    (tmp_path / "a.tsv").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"line 1 is not UTF-8 at byte .*CSV UTF-8.*iconv -f cp1252 -t utf-8"):
        list(read_pairs([tmp_path / "a.tsv"]))


def test_bad_lines_of_aligned_files_leave_the_others_aligned(tmp_path):
    for name in ("en", "de"):
        (tmp_path / f"a.{name}").write_bytes("".join(f"{name} {n}\n" for n in range(300)).encode())
    content = (tmp_path / "a.de").read_bytes().replace(b"de 7\n", b"x" * 2_000_000 + b"\n")
    (tmp_path / "a.de").write_bytes(content)
    notes = ReadNotes()
    found = list(read_pairs([tmp_path / "a.en", tmp_path / "a.de"], notes=notes))
    assert found == [(f"en {n}", f"de {n}") for n in range(300) if n != 7]
    assert notes.lines() == [f"{tmp_path}/a.de: 1 line left out (has over 1,048,576 bytes: line 8)"]


def test_control_characters_of_a_file_are_not_reported_raw(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": "b", "\\u001b[2J": 1}\n')
    with pytest.raises(ValueError, match=r"it has a, \\x1b\[2J; name its keys"):
        list(read_pairs([tmp_path / "a.jsonl"]))


def test_many_reasons_are_one_reason(tmp_path):
    rows = [json.dumps({"source": "a", "target": "b"} if n % 3 else {f"key {n}": 1}) for n in range(300)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    notes = ReadNotes()
    assert len(list(read_pairs([tmp_path / "a.jsonl"], notes=notes))) == 200
    assert len(notes.lines()) == 1
    assert len(notes.lines()[0]) < len(str(tmp_path)) + 200


def test_a_folder_of_too_many_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "MAX_FILES", 2)
    for name in "abc":
        tsv(tmp_path / f"{name}.tsv", "p")
    for own in (str(tmp_path), f"{tmp_path}/*"):
        with pytest.raises(ValueError, match="has over 2 files; join them into fewer"):
            expand_paths(own)


def test_a_long_list_of_files_is_a_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [f"{'n' * 40}{n}.tsv" for n in range(20)]
    for name in names:
        tsv(tmp_path / name, "p")
    assert [str(file) for file in expand_paths(",".join(names))] == names


def test_single_lines_that_are_not_utf8_are_left_out_of_a_short_file(tmp_path):
    file, lines = tmp_path / "a.tsv", [b"a\tb"] * 20
    for count in (1, 2):
        file.write_bytes(b"\n".join([b"gr\xfcn\tx"] * count + lines))
        notes = ReadNotes()
        assert list(read_pairs([file], notes=notes)) == [("a", "b")] * 20
        assert f"{count} line" in notes.lines()[0]
    file.write_bytes(b"\n".join([b"gr\xfcn\tx"] * 3 + lines))
    with pytest.raises(ValueError, match=r"line 1 is not UTF-8 at byte .*iconv"):
        list(read_pairs([file]))
    file.write_bytes(b"gr\xfcn\tx\n")
    with pytest.raises(ValueError, match=r"line 1 is not UTF-8 at byte .*iconv"):
        list(read_pairs([file]))


def test_a_file_is_refused_only_if_more_than_half_of_its_lines_are_bad(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tb\nno tab\n")
    assert list(read_pairs([tmp_path / "a.tsv"])) == [("a", "b")]
    (tmp_path / "a.tsv").write_text("a\tb\nno tab\nno tab\n")
    with pytest.raises(ValueError, match=r"line 2 has no tab; .*2 lines cannot be read"):
        list(read_pairs([tmp_path / "a.tsv"]))
