"""TSV, JSONL and two aligned files become the same pairs, plain text stays what it is; a bad line is named."""

import gzip
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.data.text import readers as text
from regard.data.text.readers import read_fraction, read_labeled, read_pairs, read_text
from regard.data.text.rows import ReadNotes

PAIRS = [("A dog.", "Un cane."), ("Größe", "grandezza"), ("क्या हाल है?", 'he said "hi" \\ \' ,')]


def pairs(folder: Path, *contents: bytes, names=("a.tsv",), **how) -> list[tuple[str, str]]:
    files = [folder / name for name in names]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
    return list(read_pairs(files, **how))


def tsv(end: str = "\n", more: str = "") -> bytes:
    return "".join(f"{source}\t{target}{more}{end}" for source, target in PAIRS).encode()


def jsonl(keys=("source", "target"), ascii_only=False) -> bytes:
    rows = (dict(zip(keys, pair, strict=True), id=7) for pair in PAIRS)
    return "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows).encode()


def sides(end: str = "\n") -> list[bytes]:
    return ["".join(pair[side] + end for pair in PAIRS).encode() for side in (0, 1)]


BOM = b"\xef\xbb\xbf"
TSV = {
    "plain": tsv(),
    "CRLF": tsv("\r\n"),
    "BOM": BOM + tsv(),
    "more columns": tsv(more="\tCC BY 2.0\t#12"),
    "no last line end": tsv()[:-1],
    "blank lines": tsv() + b"\n  \n",
}
JSONL = {
    "plain": jsonl(),
    "escaped": jsonl(ascii_only=True),
    "CRLF": jsonl().replace(b"\n", b"\r\n"),
    "BOM": BOM + jsonl(),
    "blank lines": b"\n" + jsonl() + b" \n",
}


@pytest.mark.parametrize("kind", TSV)
@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz", "a.txt"])
def test_a_tsv_file_is_read(tmp_path, kind, name):
    assert pairs(tmp_path, TSV[kind], names=[name]) == PAIRS


@pytest.mark.parametrize("kind", JSONL)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_jsonl_file_is_read(tmp_path, kind, name):
    assert pairs(tmp_path, JSONL[kind], names=[name]) == PAIRS


def test_a_jsonl_file_may_name_its_columns(tmp_path):
    assert pairs(tmp_path, jsonl(("en", "it")), names=["a.jsonl"], columns="en,it") == PAIRS
    assert pairs(tmp_path, jsonl(("it", "en")), names=["a.jsonl"], columns="en,it") == [(b, a) for a, b in PAIRS]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("names", [("a.en", "a.it"), ("a.en.gz", "a.it.gz"), ("a.en", "a.it.gz")])
def test_two_aligned_files_are_read(tmp_path, names, end):
    assert pairs(tmp_path, *sides(end), names=names) == PAIRS


def test_a_tab_in_aligned_files_is_text(tmp_path):
    assert pairs(tmp_path, b"a\tb\n", b"c\n", names=("a.en", "a.it")) == [("a\tb", "c")]


def test_an_empty_side_is_read_as_empty(tmp_path):
    assert pairs(tmp_path, b"a\t\n\tb\n\t\n") == [("a", ""), ("", "b"), ("", "")]
    assert pairs(tmp_path, b"a\n\n", b"\nb\n", names=("a.en", "a.it")) == [("a", ""), ("", "b")]


def test_an_empty_file_has_no_pairs(tmp_path):
    assert pairs(tmp_path, b"") == []
    assert pairs(tmp_path, b"", b"", names=("a.en", "a.it")) == []


def test_pairs_are_streamed_up_to_the_bad_line(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"a\tb\nbad\n")
    stream = read_pairs([tmp_path / "a.tsv"], notes=ReadNotes(strict=True))
    assert next(stream) == ("a", "b")
    with pytest.raises(ValueError, match="line 2 has no tab; wanted source, a tab, target"):
        next(stream)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.tsv", b"a\tb\n\nc d\n", "line 3 has no tab"),
    ("a.tsv.gz", b"a\tb\nc d\n", "line 2 has no tab"),
    ("a.tsv", b"a\tb\nc\t\xe9\n", r"line 2 is not UTF-8 at byte 3 \(0xe9\)"),
    ("a.tsv", b"a\tb\nc\0\td\n", "line 2 has a zero byte, byte 2"),
    ("a.jsonl", b'{"source": "a", "target": "b"}\n{"source": "a"\n', "line 2 is not JSON; Expecting"),
    ("a.jsonl", b'\n\n{"source": "a", "text": "b"}\n',
     r"line 3 needs text under 'source' and 'target', it has source, text; name its keys in data\.columns"),
    ("a.jsonl", b'{"source": "a", "target": [7]}\n', "line 1 needs text under"),
    ("a.jsonl", b'{"source": "a", "target": null}\n', "line 1 needs text under"),
    ("a.jsonl", b'["a", "b"]\n', "line 1 needs text under .*, it has list"),
    ("a.jsonl", b'{"source": "a", "target": "\\ud800"}\n', "line 1 "),  # half a character, which no text can hold
])  # fmt: skip
def test_a_bad_line_is_named_with_its_file(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message) as error:
        pairs(tmp_path, content, names=[name], notes=ReadNotes(strict=True))
    assert str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize("longer", [0, 1])
def test_misaligned_files_are_named_with_the_line_where_one_ends(tmp_path, longer):
    contents = [b"a\nb\n", b"a\nb\n"]
    contents[longer] += b"c\nd\n"
    names = ("a.en", "a.it")
    with pytest.raises(ValueError, match="give files of the same length") as error:
        pairs(tmp_path, *contents, names=names)
    assert f"{names[1 - longer]} ends after line 2, {tmp_path / names[longer]} has more lines" in str(error.value)


def test_a_bad_byte_in_the_second_of_two_files_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"a\.it line 2 is not UTF-8 at byte 1"):
        pairs(tmp_path, b"a\nb\n", b"a\n\xff\n", names=("a.en", "a.it"), notes=ReadNotes(strict=True))


@pytest.mark.parametrize("names", [(), ("a", "b", "c")])
def test_no_files_and_three_plain_files_make_no_pairs(tmp_path, names):
    with pytest.raises(ValueError, match=f"{len(names)} files given .*; give .* of pairs, or two line-aligned ones"):
        pairs(tmp_path, *[b""] * len(names), names=names)


def test_columns_need_two_names(tmp_path):
    with pytest.raises(ValueError, match=r"data\.columns is 'source'; wanted two keys"):
        pairs(tmp_path, jsonl(), names=["a.jsonl"], columns="source")


def test_a_missing_file_is_named(tmp_path):
    (tmp_path / "a.en").write_text("a\n")
    with pytest.raises(ValueError, match=r"no file .*a\.it; check the path"):
        list(read_pairs([tmp_path / "a.en", tmp_path / "a.it"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.lists(st.sampled_from(["a", " ", "\n", "\r\n", "ö", "漢", "😀", "long" * 9, "\u2028"]), max_size=60).map("".join),
    max_len=st.sampled_from([4, 5, 7, 16, 1 << 16]), packed=st.booleans(), cut=st.integers(0, 60),
)  # fmt: skip
def test_the_pieces_of_a_text_joined_are_the_text(tmp_path, monkeypatch, content, max_len, packed, cut):
    monkeypatch.setattr(text, "PIECE", max_len)
    files = [tmp_path / f"{side}.txt{'.gz' * packed}" for side in "ab"]
    for file, part in zip(files, (content[:cut], content[cut:]), strict=True):
        file.write_bytes(gzip.compress(part.encode()) if packed else part.encode())
    pieces = list(read_text(files))
    assert "".join(pieces) == content
    assert all(pieces)
    assert all("\n" not in piece[:-1] for piece in pieces)  # a piece is a line, or less
    assert all(len(piece.encode()) < 2 * max_len for piece in pieces)
    for file in files:
        for piece, after in itertools.pairwise(read_text([file])):
            if not piece.endswith("\n"):  # only a long line is cut, and before a space, if it has one
                assert len(piece.encode() + after.encode()) >= max_len
                assert after.startswith(" ") or " " not in piece[1:]


def test_short_lines_come_whole(tmp_path):
    (tmp_path / "a.txt").write_bytes(BOM + b"one\n\ntwo three\r\nfour")
    assert list(read_text([tmp_path / "a.txt"])) == ["one\n", "\n", "two three\r\n", "four"]


def test_a_text_of_one_long_line_is_streamed(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"some words " * 100_000)
    stream = read_text([tmp_path / "a.txt"])
    first = next(stream)
    assert len(first) <= 1 << 16
    assert first + "".join(stream) == "some words " * 100_000


@pytest.mark.parametrize(("content", "message"), [
    (b"a\nbb bb bb \xff b\n", r"line 2 is not UTF-8 at byte 10 \(0xff\)"),
    (b"a\nbb bb bb b\0\n", "line 2 has a zero byte, byte 11"),
    (b"a\nbbbbbbbbbbb\xc3", r"line 2 is not UTF-8 at byte 12 \(0xc3\)"),
    (b"bbbb\xc3\n", r"line 1 is not UTF-8 at byte 5 \(0xc3\)"),
])  # fmt: skip
@pytest.mark.parametrize("max_len", [4, 1 << 16])
def test_a_bad_byte_in_a_long_line_is_named_by_its_position_in_the_line(tmp_path, monkeypatch, content, message, max_len):
    monkeypatch.setattr(text, "PIECE", max_len)
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_text([tmp_path / "a.txt"]))


@given(length=st.integers(0, 300), first=st.integers(0, 100), more=st.integers(0, 100))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_part_of_a_text_is_that_percentage_of_its_characters(tmp_path, length, first, more):
    content = "".join("ö\n"[n % 7 == 0] + "abc"[n % 3] for n in range(length))
    (tmp_path / "a.txt").write_text(content)
    last = min(100, first + more)
    wanted = content[len(content) * first // 100 : len(content) * last // 100]
    assert "".join(read_fraction([tmp_path / "a.txt"], first, last)) == wanted


def test_a_class_id_is_read_as_its_name_with_all_columns_of_the_text(tmp_path):
    (tmp_path / "a.tsv").write_text("1\tTitle\tMore of it.\n0\tOnly\n")
    assert list(read_labeled(tmp_path / "a.tsv", ["no", "yes"])) == [("Title. More of it.", "yes"), ("Only", "no")]


@pytest.mark.parametrize("line", ["2\ta", "yes\ta", "1", "", "-1\ta"])
def test_an_invalid_class_id_is_named_with_its_line(tmp_path, line):
    (tmp_path / "a.tsv").write_text(f"1\ta\n{line}\n")
    with pytest.raises(ValueError, match=r"a\.tsv line 2 has class .*; wanted 0 to 1, a tab, and the text"):
        list(read_labeled(tmp_path / "a.tsv", ["no", "yes"]))


def test_a_class_may_be_a_number(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "fine", "label": 1}\n{"text": "dull", "label": 0}\n')
    assert list(read_pairs([tmp_path / "a.jsonl"], "text,label")) == [("fine", "1"), ("dull", "0")]
