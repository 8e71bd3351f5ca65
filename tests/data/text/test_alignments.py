"""Annotated word alignments are read for exactly the sentences they were made on."""

import os
import re
from pathlib import Path

import pytest

from regard.data.text.alignments import pair_checksum, read_alignments
from regard.data.text.config import TextData
from regard.data.text.splits import find_split

FILE = Path(__file__).parents[2] / "alignments" / "multi30k.tsv"
DATA = Path(os.environ.get("REGARD_DATA", "nowhere"))
PAIRS = [("a dog", "ein hund"), ("the red cat sleeps", "die rote katze schläft gerade")]


def write(folder: Path, links: str, line: int = 2, checksum: str = "") -> Path:
    file = folder / "links.tsv"
    row = f"{line}\t{checksum or pair_checksum(PAIRS[1])}\t{links}\n"
    file.write_text(f"# a comment\n\n{row}", encoding="utf-8")
    return file


def test_links_are_sure_or_possible_and_sure_ones_are_both(tmp_path):
    [found] = read_alignments(write(tmp_path, "0-0 1-1 2-2 3-3 3?4"), PAIRS)
    assert (found.line, found.source, found.target) == (2, *PAIRS[1])
    assert found.sure == {(0, 0), (1, 1), (2, 2), (3, 3)}
    assert found.possible == found.sure | {(3, 4)}


@pytest.mark.parametrize(
    ("links", "message"),
    [("0-0 1", r"line 3 has a link '1'; wanted source-target"), ("0-0 -1-1", "has a link '-1-1'"),
     ("4-0", "has a link 4-0, the sentences have 4 and 5 words"), ("0?5", "has a link 0[?]5"),
     ("1-1 1?1", "has the link 1-1 twice")],
)  # fmt: skip
def test_a_wrong_link_is_refused(tmp_path, links, message):
    with pytest.raises(ValueError, match=message):
        read_alignments(write(tmp_path, links), PAIRS)


def test_another_sentence_is_refused_by_its_checksum(tmp_path):
    file = write(tmp_path, "0-0")
    with pytest.raises(ValueError, match="annotated on another sentence 2 than 'the red cat sleeps'"):
        read_alignments(file, [PAIRS[0], (PAIRS[1][0], "die rote katze schläft")])
    with pytest.raises(ValueError, match="aligns sentence 2, there are 1"):
        read_alignments(file, PAIRS[:1])


def test_a_line_without_its_three_columns_is_refused(tmp_path):
    (tmp_path / "links.tsv").write_text("1 0-0 1-1\n")
    with pytest.raises(ValueError, match="line 1 is '1 0-0 1-1'; wanted line number, checksum and links"):
        read_alignments(tmp_path / "links.tsv", PAIRS)


def test_the_stored_alignments_hold_no_sentences():
    rows = [line.split("\t") for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert len(rows) == len({line for line, _, _ in rows}) == 20
    assert all(re.fullmatch(r"[0-9a-f]{16}", checksum) for _, checksum, _ in rows)
    assert all(re.fullmatch(r"\d+[-?]\d+", link) for _, _, links in rows for link in links.split())


@pytest.mark.skipif(not (DATA / "multi30k" / "tok").is_dir(), reason="set REGARD_DATA to a folder that holds multi30k/tok/")
def test_the_stored_alignments_fit_multi30k():
    data = TextData(source="multi30k", pair="en-de", text="tok")
    aligned = read_alignments(FILE, list(find_split(data, "test_2016_flickr").pairs()))
    assert len(aligned) == 20
    for pair in aligned:
        english, german = pair.source.split(), pair.target.split()
        # Every English word has a link; a German one without is a comma that only German needs, or the copula of line 12.
        assert {source for source, _ in pair.possible} == set(range(len(english)))
        assert {german[word] for word in set(range(len(german))) - {target for _, target in pair.possible}} <= {",", "sind"}
        # A full stop is linked to the full stop.
        assert (len(english) - 1, len(german) - 1) in pair.sure
    by_line = {pair.line: {(pair.source.split()[s], pair.target.split()[t]) for s, t in pair.sure} for pair in aligned}
    assert {("pouring", "schenkt"), ("pouring", "ein")} <= by_line[89]
    assert {("swim", "badehosen"), ("trunks", "badehosen")} <= by_line[46]
