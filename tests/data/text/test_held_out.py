"""Own texts without validation data: what is held out, and that training, resuming and scoring agree about it."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ready import ready

from regard.data.text import held_out
from regard.data.text.config import TextData
from regard.data.text.splits import find_split


def write(file, rows):
    file.write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    return TextData(train=str(file), vocab=200)


def split(data):
    return [list(find_split(data, part).pairs()) for part in ("train", "valid")]


@pytest.mark.parametrize(("size", "wanted"), [(2, 1), (15, 1), (100, 10), (400, 40), (1000, 50), (5000, 100), (150_000, 2000)])
def test_a_bounded_number_of_pairs_is_held_out(tmp_path, size, wanted):
    rows = [(f"source {n}", f"target {n}") for n in range(size)]
    train, valid = split(write(tmp_path / "a.tsv", rows))
    assert len(valid) == wanted
    assert sorted(train + valid) == sorted(rows)


def test_the_split_depends_on_the_sentences_and_not_on_their_order(tmp_path):
    rows = [(f"source {n}", f"target {n}") for n in range(3000)]
    _, valid = split(write(tmp_path / "a.tsv", rows))
    random.Random(1).shuffle(rows)
    assert split(write(tmp_path / "b.tsv", rows))[1] == valid
    assert valid != sorted(valid)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(sources=st.lists(st.integers(0, 30), min_size=5, max_size=200).filter(lambda found: len(set(found)) > 2))
def test_copies_of_a_sentence_are_all_on_one_side(tmp_path_factory, sources):
    rows = [(f"source {n}" if at % 2 else f" SOURCE {n} ", f"target {at}") for at, n in enumerate(sources)]
    train, valid = split(write(tmp_path_factory.mktemp("a") / "a.tsv", rows))
    names = [{source.strip().lower() for source, _ in part} for part in (train, valid)]
    assert names[0] | names[1] == {f"source {n}" for n in sources}
    assert not names[0] & names[1]
    assert sorted(train + valid) == sorted(rows)  # no pair is lost


def test_all_translations_of_a_held_out_sentence_are_for_validation(tmp_path):
    rows = [(f"source {n}", f"target {n} {k}") for k in range(3) for n in range(1000)]
    data = write(tmp_path / "a.tsv", rows)
    train, valid = split(data)
    assert len(valid) == 60
    assert sorted(train + valid) == sorted(rows)
    assert len({source for source, _ in valid}) == 20
    _, reports, _ = ready(data, tmp_path)
    assert reports[:2] == [f"{data.train}: 2,940 pairs", f"{data.train}, held out for validation: 60 pairs"]


def test_a_sentence_with_very_many_translations_stays_in_the_training_data(tmp_path):
    rows = [(f"source {n}", f"target {n}") for n in range(3000)]
    often = min((source for source, _ in rows), key=held_out.hash_source)
    rows += [(often, f"again {k}") for k in range(3000)]
    train, valid = split(write(tmp_path / "a.tsv", rows))
    assert sorted(train + valid) == sorted(rows)
    assert len(valid) == 120
    assert often not in {source for source, _ in valid}


def test_every_class_has_a_text_for_training(tmp_path):
    for seed in range(20):
        rows = [(f"text {seed} {n}", "often") for n in range(60)] + [(f"rare {seed} {n}", f"class {n}") for n in range(20)]
        train, valid = split(write(tmp_path / f"{seed}.tsv", rows))
        assert {label for _, label in train} == {label for _, label in rows}
        assert valid


@pytest.mark.parametrize(("rows", "message"), [
    ([("a", "b")], "has 1 different sentences, too few to hold some out for validation; give data.valid=FILE"),
    ([("a", "b")] * 30, "too few to hold some out"), ([], "is empty; give a file"),
])  # fmt: skip
def test_too_few_pairs_are_refused(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        ready(write(tmp_path / "a.tsv", rows), tmp_path)


@pytest.mark.parametrize(("lines", "tail"), [(20, 0.1), (5000, 0.1), (40_000, 0.02)])
def test_the_end_of_a_plain_text_is_held_out(tmp_path, lines, tail):
    text = "".join(f"line {n} of a text.\n" for n in range(lines))
    (tmp_path / "a.txt").write_text(text)
    data = TextData(train=str(tmp_path / "a.txt"))
    train, valid = ("".join(find_split(data, part).text()) for part in ("train", "valid"))
    assert train + valid == text
    assert train.endswith("\n")
    assert valid
    assert len(valid) == pytest.approx(tail * len(text), rel=0.5 if lines == 20 else 0.2)


def test_a_plain_text_without_lines_is_cut_too(tmp_path):
    (tmp_path / "a.txt").write_text("word " * 100_000)
    data = TextData(train=str(tmp_path / "a.txt"))
    train, valid = ("".join(find_split(data, part).text()) for part in ("train", "valid"))
    assert train + valid == "word " * 100_000
    assert len(valid) == 20_000


def test_what_is_held_out_is_reported_and_kept_when_files_are_read_again(tmp_path, monkeypatch):
    data = write(tmp_path / "a.tsv", [(f"source {n}", f"target {n}") for n in range(300)])
    found, reports, _ = ready(data, tmp_path)
    assert reports[:2] == [f"{data.train}: 270 pairs", f"{data.train}, held out for validation: 30 pairs"]
    monkeypatch.setattr(held_out, "hash_source", lambda source: pytest.fail("read again"))
    again, reports, _ = ready(data, tmp_path)
    assert (again.train.digest, again.valid.digest) == (found.train.digest, found.valid.digest)
    assert again.samples == found.samples


def test_labelled_texts_have_a_split_too(tmp_path):
    data = write(tmp_path / "a.tsv", [(f"text {n}", "good" if n % 3 else "bad") for n in range(300)])
    found, reports, _ = ready(data, tmp_path, "text_classification")
    assert (found.train.pairs, found.valid.pairs) == (270, 30)
    assert found.labels == ("bad", "good")
    assert f"{data.train}, held out for validation: 30 texts" in reports
