"""From a data config to what training reads: a tokenizer, encoded stores, samples, and reports of what was left out."""

import os
from pathlib import Path

import pytest
import tokenizers
from ready import ready
from tokenizers import models

from regard.data.text import dataset, store
from regard.data.text.config import TextData
from regard.data.text.dataset import encode_labeled_split, encode_pairs_split, encode_text_split
from regard.data.text.splits import TOY_VALID, find_split
from regard.data.text.store import TextStore
from regard.data.text.tokenizer import SENTINELS, Tokenizer, train_tokenizer
from regard.data.text.toys import toy_pairs

PAIRS = list(toy_pairs("phrasebook", "train", 60))


@pytest.fixture
def own(tmp_path) -> TextData:
    for name, pairs in (("train", PAIRS[:50]), ("valid", PAIRS[50:])):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    return TextData(train=str(tmp_path / "train.tsv"), valid=str(tmp_path / "valid.tsv"), vocab=100)


def test_own_files_become_a_tokenizer_and_two_stores(own, tmp_path):
    found, reports, progress = ready(own, tmp_path)
    assert (found.train.pairs, found.valid.pairs, found.tokenizer.vocab) == (50, 10, 100)
    assert found.samples == PAIRS[50:53]
    assert reports == [f"{own.train}: 50 pairs", f"{own.valid}: 10 pairs"]
    assert progress == [(f"encoding {own.train}", 50), (f"encoding {own.valid}", 10)]
    assert Tokenizer.load(tmp_path / "tokenizer.json").digest == found.tokenizer.digest


def test_pairs_left_out_are_counted_and_reported(own, tmp_path):
    with open(own.train, "a") as file:
        file.write("\tUn cane\nA dog\t\nA dog\t" + "Un cane " * 200 + "\n")
    _, reports, _ = ready(own, tmp_path)
    assert reports[0] == f"{own.train}: 50 pairs; left out: 2 with an empty side, 1 of over 256 tokens"


def test_the_tokenizer_of_a_run_is_kept_though_the_data_changes(own, tmp_path):
    before, _, _ = ready(own, tmp_path)
    Path(own.train).write_text("Hello\tCiao\n" * 20)
    after, _, _ = ready(own, tmp_path)
    assert after.tokenizer.digest == before.tokenizer.digest
    assert after.train.digest != before.train.digest


def test_encoding_is_done_once_and_again_after_the_file_changed(own, tmp_path, monkeypatch):
    ready(own, tmp_path)
    written = []
    real = store._write_pairs
    monkeypatch.setattr(store, "_write_pairs", lambda *given: written.append(given[1]) or real(*given))
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


def test_the_tokenizer_is_trained_on_pairs_spread_over_the_whole_corpus(own, tmp_path, monkeypatch):
    lines = [f"w{chr(97 + n // 26)}{chr(97 + n % 26)}\tx" for n in range(100)]
    Path(own.train).write_text("\n".join(lines))
    monkeypatch.setattr(dataset, "MAX_EXAMPLES", 30)
    lines_read = []
    real = dataset.train_tokenizer
    monkeypatch.setattr(dataset, "train_tokenizer", lambda text, *how: real(lines_read.extend(text) or lines_read, *how))
    ready(own, tmp_path)
    sources = lines_read[::2]
    assert sources == [line.split("\t")[0] for line in lines[::4]]
    assert len(sources) <= 30


def test_a_toy_has_as_many_training_pairs_as_asked_and_validation_pairs(tmp_path):
    config = TextData(source="reverse", pairs=70, vocab=60)
    found, reports, _ = ready(config, tmp_path)
    assert found.train.pairs == 70
    assert reports[0] == "reverse train: 70 pairs"
    assert list(find_split(config, "valid").pairs()) == list(toy_pairs("reverse", "valid", TOY_VALID))
    assert len(list(find_split(config, "test").pairs())) == TOY_VALID


@pytest.mark.parametrize(("content", "message"), [
    (b"", "train.tsv is empty; give a file with source and target on each line"),
    (b"\n \n", "train.tsv is empty; give a file"),
    (b"\ta\nb\t\n", "holds no sentence pair to use: 2 pairs have an empty side"),
    (b"a\tb\nc\nd\n", "line 2 has no tab"),
])  # fmt: skip
def test_an_unusable_corpus_is_refused_by_name(own, tmp_path, content, message):
    Path(own.train).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        ready(own, tmp_path)


def test_an_empty_validation_file_is_refused_by_name(own, tmp_path):
    Path(own.valid).write_bytes(b"")
    with pytest.raises(ValueError, match=r"valid\.tsv holds no sentence pair to use; give a file"):
        ready(own, tmp_path)


def test_a_folder_without_text_files_is_refused(own, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"is a folder without text files .*; give a file"):
        ready(TextData(train=str(tmp_path / "empty"), valid=own.valid), tmp_path)


@pytest.mark.parametrize(("source", "task", "message"), [
    ("multi30k", "language_model", "multi30k holds sentence pairs, task language_model learns from plain text; "
     "use data.source=tinyshakespeare or wikitext-2, or another task"),
    ("reverse", "masked_lm", "reverse holds sentence pairs, task masked_lm learns from plain text; use data.source=tiny"),
    ("wikitext-2", "translation", "wikitext-2 holds plain text, task translation learns from sentence pairs; "
     "use data.source=multi30k or .* or sst2"),
    ("wikitext-2", "text_classification", "use data.source=sst2 or agnews-small, or another task"),
    ("sst2", "span_corruption", "sst2 holds labelled texts, task span_corruption learns from plain text; use data.source="),
    ("multi30k", "text_classification", "multi30k holds sentence pairs, task text_classification learns from labelled texts"),
    ("mnist", "translation", "mnist holds images, task translation learns from sentence pairs"),
    ("sst2,wikitext-2", "translation", "wikitext-2 holds plain text"),
    ("sst2,agnews-small", "text_classification", "names 2 sets; task text_classification takes one"),
])  # fmt: skip
def test_a_set_that_does_not_fit_the_task_is_refused_with_those_that_do(sets, tmp_path, source, task, message):
    with pytest.raises(ValueError, match=message) as error:
        ready(TextData(source=source), tmp_path, task)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "tokenizer.json").exists()


@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_the_tokens_of_a_text_decode_to_the_text(sets, tmp_path, kind):
    found, reports, progress = ready(TextData(source="tinyshakespeare", tokenizer=kind, vocab=300), tmp_path, "language_model")
    for text_store, split in ((found.train, "train"), (found.valid, "valid")):
        assert isinstance(text_store, TextStore)
        text = "".join(find_split(TextData(source="tinyshakespeare"), split).text())
        assert found.tokenizer.decode(text_store.tokens.tolist()) == text
    assert reports == [
        f"tinyshakespeare {split}: {len(text_store):,} tokens"
        for split, text_store in zip(("train", "valid"), found[1:3], strict=True)
    ]
    assert progress[-1] == ("encoding tinyshakespeare valid", len(found.valid))
    assert (found.samples, found.labels) == ([], ())
    assert found.text_sample == "0bcdefgh\n1bcdefgh\n2bcdefgh\n3bcdefgh"


def test_the_prompt_is_the_first_words_of_the_validation_text(sets, tmp_path):
    found, _, _ = ready(TextData(source="wikitext-2", vocab=200), tmp_path, "language_model")
    assert found.text_sample == "= valid = \n \n Some words , ⁇ .\n \n ="


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_word_that_a_set_has_removed_is_the_unknown_token(sets, tmp_path, kind):
    found, _, _ = ready(TextData(source="wikitext-2", vocab=200, tokenizer=kind), tmp_path, "language_model")
    unknown = found.tokenizer.special.unk
    assert unknown in found.valid.tokens.tolist()
    assert found.tokenizer.tokens_to_ids(["⁇"]) == found.tokenizer.tokens_to_ids(["unk"]) == [unknown]  # neither is a token


@pytest.mark.parametrize(("text", "prompt"), [
    ("\n\n short \n", "short"), ("x" * 100, "x" * 40), ("word " * 20, "word " * 7 + "word"), ("a" * 39 + " b", "a" * 39),
])  # fmt: skip
def test_a_prompt_is_of_whole_words_if_there_are_any(tmp_path, text, prompt):
    (tmp_path / "a.txt").write_text(text)
    config = TextData(train=str(tmp_path / "a.txt"), valid=str(tmp_path / "a.txt"), vocab=50)
    assert ready(config, tmp_path, "language_model")[0].text_sample == prompt


@pytest.mark.parametrize(("task", "kind", "extra"), [
    ("language_model", "bpe", ()), ("masked_lm", "bpe", ("[MASK]",)), ("masked_lm", "bytes", ("[MASK]",)),
    ("masked_lm", "wordpiece", ()),
    ("span_corruption", "bpe", SENTINELS), ("span_corruption", "characters", SENTINELS),
    ("span_corruption", "wordpiece", SENTINELS),
])  # fmt: skip
def test_a_tokenizer_has_the_special_tokens_its_task_needs(sets, tmp_path, task, kind, extra):
    found, _, _ = ready(TextData(source="wikitext-2", tokenizer=kind, vocab=300), tmp_path, task)
    special, first = found.tokenizer.special, 5 if kind == "wordpiece" else 4
    assert found.tokenizer.special_ids == tuple(range(first + len(extra)))
    assert (special.mask == 4) == (kind == "wordpiece" or task == "masked_lm")
    assert len(special.sentinels) == (100 if task == "span_corruption" else 0)
    assert isinstance(found.train, TextStore)


@pytest.mark.parametrize(("task", "special", "lacks"), [
    ("masked_lm", ["</s>", "<pad>"], r"has no \[MASK\], which task masked_lm needs"),
    ("span_corruption", ["</s>", "<pad>", "<extra_id_0>"],
     "has no <extra_id_0>, <extra_id_1>, …, which task span_corruption needs"),
    ("span_corruption", ["</s>", "<extra_id_0>", "<extra_id_1>"], "has no <pad>, which task span_corruption needs"),
    ("translation", ["<|endoftext|>"], "has no <pad>, which task translation needs"),
])  # fmt: skip
def test_an_existing_tokenizer_must_have_the_special_tokens_of_the_task(sets, tmp_path, task, special, lacks):
    inner = tokenizers.Tokenizer(models.BPE({"a": 0, **{token: n for n, token in enumerate(special, 1)}}, []))
    inner.add_special_tokens(special)
    inner.save(str(tmp_path / "tokenizer.json"))
    source = "multi30k" if task == "translation" else "wikitext-2"
    with pytest.raises(ValueError, match=lacks):
        ready(TextData(source=source), tmp_path, task)


def test_an_existing_tokenizer_is_used_unchanged(sets, tmp_path):
    existing = train_tokenizer(["other words\n"], "bytes", 270)
    existing.save(tmp_path / "tokenizer.json")
    found, _, _ = ready(TextData(source="wikitext-2", tokenizer="characters"), tmp_path, "language_model")
    assert found.tokenizer.digest == existing.digest


def test_every_character_is_in_the_vocabulary_however_long_the_text(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "MAX_EXAMPLES", 10)
    letters = [chr(0x4E00 + n) for n in range(60)]
    (tmp_path / "a.txt").write_text("\n".join(letters))
    config = TextData(train=str(tmp_path / "a.txt"), valid=str(tmp_path / "a.txt"), tokenizer="characters")
    found, _, _ = ready(config, tmp_path, "language_model")
    assert found.tokenizer.decode(found.valid.tokens.tolist()) == "\n".join(letters)


@pytest.mark.parametrize("task", ["language_model", "masked_lm", "span_corruption"])
@pytest.mark.parametrize(("content", "message"), [
    ("", "train.txt is empty; give a file with text in it"),
    ("\n \n", "train.txt holds no text to use; give a file with text in it"),
])  # fmt: skip
def test_an_empty_text_is_refused(tmp_path, task, content, message):
    (tmp_path / "train.txt").write_text(content)
    (tmp_path / "valid.txt").write_text("words")
    config = TextData(train=str(tmp_path / "train.txt"), valid=str(tmp_path / "valid.txt"), vocab=300)
    with pytest.raises(ValueError, match=message):
        ready(config, tmp_path, task)


def test_a_short_text_needs_a_validation_text_too(tmp_path):
    (tmp_path / "train.txt").write_text("words")
    with pytest.raises(ValueError, match=r"has 5 characters, too few to hold some out for validation; give data\.valid=FILE"):
        ready(TextData(train=str(tmp_path / "train.txt")), tmp_path, "language_model")


def test_several_files_make_one_text(tmp_path):
    for name, text in (("a", "one\n"), ("b", "two")):
        (tmp_path / f"{name}.txt").write_text(text)
    both = f"{tmp_path}/a.txt,{tmp_path}/b.txt"
    found, _, _ = ready(TextData(train=both, valid=both, tokenizer="characters"), tmp_path, "language_model")
    assert found.tokenizer.decode(found.train.tokens.tolist()) == "one\ntwo"


def test_a_mixture_is_encoded_and_shows_a_sample_of_each_set(sets, tmp_path):
    config = TextData(source="multi30k,sst2,agnews-small", prefixed=True, vocab=100)
    found, reports, _ = ready(config, tmp_path)
    assert found.train.pairs == 7
    assert reports[0] == "multi30k,sst2,agnews-small train: 7 pairs"
    assert [source.split(":")[0] for source, _ in found.samples] == ["translate English to German", "sst2 sentence", "topic"]
    again = encode_pairs_split(config, "valid", found.tokenizer, reports.append)
    assert again.digest == found.valid.digest


def test_another_split_is_encoded_as_its_task_reads_it(sets, tmp_path):
    reports: list[str] = []
    found, _, _ = ready(TextData(source="wikitext-2", vocab=200), tmp_path, "masked_lm")
    test = encode_text_split(TextData(source="wikitext-2"), "test", found.tokenizer, reports.append)
    assert "test = Some words" in found.tokenizer.decode(test.tokens.tolist())
    assert reports == [f"wikitext-2 test: {len(test):,} tokens"]
    found, _, _ = ready(TextData(source="sst2", vocab=200), tmp_path / "sets", "text_classification")
    test = encode_labeled_split(TextData(source="sst2"), "test", found.tokenizer, reports.append, labels=found.labels)
    assert test.pairs == 2


def test_the_sentences_shown_during_training_are_different_ones(tmp_path):
    rows = [("one", "eins"), ("One ", "ein"), ("two", "zwei"), ("one", "einer"), ("three", "drei"), ("four", "vier")]
    (tmp_path / "a.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows))
    file = str(tmp_path / "a.tsv")
    found, _, _ = ready(TextData(train=file, valid=file, vocab=100), tmp_path)
    assert found.samples == [("one", "eins"), ("two", "zwei"), ("three", "drei")]
