"""Which columns of a table are read: by name, by number, by its header row, or the first two."""

import pytest

from regard.data.text.columns import choose_columns, is_header, language_of
from regard.data.text.formats import read_rows
from regard.data.text.readers import read_pairs
from regard.data.text.rows import ReadNotes


def pairs(tmp_path, text, columns="source,target", name="a.tsv"):
    (tmp_path / name).write_text(text)
    notes = ReadNotes()
    return list(read_pairs([tmp_path / name], columns, notes=notes)), notes.lines()


@pytest.mark.parametrize("header", ["source\ttarget", "en\tde", "English\tGerman", "en-US\tde_DE", "src\ttgt", "Text\tLabel",
                                    "English (US)\tDeutsch", "Source text\tTarget text"])  # fmt: skip
def test_a_header_row_is_recognised_and_reported(tmp_path, header):
    found, notes = pairs(tmp_path, f"{header}\nA dog\tEin Hund\n")
    assert found == [("A dog", "Ein Hund")]
    assert notes == [f"{tmp_path / 'a.tsv'}: header row {', '.join(header.split(chr(9)))}"]


@pytest.mark.parametrize("row", ["A dog\tEin Hund", "no\tnein", "Text\tText", "source\tQuelle des Flusses", "2\t3", "in\tin"])
def test_a_row_of_text_is_not_a_header(tmp_path, row):
    assert pairs(tmp_path, f"{row}\nA cat\tEine Katze\n")[0] == [tuple(row.split("\t")), ("A cat", "Eine Katze")]


@pytest.mark.parametrize(("columns", "wanted"), [
    ("en,de", ("A", "B")), ("de,en", ("B", "A")), ("EN, De", ("A", "B")), ("2,3", ("A", "B")), ("3,2", ("B", "A")),
    ("source,target", ("A", "B")),  # the header row names the languages
])  # fmt: skip
def test_columns_are_obeyed(tmp_path, columns, wanted):
    text = "id\ten\tde\tnote\n7\tA\tB\tx\n"
    assert pairs(tmp_path, text, columns)[0] == [wanted]
    assert pairs(tmp_path, text.replace("\t", ";"), columns, "a.csv")[0] == [wanted]


@pytest.mark.parametrize(("columns", "message"), [
    ("en,fr", r"has no column 'fr', its first row is 'en', 'de'; name two columns of its header row, or give numbers"),
    ("1,3", r"data\.columns=1,3 asks for column 3; .*a\.tsv has 2"),
    ("0,1", "has 2"),
    ("en,", "data.columns is 'en,'; wanted two keys"),
])  # fmt: skip
def test_columns_that_a_file_lacks_are_refused(tmp_path, columns, message):
    with pytest.raises(ValueError, match=message):
        pairs(tmp_path, "en\tde\nA\tB\n", columns)


def test_columns_of_aligned_files_are_refused(tmp_path):
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("A\n")
    with pytest.raises(ValueError, match=r"data\.columns=de,en is for files with columns"):
        list(read_pairs([tmp_path / "a.en", tmp_path / "a.de"], "de,en"))


@pytest.mark.parametrize(("cells", "wanted"), [
    (["ID", "English", "German", "Note"], (1, 2)), (["No", "en", "de"], (1, 2)), (["id", "text", "label"], (1, 2)),
    (["key", "en", "status", "de"], (1, 3)), (["en", "de", "id"], (0, 1)), (["source", "target", "en", "de"], (0, 1)),
])  # fmt: skip
def test_the_header_row_finds_texts_behind_identifiers(cells, wanted, tmp_path):
    found = choose_columns(cells, "source,target", tmp_path)
    assert found.indexes == wanted
    assert found.header == tuple(cells[index] for index in wanted)


def test_languages_have_names_and_codes():
    assert [language_of(name) for name in ("English", "en", "en-US", "Deutsch", "DE", "words")] == [
        "en",
        "en",
        "en",
        "de",
        "de",
        "",
    ]
    assert not is_header(["en"])
    assert not is_header(["en", "en"])


HEADED = {
    "a.csv": "en,de\none,eins\n",
    "a.tsv": "English\tGerman\none\teins\n",
    "a.jsonl": '{"en": "one", "de": "eins"}\n',
    "b.jsonl": '{"id": 3, "translation": {"en": "one", "de": "eins"}}\n',
    "a.json": '[{"en": "one", "de": "eins"}]',
    "a.tmx": '<tmx><body><tu><tuv xml:lang="en"><seg>one</seg></tuv><tuv xml:lang="de"><seg>eins</seg></tuv></tu></body></tmx>',
}


@pytest.mark.parametrize("name", HEADED)
def test_a_pair_chooses_the_languages_of_a_file_that_names_them(tmp_path, name):
    file = tmp_path / name
    file.write_text(HEADED[name])
    assert list(read_pairs([file], pair="en-de")) == [("one", "eins")]
    assert list(read_pairs([file], pair="de-en")) == [("eins", "one")]
    with pytest.raises(ValueError, match=r"data\.pair=de-fr is for files|is a unit without fr"):
        list(read_pairs([file], pair="de-fr"))
    columns = {"a.tsv": "English,German", "b.jsonl": "translation.en,translation.de"}.get(name, "en,de")
    assert list(read_pairs([file], columns, pair="en-de")) == [("one", "eins")]
    with pytest.raises(ValueError, match=f"data.pair=de-en and data.columns={columns} choose different languages"):
        list(read_pairs([file], columns, pair="de-en"))


def test_a_pair_chooses_the_columns_of_a_parquet_file(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"en": ["one"], "de": ["eins"]}), file)
    assert list(read_pairs([file], pair="de-en")) == [("eins", "one")]
    with pytest.raises(ValueError, match=r"data\.pair=de-fr is for files"):
        list(read_pairs([file], pair="de-fr"))
    with pytest.raises(ValueError, match="choose different languages"):
        list(read_pairs([file], "en,de", pair="de-en"))


def test_a_pair_is_refused_for_files_that_do_not_name_their_languages(tmp_path):
    (tmp_path / "a.tsv").write_text("one\teins\n")
    with pytest.raises(ValueError, match=r"data\.pair=de-en is for files that name their languages; .* has 'one', 'eins': leave"):
        list(read_pairs([tmp_path / "a.tsv"], pair="de-en"))
    assert list(read_pairs([tmp_path / "a.tsv"], "2,1", pair="de-en")) == [("eins", "one")]
    for language, text in (("en", "one"), ("de", "eins")):
        (tmp_path / f"b.{language}").write_text(f"{text}\n")
    files = [tmp_path / "b.en", tmp_path / "b.de"]
    assert list(read_pairs(files, pair="en-de")) == [("one", "eins")]
    with pytest.raises(ValueError, match=r"data\.pair=de-en is for files that name their languages; .* are read line by line"):
        list(read_pairs(files, pair="de-en"))


def test_test_data_without_a_header_row_is_read_by_position_whatever_the_pair(tmp_path):
    (tmp_path / "a.tsv").write_text("one\teins\n")
    assert list(read_rows([tmp_path / "a.tsv"], "source,target", "en-de", ReadNotes(), lenient=True)) == [("one", "eins")]
