"""From a data config to what training reads: splits by name, a tokenizer kept, stores, and what was left out."""

import os
from pathlib import Path

import pytest

from regard.config import DataConfig
from regard.data import corpus, store
from regard.data.corpus import find_split, licence_of, prepare
from regard.data.tokenizer import Tokenizer
from regard.data.toys import toy_pairs

PAIRS = list(toy_pairs("phrasebook", "train", 60))


@pytest.fixture
def own(tmp_path) -> DataConfig:
    for name, pairs in (("train", PAIRS[:50]), ("valid", PAIRS[50:])):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    return DataConfig(train=str(tmp_path / "train.tsv"), valid=str(tmp_path / "valid.tsv"), vocab=100)


def ready(config: DataConfig, folder: Path):
    said: list[str] = []
    heard: list[tuple[str, int]] = []
    return prepare(config, folder / "tokenizer.json", said.append, lambda *what: heard.append(what)), said, heard


def test_own_files_become_a_tokenizer_and_two_stores(own, tmp_path):
    found, said, heard = ready(own, tmp_path)
    assert (found.train.pairs, found.valid.pairs, found.tokenizer.vocab) == (50, 10, 100)
    assert found.samples == PAIRS[50:53]
    assert said == [f"{own.train}: 50 pairs", f"{own.valid}: 10 pairs"]
    assert heard == [(f"encoding {own.train}", 50), (f"encoding {own.valid}", 10)]
    assert Tokenizer.load(tmp_path / "tokenizer.json").digest == found.tokenizer.digest


def test_pairs_left_out_are_counted_aloud(own, tmp_path):
    with open(own.train, "a") as file:
        file.write("\tUn cane\nA dog\t\nA dog\t" + "Un cane " * 200 + "\n")
    _, said, _ = ready(own, tmp_path)
    assert said[0] == f"{own.train}: 50 pairs; left out: 2 with an empty side, 1 of over 256 tokens"


def test_the_tokenizer_of_a_run_is_kept_though_the_data_changes(own, tmp_path):
    before, _, _ = ready(own, tmp_path)
    Path(own.train).write_text("Hello\tCiao\n" * 20)
    after, _, _ = ready(own, tmp_path)
    assert after.tokenizer.digest == before.tokenizer.digest
    assert after.train.digest != before.train.digest


def test_encoding_is_done_once_and_again_after_the_file_changed(own, tmp_path, monkeypatch):
    ready(own, tmp_path)
    written = []
    real = store._write
    monkeypatch.setattr(store, "_write", lambda *given: written.append(given[2]) or real(*given))
    ready(own, tmp_path)
    assert written == []
    time = os.stat(own.train)
    os.utime(own.train, ns=(time.st_atime_ns, time.st_mtime_ns + 1))
    ready(own, tmp_path)
    assert written == [own.train]
    with open(own.valid, "a") as file:
        file.write("A\tB\n")
    found, _, _ = ready(own, tmp_path)
    assert written == [own.train, own.valid]
    assert found.valid.pairs == 11


def test_the_vocabulary_is_learnt_from_pairs_spread_over_the_whole_corpus(own, tmp_path, monkeypatch):
    lines = [f"w{chr(97 + n // 26)}{chr(97 + n % 26)}\tx" for n in range(100)]
    Path(own.train).write_text("\n".join(lines))
    monkeypatch.setattr(corpus, "BPE_PAIRS", 30)
    seen = []
    real = corpus.train_bpe
    monkeypatch.setattr(corpus, "train_bpe", lambda text, vocab: real(seen.extend(text) or seen, vocab))
    ready(own, tmp_path)
    sources = seen[::2]
    assert sources == [line.split("\t")[0] for line in lines[::4]]
    assert len(sources) <= 30


def test_two_aligned_files_have_a_comma_between_them(tmp_path):
    (tmp_path / "a.en").write_text("A dog\nA cat\n")
    (tmp_path / "a.it").write_text("Un cane\nUn gatto\n")
    split = find_split(DataConfig(train=f"{tmp_path}/a.en,{tmp_path}/a.it"), "train")
    assert list(split.pairs()) == [("A dog", "Un cane"), ("A cat", "Un gatto")]
    assert list(split.pairs()) == list(split.pairs())  # as often as one likes


def test_a_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.tsv").write_text("A\tB\n")
    assert list(find_split(DataConfig(train="~/a.tsv"), "train").pairs()) == [("A", "B")]


def test_columns_reach_a_jsonl_file(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"en": "A", "it": "B"}\n')
    config = DataConfig(train=str(tmp_path / "a.jsonl"), columns="en,it")
    assert list(find_split(config, "train").pairs()) == [("A", "B")]


def test_a_toy_has_as_many_training_pairs_as_asked_and_held_out_ones(tmp_path):
    config = DataConfig(source="reverse", pairs=70, vocab=60)
    found, said, _ = ready(config, tmp_path)
    assert found.train.pairs == 70
    assert said[0] == "reverse train: 70 pairs"
    assert list(find_split(config, "valid").pairs()) == list(toy_pairs("reverse", "valid", corpus.TOY_HELD_OUT))
    assert len(list(find_split(config, "test").pairs())) == corpus.TOY_HELD_OUT


def test_a_file_may_be_a_split_of_a_named_set(tmp_path):
    (tmp_path / "mine.tsv").write_text("A\tB\n")
    for source in ("reverse", "multi30k"):
        assert list(find_split(DataConfig(source=source), str(tmp_path / "mine.tsv")).pairs()) == [("A", "B")]


def test_valid_is_what_the_named_set_holds_out(cache):
    for language in ("en", "de"):
        file = cache / "data" / "multi30k" / f"val.{language}.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    assert find_split(DataConfig(source="multi30k"), "valid").name == "multi30k val"
    assert find_split(DataConfig(source="multi30k"), "val").name == "multi30k val"


@pytest.mark.parametrize(("config", "split", "message"), [
    (DataConfig(source="multi30"), "train", r"no data set 'multi30' \(did you mean 'multi30k'\?\); known are .* set data\.train"),
    (DataConfig(source="revers"), "train", r"did you mean 'reverse'\?"),
    (DataConfig(), "train", r"no train data; give data\.train=FILE"),
    (DataConfig(train="a.tsv"), "valid", r"no valid data; give data\.valid=FILE"),
    (DataConfig(train="nowhere.tsv"), "train", r"no file nowhere\.tsv; check the path"),
    (DataConfig(), "nowhere.tsv", r"no file nowhere\.tsv; check the path"),
    (DataConfig(source="multi30k"), "test_2016_flicker",
     r"multi30k has no split .* \(did you mean 'test_2016_flickr'\?\), and there is no such file"),
    (DataConfig(source="reverse"), "tset", r"reverse has no split 'tset' \(did you mean 'test'\?\)"),
])  # fmt: skip
def test_what_is_not_there_is_named_with_the_nearest(config, split, message):
    with pytest.raises(ValueError, match=message):
        find_split(config, split)


@pytest.mark.parametrize(("content", "message"), [
    (b"", "train.tsv is empty; give a file with source and target on each line"),
    (b"\n \n", "train.tsv is empty; give a file"),
    (b"\ta\nb\t\n", "holds no sentence pair to use: 2 pairs have an empty side"),
    (b"a\tb\nc\n", "line 2 has no tab"),
])  # fmt: skip
def test_a_corpus_that_cannot_be_used_is_named(own, tmp_path, content, message):
    Path(own.train).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        ready(own, tmp_path)


def test_an_empty_held_out_file_is_named(own, tmp_path):
    Path(own.valid).write_bytes(b"")
    with pytest.raises(ValueError, match=r"valid\.tsv holds no sentence pair to use; give a file"):
        ready(own, tmp_path)


def test_a_folder_given_as_a_file_is_named(own, tmp_path):
    with pytest.raises(ValueError, match="is a folder; give a file"):
        ready(DataConfig(train=str(tmp_path), valid=own.valid), tmp_path)


def test_the_licence_is_that_of_the_set_or_not_stated():
    assert "CC BY 2.0 FR" in licence_of(DataConfig(source="tatoeba-en-it"))
    assert "non-commercial" in licence_of(DataConfig(source="multi30k"))
    assert licence_of(DataConfig(source="copy")) == "generated by regard"
    assert licence_of(DataConfig(train="a.tsv")) == "not stated"
