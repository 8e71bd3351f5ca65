"""CSV of any delimiter as Python's csv module writes it; broken quotes cost one line."""

import csv
import io
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.data.text.delimited import read_csv_records, sniff_delimiter
from regard.data.text.readers import read_pairs
from regard.data.text.rows import BadRow, ReadNotes

WORDS = st.text(st.sampled_from("ab\"',;|\t\n ö漢"), max_size=8)
BOM = b"\xef\xbb\xbf"


def write(file, rows, delimiter=",", end="\r\n", quoting=csv.QUOTE_MINIMAL, bom=b""):
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows(rows)
    file.write_bytes(bom + out.getvalue().encode())
    return file


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=st.lists(st.lists(WORDS, min_size=2, max_size=3), max_size=8), delimiter=st.sampled_from(",;\t|"),
       end=st.sampled_from(["\n", "\r\n"]), quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
       bom=st.sampled_from([b"", BOM]))  # fmt: skip
def test_records_are_those_that_the_csv_module_wrote(tmp_path, rows, delimiter, end, quoting, bom):
    file = write(tmp_path / "a.csv", rows, delimiter, end, quoting, bom)
    found = [cells for _, cells in read_csv_records(file, delimiter)]
    assert found == [row for row in rows if any(row)]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_the_delimiter_is_found(tmp_path, delimiter, quoting):
    rows = [("Hello, you", "Hallo; du"), ("One | two", "Eins, zwei"), ("Tabs\tare rare", "Tabs; selten")] * 5
    file = write(tmp_path / "a.csv", rows, delimiter, quoting=quoting)
    assert sniff_delimiter(file) == delimiter
    assert list(read_pairs([file])) == rows


def test_a_line_break_inside_a_cell_becomes_a_space(tmp_path):
    file = write(tmp_path / "a.csv", [("one\n  two", "eins\r\nzwei"), ("a", "b")])
    assert list(read_pairs([file])) == [("one two", "eins zwei"), ("a", "b")]


def test_rows_of_empty_cells_are_skipped_and_short_ones_left_out(tmp_path):
    (tmp_path / "a.csv").write_text("a;b;c\n;;\nonly one\nd;e;f\n;;\n")
    notes = ReadNotes()
    assert list(read_pairs([tmp_path / "a.csv"], notes=notes)) == [("a", "b"), ("d", "e")]
    assert notes.lines()[-1].endswith("a.csv: 1 line left out (has one column: line 3)")


@pytest.mark.parametrize("at", [0, 5, 9])
def test_a_quote_that_is_not_closed_costs_its_line_only(tmp_path, at):
    rows = [f"line {n},Zeile {n}\n" for n in range(10)]
    rows[at] = '"' + rows[at]
    (tmp_path / "a.csv").write_text("".join(rows))
    notes = ReadNotes()
    wanted = [(f"line {n}", f"Zeile {n}") for n in range(10) if n != at]
    assert list(read_pairs([tmp_path / "a.csv"], notes=notes)) == wanted
    assert notes.lines()[-1].endswith(f"1 line left out (has a quote that is not closed: line {at + 1})")


def test_a_quote_inside_a_word_is_text(tmp_path):
    (tmp_path / "a.csv").write_text('5" pipe;5" Rohr\n"He said ""hi""";x\n')
    assert list(read_pairs([tmp_path / "a.csv"])) == [('5" pipe', '5" Rohr'), ('He said "hi"', "x")]


def test_a_cell_longer_than_the_limit_is_left_out(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n" + "x" * 200_000 + ",c\nd,e\n")
    found = list(read_csv_records(tmp_path / "a.csv", ","))
    assert [record for record in found if not isinstance(record, BadRow)] == [(1, ["a", "b"]), (3, ["d", "e"])]
    assert re.match(r"is not CSV \(field larger than field limit", found[1].reason)
