"""Further columns of a test set: references, or anything else."""

import pytest

from regard.data.text.config import TextData
from regard.data.text.references import choose_references
from regard.tasks.translation import read_references

TARGETS = ["Ein Hund läuft durch den Park .", "Wir sehen ein rotes Haus am Meer .", "Sie kauft heute Brot und Käse ."]
OTHERS = ["Ein Hund rennt im Park .", "Am Meer sehen wir ein rotes Haus .", "Heute kauft sie Käse und Brot ."]
SOURCES = ["A dog runs through the park .", "We see a red house by the sea .", "She buys bread and cheese today ."]


@pytest.mark.parametrize(("column", "counts"), [
    (OTHERS, True), (TARGETS, True), (["", *OTHERS[1:]], True),
    (SOURCES, False), (["CC BY 2.0 tatoeba.org #1", "CC BY 2.0 #2", "CC BY 2.0 #3"], False), (["ok", "", "check"], False),
    (["1", "2", "3"], False), (["Un chien court .", "Nous voyons la mer .", "Elle achète du pain ."], False),
])  # fmt: skip
def test_a_column_counts_as_reference_if_it_reads_like_the_target(column, counts):
    found = choose_references(list(zip(SOURCES, TARGETS, column, strict=True)), 1)
    wanted = [[a, b] if counts and b else [a] for a, b in zip(TARGETS, column, strict=True)]
    assert found == wanted


def test_named_columns_are_references_whatever_they_hold():
    assert choose_references([("a", "b", "7"), ("c", "d", "8")], 2) == [["b", "7"], ["d", "8"]]


@pytest.mark.parametrize("header", ["", "en\tde\tde 2\n"])
def test_a_second_target_column_is_read_for_scoring(tmp_path, header):
    rows = zip(SOURCES, TARGETS, OTHERS, strict=True)
    (tmp_path / "test.tsv").write_text(header + "".join("\t".join(row) + "\n" for row in rows))
    lines = []
    found = read_references(TextData(), str(tmp_path / "test.tsv"), report=lines.append)
    assert found == (SOURCES, [list(pair) for pair in zip(TARGETS, OTHERS, strict=True)])
    assert len(lines) == bool(header)


def test_test_data_may_lack_the_columns_of_training(tmp_path):
    (tmp_path / "test.tsv").write_text("A dog\tEin Hund\n")
    assert read_references(TextData(columns="en,de"), str(tmp_path / "test.tsv")) == (["A dog"], [["Ein Hund"]])
