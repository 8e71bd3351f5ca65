"""What is said of own pairs before training: counts equal to those of plain Python, and refusals of swapped data."""

import os
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ready import ready

from regard.data.text import checks
from regard.data.text.checks import DuplicateCounter, learn_side_words
from regard.data.text.config import TextData
from regard.data.text.splits import find_split

_ENGLISH = "the dog house is a big red cat on and we they see one with near at home our"
_GERMAN = "der hund haus ist ein großer roter katze auf und wir sie sehen eins mit nahe bei heim unser"
ENGLISH, GERMAN = _ENGLISH.split(), _GERMAN.split()


def sentences(count, seed=0):
    """Pairs of two invented languages that differ in their words, no two alike."""
    rng = random.Random(seed)
    found = {}
    while len(found) < count:
        words = [rng.randrange(len(ENGLISH)) for _ in range(6)]
        found[" ".join(ENGLISH[word] for word in words)] = " ".join(GERMAN[word] for word in words)
    return list(found.items())


def write(folder, train, valid, ending="tsv"):
    for name, rows in (("train", train), ("valid", valid)):
        (folder / f"{name}.{ending}").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    return TextData(train=str(folder / f"train.{ending}"), valid=str(folder / f"valid.{ending}"), vocab=200)


def test_duplicates_entities_swapped_and_equal_pairs_are_counted(tmp_path):
    rows = sentences(1000)
    train, valid = rows[:900], rows[900:]
    swapped = [(b, a) for a, b in train[:12]]
    entities = [("the &amp; dog", "der &#8211; hund"), ("a < b & c", "x &nbsp; y"), ("AT&T; rest", "AT&T rest")]
    data = write(tmp_path, [*train, *train[:30], *train[:5], *swapped, *entities, ("equal", "equal")], valid)
    _, reports, _ = ready(data, tmp_path)
    assert reports[2:] == [
        f"{data.train}: 35 duplicate pairs; 2 pairs with HTML entities such as &amp;; 12 pairs whose languages are probably "
        f"swapped, such as {swapped[0][0]!r}; 1 pair whose target is the source: all kept; correct the file if they are not meant"
    ]
    assert ready(data, tmp_path)[1] == reports  # from the cache too


def test_clean_data_is_not_talked_about(tmp_path):
    rows = sentences(300)
    data = write(tmp_path, rows[:250], rows[250:])
    assert len(ready(data, tmp_path)[1]) == 2


def test_validation_sentences_in_the_training_data_are_counted(tmp_path):
    rows = sentences(300)
    data = write(tmp_path, rows[:250], [*rows[240:], rows[249]])
    _, reports, _ = ready(data, tmp_path)
    assert reports[2:] == [
        f"{data.valid}: 11 of 61 validation sentences are also in the training data: their scores will be too high"
    ]


def test_validation_data_of_the_other_direction_is_refused(tmp_path):
    rows = sentences(300)
    data = write(tmp_path, rows[:250], [(b, a) for a, b in rows[250:]])
    with pytest.raises(ValueError, match=r"valid\.tsv has source and target the other way round than .*train\.tsv: in \d+ of 50"):
        ready(data, tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("first", "second"), [("en\tde", "de\ten"), ("English\tGerman", "de\ten"), ("en-US\tde", "German\tEnglish")]
)
def test_header_rows_in_different_orders_are_refused(tmp_path, first, second):
    data = write(tmp_path, [("x", "y")], [("x", "y")])
    for name, header in (("train", first), ("valid", second)):
        (tmp_path / f"{name}.tsv").write_text(f"{header}\nsome text\tother text\n")
    with pytest.raises(ValueError, match=r"valid\.tsv has de, en, .*train\.tsv en, de: the other direction; swap the columns"):
        ready(data, tmp_path)


def test_identifiers_in_the_place_of_texts_are_refused(tmp_path):
    data = write(tmp_path, [(n, f"text {n}") for n in range(50)], [("a", "b")])
    with pytest.raises(ValueError, match=r"the source column of .*train\.tsv holds numbers, such as '49'; choose other columns"):
        ready(data, tmp_path)
    assert ready(write(tmp_path, [(f"text {n}", n % 2) for n in range(50)], [("a", "1")]), tmp_path, "text_classification")


def test_labelled_texts_are_checked_without_languages(tmp_path):
    data = write(tmp_path, [("fine &amp; good", "good"), ("dull", "bad"), ("dull", "bad")] * 3, [("dull", "bad")])
    _, reports, _ = ready(data, tmp_path, "text_classification")
    assert reports[3:] == [
        f"{data.train}: 7 duplicate texts; 3 texts with HTML entities such as &amp;: all kept; correct the file if they are not "
        "meant",
        f"{data.valid}: 1 of 1 validation sentences are also in the training data: their scores will be too high",
    ]


def test_left_out_lines_and_the_header_are_reported_also_from_the_cache(tmp_path):
    rows = sentences(100)
    data = write(tmp_path, [("en", "de"), *rows[:50]], rows[50:])
    with open(data.train, "a") as file:
        file.write("no tab\n")
    wanted = [f"{data.train}: header row en, de", f"{data.train}: 1 line left out (has no tab: line 52)"]
    for _ in range(2):
        assert ready(data, tmp_path)[1][2:] == wanted


@given(st.lists(st.integers(0, 40), max_size=300), st.sampled_from([8, 64, 1000]))
def test_duplicates_are_counted_as_a_counter_does(rows, most):
    counter = DuplicateCounter(most)
    for start in range(0, len(rows), 7):
        counter.add([("row", row) for row in rows[start : start + 7]])
    wanted = sum(Counter(rows).values()) - len(set(rows))
    found, exact = counter.result()
    assert exact == (len(set(rows)) <= most)
    if exact:
        assert found == wanted


def test_many_duplicates_are_estimated_in_bounded_memory():
    counter = DuplicateCounter(2000)
    for start in range(0, 200_000, 1000):
        counter.add([(n % 100_000, "x") for n in range(start, start + 1000)])
    found, exact = counter.result()
    assert not exact
    assert found == pytest.approx(100_000, rel=0.15)
    assert len(counter._hashes) <= 2000


def test_languages_without_spaces_are_told_apart_by_characters():
    rows = [(f"我们看见{a}的房子", "the dog sees a house") for a in "一二三四五六七八九十"] * 3
    words = learn_side_words(rows)
    assert words.characters
    assert not words.swapped(rows[0])
    assert words.swapped(rows[0][::-1])


def test_pairs_of_one_language_are_never_called_swapped():
    rng = random.Random(1)
    rows = [(" ".join(words), " ".join(words[::-1])) for words in (rng.choices(ENGLISH, k=6) for _ in range(2000))]
    words = learn_side_words(rows)
    assert not any(map(words.swapped, rows))


@pytest.mark.skipif(not os.environ.get("REGARD_DATA"), reason="needs the data sets; set REGARD_DATA")
@pytest.mark.parametrize("name", ["tatoeba-en-de", "tatoeba-en-fr", "tatoeba-en-it", "tatoeba-en-hi"])
def test_swapped_pairs_of_real_languages_are_found(name):
    rows = list(find_split(TextData(source=name), "valid").pairs())
    words = learn_side_words(rows)
    long = [row for row in rows if min(len(row[0].split()), len(row[1].split())) >= 4]
    assert sum(map(words.swapped, rows)) <= 0.005 * len(rows)
    assert sum(words.swapped(row[::-1]) for row in long) >= 0.85 * len(long)


def test_a_later_file_of_the_other_direction_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "LEARNED", 5)
    for name, header in (("a", "en\tde"), ("b", "de\ten"), ("valid", "en\tde")):
        (tmp_path / f"{name}.tsv").write_text(f"{header}\n" + "".join(f"{name} {n}\tx {n}\n" for n in range(20)))
    data = TextData(train=f"{tmp_path}/a.tsv,{tmp_path}/b.tsv", valid=str(tmp_path / "valid.tsv"))
    with pytest.raises(ValueError, match=r"b\.tsv has de, en, .*a\.tsv en, de: the other direction"):
        ready(data, tmp_path)
