"""Documents: their text is replaced, everything else stays."""

import io
import re
import sys
import time
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.documents import read_document
from regard.data.documents.docx import read_docx
from regard.data.documents.html import read_html
from regard.data.documents.inline import Mark, from_tags, to_tags
from regard.data.documents.srt import read_srt
from regard.data.documents.txt import read_txt


def upper(texts: list[str]) -> list[str]:
    """A translator that shouts, and keeps tags."""
    return [re.sub(r"(<[^>]*>)|([^<]+)", lambda found: found[1] or found[2].upper(), text) for text in texts]


# -- subtitles

SRT = (b"\xef\xbb\xbf1\r\n00:00:01,000 --> 00:00:02,500\r\nHello there, my friend,\r\nhow are you today?\r\n\r\n"
       b"2\r\n00:00:03,000 --> 00:00:04,000 X1:40\r\n- Fine.\r\n- And you?\r\n\r\n\r\n"
       b"3\r\n00:00:05,000 --> 00:00:06,000\r\n<i>Bye</i>")  # fmt: skip


def test_subtitles_keep_numbers_times_and_line_ends():
    document = read_srt(SRT)
    assert document.texts == ["Hello there, my friend, how are you today?", "- Fine.\n- And you?", "<i>Bye</i>"]
    assert document.render(document.texts) == SRT
    written = document.render(upper(document.texts))
    shouted = SRT.replace(b"Hello there, my friend,", b"HELLO THERE, MY FRIEND,").replace(
        b"how are you today?", b"HOW ARE YOU TODAY?"
    )
    assert written == shouted.replace(b"Fine", b"FINE").replace(b"And you", b"AND YOU").replace(b"Bye", b"BYE")  # fmt: skip


def test_a_longer_subtitle_is_wrapped_into_lines_of_about_the_same_length():
    document = read_srt(b"1\n00:00:01,000 --> 00:00:02,000\nshort text\nof two lines\n")
    lines = document.render(["a much longer translation of this text that needs to be wrapped again"]).decode().splitlines()[2:]
    assert len(lines) == 2
    assert abs(len(lines[0]) - len(lines[1])) < 12


def test_a_cue_without_an_empty_line_after_it_ends_at_the_next():
    document = read_srt(
        b"1\n00:00:01,000 --> 00:00:02,000\nOne\n2\n00:00:03,000 --> 00:00:04,000\n\n3\n0:00:05.0 --> 0:00:06.0\nThree\n"
    )
    assert document.texts == ["One", "Three"]


@given(st.lists(st.text(st.sampled_from("ab \n\r1-:>,0.é"), max_size=20), max_size=5))
def test_subtitles_lose_nothing_but_text(cues):
    head = "1\n00:00:01,000 --> 00:00:02,000\n"
    content = (head + head.join(cues)).encode()
    document = read_srt(content)
    times = re.compile(rb"\d\d:\d\d:\d\d,\d{3} --> [^\n\r]*")
    assert times.findall(document.render(["x"] * len(document.texts))) == times.findall(content)


# -- web pages

PAGE = b"""<!DOCTYPE html>
<html lang="en"><head><title>My page</title><style>p { color: red }</style></head>
<body class='x'  id=top>\n  <p>Hello <b>big</b>
&amp; <a href="a?b=1&amp;c" title="A link">wide <i>world</i></a>!<br>Second &lt;line&gt;.</p>
<script>var a = "<b>no</b>";</script><pre>keep  this</pre><ul><li>One<li>Two <code>x = 1</code> three</ul>
<img src=x.png alt="A dog"> <!-- a comment --> <p translate="no">Not me</p><td>5</td></body></html>
"""


def test_a_page_keeps_its_markup_byte_for_byte():
    document = read_html(PAGE)
    assert document.texts == ["My page", "A link", "Hello <g1>big</g1> & <g2>wide <g3>world</g3></g2>!", "Second <line>.", "One",
                              "Two <g1/> three", "A dog"]  # fmt: skip
    assert document.render(document.texts) == PAGE.replace(b"</b>\n&", b"</b> &")
    written = document.render([re.sub(r"</?g\d/?>|(.)", lambda f: f[1].upper() if f[1] else f[0], t) for t in document.texts])
    tags = re.compile(rb"<[^>]*>")
    assert [tag.lower() for tag in tags.findall(written)] == [tag.lower() for tag in tags.findall(PAGE)]
    for kept in (
        b'var a = "<b>no</b>";',
        b"keep  this",
        b"<code>x = 1</code>",
        b"Not me",
        b"p { color: red }",
        b"<!-- a comment -->",
    ):
        assert kept in written
    for text in (b"<b>BIG</b>", b'title="A LINK"', b'alt="A DOG"', b"<title>MY PAGE</title>", b"SECOND &lt;LINE&gt;."):
        assert text in written


def test_a_text_that_looks_like_markup_is_escaped():
    document = read_html(b'<p title="x y">a &lt; b</p>')
    assert document.render(['say "hi"', "a < b & <c>"]) == b'<p title="a &lt; b &amp; &lt;c&gt;">say "hi"</p>' or \
        document.render(["a < b & <c>", 'say "hi"']) == b'<p title="a &lt; b &amp; &lt;c&gt;">say "hi"</p>'  # fmt: skip


TAGS = ["<p>", "</p>", "<b>", "</b>", "<br>", "<script>", "</script>", "<!-- c -->", "&amp;", "text ", "<", ">", "\n", "é", "5",
        "<a title='x y'>", "</a>", "<code>", "</code>", '<img alt="d">']  # fmt: skip


@given(st.lists(st.sampled_from(TAGS), max_size=25))
def test_any_page_is_itself_if_nothing_is_translated(pieces):
    page = "".join(pieces).encode()
    document = read_html(page)
    same = document.render(document.texts).decode()
    assert re.sub(r"\s+", "", same.replace("&lt;", "<").replace("&gt;", ">")) == re.sub(r"\s+", "", "".join(pieces))


# -- inline tags


def test_tags_follow_their_words_and_are_put_in_order_if_they_do_not_nest():
    text, tags = to_tags(["a ", Mark("open", "b"), "c", Mark("close", "b"), " d", Mark("empty")])
    assert (text, tags) == ("a <g1>c</g1> d<g2/>", ["<g1>", "</g1>", "<g2/>"])
    assert from_tags("x<g2/> <g1>y</g1>", tags) == ["x", 2, " ", 0, "y", 1]
    assert from_tags("x</g1> <g1>y<g2/>", tags) == ["x", 0, " ", 1, "y", 2]
    assert from_tags("lost", tags) == ["lost", 0, 1, 2]
    assert from_tags("<g1><g1>twice</g1>", tags)[0] == 0


# -- plain text


def test_paragraphs_wrapped_by_hand_are_wrapped_again_and_other_lines_stay():
    text = (b"Title\r\n=====\r\n\r\nThis is a paragraph that was wrapped by hand at some width\r\n"
            b"of sixty characters so that every line is about as long as\r\nthe others.\r\n\r\n\r\n"
            b"roses are red\r\nviolets are blue\r\n")  # fmt: skip
    document = read_txt(text)
    assert document.texts[1].count("\n") == 0
    assert document.texts[2] == "roses are red\r\nviolets are blue\r\n"
    assert document.render(document.texts) == text
    written = document.render(upper(document.texts)).decode()
    assert written == text.decode().upper()


@given(st.text(st.sampled_from("ab \n\r\t.A"), max_size=200))
def test_a_plain_text_is_itself_if_nothing_is_translated(text):
    document = read_txt(text.encode())
    assert document.render(document.texts).decode().split() == text.split()


# -- Word


def word_file() -> bytes:
    docx = pytest.importorskip("docx")
    made = docx.Document()
    made.add_heading("A heading", 1)
    paragraph = made.add_paragraph("This is ")
    paragraph.add_run("very bold").bold = True
    paragraph.add_run(" and plain, ")
    paragraph.add_run("and italic").italic = True
    paragraph.add_run(".")
    made.add_paragraph("12345")
    table = made.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "left cell", "right cell"
    made.sections[0].header.paragraphs[0].text = "the header"
    made.sections[0].footer.paragraphs[0].text = "the footer"
    stream = io.BytesIO()
    made.save(stream)
    return stream.getvalue()


def test_a_word_file_keeps_its_styles_tables_headers_and_formatting():
    docx = pytest.importorskip("docx")
    document = read_docx(word_file())
    assert {"A heading", "left cell", "right cell", "the header", "the footer"} < set(document.texts)
    assert "This is <g1>very bold</g1> and plain, <g2>and italic</g2>." in document.texts
    written = docx.Document(io.BytesIO(document.render(upper(document.texts))))
    heading, paragraph, number = written.paragraphs
    assert (heading.text, heading.style.name) == ("A HEADING", "Heading 1")
    runs = [(run.text, bool(run.bold), bool(run.italic)) for run in paragraph.runs]
    assert runs == [("THIS IS ", False, False), ("VERY BOLD", True, False), (" AND PLAIN, ", False, False),
                    ("AND ITALIC", False, True), (".", False, False)]  # fmt: skip
    assert number.text == "12345"
    assert [cell.text for cell in written.tables[0].rows[0].cells] == ["LEFT CELL", "RIGHT CELL"]
    assert written.sections[0].header.paragraphs[0].text == "THE HEADER"
    assert written.sections[0].footer.paragraphs[0].text == "THE FOOTER"


def test_links_breaks_tabs_and_pictures_stay_in_their_paragraph():
    docx = pytest.importorskip("docx")
    from docx.oxml import parse_xml

    made = docx.Document()
    namespace = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    made.element.body.insert(0, parse_xml(
        f'<w:p {namespace}><w:pPr><w:jc w:val="center"/></w:pPr><w:r><w:t xml:space="preserve">See </w:t></w:r>'
        f'<w:hyperlink w:anchor="x"><w:r><w:rPr><w:u w:val="single"/></w:rPr><w:t>this link</w:t></w:r></w:hyperlink>'
        f'<w:r><w:t xml:space="preserve"> and</w:t><w:br/><w:t>a</w:t><w:tab/><w:t>line</w:t></w:r><w:r><w:drawing/></w:r>'
        f'<w:r><w:t>end</w:t></w:r></w:p>'))  # fmt: skip
    stream = io.BytesIO()
    made.save(stream)
    document = read_docx(stream.getvalue())
    assert document.texts == ["See <g1>this link</g1> and\na\tline<g2/>end"]
    written = docx.Document(io.BytesIO(document.render(["VEDI <g1>QUESTO</g1> E\nUNA\tRIGA<g2/>FINE"]))).paragraphs[0]
    assert written.text == "VEDI QUESTO E\nUNA\tRIGAFINE"
    assert written.alignment == 1
    assert [link.text for link in written.hyperlinks] == ["QUESTO"]
    assert len(written._p.xpath(".//w:drawing")) == 1


def test_a_word_file_that_is_none_or_a_bomb_or_declares_entities_is_refused(tmp_path):
    def archive(**files: bytes) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, content in files.items():
                packed.writestr(name.replace("_", "."), content)
        return stream.getvalue()

    for content, wanted in (
        (b"plain text", "is not a Word file"),
        (archive(a_xml=b"<a/>"), "not a readable Word file"),
        (archive(a_xml=b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'), "declares a document type"),
        (archive(**{f"big{n}_bin": bytes(30 << 20) for n in range(9)}), "bytes unpacked"),
    ):
        (tmp_path / "x.docx").write_bytes(content)
        with pytest.raises(ValueError, match=wanted) as refused:
            read_document(tmp_path / "x.docx")
        assert str(refused.value).startswith(f"{tmp_path / 'x.docx'} ")


def test_a_missing_library_is_named_with_its_pip_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "docx", None)
    (tmp_path / "x.docx").write_bytes(b"")
    with pytest.raises(ValueError, match=re.escape("needs a package: pip install python-docx")):
        read_document(tmp_path / "x.docx")


@pytest.mark.parametrize("ending", [".srt", ".html", ".txt"])
def test_a_document_that_is_not_utf8_is_refused(tmp_path, ending):
    file = tmp_path / f"x{ending}"
    for content, wanted in ((b"caf\xe9", "is not UTF-8 at byte 4"), (b"a\0b", "zero byte")):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=wanted):
            read_document(file)


def test_each_speaker_of_a_cue_is_a_line():
    cue = "1\n00:00:01,000 --> 00:00:02,000\n"
    for lines in ("<i>Tom went home.</i>\n- I am happy.", "- Yes.\n<i>- No.</i>"):
        document = read_srt((cue + lines + "\n").encode())
        assert document.texts == [lines]
        assert document.render([lines.upper()]).decode() == cue + lines.upper() + "\n"
    assert read_srt((cue + "Tom went\nhome.\n").encode()).texts == ["Tom went home."]


def word_paragraph(inner: str) -> bytes:
    """A Word file of one paragraph, given as XML."""
    docx = pytest.importorskip("docx")
    from docx.oxml import parse_xml

    made = docx.Document()
    names = ('xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" xmlns:v="urn:schemas-microsoft-com:vml" '
             'xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape"')  # fmt: skip
    made.element.body.insert(0, parse_xml(f"<w:p {names}>{inner}</w:p>"))
    stream = io.BytesIO()
    made.save(stream)
    return stream.getvalue()


def word_texts(content: bytes) -> str:
    """All text of the main part of a Word file, as a reader sees it."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return " ".join(re.findall(r"<w:t[ >][^<>]*?>?([^<>]+)</w:t>", archive.read("word/document.xml").decode()))


def test_a_text_box_inside_a_paragraph_is_translated():
    box = f"<w:txbxContent><w:p>{run_of('in the box')}</w:p></w:txbxContent>"
    box = f"<w:r><w:pict><v:textbox>{box}</v:textbox></w:pict></w:r>"
    for inner in (f"<w:r><w:t>before</w:t></w:r>{box}<w:r><w:t>after</w:t></w:r>", f"{box}<w:r><w:t>after</w:t></w:r>"):
        document = read_docx(word_paragraph(inner))
        assert "in the box" in document.texts
        written = document.render(upper(document.texts))
        assert word_texts(written) == word_texts(word_paragraph(inner)).upper()


def run_of(text: str) -> str:
    return f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'


@pytest.mark.parametrize("container", [
    '<w:ins w:id="1" w:author="A">{}</w:ins>', '<w:smartTag w:element="City">{}</w:smartTag>',
    "<w:sdt><w:sdtPr/><w:sdtContent>{}</w:sdtContent></w:sdt>", '<w:fldSimple w:instr="REF x">{}</w:fldSimple>',
    '<w:ins w:id="1" w:author="A"><w:hyperlink w:anchor="x">{}</w:hyperlink></w:ins>',
    '<w:ins w:id="1" w:author="A">{}<w:r><w:drawing/></w:r></w:ins>',
])  # fmt: skip
@pytest.mark.parametrize("around", [("see ", " here"), ("", "")])
def test_insertions_content_controls_and_fields_are_translated(container, around):
    before, after = (run_of(text) if text else "" for text in around)
    inner = before + container.format(run_of("the new ") + run_of("words")) + after
    document = read_docx(word_paragraph(inner))
    assert re.sub("<[^>]*>", "", document.texts[0]) == f"{around[0]}the new words{around[1]}"
    written = document.render(upper(document.texts))
    assert word_texts(written).split() == f"{around[0]}the new words{around[1]}".upper().split()
    with zipfile.ZipFile(io.BytesIO(written)) as archive:
        page = archive.read("word/document.xml").decode()
    if "drawing" in container:
        assert page.count("<w:drawing/>") == 1
    else:  # the container stays around its words
        assert container.split()[0].strip("<>").removesuffix(">").split("><")[0] in page


def test_a_page_number_stays_a_field():
    document = read_docx(
        word_paragraph(f'{run_of("Page ")}<w:fldSimple w:instr="PAGE">{run_of("7")}</w:fldSimple>{run_of(" ends")}')
    )
    assert document.texts == ["Page <g1/> ends"]


def test_a_deleted_text_stays_as_it_is():
    deleted = '<w:del w:id="1" w:author="A"><w:r><w:delText>gone</w:delText></w:r></w:del>'
    document = read_docx(word_paragraph(run_of("some ") + deleted + run_of("words")))
    assert document.texts == ["some <g1/>words"]


def seconds(function, *arguments) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


@pytest.mark.parametrize(("read", "piece", "size"), [
    (lambda text: read_srt(b"00:00:01,000 --> 00:00:02,000\nx\n\n" + text), b"1", 20_000),
    (lambda text: read_srt(text + b"\n00:00:01,000 --> 00:00:02,000\nx"), b"1", 20_000),
    (read_txt, b" ", 20_000), (read_txt, b" \t\n", 20_000), (read_txt, b"a ", 20_000),
    (read_html, b"a&amp;", 10_000), (lambda text: read_html(b"<pre>" + text), b"<b>x</b>", 10_000), (read_html, b"<b>x", 4_000),
    (read_html, b"<b>x</i>", 4_000),
])  # fmt: skip
def test_the_time_to_read_a_document_grows_with_its_length_and_not_faster(read, piece, size):
    read(piece * size)  # warm
    short = min(seconds(read, piece * size) for _ in range(3))
    long = min(seconds(read, piece * (4 * size)) for _ in range(3))
    assert long < 10 * short + 0.5  # 16 times as long, if it were quadratic
