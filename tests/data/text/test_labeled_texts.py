"""Labelled texts: which classes there are, their ids, and which files are refused."""

from pathlib import Path

import pytest
from ready import ready

from regard.data.text import dataset
from regard.data.text.config import TextData
from regard.data.text.store import PairStore


@pytest.fixture
def reviews(tmp_path) -> TextData:
    rows = [("fine film", "good"), ("dull", "bad"), ("so so", "middling"), ("", "bad"), ("very " * 20, "good")]
    for name in ("train", "valid"):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    return TextData(train=str(tmp_path / "train.tsv"), valid=str(tmp_path / "valid.tsv"), vocab=60, max_len=10)


def test_a_named_labelled_set_has_its_classes_in_their_order(sets, tmp_path):
    found, reports, _ = ready(TextData(source="agnews-small", vocab=60), tmp_path, "text_classification")
    assert found.labels == ("World", "Sports", "Business", "Sci/Tech")
    assert isinstance(found.train, PairStore)
    pool = found.train.read([0])
    assert pool.tokens[pool.starts + pool.sources].tolist() == [3, 0]
    assert found.samples == [("Title. of valid", "Sci/Tech"), ("A. b", "World")]
    assert reports == ["agnews-small train: 2 texts", "agnews-small valid: 2 texts"]


def test_own_labelled_files_have_the_classes_of_training_sorted(reviews, tmp_path):
    found, reports, _ = ready(reviews, tmp_path, "text_classification")
    assert found.labels == ("bad", "good", "middling")
    pool = found.valid.read([0])
    assert pool.tokens[pool.starts + pool.sources].tolist() == [1, 0, 2, 1]
    assert pool.sources.max() == 10
    assert reports[0] == "classes: 'bad' 2, 'good' 2, 'middling' 1"
    assert reports[1] == f"{reviews.train}: 4 texts; 1 empty ones left out; 1 cut to 10 tokens"


def test_own_labelled_files_may_be_jsonl(reviews, tmp_path):
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_text('{"review": "a b", "stars": "one"}\n{"review": "c", "stars": "two"}\n')
    config = TextData(train=str(tmp_path / "train.jsonl"), valid=str(tmp_path / "valid.jsonl"), columns="review,stars", vocab=30)
    found, _, _ = ready(config, tmp_path, "text_classification")
    assert found.labels == ("one", "two")
    assert found.samples == [("a b", "one"), ("c", "two")]


def test_the_tokenizer_of_a_classifier_is_trained_on_the_texts_alone(reviews, tmp_path, monkeypatch):
    lines_read = []
    real = dataset.train_tokenizer
    monkeypatch.setattr(dataset, "train_tokenizer", lambda text, *how: real(lines_read.extend(text) or lines_read, *how))
    ready(reviews, tmp_path, "text_classification")
    assert lines_read == ["fine film", "dull", "so so", "", "very " * 20]


@pytest.mark.parametrize(("train", "message"), [
    ("a\tx\nb\tx\n", "train.tsv has one class only, 'x'; give texts of two or more classes"),
    ("".join(f"a\tclass {n}\n" for n in range(1001)), "train.tsv has 1,001 different classes in its first 1,001 texts"),
    ("", "train.tsv is empty; give a file with text and class on each line"),
    ("a\tgood\nb\tbad\n", "valid.tsv, example 3 .* has class 'middling', a label never seen in training; known are bad, good"),
])  # fmt: skip
def test_unusable_classes_are_refused(reviews, tmp_path, train, message):
    Path(reviews.train).write_text(train)
    with pytest.raises(ValueError, match=message):
        ready(reviews, tmp_path, "text_classification")


def test_a_thousand_classes_are_allowed(reviews, tmp_path):
    Path(reviews.train).write_text("".join(f"a\t{n}\n" for n in range(1000)) * 2)
    Path(reviews.valid).write_text("a\t7\n")
    assert len(ready(reviews, tmp_path, "text_classification")[0].labels) == 1000
