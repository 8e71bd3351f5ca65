"""Tags and emoji are taken out of a sentence and put beside the words of its translation that they belong to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.tasks.markup import align_words, insert_marks, take_marks


def moved(sentence: str, target: str, links: list[int]) -> str:
    """Put the marks of a sentence into a target whose word `links[n]` translates word n."""
    text, marks = take_marks(sentence)
    spans = []
    for words in (text.split(), target.split()):
        at, found = 0, list[tuple[int, int]]()
        for word in words:
            found.append((at, at + len(word)))
            at += len(word) + 1
        spans.append(found)
    weights = [[float(links[source] == row) for source in range(len(spans[0]))] for row in range(len(spans[1]))]
    return insert_marks(target, marks, *align_words(text, target, *spans, weights))


@pytest.mark.parametrize(
    ("sentence", "target", "links", "wanted"),
    [
        ("the <b>new</b> hats", "i cappelli nuovi", [0, 2, 1], "i cappelli <b>nuovi</b>"),
        ("the <b>new hats</b> today", "i cappelli nuovi oggi", [0, 2, 1, 3], "i <b>cappelli nuovi</b> oggi"),
        ("<i>the <b>new</b></i> hats", "i nuovi cappelli", [0, 1, 2], "<i>i <b>nuovi</b></i> cappelli"),
        ("hats 😀 today", "oggi cappelli", [1, 0], "oggi cappelli 😀"),
        ("a<br/> b", "x y", [0, 1], "x<br/> y"),
        ("no marks", "x y", [0, 1], "x y"),
    ],
)
def test_a_mark_moves_with_its_word(sentence, target, links, wanted):
    assert moved(sentence, target, links) == wanted


def test_without_attention_words_are_aligned_by_their_relative_position():
    text, marks = take_marks("one <b>two</b> three")
    words, aligned = align_words(text, "uno due tre", [], [], None)
    assert insert_marks("uno due tre", marks, words, aligned) == "uno <b>due</b> tre"


@given(
    st.lists(st.sampled_from(["a", "bc", "<b>", "</b>", "<br/>", "😀", " ", "5", ","]), max_size=15),
    st.text("xy z,", max_size=15),
)
def test_every_mark_is_in_the_translation_once(pieces, target):
    sentence = "".join(pieces)
    text, marks = take_marks(sentence)
    words, aligned = align_words(text, target, [], [], None)
    written = insert_marks(target, marks, words, aligned)
    for mark in {mark.text for mark in marks}:
        assert written.count(mark) == sentence.count(mark)
    for mark in marks:
        written = written.replace(mark.text, "")
    assert written.replace(" ", "") == target.replace(" ", "")
