"""Our scores are sacreBLEU's own; the alignment error rate is that of its formula."""

import pytest
import sacrebleu
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from regard.tasks.metrics import (
    alignment_error_rate,
    classification_scores,
    evaluate,
    sentence_chrf,
    share,
    translation_scores,
    wilson,
)

ANSWERS = [
    "A man is riding a bicycle down the street .",
    "Two Dogs play in the snow, near a fence.",
    "the girl eats an apple",
    "People standing outside of a building .",
]
ONE = [
    ["A man rides a bicycle down the street ."],
    ["Two dogs are playing in the snow near the fence."],
    ["The girl eats an apple"],
    ["People are standing in front of a building ."],
]
TWO = [[*refs, other] for refs, other in zip(ONE, [
    "A man is riding his bike along a road .",
    "A pair of dogs play in deep snow.",
    "the girl eats an apple",
    "People standing outside of a large building .",
], strict=True)]  # fmt: skip
UNEQUAL = [TWO[0], ONE[1], [*TWO[2], "a girl is eating fruit"], ONE[3]]


def streams(references: list[list[str]]) -> list[list[str]]:
    """As sacreBLEU wants them: the first references of all sentences, then the second ones; none may be missing."""
    return [list(stream) for stream in zip(*references, strict=True)]


def by_name(references: list[list[str]], tokenized: bool = False) -> dict[str, tuple[float, str]]:
    return {score.name: (score.value, score.signature) for score in translation_scores(ANSWERS, references, tokenized)}


@pytest.mark.parametrize("references", [ONE, TWO])
def test_bleu_and_chrf_are_those_of_sacrebleu(references):
    found = by_name(references)
    bleu = sacrebleu.corpus_bleu(ANSWERS, streams(references)).score
    chrf = sacrebleu.corpus_chrf(ANSWERS, streams(references)).score
    assert 0 < bleu < 100
    assert found["BLEU"][0] == pytest.approx(bleu, rel=1e-12)
    assert found["chrF"][0] == pytest.approx(chrf, rel=1e-12)


@pytest.mark.parametrize(("tokenized", "tokenizer"), [(True, "none"), (False, "13a")])
def test_the_lower_cased_bleu_keeps_the_tokens_of_a_tokenized_text(tokenized, tokenizer):
    value, signature = by_name(TWO, tokenized)["BLEU, tokenized, lower-cased" if tokenized else "BLEU, lower-cased"]
    wanted = sacrebleu.corpus_bleu(ANSWERS, streams(TWO), lowercase=True, tokenize=tokenizer, force=True).score
    assert value == pytest.approx(wanted, rel=1e-12)
    assert f"tok:{tokenizer}" in signature
    assert "case:lc" in signature


def test_the_examples_distinguish_the_variants():
    """Otherwise a wrong tokenizer or case would pass."""
    own, lower = by_name(TWO, tokenized=True)["BLEU, tokenized, lower-cased"], by_name(TWO)["BLEU, lower-cased"]
    values = {by_name(TWO)["BLEU"][0], own[0], lower[0]}
    assert len(values) == 3
    assert by_name(ONE)["BLEU"][0] != by_name(UNEQUAL)["BLEU"][0] != by_name(TWO)["BLEU"][0]


@pytest.mark.parametrize("tokenized", [True, False])
def test_sentences_may_have_unequal_numbers_of_references(tokenized):
    """A repeated reference changes no best match, so a full table of repeats gives the same scores."""
    repeated = [(refs * 3)[:3] for refs in UNEQUAL]
    found, wanted = by_name(UNEQUAL, tokenized), by_name(repeated, tokenized)
    assert {name: value for name, (value, _) in found.items()} == pytest.approx(
        {name: value for name, (value, _) in wanted.items()}, rel=1e-12
    )
    assert "nrefs:var" in found["BLEU"][1]


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [1, 3, 0, 2]])
def test_the_order_of_sentences_does_not_matter(order):
    """The first sentence, or the last, may be the one with the fewest references."""
    turned = translation_scores([ANSWERS[i] for i in order], [UNEQUAL[i] for i in order], tokenized=False)
    assert [score.value for score in turned] == pytest.approx(
        [score.value for score in translation_scores(ANSWERS, UNEQUAL, False)]
    )


def test_signatures_state_how_each_score_was_computed():
    found = by_name(TWO)
    for name in ("BLEU", "chrF", "BLEU, lower-cased"):
        assert "nrefs:2" in found[name][1]
        assert f"version:{sacrebleu.__version__}" in found[name][1]
    assert "case:mixed" in found["BLEU"][1]
    assert "tok:13a" in found["BLEU"][1]
    assert "smooth:exp" in found["BLEU"][1]
    assert "nc:6|nw:0" in found["chrF"][1]


def test_exact_is_the_percentage_of_answers_equal_to_any_reference():
    assert by_name(ONE)["exact match"][0] == 0.0  # the third differs in one capital
    assert by_name(TWO)["exact match"][0] == 25.0
    assert {score.name: score.value for score in translation_scores(ANSWERS, [[a] for a in ANSWERS], False)} == pytest.approx(
        {"BLEU": 100, "chrF": 100, "BLEU, lower-cased": 100, "exact match": 100}
    )


@pytest.mark.parametrize("tokenized", [True, False])
def test_each_name_belongs_to_one_signature(tokenized):
    """A score on raw text is not called tokenized."""
    names = [*by_name(TWO, tokenized)]
    assert ("BLEU, tokenized, lower-cased" in names) == tokenized
    signatures = [signature for _, signature in by_name(TWO, tokenized).values()]
    assert len({*names}) == len({*signatures}) == 4


def test_scores_say_how_many_sentences_and_what_is_a_percentage():
    found = {score.name: score for score in translation_scores(ANSWERS, TWO, tokenized=False)}
    assert {score.examples for score in found.values()} == {4}
    assert found["BLEU"].details.startswith("4 sentences; nrefs:2|")
    assert (found["BLEU"].unit, found["exact match"].unit) == ("", "%")
    assert found["exact match"].details == "1 of 4 answers equal to a reference; 95 % confidence 4.56 to 69.94"
    accuracy, f1 = classification_scores(["a", "b"], ["a", "a"], ["a", "b"], "texts")
    assert accuracy.signature == "1 of 2 texts"
    assert f1.unit == accuracy.unit == "%"


@given(st.integers(1, 500).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_wilsons_interval_holds_the_proportions_that_a_score_test_does_not_reject(case):
    """Its ends solve (p̂ - p)² = z² p (1 - p) / n, by which Wilson defined it."""
    right, count = case
    low, high = wilson(right, count)
    assert 0 <= low <= right / count <= high <= 1
    for p in (low, high):
        assert (right / count - p) ** 2 == pytest.approx(1.959963984540054**2 * p * (1 - p) / count, abs=1e-9)


def test_wilsons_interval_is_the_published_one():
    """Newcombe 1998, table I: 81 of 263, and 0 of 20."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert share("accuracy", 81, 263, "images").low == pytest.approx(25.53, abs=5e-3)


def test_bootstrapped_intervals_are_those_of_sacrebleu_and_their_signature_says_so():
    plain, resampled = (translation_scores(ANSWERS * 5, TWO * 5, tokenized=False, bootstrap=n)[0] for n in (0, 200))
    assert (plain.low, plain.high) == (None, None)
    assert resampled.value == plain.value
    wanted = sacrebleu.metrics.BLEU().corpus_score(ANSWERS * 5, streams(TWO * 5), n_bootstrap=200)
    assert (resampled.low, resampled.high) == pytest.approx((wanted._mean - wanted._ci, wanted._mean + wanted._ci))
    assert "bs:200|seed:12345" in resampled.signature
    assert resampled.low < resampled.value < resampled.high


def test_the_chrf_of_a_sentence_is_that_of_sacrebleu():
    wanted = [sacrebleu.sentence_chrf(answer, refs).score for answer, refs in zip(ANSWERS, UNEQUAL, strict=True)]
    assert sentence_chrf(ANSWERS, UNEQUAL) == pytest.approx(wanted)


def test_answers_without_references_are_refused():
    with pytest.raises(ValueError, match="zip"):
        translation_scores(ANSWERS, TWO[:-1], tokenized=False)


def test_a_tokenized_text_of_many_lines_raises_no_warning(caplog):
    """SacreBLEU warns of a hundred lines that end in " ."; here the text is known to be tokenized."""
    for tokenized in (True, False):
        translation_scores(["a dog runs ."] * 150, [["a dog runs ."]] * 150, tokenized)
    assert not caplog.records


@pytest.mark.parametrize("training", [True, False])
def test_an_evaluation_that_fails_restores_the_mode_of_the_model(training):
    def fail():
        raise OSError("no disk")
        yield

    model = nn.Linear(1, 1).train(training)
    with pytest.raises(OSError, match="no disk"):
        evaluate(model, fail(), lambda *_: None)
    assert model.training is training


# Sure links of Och & Ney's form, with one link that is only possible.
SURE = {(0, 0), (1, 1), (2, 3)}
POSSIBLE = SURE | {(2, 2)}


@pytest.mark.parametrize(
    ("predicted", "wanted"),
    [
        (SURE, 0),  # 1 − (3 + 3) / (3 + 3)
        (POSSIBLE, 0),  # 1 − (3 + 4) / (4 + 3)
        ({(2, 2)}, 1 - 1 / 4),  # possible, but no sure link is found
        ({(0, 0), (1, 1)}, 1 - 4 / 5),  # one sure link is missing
        (SURE | {(5, 5)}, 1 - 6 / 7),  # one link is wrong
        ({(0, 0), (2, 2), (5, 5), (6, 6)}, 1 - (1 + 2) / 7),
        ({(1, 0), (0, 1)}, 1),
        (set(), 1),
    ],
)
def test_the_alignment_error_rate_is_that_computed_by_hand(predicted, wanted):
    assert alignment_error_rate(predicted, SURE, POSSIBLE) == pytest.approx(wanted)


links = st.frozensets(st.tuples(st.integers(0, 3), st.integers(0, 3)))


@given(predicted=links, sure=links, more=links)
def test_the_alignment_error_rate_is_zero_only_between_sure_and_possible_and_one_only_outside(predicted, sure, more):
    possible = sure | more
    assume(predicted or sure)
    rate = alignment_error_rate(predicted, sure, possible)
    assert 0 <= rate <= 1
    assert (rate == 0) == (sure <= predicted <= possible)
    assert (rate == 1) == (not predicted & possible)


@given(predicted=links, sure=links)
def test_with_sure_links_only_the_alignment_error_rate_is_one_minus_f1(predicted, sure):
    assume(predicted & sure)
    precision, recall = len(predicted & sure) / len(predicted), len(predicted & sure) / len(sure)
    assert alignment_error_rate(predicted, sure, sure) == pytest.approx(1 - 2 * precision * recall / (precision + recall))


def test_sure_links_that_are_not_possible_and_no_links_at_all_are_refused():
    with pytest.raises(ValueError, match="1 sure links are not possible links"):
        alignment_error_rate(SURE, SURE, SURE - {(0, 0)})
    with pytest.raises(ValueError, match="no predicted and no sure links"):
        alignment_error_rate(set(), set(), POSSIBLE)
