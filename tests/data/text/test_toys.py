"""The toys' pairs: the same everywhere, validation sources separate, and correct."""

import hashlib
import itertools

import pytest

from regard.data.text import toys
from regard.data.text.toys import TOYS, toy_pairs


@pytest.mark.parametrize("name", TOYS)
def test_a_toy_is_a_function_of_its_name_and_split(name):
    assert list(toy_pairs(name, "train", 200)) == list(toy_pairs(name, "train", 200))
    assert list(toy_pairs(name, "train", 300))[:200] == list(toy_pairs(name, "train", 200))
    assert list(toy_pairs(name, "valid", 50)) != list(toy_pairs(name, "test", 50))


def test_a_toy_is_the_same_on_every_machine():
    text = "".join("\t".join(pair) for name in TOYS for pair in toy_pairs(name, "valid", 100))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "e8f9382fd79f19a0"


@pytest.mark.parametrize("name", TOYS)
def test_no_source_is_in_two_splits(name):
    counts = {"train": 5000, "valid": 500, "test": 500}
    sources = [{source for source, _ in toy_pairs(name, split, count)} for split, count in counts.items()]
    for a, b in itertools.combinations(sources, 2):
        assert not a & b


@pytest.mark.parametrize("count", [0, 1, 77])
def test_as_many_pairs_come_as_were_asked_for(count):
    assert len(list(toy_pairs("phrasebook", "test", count))) == count


def test_an_unknown_split_is_named():
    with pytest.raises(ValueError, match="reverse has no split 'dev'; it has train, valid, test"):
        next(toy_pairs("reverse", "dev", 1))


def test_copy_copies_and_reverse_reverses():
    for source, target in toy_pairs("copy", "train", 200):
        assert source == target
    for source, target in toy_pairs("reverse", "train", 200):
        letters = source.split(" ")
        assert target.split(" ") == letters[::-1]
        assert 3 <= len(letters) <= 10
        assert all(len(letter) == 1 and letter.islower() for letter in letters)


@pytest.fixture(scope="module")
def book() -> dict[str, str]:
    return dict(toy_pairs("phrasebook", "train", 20_000))


def test_an_english_phrase_has_one_italian(book):
    for source, target in toy_pairs("phrasebook", "train", 20_000):
        assert book[source] == target


def test_the_phrasebook_is_large_enough_to_be_a_task(book):
    assert len(book) > 9000


FORMS = {
    "white": ("bianco", "bianca", "bianchi", "bianche"),
    "old": ("vecchio", "vecchia", "vecchi", "vecchie"),
    "red": ("rosso", "rossa", "rossi", "rosse"),
}
NOUNS = {"book": ("libro", "libri", "m"), "car": ("macchina", "macchine", "f"), "boat": ("barca", "barche", "f")}


def test_adjectives_agree_with_their_noun_and_follow_it(book):
    found = set()
    for (english, forms), (noun, (one, many, gender)) in itertools.product(FORMS.items(), NOUNS.items()):
        feminine = gender == "f"
        for phrase, wanted in (
            (f"the {english} {noun}", f"{'la' if feminine else 'il'} {one} {forms[feminine]}"),
            (f"a{'n' * (english == 'old')} {english} {noun}", f"{'una' if feminine else 'un'} {one} {forms[feminine]}"),
            (f"the {english} {noun}s", f"{'le' if feminine else 'i'} {many} {forms[2 + feminine]}"),
        ):
            for source, target in book.items():
                if f" {phrase} " in f" {source} ":
                    assert f" {wanted} " in f" {target.lower()} ", (source, target)
                    found.add(phrase)
    assert len(found) == 27


def test_phrases_are_correct_italian(book):
    known = {
        "She loves me very much": "Mi ama molto",
        "We do not look for them every day": "Non li cerchiamo ogni giorno",
        "They paint the white boats here": "Dipingono le barche bianche qui",
        "I want an old hat": "Voglio un cappello vecchio",
        "He buys the yellow shirts": "Compra le camicie gialle",
        "You remember us today": "Ci ricordi oggi",
        "They find a new garden": "Trovano un giardino nuovo",
    }
    found = {english: book[english] for english in known if english in book}
    assert len(found) >= 3
    assert found == {english: known[english] for english in found}


def test_subject_and_verb_agree(book):
    third = {says for says, _ in toys._VERBS.values()}
    for source in book:
        words = source.split()
        if words[1] in ("do", "does"):
            assert (words[1] == "does") == (words[0] in ("He", "She")), source
            assert words[2] == "not", source
        else:
            says = " ".join(words[1:3]) if words[1].startswith("look") else words[1]
            assert (says in third) == (words[0] in ("He", "She")), source


def test_nobody_is_subject_and_object_at_once(book):
    for source in book:
        words = source.split()
        assert (words[0], words[2]) not in {("I", "me"), ("We", "us"), ("You", "you")}, source


def test_very_much_is_used_only_with_love(book):
    assert all("love" in source for source in book if source.endswith("very much"))
    assert any(source.endswith("very much") for source in book)
