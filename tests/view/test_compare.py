"""Runs side by side: every sentence in one bucket of its length, the scores of sacreBLEU on it, and drawings."""

import json
from dataclasses import dataclass
from xml.etree import ElementTree

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from regard.config import Run
from regard.data.text.config import TextData
from regard.tasks.task import ScoreOptions
from regard.tasks.translation import Translation, read_references, translate_split
from regard.view.compare import BUCKETS, MIN_SENTENCES, Bucket, Comparison, _limits, compare, to_file

WORDS = ["a", "man", "in", "his", "blue", "shirt", "is", "standing", "on", "the", "ladder", "and", "cleans", "one", "window"]
LENGTHS = [*range(1, 24)] * 3 + [40] * MIN_SENTENCES


@dataclass(frozen=True)
class FakeTranslator:
    """Translates by a function of the text, so that the scores are known."""

    run: Run
    answer: object
    max_len: int = 100

    def encode(self, texts):
        return [text.split() for text in texts]

    def translate(self, texts, *, beam, length_penalty, progress):
        progress(len(texts))
        answers = [self.answer(" ".join(ids)) if ids else "" for ids in texts]
        return [Translation(text, text.split(), [], None) for text in answers]


def write_pairs(file, lengths=LENGTHS):
    """Pairs of that many words; the target is the source with a full stop, in capitals."""
    sources = [" ".join(WORDS[(row + k) % len(WORDS)] for k in range(length)) for row, length in enumerate(lengths)]
    file.write_text("".join(f"{source}\t{source.upper()} .\n" for source in sources))
    return file


def shout(text: str) -> str:
    return f"{text.upper()} ."


def shout_the_first_words(text: str) -> str:
    return f"{' '.join(text.upper().split()[:8])} ."


def whisper(text: str) -> str:
    return f"{text} ."


ANSWERS = {"perfect": shout, "forgetful": shout_the_first_words, "quiet": whisper}


def translators(file, **data):
    """What opens a run by its name; each has its answers and the data given."""
    return lambda name: FakeTranslator(Run(name, "bahdanau", None, data=TextData(valid=str(file), **data)), ANSWERS[name])


def scored(file, names=("perfect", "forgetful"), *, by_length=True, split="valid", limit=None, **data) -> Comparison:
    return compare(names, translators(file, **data), split, ScoreOptions(limit), by_length=by_length)


# Buckets


@given(st.lists(st.integers(0, 60), max_size=80))
def test_every_sentence_with_a_word_is_in_one_bucket(lengths):
    limits = _limits(lengths)
    for length in lengths:
        holds = [low <= length <= (length if high is None else high) for low, high in limits]
        assert sum(holds) == (length > 0)
    assert all(any(low <= n and (high is None or n <= high) for n in lengths) for low, high in limits)  # none is empty
    assert limits == sorted(limits, key=lambda limit: limit[0])
    assert all(high in BUCKETS for _, high in limits[:-1])


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80))
def test_the_last_bucket_is_open_and_has_enough_sentences_unless_it_is_the_only_one(lengths):
    *before, (low, high) = _limits(lengths)
    assert high is None
    assert max(lengths) >= low
    assert sum(n >= low for n in lengths) >= MIN_SENTENCES or not before
    if low - 1 in BUCKETS and low - 1 != BUCKETS[-1]:  # the longest are apart as soon as they are enough
        following = BUCKETS[BUCKETS.index(low - 1) + 1]
        assert sum(n > following for n in lengths) < MIN_SENTENCES


def test_a_small_last_bucket_is_joined_to_the_one_before():
    assert _limits([3] * 20 + [8] * 20 + [13] * MIN_SENTENCES) == [(1, 5), (6, 10), (11, None)]
    assert _limits([3] * 20 + [8] * 20 + [13] * (MIN_SENTENCES - 1)) == [(1, 5), (6, None)]
    assert _limits([3, 8, 50]) == [(1, None)]
    assert _limits([0, 0]) == _limits([]) == []


def test_a_small_first_bucket_is_joined_to_the_one_after():
    assert _limits([3] * (MIN_SENTENCES - 1) + [8] * 20 + [13] * 20) == [(1, 10), (11, None)]
    assert _limits([3] * MIN_SENTENCES + [8] * 20 + [13] * 20) == [(1, 5), (6, 10), (11, None)]


def test_a_bucket_without_sentences_is_left_out():
    assert _limits([3] * 20 + [33] * 20) == [(1, 5), (31, None)]


def test_counts_add_up_and_the_longest_sentences_are_included(tmp_path):
    file = write_pairs(tmp_path / "x.tsv", [*LENGTHS, 60])
    found = scored(file)
    lengths = [len(line.split("\t")[0].split()) for line in file.read_text().splitlines()]
    counted = {bucket.words: bucket.sentences for bucket in found.buckets}
    wanted = dict.fromkeys(["1–5", "6–10", "11–15", "16–20", "21–25", "31+"], 0)
    for length in lengths:
        wanted[next((f"{low}–{low + 4}" for low in (1, 6, 11, 16, 21) if length < low + 5), "31+")] += 1
    assert counted == wanted
    assert sum(counted.values()) == found.whole.sentences == len(lengths)


def test_too_few_sentences_to_split_are_shown_as_a_whole_and_reported(tmp_path):
    file, notes = write_pairs(tmp_path / "x.tsv", [3, 8, 13]), list[str]()
    found = compare(["perfect"], translators(file), "valid", ScoreOptions(report=notes.append), by_length=True)
    assert (found.buckets, found.whole.sentences) == ([], 3)
    assert notes == ["3 sentences are too few, or too much of one length, to be split by length; shown as a whole"]


# Scores


def test_the_scores_of_a_bucket_are_those_of_sacrebleu_on_its_sentences(tmp_path):
    file = write_pairs(tmp_path / "x.tsv")
    found = scored(file, list(ANSWERS))
    pairs = [line.split("\t") for line in file.read_text().splitlines()]
    for bucket in [found.whole, *found.buckets]:
        high = 1000 if bucket.high is None else bucket.high
        chosen = [(source, target) for source, target in pairs if bucket.low <= len(source.split()) <= high]
        assert len(chosen) == bucket.sentences
        references = [[target for _, target in chosen]]
        for index, answer in enumerate(ANSWERS.values()):
            outputs = [answer(source) for source, _ in chosen]
            assert bucket.bleu[index] == pytest.approx(sacrebleu.corpus_bleu(outputs, references, force=True).score)
            assert bucket.chrf[index] == pytest.approx(sacrebleu.corpus_chrf(outputs, references).score)
    assert found.metric == "BLEU"
    assert "case:mixed" in found.signature


def test_a_model_that_forgets_the_end_is_worse_on_long_sentences_only(tmp_path):
    perfect, forgetful = zip(*(bucket.bleu for bucket in scored(write_pairs(tmp_path / "x.tsv")).buckets), strict=True)
    assert perfect == pytest.approx([100] * 6)
    assert forgetful[0] == pytest.approx(100)
    assert list(forgetful) == sorted(forgetful, reverse=True)
    assert forgetful[-1] < 10


def test_tokenized_text_is_scored_by_its_own_lower_cased_tokens(tmp_path):
    file = write_pairs(tmp_path / "x.tsv")
    plain, tokenized = (scored(file, ["quiet"], text=text) for text in ("raw", "tok"))
    assert plain.whole.bleu[0] < 50  # capitals count
    assert tokenized.whole.bleu == pytest.approx([100])
    assert tokenized.metric == "BLEU, tokenized, lower-cased"
    assert "case:lc" in tokenized.signature
    assert "tok:none" in tokenized.signature


def test_runs_keep_their_order(tmp_path):
    file = write_pairs(tmp_path / "x.tsv")
    there, back = scored(file, ["quiet", "perfect"]), scored(file, ["perfect", "quiet"])
    assert there.runs == ["quiet", "perfect"]
    assert there.whole.bleu == back.whole.bleu[::-1]
    assert [b.chrf for b in there.buckets] == [b.chrf[::-1] for b in back.buckets]
    assert there.whole.bleu[0] < there.whole.bleu[1] == pytest.approx(100)


def test_without_lengths_there_is_the_whole_only(tmp_path):
    file = write_pairs(tmp_path / "x.tsv")
    assert scored(file, by_length=False).buckets == []
    assert scored(file, by_length=False).whole == scored(file).whole


def test_a_limit_takes_the_first_pairs(tmp_path):
    assert scored(write_pairs(tmp_path / "x.tsv"), limit=7).whole.sentences == 7


# What cannot be compared


def refuse_to_translate(*_args, **_how):
    raise AssertionError("translated before all runs were checked")


def test_different_test_data_is_refused_before_anything_is_translated(tmp_path, monkeypatch):
    one, other = write_pairs(tmp_path / "one.tsv"), write_pairs(tmp_path / "other.tsv", LENGTHS[1:])
    files = {"perfect": one, "quiet": other}
    monkeypatch.setattr(FakeTranslator, "translate", refuse_to_translate)
    with pytest.raises(ValueError, match=r"^quiet and perfect have different test data for 'valid'; compare runs of the same da"):
        compare(list(files), lambda name: translators(files[name])(name), "valid", ScoreOptions(), by_length=True)


def test_different_references_of_the_same_sources_are_refused(tmp_path):
    (tmp_path / "one.tsv").write_text("a b\tb a\n")
    (tmp_path / "other.tsv").write_text("a b\ta b\n")
    with pytest.raises(ValueError, match="different test data"):
        compare(["perfect", "quiet"], lambda name: translators(tmp_path / ("one.tsv" if name == "quiet" else "other.tsv"))(name),
                "valid", ScoreOptions(), by_length=False)  # fmt: skip


def test_runs_of_different_data_are_compared_on_one_file(tmp_path):
    one, other = write_pairs(tmp_path / "one.tsv"), write_pairs(tmp_path / "other.tsv", LENGTHS[1:])
    files = {"perfect": one, "quiet": other}
    found = compare(list(files), lambda name: translators(files[name])(name), str(one), ScoreOptions(), by_length=False)
    assert found.whole.sentences == len(LENGTHS)


def test_tokenized_and_raw_text_are_not_compared_even_on_one_file(tmp_path):
    file = write_pairs(tmp_path / "x.tsv")
    texts = {"perfect": "raw", "quiet": "tok"}
    with pytest.raises(
        ValueError, match=r"^quiet translates tokenized text, perfect does not; compare runs with the same data\.te"
    ):
        compare(list(texts), lambda name: translators(file, text=texts[name])(name), str(file), ScoreOptions(), by_length=False)


def test_a_mixture_is_refused():
    with pytest.raises(ValueError, match=r"^perfect was trained on a mixture of 2 sets; compare wants runs of one data set$"):
        compare(["perfect"], translators("", source="copy,reverse"), "valid", ScoreOptions(), by_length=True)


def test_no_runs_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^no runs to compare; give one or more run folders$"):
        scored(tmp_path / "none.tsv", [])


# The split


def test_a_sentence_too_long_for_the_model_is_scored_as_empty(tmp_path):
    file = write_pairs(tmp_path / "x.tsv", [3, 9, 4])
    notes = []
    run = Run("short", "bahdanau", None, data=TextData(valid=str(file)))
    translated = translate_split(FakeTranslator(run, shout, max_len=5), "valid", ScoreOptions(report=notes.append))
    assert [bool(answer) for answer in translated.answers] == [True, False, True]
    assert translated.references == [[shout(source)] for source in translated.sources]
    assert notes == ["1 of 3 sentences are too long for this model and are scored as empty translations"]


def test_references_are_those_of_the_toy(tmp_path):
    sources, references = read_references(TextData(source="reverse"), "test", "reverse", 30)
    assert len(sources) == 30
    assert references == [[source[::-1]] for source in sources]


def test_an_empty_split_is_refused(tmp_path):
    (tmp_path / "empty.tsv").write_text("")
    with pytest.raises(ValueError, match="empty"):
        read_references(TextData(), str(tmp_path / "empty.tsv"))


# Files


FOUND = Comparison(
    "test_2016_flickr", ["runs/multi30k-seq2seq", "runs/größe"], "BLEU", "nrefs:1|case:mixed",
    Bucket(0, None, 60, [20.0, 36.5], [40.0, 60.25]),
    [Bucket(1, 5, 20, [30.0, 40.0], [1.0, 2.0]), Bucket(6, None, 40, [15.0, 35.0], [3.0, 4.0])],
)  # fmt: skip
UNSPLIT = Comparison(FOUND.title, FOUND.runs, FOUND.metric, FOUND.signature, FOUND.whole, [])


def from_json(text: str) -> Comparison:
    found = json.loads(text)
    return Comparison(**{**found, "whole": Bucket(**found["whole"]), "buckets": [Bucket(**b) for b in found["buckets"]]})


def test_json_round_trips(tmp_path):
    assert from_json(FOUND.to_json()) == FOUND
    assert "größe" in FOUND.to_json()
    to_file(FOUND, tmp_path / "x.json")
    assert from_json((tmp_path / "x.json").read_text(encoding="utf-8")) == FOUND


def words_of(file) -> str:
    """The text of an SVG: matplotlib draws letters as shapes and keeps the words in comments."""
    assert ElementTree.parse(file).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    return file.read_text(encoding="utf-8")


def test_a_drawing_by_length_names_the_runs_lengths_and_counts(tmp_path):
    to_file(FOUND, tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as image:
        assert image.format == "PNG"
        assert image.width > 1000
    to_file(FOUND, tmp_path / "x.svg")
    words = words_of(tmp_path / "x.svg")
    for word in ("multi30k-seq2seq", "größe", "36.5", "20.0", "1–5", "6+", "(20)", "(40)", "BLEU", "test_2016_flickr"):
        assert word in words


def test_a_drawing_without_lengths_has_a_bar_for_each_run(tmp_path):
    to_file(UNSPLIT, tmp_path / "x.svg")
    for word in ("multi30k-seq2seq", "größe", "36.5", "20.0"):
        assert word in words_of(tmp_path / "x.svg")


@pytest.mark.parametrize("by_length", [True, False])
@pytest.mark.parametrize("runs", [["one/run", "two/run"], ["_a", "_b"], ["$a", "$b"]], ids=["same name", "underscore", "dollar"])
def test_every_run_of_a_drawing_has_its_own_label(tmp_path, runs, by_length):
    found = Comparison("valid", runs, "BLEU", "", FOUND.whole, FOUND.buckets if by_length else [])
    to_file(found, tmp_path / "x.svg")
    words = words_of(tmp_path / "x.svg")
    assert all(run in words for run in runs)
    assert "20.0" in words
    assert "36.5" in words


def test_another_suffix_is_refused_and_writes_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"cannot write x\.txt; give a name that ends in"):
        to_file(FOUND, tmp_path / "x.txt")
    assert not list(tmp_path.iterdir())
