"""The command line on documents: the format is kept, the input is never overwritten; and what is said about translations."""

import json
import re
import sys

import pytest
from cli_checks import assert_refused, write

SRT = "1\n00:00:01,000 --> 00:00:02,000\na b c\nd e\n\n2\n00:00:03,000 --> 00:00:04,000\ne f\n"


def test_subtitles_are_translated_to_standard_output_or_a_file(regard, small_run, tmp_path):
    file = write(tmp_path / "film.srt", SRT)
    result = regard("translate", small_run, "--input", file, "--beam", 1)
    assert result.code == 0
    assert re.findall(r"\d\d:\d\d:\d\d,\d{3}", result.out) == re.findall(r"\d\d:\d\d:\d\d,\d{3}", SRT)
    saved = regard("translate", small_run, "--input", file, "--out", tmp_path / "out.srt", "--beam", 1)
    assert (saved.code, saved.err) == (0, "")
    assert saved.out == f"saved {tmp_path / 'out.srt'}, 2 blocks of text translated\n"
    assert (tmp_path / "out.srt").read_text() == result.out
    assert file.read_text() == SRT


def test_the_text_of_a_page_is_that_of_translate(regard, small_run, tmp_path):
    file = write(tmp_path / "page.html", "<html><p class=x>a b c</p>\n<script>a b c</script></html>")
    text = regard("translate", small_run, "a b c", "--beam", 1).out.rstrip("\n")
    assert regard("translate", small_run, "--input", file, "--beam", 1).out == (
        f"<html><p class=x>{text}</p>\n<script>a b c</script></html>"
    )


def test_a_plain_text_is_read_by_lines_without_out(regard, small_run, tmp_path):
    file = write(tmp_path / "a.txt", "a b c\n\nd e\n")
    lines = regard("translate", small_run, "--input", file, "--beam", 1)
    assert len(lines.out.splitlines()) == 3
    saved = regard("translate", small_run, "--input", file, "--out", tmp_path / "b.txt", "--beam", 1)
    assert saved.code == 0
    assert (tmp_path / "b.txt").read_text() == lines.out


def test_mistakes_with_documents_are_one_line(regard, small_run, tmp_path):
    file, other = write(tmp_path / "film.srt", SRT), write(tmp_path / "lines.tsv", "a\n")
    out = ("translate", small_run, "--input", file, "--out")
    assert_refused(regard(*out, file), "would overwrite the document")
    (tmp_path / "link.srt").hardlink_to(file)
    assert_refused(regard(*out, tmp_path / "link.srt"), "would overwrite the document")
    assert_refused(regard(*out, tmp_path / "film.html"), "use the ending .srt")
    assert_refused(regard(*out, tmp_path / "no" / "film.srt"), "no folder")
    assert_refused(regard(*out, tmp_path / "x.srt", "--json"), "leave out --n-best and --json")
    assert_refused(regard("translate", small_run, "a b", "--out", tmp_path / "x.srt"), "give one with --input")
    assert_refused(regard("translate", small_run, "--input", other, "--out", tmp_path / "x.tsv"), "is for documents (.srt")
    assert_refused(regard("translate", small_run, "--input", write(tmp_path / "a.docx", b"x")), "give --out FILE.docx")
    assert_refused(
        regard("translate", small_run, "--input", write(tmp_path / "b.srt", b"no times")), "b.srt has no line of times"
    )
    assert_refused(regard("translate", small_run, "--input", tmp_path / "none.html"), "no file")
    assert file.read_text() == SRT


def test_json_has_probabilities_coverage_and_unknown_tokens(regard, small_run):
    result = regard("translate", small_run, "a ж b c", "--json", "--beam", 1)
    found = json.loads(result.out)
    assert len(found["probabilities"]) == len(found["ids"])
    assert 0 <= found["coverage"] <= 1
    assert found["unknown"] >= 1
    assert "unknown to this model" in result.err


def test_placeholders_that_were_put_back_are_said_in_one_line(regard, small_run):
    result = regard("translate", small_run, "a b {name} c", "<b>d</b>", "--beam", 1)
    assert result.code == 0
    first, second = result.out.splitlines()
    assert "{name}" in first
    assert second.startswith("<b>")
    assert second.endswith("</b>")
    assert "3 placeholders (tags, addresses, numbers too) put back" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("text", ["a b. C d.\ne f", "a b.  C d."])
def test_no_split_keeps_one_as_one(regard, small_run, text):
    split, whole = regard("translate", small_run, text, "--json"), regard("translate", small_run, "--no-split", text, "--json")
    assert json.loads(split.out)["sentences"] > 1
    assert json.loads(whole.out)["sentences"] == 1


LONG_TERM = "q\t" + "a b c d e f g h " * 100 + "\n"


def test_a_text_whose_glossary_terms_do_not_fit_is_skipped_and_the_others_translated(regard, small_run, tmp_path):
    terms = write(tmp_path / "terms.tsv", LONG_TERM)
    how = ("translate", small_run, "--beam", 1, "--tokens", 30, "--glossary", terms)
    plain = regard("translate", small_run, "a b c", "e f", "--beam", 1, "--tokens", 30).out.splitlines()
    for split in ("--split", "--no-split"):
        found = regard(*how, split, "a b c", "d q", "e f")
        assert (found.code, found.out.splitlines()) == (0, [plain[0], "", plain[1]])
        assert "skipped 1 of 3: text 2: the phrases that an answer must contain need" in found.err
    assert regard(*how, "a b c", "d q", "--strict").code == 2


def test_the_header_row_of_a_glossary_is_named_on_standard_error(regard, small_run, tmp_path):
    terms = write(tmp_path / "terms.tsv", "English\tGerman\na\tb\n")
    found = regard("translate", small_run, "a b c", "--beam", 1, "--glossary", terms)
    assert found.code == 0, found.err
    assert f"{terms}: the first line, English, German, is read as a header row, not as a term" in found.err


def test_a_block_whose_glossary_terms_do_not_fit_stays_as_it_is(regard, small_run, tmp_path):
    terms, file = write(tmp_path / "terms.tsv", LONG_TERM), write(tmp_path / "page.html", "<p>a b c</p><p>d q</p>")
    how = ("translate", small_run, "--beam", 1, "--tokens", 30, "--glossary", terms, "--input")
    text = regard("translate", small_run, "a b c", "--beam", 1, "--tokens", 30).out.rstrip("\n")
    found = regard(*how, file)
    assert (found.code, found.out) == (0, f"<p>{text}</p><p>d q</p>")
    assert "skipped 1 of 2: block 2, 'd q': the phrases" in found.err
    assert regard(*how, file, "--strict").code == 2
    none = regard(*how, write(tmp_path / "none.html", "<p>d q</p>"), "--out", tmp_path / "out.html")
    assert none.code == 2
    assert not (tmp_path / "out.html").exists()


def test_a_document_on_a_terminal_has_no_escape_sequences(regard, small_run, tmp_path, monkeypatch):
    file = write(tmp_path / "page.html", "<p>a b c</p><!-- \x1b]0;title\x07 \u202e -->\n")
    piped = regard("translate", small_run, "--input", file, "--beam", 1).out
    assert "\x1b]0;title\x07" in piped
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shown = regard("translate", small_run, "--input", file, "--beam", 1).out
    assert shown == piped.replace("\x1b", "\\x1b").replace("\x07", "\\x07").replace("\u202e", "\\u202e")
