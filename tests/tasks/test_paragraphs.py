"""Texts of several sentences: split, translated and joined, with nothing lost; protected spans pass through any model."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.text.placeholders import find_protected, is_kept
from regard.data.text.tokenizer import train_tokenizer
from regard.data.text.toys import toy_pairs
from regard.tasks.joining import SentenceTranslator, join_translations
from regard.tasks.load import load
from regard.tasks.translation import Translator

TEXTS = [source for source, _ in toy_pairs("reverse", "test", 12)]
LETTERS = ["a b c d", "hello world. how are you? {name} %s 5 100 fine", "<b>bold</b> http://example.com/a?b=c a@b.org"]


@pytest.fixture(scope="module")
def translator(small_run) -> Translator:
    return load(small_run)


@pytest.fixture(scope="module", params=["bpe", "characters", "bytes", "words"])
def untrained(small_run, request) -> Translator:
    """A random model, with a tokenizer that can spell some, all or none of the protected spans."""
    opened = load(small_run)
    tokenizer = train_tokenizer(LETTERS * 5, request.param, 120)
    torch.manual_seed(0)
    config = dataclasses.replace(opened.model.config, vocab=tokenizer.vocab)
    return dataclasses.replace(opened, model=type(opened.model)(config).eval(), tokenizer=tokenizer)


# -- one sentence


@pytest.mark.parametrize("how", [{"beam": 1}, {"beam": 3, "n_best": 2}, {"beam": 1, "scored": True}], ids=str)
def test_one_sentence_is_translated_as_without_splitting(translator, how):
    assert translator.translate(TEXTS, **how) == translator.translate(TEXTS, **how, split=False, protect=False)
    ids = translator.translate(translator.encode(TEXTS), **how)
    assert [answer.text for answer in ids] == [answer.text for answer in translator.translate(TEXTS, **how)]


@pytest.mark.parametrize("text", ["", " ", "  a b c ", "a b c", "."])
def test_a_text_without_a_second_sentence_keeps_its_result(translator, text):
    assert translator.translate([text]) == translator.translate([text], split=False, protect=False)


# -- several


def test_sentences_and_lines_are_translated_each_and_joined_as_they_stood(translator):
    one, two, three = (answer.text for answer in translator.translate(["a b.", "C d.", "e f"], beam=1))
    text = "a b.  C d.\n\n\te f\n"
    [joined] = translator.translate([text], beam=1)
    assert joined.text == f"{one}  {two}\n\n\t{three}\n"
    assert joined.sentences == 3
    parts = translator.translate(["a b.", "C d.", "e f"], beam=1)
    assert joined.ids == [token for part in parts for token in part.ids]
    assert joined.tokens == [token for part in parts for token in part.tokens]


def test_the_score_of_a_text_is_that_of_all_tokens_together(translator):
    for penalty in (0.0, 0.6, 1.0):
        parts = translator.translate(["a b.", "C d."], beam=2, length_penalty=penalty)
        [joined] = translator.translate(["a b. C d."], beam=2, length_penalty=penalty)
        sums = [part.score * (len(part.ids) + 1) ** penalty for part in parts]
        length = sum(len(part.ids) + 1 for part in parts)
        assert joined.score == pytest.approx(sum(sums) / length**penalty, abs=1e-5)
    assert translator.translate(["a b. C d."], beam=1)[0].score is None


def test_the_nth_best_of_a_text_is_made_of_the_nth_best_of_its_sentences(translator):
    parts = translator.translate(["a b.", "C d."], beam=3, n_best=3)
    [joined] = translator.translate(["a b. C d."], beam=3, n_best=3)
    assert [best.text for best in joined.n_best] == [
        f"{first.text} {second.text}" for first, second in zip(parts[0].n_best, parts[1].n_best, strict=True)
    ]


def test_without_splitting_a_text_stays_one(translator):
    [whole] = translator.translate(["a b. C d."], split=False, protect=False)
    assert whole.sentences == 1
    assert whole.ids == translator.translate(translator.encode(["a b. C d."]))[0].ids


def test_a_too_long_sentence_is_cut_unless_it_must_stay_whole(translator):
    long = "a b c, " * 150 + "d"
    [answer] = translator.translate([long], beam=1)
    assert answer.cut == 1
    assert answer.sentences > 1
    assert answer.source_tokens >= 600
    with pytest.raises(ValueError, match="sentence 1 has"):
        translator.translate([long], split=False)
    with pytest.raises(ValueError, match="sentence 2 has"):
        translator.translate(["a b", long], split=False)


def test_progress_counts_texts_and_not_sentences(translator):
    counts: list[int] = []
    translator.translate(["a. B. C. D", "e", "f"], beam=1, batch=1, progress=counts.append)
    assert counts == sorted(counts)
    assert counts[-1] == 3


# -- protected spans

SPANS = ("{name}", "{0}", "%s", "%(x)d", "http://example.com/a?b=c", "a@b.org", "<b>", "</b>", "<br/>", "😀", "👍🏽", "5", "100",
         "3.14", "१२", "{неизвестно}", "&amp;")  # fmt: skip
WORDS = st.lists(st.sampled_from(["a", "hello", "world", "how", "b c", "fine"]), min_size=1, max_size=2).map(" ".join)
SENTENCES = st.lists(st.tuples(st.sampled_from(SPANS), WORDS), min_size=1, max_size=3)


@settings(max_examples=12)
@given(SENTENCES, st.booleans(), st.integers(1, 2))
def test_protected_spans_pass_through_a_random_model(untrained, pairs, first, beam):
    words = [word for pair in pairs for word in (pair if first else pair[::-1])]
    source = " ".join(words)
    [answer] = untrained.translate([source], beam=beam, tokens=12)
    spans = find_protected(source)
    for span in spans:
        count = source.split().count(span.text)
        if span.kind == "number":
            assert answer.text.count(span.text) >= 1, (source, answer.text)
        else:
            assert answer.text.count(span.text) == count, (source, answer.text)


@settings(max_examples=8)
@given(SENTENCES, st.booleans())
def test_every_one_of_the_n_best_has_the_protected_spans(untrained, pairs, first):
    source = " ".join(word for pair in pairs for word in (pair if first else pair[::-1]))
    [answer] = untrained.translate([source], beam=3, n_best=3, tokens=12)
    assert answer.n_best[0].text == answer.text
    spans = find_protected(source)
    assert all(is_kept(spans, best.text) for best in answer.n_best[1:]), [best.text for best in answer.n_best]


def test_hypotheses_with_tags_of_their_own_are_not_lost_beside_those_without(untrained):
    texts = ["hello {x} a. World %s b <b>c</b> fine.", "a 😀 b {name} c http://example.com/a?b=c d"]
    for answer in untrained.translate(texts, beam=2, n_best=2, tokens=12):
        assert 1 <= len(answer.n_best) <= 2
        assert answer.n_best[0].text == answer.text


def test_answers_without_n_best_are_joined_with_those_that_have_several(untrained):
    one, two = untrained.translate(["hello", "world"], beam=2, n_best=2, tokens=5)
    bare = dataclasses.replace(one, n_best=[])
    how = SentenceTranslator(*[lambda texts: [[] for _ in texts]] * 7, max_len=9, unk=0, penalty=1.0)
    joined = join_translations(how, ["", "", " ", "", ""], [bare, two])
    assert [best.text for best in joined.n_best] == [f"{one.text} {best.text}" for best in two.n_best]


def test_a_sentence_that_keeps_its_spans_is_translated_once(translator, monkeypatch):
    calls = []
    search = Translator.search
    monkeypatch.setattr(Translator, "search", lambda self, *given, **how: calls.append(1) or search(self, *given, **how))
    translator.translate(["a b c"])
    assert len(calls) == 1


def test_tags_around_a_sentence_leave_its_translation_as_it_is(untrained):
    plain, tagged = untrained.translate(["hello world", "<p> <b>hello world</b>😀"], beam=1)
    assert tagged.text == f"<p> <b>{plain.text}</b>😀"
    assert tagged.restored == 4
    assert plain.restored == 0


def test_spans_stay_as_they_are_translated_if_protection_is_off(untrained):
    [raw] = untrained.translate(["hello {name} world"], beam=1, protect=False)
    assert raw.ids == untrained.translate(untrained.encode(["hello {name} world"]), beam=1)[0].ids


# -- details


def test_details_are_the_probability_of_each_token_and_the_coverage_of_the_source(translator):
    for text in ("a b c d", "a b. C d."):
        [answer] = translator.translate([text], beam=2, details=True)
        assert len(answer.probabilities) == len(answer.ids)
        assert all(0 < probability <= 1 for probability in answer.probabilities)
        assert 0 < answer.coverage <= 1
        [plain] = translator.translate([text], beam=2)
        assert (plain.text, plain.ids) == (answer.text, answer.ids)
        assert (plain.probabilities, plain.coverage) == ([], None)


def test_coverage_is_the_mean_attention_of_each_source_token_of_at_most_one(translator):
    from regard.view.maps import cross_attention

    [answer] = translator.translate(["a b c d"], beam=1, details=True)
    [source] = translator.encode(["a b c d"])
    weights = torch.stack(list(cross_attention(translator, source, answer.ids).values())).mean((0, 1))  # (1 + T, S + 1)
    rows = [[w / sum(row[:-1]) for w in row[:-1]] for row in weights.tolist()]
    sums = [min(1.0, sum(row[column] for row in rows)) for column in range(len(source))]
    assert answer.coverage == pytest.approx(sum(sums) / len(sums), abs=1e-5)


def test_unknown_tokens_of_the_source_are_counted(translator):
    [known, strange] = translator.translate(["a b c", "a ж b 水"])
    assert known.unknown == 0
    assert strange.unknown == translator.encode(["a ж b 水"])[0].count(translator.tokenizer.special.unk) > 0


@pytest.mark.parametrize("texts", [[None], [5], ["a", 3.5], [b"a"]], ids=str)
def test_what_is_no_string_is_refused_by_its_number_and_type(translator, texts):
    with pytest.raises(ValueError, match=rf"text {len(texts)} is .*, of type {type(texts[-1]).__name__}; wanted a string"):
        translator.translate(texts)


@pytest.mark.parametrize("untrained", ["bpe", "words"], indirect=True)
@pytest.mark.parametrize("text", ["I am %s now.", "{name} paid %s for it"])
def test_letters_do_not_follow_a_placeholder_that_was_put_back(untrained, text):
    [answer] = untrained.translate([text], beam=2, tokens=30)
    for span in find_protected(text):
        after = answer.text[answer.text.index(span.text) + len(span.text) :]
        assert not after[:1].isalnum(), answer.text
