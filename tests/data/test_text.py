"""TSV, JSONL and two aligned files become the same pairs; a bad line is named."""

import gzip
import json
from pathlib import Path

import pytest

from regard.data.text import read_pairs

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
    stream = read_pairs([tmp_path / "a.tsv"])
    assert next(stream) == ("a", "b")
    with pytest.raises(ValueError, match="line 2 has no tab; wanted source, a tab, target"):
        next(stream)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.tsv", b"a\tb\n\nc d\n", "line 3 has no tab"),
    ("a.tsv.gz", b"a\tb\nc d\n", "line 2 has no tab"),
    ("a.tsv", b"a\tb\nc\t\xe9\n", r"line 2 is not UTF-8 at byte 3 \(0xe9\)"),
    ("a.tsv", b"a\tb\nc\0\td\n", "line 2 holds a zero byte, byte 2"),
    ("a.jsonl", b'{"source": "a", "target": "b"}\n{"source": "a"\n', "line 2 is not JSON: "),
    ("a.jsonl", b'\n\n{"source": "a", "text": "b"}\n',
     r"line 3 needs text under 'source' and 'target', it has source, text; name its keys in data\.columns"),
    ("a.jsonl", b'{"source": "a", "target": 7}\n', "line 1 needs text under"),
    ("a.jsonl", b'{"source": "a", "target": null}\n', "line 1 needs text under"),
    ("a.jsonl", b'["a", "b"]\n', "line 1 needs text under .*, it has list"),
    ("a.jsonl", b'{"source": "a", "target": "\\ud800"}\n', "line 1 "),  # half a character, which no text can hold
])  # fmt: skip
def test_a_bad_line_is_named_with_its_file(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message) as error:
        pairs(tmp_path, content, names=[name])
    assert str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize("longer", [0, 1])
def test_misaligned_files_are_named_with_the_line_where_one_ends(tmp_path, longer):
    contents = [b"a\nb\n", b"a\nb\n"]
    contents[longer] += b"c\nd\n"
    names = ("a.en", "a.it")
    with pytest.raises(ValueError, match="must have the same number of lines") as error:
        pairs(tmp_path, *contents, names=names)
    assert f"{names[1 - longer]} ends after line 2, {tmp_path / names[longer]} goes on" in str(error.value)


def test_a_bad_byte_in_the_second_of_two_files_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"a\.it line 2 is not UTF-8 at byte 1"):
        pairs(tmp_path, b"a\nb\n", b"a\n\xff\n", names=("a.en", "a.it"))


@pytest.mark.parametrize("names", [(), ("a", "b", "c")])
def test_only_one_or_two_files_make_pairs(tmp_path, names):
    with pytest.raises(ValueError, match=f"{len(names)} files given .*; give one TSV or JSONL file, or two"):
        pairs(tmp_path, *[b""] * len(names), names=names)


def test_columns_need_two_names(tmp_path):
    with pytest.raises(ValueError, match=r"data\.columns is 'source'; wanted two keys"):
        pairs(tmp_path, jsonl(), names=["a.jsonl"], columns="source")


def test_a_missing_file_is_named(tmp_path):
    (tmp_path / "a.en").write_text("a\n")
    with pytest.raises(ValueError, match=r"no file .*a\.it; check the path"):
        list(read_pairs([tmp_path / "a.en", tmp_path / "a.it"]))
