"""Excel sheets and Parquet files give the rows that openpyxl and pyarrow wrote; bombs and damaged files are one line."""

import sys
import zipfile

import pytest

from regard.data.text import tables
from regard.data.text.readers import read_pairs
from regard.data.text.rows import ReadNotes

openpyxl = pytest.importorskip("openpyxl")
arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS = [("A dog", "Ein Hund"), ("Größe 漢", 'he said "hi"'), ("two\nlines", "zwei\r\nZeilen")]
WANTED = [*ROWS[:2], ("two lines", "zwei Zeilen")]


def xlsx(file, rows):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.create_sheet("other").append(["not", "read"])
    book.save(file)
    return file


def test_the_first_sheet_is_read(tmp_path):
    notes = ReadNotes()
    assert list(read_pairs([xlsx(tmp_path / "a.xlsx", ROWS)])) == WANTED
    titled = xlsx(tmp_path / "b.xlsx", [("Nr", "English", None, "German"), *((n, a, None, b) for n, (a, b) in enumerate(ROWS))])
    assert list(read_pairs([titled], notes=notes)) == WANTED
    assert notes.lines()[0] == f"{titled}: header row English, German of 4 columns"
    assert list(read_pairs([titled], "German,English")) == [(b, a) for a, b in WANTED]
    assert list(read_pairs([titled], "4,2")) == [(b, a) for a, b in WANTED]


def test_cells_may_be_numbers_or_empty(tmp_path):
    file = xlsx(tmp_path / "a.xlsx", [("fine", 1), ("dull", 2.5), ("so so", 3.0), ("no class", None), (None, None), ("end", 4)])
    assert list(read_pairs([file])) == [("fine", "1"), ("dull", "2.5"), ("so so", "3"), ("no class", ""), ("end", "4")]


def test_more_rows_than_one_batch_are_read(tmp_path):
    rows = [(f"a {n}", f"b {n}") for n in range(2 * tables.BATCH + 7)]
    assert list(read_pairs([xlsx(tmp_path / "a.xlsx", rows)])) == rows


def changed(file, out, member, content):
    """Copy an .xlsx with one member replaced."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, content if info.filename == member else old.read(info))
    return out


def test_a_zip_bomb_is_refused_before_it_is_opened(tmp_path, monkeypatch):
    file = xlsx(tmp_path / "a.xlsx", ROWS)
    bomb = changed(file, tmp_path / "bomb.xlsx", "xl/styles.xml", b"<a>" + b" " * 50_000_000)
    monkeypatch.setattr(tables, "MAX_UNPACKED", 1 << 20)
    assert bomb.stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"bomb\.xlsx unpacks to 50,.* bytes; at most .* save it as CSV"):
        list(read_pairs([bomb]))


def test_entities_in_a_sheet_are_refused(tmp_path):
    content = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "ha">]><worksheet>&a;</worksheet>'
    file = changed(xlsx(tmp_path / "a.xlsx", ROWS), tmp_path / "b.xlsx", "xl/worksheets/sheet1.xml", content)
    with pytest.raises(ValueError, match=r"b\.xlsx declares XML entities"):
        list(read_pairs([file]))


def test_a_row_far_beyond_the_last_of_excel_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_ROWS", 5000)
    content = (
        b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData><row r="999999999">'
        b'<c r="A999999999"><v>1</v></c></row></sheetData></worksheet>'
    )
    file = changed(xlsx(tmp_path / "a.xlsx", ROWS), tmp_path / "b.xlsx", "xl/worksheets/sheet1.xml", content)
    with pytest.raises(ValueError, match=r"b\.xlsx is not a readable Excel file \(it has over 5,000 rows\)"):
        list(read_pairs([file]))


@pytest.mark.parametrize("name", ["a.xlsx", "a.parquet"])
@pytest.mark.parametrize("content", [b"", b"not a table", b"PK\x03\x04" + bytes(50), b"PAR1" + bytes(50) + b"PAR1"])
def test_damaged_tables_are_one_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is not a") as error:
        list(read_pairs([tmp_path / name]))
    assert "\n" not in str(error.value)


def write(file, **columns):
    parquet.write_table(arrow.table(columns), file, row_group_size=2)
    return file


def test_parquet_is_read_by_the_names_of_its_columns(tmp_path):
    sources, targets = ([row[side] for row in ROWS] for side in (0, 1))
    file = write(tmp_path / "a.parquet", id=[1, 2, 3], source=sources, target=targets)
    assert list(read_pairs([file])) == WANTED
    file = write(tmp_path / "b.parquet", id=[1, 2, 3], de=targets, en=sources)
    assert list(read_pairs([file], "en,de")) == WANTED
    assert list(read_pairs([file], "3,2")) == WANTED
    notes = ReadNotes()
    assert list(read_pairs([file], notes=notes)) == [(b, a) for a, b in WANTED]  # the only two columns of text, in their order
    assert notes.lines()[0] == f"{file}: columns de, en"


def test_nested_columns_of_parquet_are_read(tmp_path):
    rows = [{"en": a, "de": b} for a, b in ROWS]
    file = write(tmp_path / "a.parquet", translation=rows)
    assert list(read_pairs([file], "translation.de,translation.en")) == [(b, a) for a, b in WANTED]
    assert sorted(next(read_pairs([file]))) == sorted(WANTED[0])


def test_columns_that_parquet_lacks_are_refused_with_those_it_has(tmp_path):
    file = write(tmp_path / "a.parquet", a=["x"], b=["y"], c=["z"])
    for columns in ("source,target", "a,d"):
        with pytest.raises(ValueError, match=rf"has the columns a, b, c; data\.columns={columns} is not among them"):
            list(read_pairs([file], columns))


def test_a_class_may_be_a_number_and_a_text_may_be_missing(tmp_path):
    file = write(tmp_path / "a.parquet", text=["fine", None, "dull"], label=[1, 0, None])
    assert list(read_pairs([file], "text,label")) == [("fine", "1"), ("", "0"), ("dull", "")]


def test_a_column_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    file = write(tmp_path / "a.parquet", source=["x" * 100_000] * 2, target=["y", "z"])
    monkeypatch.setattr(tables, "MAX_CHUNK", 1000)
    with pytest.raises(ValueError, match=r"a\.parquet has 100,.* bytes in one column chunk; at most 1,000 are read"):
        list(read_pairs([file]))


def test_a_text_that_is_too_long_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_LINE", 10)
    file, notes = write(tmp_path / "a.parquet", source=["a", "x" * 11, "b", "c"], target=["a", "b", "c", "d"]), ReadNotes()
    assert len(list(read_pairs([file], notes=notes))) == 3
    assert "has over 10 characters: line 2" in notes.lines()[-1]
    file, notes = xlsx(tmp_path / "b.xlsx", [("a", "b"), ("x" * 11, "c"), ("d", "e"), ("f", "g")]), ReadNotes()
    assert len(list(read_pairs([file], notes=notes))) == 3
    assert "has over 10 characters: line 2" in notes.lines()[-1]


@pytest.mark.parametrize(("name", "library"), [("a.xlsx", "openpyxl"), ("a.parquet", "pyarrow")])
def test_a_missing_library_is_named_with_its_pip_line(tmp_path, monkeypatch, name, library):
    (tmp_path / name).write_bytes(b"")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=rf"{name} needs a package: pip install {library}"):
        list(read_pairs([tmp_path / name]))
