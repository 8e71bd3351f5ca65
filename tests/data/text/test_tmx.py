"""Translation memories: any text comes back, languages are chosen, tags are dropped, entities are refused."""

import gzip
from xml.sax.saxutils import escape, quoteattr

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.data.text import tmx
from regard.data.text.readers import read_pairs
from regard.data.text.rows import ReadNotes

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff\x85\u2028\u2029"), min_size=1)
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'


def unit(*variants: tuple[str, str], tag="xml:lang") -> str:
    """A unit whose texts are XML already."""
    inside = "".join(f"<tuv {tag}={quoteattr(language)}><seg>{text}</seg></tuv>" for language, text in variants)
    return f"<tu><note>a note</note><prop type='x'>a prop</prop>{inside}</tu>\n"


def document(*units: str, head: str = HEAD, source: str = "en") -> str:
    return f'{head}<tmx version="1.4"><header srclang="{source}"/><body>\n{"".join(units)}</body></tmx>\n'


def pairs(tmp_path, content, name="a.tmx", **how):
    raw = content.encode() if isinstance(content, str) else content
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return list(read_pairs([tmp_path / name], **how))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=st.lists(st.tuples(TEXT, TEXT), max_size=6), encoding=st.sampled_from(["utf-8", "utf-16"]), size=st.integers(1, 50))
def test_any_text_comes_back(tmp_path, monkeypatch, rows, encoding, size):
    monkeypatch.setattr(tmx, "CHUNK", size)
    head = f'<?xml version="1.0" encoding="{encoding}"?>\n'
    units = [unit(("en", escape(source)), ("de", escape(target))) for source, target in rows]
    assert pairs(tmp_path, document(*units, head=head).encode(encoding)) == rows


UNITS = document(
    unit(("en-US", "one"), ("de-DE", "eins"), ("fr", "un")),
    unit(("EN_gb", "two"), ("fr", "deux"), ("de", "zwei")),
    unit(("de-AT", "drei"), ("en", "three"), ("fr-CA", "trois")),
)


@pytest.mark.parametrize(("how", "wanted"), [
    ({}, [("one", "eins"), ("two", "zwei"), ("three", "drei")]),
    ({"pair": "de-en"}, [("eins", "one"), ("zwei", "two"), ("drei", "three")]),
    ({"pair": "en-fr"}, [("one", "un"), ("two", "deux"), ("three", "trois")]),
    ({"columns": "fr,de"}, [("un", "eins"), ("deux", "zwei"), ("trois", "drei")]),
    ({"columns": "French,German"}, [("un", "eins"), ("deux", "zwei"), ("trois", "drei")]),
    ({"columns": "Quelle,Ziel"}, [("one", "eins"), ("two", "zwei"), ("three", "drei")]),  # meant for another file
])  # fmt: skip
@pytest.mark.parametrize("name", ["a.tmx", "a.tmx.gz"])
def test_languages_are_chosen_and_regions_count_as_their_language(tmp_path, how, wanted, name):
    assert pairs(tmp_path, UNITS, name, **how) == wanted


@pytest.mark.parametrize(
    "how", [{}, {"pair": "en-de"}, {"pair": "eng-deu"}, {"columns": "English,German"}, {"columns": "eng,deu"}], ids=str
)
@pytest.mark.parametrize(("first", "second"), [("eng", "deu"), ("English", "German"), ("eng-US", "de")])
def test_codes_of_three_letters_and_names_are_languages(tmp_path, first, second, how):
    notes = ReadNotes()
    found = pairs(tmp_path, document(*[unit((first, "one"), (second, "eins"))] * 3, source=first), notes=notes, **how)
    assert found == [("one", "eins")] * 3
    assert [*notes.names.values()] == [("en", "de")]


def test_a_region_may_be_chosen(tmp_path):
    content = document(*[unit(("en", "one"), ("pt-PT", "um em"), ("pt-BR", "um"))] * 3)
    assert pairs(tmp_path, content, columns="en,pt-br") == [("one", "um")] * 3


@pytest.mark.parametrize(("source", "wanted"), [
    ("en-US", "en to it; also de (2 units); choose with data.pair=en-de"),
    ("de", "de to en; also it (4 units); choose with data.pair=de-it"),
    ("*all*", "de to en; also it (4 units); choose with data.pair=de-it"),
    ("fr", "de to en; also it (4 units); choose with data.pair=de-it"),
    ("", "de to en; also it (4 units); choose with data.pair=de-it"),
])  # fmt: skip
def test_the_source_is_that_of_the_header_and_the_target_the_language_most_units_have(tmp_path, source, wanted):
    three, two = unit(("de", "eins"), ("en-GB", "one"), ("it", "uno")), unit(("en-US", "two"), ("it-IT", "due"))
    notes = ReadNotes()
    found = pairs(tmp_path, document(three, three, two, two, source=source), notes=notes)
    assert found == ([("one", "uno")] * 2 + [("two", "due")] * 2 if source == "en-US" else [("eins", "one")] * 2)
    assert notes.lines()[0] == f"{tmp_path}/a.tmx: {wanted}"


def test_languages_are_reported_and_units_without_them_left_out(tmp_path):
    notes = ReadNotes()
    content = document(*[unit(("en", "a"), ("de", "b"))] * 3, unit(("en", "a"), ("fr", "c")), unit(("en", "a")))
    assert len(pairs(tmp_path, content, notes=notes)) == 3
    assert notes.lines() == [
        f"{tmp_path}/a.tmx: en to de; also fr (1 unit); choose with data.pair=en-fr",
        f"{tmp_path}/a.tmx: 2 lines left out (is a unit without de: lines 7, 8)",
    ]


@pytest.mark.parametrize(("inside", "wanted"), [
    ('Click <bpt i="1">&lt;b&gt;</bpt>here<ept i="1">&lt;/b&gt;</ept>.', "Click here."),
    ('a <ph x="1">{0}<sub>deep</sub></ph>b', "a b"),
    ("a <hi>bold</hi> word", "a bold word"),
    ("A &amp; B &lt;i&gt;", "A & B <i>"),
    ("two\n   lines", "two lines"),
    ("<![CDATA[a < b]]>", "a < b"),
    ("fa&ccedil;ade", "façade"),  # an entity of the DTD, which is never fetched
])  # fmt: skip
def test_tags_are_dropped_and_characters_decoded(tmp_path, inside, wanted):
    assert pairs(tmp_path, document(unit(("en", inside), ("de", "x")))) == [(wanted, "x")]


def test_the_older_attribute_of_the_language_is_read(tmp_path):
    assert pairs(tmp_path, document(unit(("en", "a"), ("de", "b"), tag="lang"))) == [("a", "b")]


BOMB = '<!DOCTYPE tmx [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>'
FETCH = '<!DOCTYPE tmx [<!ENTITY x SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(("content", "message"), [
    (document(unit(("en", "&b;"), ("de", "x")), head=BOMB), "declares XML entities, which regard does not expand"),
    (document(unit(("en", "&x;"), ("de", "x")), head=FETCH), "declares XML entities"),
    (document(unit(("en", "&b;"), ("de", "x")), head="<!DOCTYPE tmx [<!ENTITY % p 'x'>]>"), "declares XML entities"),
    (document()[:-20], r"is not well-formed XML \(.*\); export it again"),
    ("", "is not well-formed XML"),
    ("<html><body/></html>", r"is XML of the type 'html'; wanted a translation memory, <tmx>"),
    (document(unit(("en", "a"))), "line 4 is a unit of one language; wanted two"),
    ("<tmx " + "a" * 5_000_000, r"has a tag of over 4,194,304 bytes"),
])  # fmt: skip
def test_other_files_are_refused_in_one_line(tmp_path, content, message):
    with pytest.raises(ValueError, match=message) as error:
        pairs(tmp_path, content)
    assert "\n" not in str(error.value)
    assert "a.tmx" in str(error.value)


def test_a_text_that_is_too_long_is_read_as_empty(tmp_path, monkeypatch):
    monkeypatch.setattr(tmx, "MAX_LINE", 100)
    content = document(unit(("en", "x" * 101), ("de", "b")), unit(("en", "c"), ("de", "d")))
    assert pairs(tmp_path, content) == [("", "b"), ("c", "d")]  # encoding leaves it out and counts it


def test_units_are_streamed(tmp_path):
    (tmp_path / "a.tmx").write_text(document(*[unit(("en", "a"), ("de", "b"))] * 2000)[:-20])
    stream = read_pairs([tmp_path / "a.tmx"], pair="en-de")
    assert next(stream) == ("a", "b")


def test_a_pair_of_one_language_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"data\.pair is 'en'; wanted two languages, such as en-de"):
        pairs(tmp_path, UNITS, pair="en")


@pytest.mark.parametrize("name", ["a.tmx.gz", "a.json.gz", "a.csv.gz"])
def test_a_damaged_gzip_file_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(UNITS.encode() * 50)[:-20])
    with pytest.raises(ValueError, match=r"a\..*\.gz (is not a whole gzip file|does not start with)"):
        list(read_pairs([tmp_path / name]))


def test_most_units_may_be_of_other_languages(tmp_path):
    content = document(*[unit(("en", "a"), ("fr", "c"))] * 300, unit(("en", "a"), ("de", "b")))
    assert pairs(tmp_path, content, pair="en-de") == [("a", "b")]
    with pytest.raises(ValueError, match=r"line 4 is a unit without it; it has en, fr; choose languages with data\.pair=en-de"):
        pairs(tmp_path, content, pair="en-it")
