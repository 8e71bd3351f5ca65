"""From a data config to what training reads: splits by name, a tokenizer kept, stores, and what was left out."""

import gzip
import os
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models

from regard.config import DataConfig
from regard.data.text import dataset as corpus
from regard.data.text import store
from regard.data.text.dataset import encode_split, find_split, licence_of, members, prepare
from regard.data.text.store import PairStore, Text
from regard.data.text.tokenizer import SENTINELS, Tokenizer, train_tokenizer
from regard.data.text.toys import toy_pairs

PAIRS = list(toy_pairs("phrasebook", "train", 60))


@pytest.fixture
def own(tmp_path) -> DataConfig:
    for name, pairs in (("train", PAIRS[:50]), ("valid", PAIRS[50:])):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    return DataConfig(train=str(tmp_path / "train.tsv"), valid=str(tmp_path / "valid.tsv"), vocab=100)


def ready(config: DataConfig, folder: Path, task: str = "translate"):
    said: list[str] = []
    heard: list[tuple[str, int]] = []
    return prepare(config, task, folder / "tokenizer.json", said.append, lambda *what: heard.append(what)), said, heard


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
    monkeypatch.setattr(corpus, "LEARNT", 30)
    seen = []
    real = corpus.train_tokenizer
    monkeypatch.setattr(corpus, "train_tokenizer", lambda text, *how: real(seen.extend(text) or seen, *how))
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
    (DataConfig(source="reverse,multi30"), "train", r"no data set 'multi30' \(did you mean 'multi30k'\?\)"),
    (DataConfig(source="reverse,"), "nowhere", "reverse has no split 'nowhere'"),
    (DataConfig(source="copy,multi30k"), "test", "multi30k has no split 'test'"),
    (DataConfig(source="copy,multi30k", pair="en-da"), "train",
     r"no set of copy,multi30k has pair 'en-da' \(did you mean 'en-de'"),
    (DataConfig(source="copy,reverse", text="tok"), "train", "no set of copy,reverse has text 'tok'; they have raw"),
    (DataConfig(source="multi30k", pair="en-da", prefixed=True), "train", r"no pair 'en-da' \(did you mean 'en-de'"),
    (DataConfig(train="a.tsv", prefixed=True), "train", "data.prefixed is for named data sets; in files of your own write"),
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


# --- named sets of every kind, a few lines of each ---


@pytest.fixture
def sets(tmp_path, monkeypatch) -> Path:
    """Small files in the place of the public ones."""
    folder = tmp_path / "sets"
    monkeypatch.setenv("REGARD_DATA", str(folder))
    three, two = ("train", "valid", "test"), ("train", "val")
    files = {
        "tinyshakespeare/input.txt": "".join(f"{n % 10}bcdefgh\n" for n in range(100)),
        **{f"wikitext-2/{split}.txt": f" \n = {split} = \n \n Some words , <unk> .\n" * 9 for split in three},
        **{f"sst2/{split}.tsv": f"0\tbad {split}\n1\tgood {split}\n" for split in three},
        **{f"agnews-small/{split}.tsv": f"3\tTitle\tof {split}\n0\tA\tb\n" for split in three},
        **{f"multi30k/{split}.{lang}": f"{lang} {split}\n" * 3 for split in two for lang in ("en", "de", "fr")},
        **{f"multi30k/tok/{split}.lc.norm.tok.{lang}": f"tok {lang} {split}\n" for split in two for lang in ("en", "de")},
    }  # fmt: skip
    for name, text in files.items():
        place = folder / f"{name}.gz"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(gzip.compress(text.encode()))
    return folder


def pairs(split: str = "train", only: str = "", **how) -> list[tuple[str, str]]:
    return list(find_split(DataConfig(**how), split, only).pairs())


def test_a_labelled_set_has_texts_and_names_of_classes(sets):
    assert pairs(source="sst2") == [("bad train", "negative"), ("good train", "positive")]
    assert pairs("test", source="agnews-small") == [("Title. of test", "Sci/Tech"), ("A. b", "World")]


def test_a_text_that_is_one_file_is_split_by_characters(sets):
    whole = "".join(f"{n % 10}bcdefgh\n" for n in range(100))
    found = [
        "".join(find_split(DataConfig(source="tinyshakespeare"), split).text()) for split in ("train", "valid", "test")
    ]
    assert "".join(found) == whole
    assert [len(part) for part in found] == [810, 45, 45]
    identities = {str(find_split(DataConfig(source="tinyshakespeare"), split).identity) for split in ("train", "valid")}
    assert len(identities) == 2


def test_a_mixture_is_its_sets_one_after_the_other(sets):
    mixed = "multi30k, sst2,copy"
    assert members(DataConfig(source=mixed)) == ["multi30k", "sst2", "copy"]
    assert members(DataConfig(train="a.tsv")) == [""]
    assert members(DataConfig(source="sst2,")) == ["sst2"]
    single = [pairs(source=name, pairs=5) for name in ("multi30k", "sst2", "copy")]
    assert pairs(source=mixed, pairs=5) == [pair for part in single for pair in part]
    assert [pairs("train", name, source=mixed, pairs=5) for name in ("multi30k", "sst2", "copy")] == single
    assert pairs("valid", source="multi30k,sst2") == pairs("valid", source="multi30k") + pairs("valid", source="sst2")


def test_in_a_mixture_the_pair_and_the_text_are_for_those_that_have_them(sets):
    assert pairs(source="sst2,multi30k", pair="de-en", text="tok")[2:] == [("tok de train", "tok en train")]
    assert pairs(source="sst2,multi30k", pair="fr-en")[2:] == [("fr train", "en train")] * 3


def test_with_prefixes_each_source_begins_with_its_task(sets):
    found = pairs(source="multi30k,sst2,agnews-small,reverse", pair="fr-en", prefixed=True, pairs=1)
    toy = pairs(source="reverse", pairs=1)
    assert found == [
        *[("translate French to English: fr train", "en train")] * 3,
        ("sst2 sentence: bad train", "negative"), ("sst2 sentence: good train", "positive"),
        ("topic: Title. of train", "Sci/Tech"), ("topic: A. b", "World"),
        (f"reverse: {toy[0][0]}", toy[0][1]),
    ]  # fmt: skip
    assert pairs(source="multi30k", prefixed=True) == [("translate English to German: en train", "de train")] * 3


def test_a_file_for_a_prefixed_set_gets_its_prefix(sets, tmp_path):
    (tmp_path / "mine.tsv").write_text("A\tB\n")
    assert pairs(str(tmp_path / "mine.tsv"), source="multi30k", prefixed=True) == [
        ("translate English to German: A", "B")
    ]
    assert pairs(str(tmp_path / "mine.tsv"), source="multi30k,sst2", prefixed=True) == [("A", "B")]


def test_prefixes_are_part_of_what_a_store_depends_on(sets):
    for source in ("multi30k", "reverse", "multi30k,sst2"):
        plain, prefixed = (find_split(DataConfig(source=source, prefixed=on), "train").identity for on in (False, True))
        assert plain != prefixed


@pytest.mark.parametrize(("source", "task", "message"), [
    ("multi30k", "next", "multi30k holds sentence pairs, task next learns from plain text; use task=translate, "
     "or data.source=tinyshakespeare or wikitext-2"),
    ("reverse", "masked", "reverse holds sentence pairs, task masked learns from plain text; use task=translation"),
    ("wikitext-2", "translate", "wikitext-2 holds plain text, task translate learns from sentence pairs; "
     "use task=next or masked or spans"),
    ("wikitext-2", "class", "use task=next or masked or spans, or data.source=sst2 or agnews-small"),
    ("sst2", "spans", "sst2 holds labelled texts, task spans learns from plain text; use task=translate or class"),
    ("multi30k", "class", "multi30k holds sentence pairs, task class learns from labelled texts"),
    ("sst2,wikitext-2", "translate", "wikitext-2 holds plain text"),
    ("sst2,agnews-small", "class", "names 2 sets; task class takes one, only translate mixes them"),
    ("sst2", "klass", r"no task 'klass' \(did you mean 'class'\?\)"),
])  # fmt: skip
def test_a_task_that_does_not_fit_the_data_is_refused_with_one_that_does(sets, tmp_path, source, task, message):
    with pytest.raises(ValueError, match=message) as error:
        ready(DataConfig(source=source), tmp_path, task)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "tokenizer.json").exists()


def test_what_a_set_does_not_hold_cannot_be_read_from_it(sets):
    with pytest.raises(ValueError, match="wikitext-2 is one plain text, without pairs"):
        pairs(source="wikitext-2")
    for source in ("multi30k", "sst2", "copy", "copy,sst2"):
        with pytest.raises(ValueError, match=f"{source} is not one plain text; texts are tinyshakespeare, wikitext-2"):
            find_split(DataConfig(source=source), "train").text()


# --- every task ---


@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_a_text_becomes_a_row_of_tokens_that_spell_it(sets, tmp_path, kind):
    found, said, heard = ready(DataConfig(source="tinyshakespeare", tokenizer=kind, vocab=300), tmp_path, "next")
    for held, split in ((found.train, "train"), (found.valid, "valid")):
        assert isinstance(held, Text)
        text = "".join(find_split(DataConfig(source="tinyshakespeare"), split).text())
        assert found.tokenizer.decode(held.tokens.tolist()) == text
    assert said == [
        f"tinyshakespeare {split}: {len(held):,} tokens"
        for split, held in zip(("train", "valid"), found[1:3], strict=True)
    ]
    assert heard[-1] == ("encoding tinyshakespeare valid", len(found.valid))
    assert (found.samples, found.labels) == ([], ())
    assert found.text_sample == "0bcdefgh\n1bcdefgh\n2bcdefgh\n3bcdefgh"


def test_the_prompt_is_the_first_words_of_the_held_out_text(sets, tmp_path):
    found, _, _ = ready(DataConfig(source="wikitext-2", vocab=200), tmp_path, "next")
    assert found.text_sample == "= valid = \n \n Some words , ⁇ .\n \n ="


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_word_that_a_set_has_left_out_is_the_unknown_token(sets, tmp_path, kind):
    found, _, _ = ready(DataConfig(source="wikitext-2", vocab=200, tokenizer=kind), tmp_path, "next")
    unknown = found.tokenizer.special.unk
    assert unknown in found.valid.tokens.tolist()
    assert found.tokenizer.ids(["⁇"]) == found.tokenizer.ids(["unk"]) == [unknown]  # neither is a token


@pytest.mark.parametrize(("text", "prompt"), [
    ("\n\n short \n", "short"), ("x" * 100, "x" * 40), ("word " * 20, "word " * 7 + "word"), ("a" * 39 + " b", "a" * 39),
])  # fmt: skip
def test_a_prompt_is_of_whole_words_if_there_are_any(tmp_path, text, prompt):
    (tmp_path / "a.txt").write_text(text)
    config = DataConfig(train=str(tmp_path / "a.txt"), valid=str(tmp_path / "a.txt"), vocab=50)
    assert ready(config, tmp_path, "next")[0].text_sample == prompt


@pytest.mark.parametrize(("task", "kind", "extra"), [
    ("next", "bpe", ()), ("masked", "bpe", ("[MASK]",)), ("masked", "bytes", ("[MASK]",)), ("masked", "wordpiece", ()),
    ("spans", "bpe", SENTINELS), ("spans", "characters", SENTINELS), ("spans", "wordpiece", SENTINELS),
])  # fmt: skip
def test_a_tokenizer_has_the_special_tokens_its_task_needs(sets, tmp_path, task, kind, extra):
    found, _, _ = ready(DataConfig(source="wikitext-2", tokenizer=kind, vocab=300), tmp_path, task)
    special, first = found.tokenizer.special, 5 if kind == "wordpiece" else 4
    assert found.tokenizer.special_ids == tuple(range(first + len(extra)))
    assert (special.mask == 4) == (kind == "wordpiece" or task == "masked")
    assert len(special.sentinels) == (100 if task == "spans" else 0)
    assert isinstance(found.train, Text)


@pytest.mark.parametrize(("task", "special", "lacks"), [
    ("masked", ["</s>", "<pad>"], r"has no \[MASK\], which task masked needs"),
    ("spans", ["</s>", "<pad>", "<extra_id_0>"], "has no <extra_id_0>, <extra_id_1>, …, which task spans needs"),
    ("spans", ["</s>", "<extra_id_0>", "<extra_id_1>"], "has no <pad>, which task spans needs"),
    ("translate", ["<|endoftext|>"], "has no <pad>, which task translate needs"),
])  # fmt: skip
def test_a_tokenizer_begun_from_must_have_what_the_task_needs(sets, tmp_path, task, special, lacks):
    inner = tokenizers.Tokenizer(models.BPE({"a": 0, **{token: n for n, token in enumerate(special, 1)}}, []))
    inner.add_special_tokens(special)
    inner.save(str(tmp_path / "tokenizer.json"))
    source = "multi30k" if task == "translate" else "wikitext-2"
    with pytest.raises(ValueError, match=lacks):
        ready(DataConfig(source=source), tmp_path, task)


def test_the_tokenizer_begun_from_is_used_as_it_is(sets, tmp_path):
    inherit_from_init = train_tokenizer(["other words\n"], "bytes", 270)
    inherit_from_init.save(tmp_path / "tokenizer.json")
    found, _, _ = ready(DataConfig(source="wikitext-2", tokenizer="characters"), tmp_path, "next")
    assert found.tokenizer.digest == inherit_from_init.digest


def test_every_character_is_learnt_though_a_text_has_more_lines_than_are_learnt_from(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "LEARNT", 10)
    letters = [chr(0x4E00 + n) for n in range(60)]
    (tmp_path / "a.txt").write_text("\n".join(letters))
    config = DataConfig(train=str(tmp_path / "a.txt"), valid=str(tmp_path / "a.txt"), tokenizer="characters")
    found, _, _ = ready(config, tmp_path, "next")
    assert found.tokenizer.decode(found.valid.tokens.tolist()) == "\n".join(letters)


def test_a_named_labelled_set_has_its_classes_in_their_order(sets, tmp_path):
    found, said, _ = ready(DataConfig(source="agnews-small", vocab=60), tmp_path, "class")
    assert found.labels == ("World", "Sports", "Business", "Sci/Tech")
    assert isinstance(found.train, PairStore)
    pool = found.train.read([0])
    assert pool.tokens[pool.starts + pool.sources].tolist() == [3, 0]
    assert found.samples == [("Title. of valid", "Sci/Tech"), ("A. b", "World")]
    assert said == ["agnews-small train: 2 texts", "agnews-small valid: 2 texts"]


@pytest.fixture
def reviews(tmp_path) -> DataConfig:
    rows = [("fine film", "good"), ("dull", "bad"), ("so so", "middling"), ("", "bad"), ("very " * 20, "good")]
    for name in ("train", "valid"):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    return DataConfig(train=str(tmp_path / "train.tsv"), valid=str(tmp_path / "valid.tsv"), vocab=60, max_len=10)


def test_own_labelled_files_have_the_classes_of_training_sorted(reviews, tmp_path):
    found, said, _ = ready(reviews, tmp_path, "class")
    assert found.labels == ("bad", "good", "middling")
    pool = found.valid.read([0])
    assert pool.tokens[pool.starts + pool.sources].tolist() == [1, 0, 2, 1]
    assert pool.sources.max() == 10
    assert said[0] == "classes: 'bad' 2, 'good' 2, 'middling' 1"
    assert said[1] == f"{reviews.train}: 4 texts; 1 empty ones left out; 1 cut to 10 tokens"


def test_own_labelled_files_may_be_jsonl(reviews, tmp_path):
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_text('{"review": "a b", "stars": "one"}\n{"review": "c", "stars": "two"}\n')
    config = DataConfig(
        train=str(tmp_path / "train.jsonl"), valid=str(tmp_path / "valid.jsonl"), columns="review,stars", vocab=30
    )
    found, _, _ = ready(config, tmp_path, "class")
    assert found.labels == ("one", "two")
    assert found.samples == [("a b", "one"), ("c", "two")]


def test_the_tokenizer_of_a_classifier_is_learnt_from_the_texts_alone(reviews, tmp_path, monkeypatch):
    seen = []
    real = corpus.train_tokenizer
    monkeypatch.setattr(corpus, "train_tokenizer", lambda text, *how: real(seen.extend(text) or seen, *how))
    ready(reviews, tmp_path, "class")
    assert seen == ["fine film", "dull", "so so", "", "very " * 20]


@pytest.mark.parametrize(("train", "message"), [
    ("a\tx\nb\tx\n", "train.tsv has one class only, 'x'; give texts of two or more"),
    ("".join(f"a\tclass {n}\n" for n in range(1001)), "train.tsv has 1,001 different classes in its first 1,001 texts"),
    ("", "train.tsv is empty; give a file with text and class on each line"),
    ("a\tgood\nb\tbad\n", "valid.tsv, example 3 .* has class 'middling', a label never seen in training; known are bad, good"),
])  # fmt: skip
def test_classes_that_cannot_be_learnt_are_refused(reviews, tmp_path, train, message):
    Path(reviews.train).write_text(train)
    with pytest.raises(ValueError, match=message):
        ready(reviews, tmp_path, "class")


def test_a_thousand_classes_are_allowed(reviews, tmp_path):
    Path(reviews.train).write_text("".join(f"a\t{n}\n" for n in range(1000)) * 2)
    Path(reviews.valid).write_text("a\t7\n")
    assert len(ready(reviews, tmp_path, "class")[0].labels) == 1000


@pytest.mark.parametrize("task", ["next", "masked", "spans"])
@pytest.mark.parametrize(("content", "message"), [
    ("", "train.txt is empty; give a file with text in it"),
    ("\n \n", "train.txt holds no text to use; give a file with text in it"),
])  # fmt: skip
def test_a_text_without_text_is_refused(tmp_path, task, content, message):
    (tmp_path / "train.txt").write_text(content)
    (tmp_path / "valid.txt").write_text("words")
    config = DataConfig(train=str(tmp_path / "train.txt"), valid=str(tmp_path / "valid.txt"), vocab=300)
    with pytest.raises(ValueError, match=message):
        ready(config, tmp_path, task)


def test_a_text_needs_a_held_out_one_too(tmp_path):
    (tmp_path / "train.txt").write_text("words")
    with pytest.raises(ValueError, match=r"no valid data; give data\.valid=FILE .*plain text"):
        ready(DataConfig(train=str(tmp_path / "train.txt")), tmp_path, "next")


def test_several_files_make_one_text(tmp_path):
    for name, text in (("a", "one\n"), ("b", "two")):
        (tmp_path / f"{name}.txt").write_text(text)
    both = f"{tmp_path}/a.txt,{tmp_path}/b.txt"
    found, _, _ = ready(DataConfig(train=both, valid=both, tokenizer="characters"), tmp_path, "next")
    assert found.tokenizer.decode(found.train.tokens.tolist()) == "one\ntwo"


def test_a_mixture_is_learnt_and_shows_a_sample_of_each_set(sets, tmp_path):
    config = DataConfig(source="multi30k,sst2,agnews-small", prefixed=True, vocab=100)
    found, said, _ = ready(config, tmp_path)
    assert found.train.pairs == 7
    assert said[0] == "multi30k,sst2,agnews-small train: 7 pairs"
    assert [source.split(":")[0] for source, _ in found.samples] == [
        "translate English to German",
        "sst2 sentence",
        "topic",
    ]
    held = encode_split(config, "translate", "valid", found.tokenizer, said.append)
    assert held.digest == found.valid.digest


def test_a_further_split_is_encoded_as_its_task_reads_it(sets, tmp_path):
    said: list[str] = []
    found, _, _ = ready(DataConfig(source="wikitext-2", vocab=200), tmp_path, "masked")
    test = encode_split(DataConfig(source="wikitext-2"), "masked", "test", found.tokenizer, said.append)
    assert "test = Some words" in found.tokenizer.decode(test.tokens.tolist())
    assert said == [f"wikitext-2 test: {len(test):,} tokens"]
    found, _, _ = ready(DataConfig(source="sst2", vocab=200), tmp_path / "sets", "class")
    test = encode_split(DataConfig(source="sst2"), "class", "test", found.tokenizer, said.append, labels=found.labels)
    assert test.pairs == 2


def test_the_licence_of_a_mixture_names_each_once():
    licence = licence_of(DataConfig(source="multi30k,sst2,copy,reverse"))
    assert licence.count("generated by regard") == 1
    assert "Socher" in licence
    assert "Flickr30k" in licence


@pytest.mark.skipif(not os.environ.get("REGARD_DATA"), reason="needs the data sets; set REGARD_DATA")
def test_the_sets_themselves_are_read_as_their_readme_counts_them():
    def count(source: str, split: str) -> int:
        return sum(1 for _ in find_split(DataConfig(source=source), split).pairs())

    sizes = {"train": 1_003_854, "valid": 55_770, "test": 55_770}
    for split, size in sizes.items():
        assert sum(map(len, find_split(DataConfig(source="tinyshakespeare"), split).text())) == size
    lines = [
        sum(1 for _ in find_split(DataConfig(source="wikitext-2"), split).text())
        for split in ("train", "valid", "test")
    ]
    assert lines == [36718, 3760, 4358]
    assert [count("sst2", split) for split in ("train", "valid", "test")] == [6920, 872, 1821]
    assert [count("agnews-small", split) for split in ("train", "valid", "test")] == [6000, 800, 800]
    good = sum(label == "positive" for _, label in find_split(DataConfig(source="sst2"), "train").pairs())
    assert good == 3610
