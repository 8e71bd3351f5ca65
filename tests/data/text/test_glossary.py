"""A glossary's terms are found as whole words, the longest first, and a file that cannot be read is refused in one line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.text.glossary import Glossary, Term, continuing_tokens, read_glossary, to_glossary
from regard.data.text.tokenizer import train_tokenizer

LINES = ["Das Rad und das Radio sind neu", "Der Hund sieht das Rad", "ein Fahrrad, ein Rad!"] * 4


def glossary(**terms: str) -> Glossary:
    return to_glossary({source.replace("_", " "): target for source, target in terms.items()})


def found(of: Glossary, text: str) -> list[str]:
    return [term.source for term in of.find(text)]


def test_terms_are_found_as_whole_words_in_upper_and_lower_case():
    terms = glossary(cat="Katze", dog="Hund")
    assert found(terms, "The CAT, the dogs and the dog-house: concatenate!") == ["cat", "dog"]
    assert found(terms, "Cat cat dog cat") == ["cat", "cat", "dog", "cat"]
    assert found(terms, "catalogue hotdog") == []


def test_the_longest_term_is_taken_and_its_words_are_used_once():
    terms = glossary(bike="Rad", mountain_bike="Mountainbike", mountain_bike_trail="Trail", trail="Weg")
    assert found(terms, "a mountain bike and a mountain  bike\ttrail, a bike trail") == [
        "mountain bike", "mountain bike trail", "bike", "trail"]  # fmt: skip


def test_terms_are_found_between_words_without_spaces():
    terms = to_glossary({"自行车": "bike", "C++": "C++", "e-mail": "E-Mail", "straße": "street"})
    assert found(terms, "我有自行车。") == ["自行车"]
    assert found(terms, "an E-Mail about C++, in der STRASSE") == ["e-mail", "C++", "straße"]


@settings(max_examples=50)
@given(words=st.lists(st.sampled_from(["ab", "b", "c", "abc"]), max_size=12), terms=st.sets(st.sampled_from(
    ["ab", "b c", "c", "ab b", "b c abc"]), min_size=1))  # fmt: skip
def test_finding_is_scanning_for_the_longest_term_at_each_word(words, terms):
    of, wanted, at = to_glossary(dict.fromkeys(terms, "x")), [], 0
    while at < len(words):
        here = [term for term in terms if words[at : at + len(term.split())] == term.split()]
        wanted += [max(here, key=len)] if here else []
        at += len(wanted[-1].split()) if here else 1
    assert found(of, " ".join(words)) == wanted


def test_a_file_has_a_term_a_tab_and_translations_on_each_line(tmp_path):
    file = tmp_path / "terms.tsv"
    file.write_text("\ufeffmountain  bike\tMountainbike\n\nhouse\tHaus\tHauses\tHäuser\r\nHouse\tGebäude\n", encoding="utf-8")
    assert read_glossary(file).terms == (
        Term("mountain bike", ("Mountainbike",)),
        Term("house", ("Haus", "Hauses", "Häuser", "Gebäude")),
    )


@pytest.mark.parametrize(("text", "message"), [
    ("a\tb\nhouse Haus\nc\td\n", "line 2: wanted a source term, a tab and a target term"),
    ("x\n\ty\nz\t\nw\nv\na\tb\n", "lines 1, 2, 3 and 2 more: wanted"),
    ("", "has no terms"),
    ("\n \n", "has no terms"),
])  # fmt: skip
def test_a_bad_file_is_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "terms.tsv").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_glossary(tmp_path / "terms.tsv")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["bpe", "bytes", "words", "characters", "wordpiece"])
def test_the_tokens_of_a_translation_are_those_it_has_in_a_text(kind):
    tokenizer = train_tokenizer(LINES, kind, 80)
    [forms] = glossary(bike="das Rad").phrases(tokenizer).values()
    assert all("rad" in tokenizer.decode(ids).lower() for ids in forms)
    for text in ("das Rad und das", "Das Rad", "Der Hund sieht das Rad"):
        [ids] = tokenizer.encode([text])
        assert any(form == ids[i : i + len(form)] for form in forms for i in range(len(ids)))


def test_a_translation_that_the_tokenizer_cannot_spell_is_refused_by_its_name():
    tokenizer = train_tokenizer(LINES, "bpe", 80)
    with pytest.raises(ValueError, match="'自行车' has characters that this model's tokenizer does not know"):
        glossary(bike="自行车").phrases(tokenizer)


def test_tokens_that_continue_a_word_do_not_begin_one():
    tokenizer = train_tokenizer(LINES, "bpe", 60)
    continuing = continuing_tokens(tokenizer)
    tokens = tokenizer.ids_to_tokens(sorted(continuing))
    assert tokens
    assert not any(token.startswith("▁") or token in ("!", ",", "</s>") for token in tokens)


@pytest.mark.parametrize(("text", "wanted"), [
    ("house,Haus\ntree,Baum\n", {"house": ("Haus",), "tree": ("Baum",)}),
    ("English;German\nhouse;Haus;Häuser\n\"a; b\";c\n", {"house": ("Haus", "Häuser"), "a; b": ("c",)}),
    ("English;Englisch\ntree;Baum\n", {"English": ("Englisch",), "tree": ("Baum",)}),
    ("Term;Translation\ntree;Baum\n", {"tree": ("Baum",)}),
])  # fmt: skip
def test_a_csv_file_may_have_commas_or_semicolons_and_a_header_row(tmp_path, text, wanted):
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    assert {term.source: term.targets for term in read_glossary(tmp_path / "a.csv").terms} == wanted


@pytest.mark.parametrize("header", ["English\tGerman", "source\ttarget", "EN\tDE\tNotes", "term\ttranslation"])
def test_the_header_row_of_a_tab_separated_file_is_no_term(tmp_path, header):
    (tmp_path / "a.tsv").write_text(f"{header}\nhouse\tHaus\nEnglish\tGerman\n")
    read = read_glossary(tmp_path / "a.tsv")
    assert read.header == tuple(header.split("\t")[:2])
    assert [term.source for term in read.terms] == ["house", "English"]  # only the first line is a header


def test_a_file_with_semicolons_is_to_be_named_csv(tmp_path):
    (tmp_path / "a.txt").write_text("house;Haus\n")
    with pytest.raises(ValueError, match=r"correct or remove them, or name a file with commas or semicolons \.csv"):
        read_glossary(tmp_path / "a.txt")
