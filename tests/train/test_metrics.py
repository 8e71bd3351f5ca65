"""Our scores are sacreBLEU's own."""

import pytest
import sacrebleu

from regard.tasks.metrics import score

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
TWO = [[*one, other] for one, other in zip(ONE, [
    "A man is riding his bike along a road .",
    "A pair of dogs play in deep snow.",
    "the girl eats an apple",
    "People standing outside of a large building .",
], strict=True)]  # fmt: skip
UNEQUAL = [TWO[0], ONE[1], [*TWO[2], "a girl is eating fruit"], ONE[3]]


def streams(references: list[list[str]]) -> list[list[str]]:
    """As sacreBLEU wants them: the first references of all sentences, then the second ones; none may be missing here."""
    return [list(stream) for stream in zip(*references, strict=True)]


def by_name(references: list[list[str]], tokenised: bool = False) -> dict[str, tuple[float, str]]:
    return {one.name: (one.value, one.signature) for one in score(ANSWERS, references, tokenised)}


@pytest.mark.parametrize("references", [ONE, TWO])
def test_bleu_and_chrf_are_those_of_sacrebleu(references):
    found = by_name(references)
    bleu = sacrebleu.corpus_bleu(ANSWERS, streams(references)).score
    chrf = sacrebleu.corpus_chrf(ANSWERS, streams(references)).score
    assert 0 < bleu < 100
    assert found["BLEU"][0] == pytest.approx(bleu, rel=1e-12)
    assert found["chrF"][0] == pytest.approx(chrf, rel=1e-12)


@pytest.mark.parametrize(("tokenised", "tokenizer"), [(True, "none"), (False, "13a")])
def test_the_lower_cased_bleu_keeps_the_tokens_of_a_tokenised_text(tokenised, tokenizer):
    value, signature = by_name(TWO, tokenised)["BLEU, tokenised, lower-cased"]
    wanted = sacrebleu.corpus_bleu(ANSWERS, streams(TWO), lowercase=True, tokenize=tokenizer, force=True).score
    assert value == pytest.approx(wanted, rel=1e-12)
    assert f"tok:{tokenizer}" in signature
    assert "case:lc" in signature


def test_the_trial_text_tells_the_variants_apart():
    """Else a wrong tokenizer or case would go unseen."""
    lower = "BLEU, tokenised, lower-cased"
    values = {by_name(TWO)["BLEU"][0], by_name(TWO, tokenised=False)[lower][0], by_name(TWO, tokenised=True)[lower][0]}
    assert len(values) == 3
    assert by_name(ONE)["BLEU"][0] != by_name(UNEQUAL)["BLEU"][0] != by_name(TWO)["BLEU"][0]


@pytest.mark.parametrize("tokenised", [True, False])
def test_sentences_may_have_unequal_numbers_of_references(tokenised):
    """To say a reference twice changes no best match, so a full table of repeats is the law to hold to."""
    repeated = [(refs * 3)[:3] for refs in UNEQUAL]
    found, wanted = by_name(UNEQUAL, tokenised), by_name(repeated, tokenised)
    assert {name: value for name, (value, _) in found.items()} == pytest.approx(
        {name: value for name, (value, _) in wanted.items()}, rel=1e-12
    )
    assert "nrefs:var" in found["BLEU"][1]


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [1, 3, 0, 2]])
def test_the_order_of_sentences_does_not_matter(order):
    """The first sentence, or the last, may be the one with the fewest references."""
    turned = score([ANSWERS[i] for i in order], [UNEQUAL[i] for i in order], tokenised=False)
    assert [one.value for one in turned] == pytest.approx([one.value for one in score(ANSWERS, UNEQUAL, False)])


def test_signatures_say_how_each_figure_was_computed():
    found = by_name(TWO)
    for name in ("BLEU", "chrF", "BLEU, tokenised, lower-cased"):
        assert "nrefs:2" in found[name][1]
        assert f"version:{sacrebleu.__version__}" in found[name][1]
    assert "case:mixed" in found["BLEU"][1]
    assert "tok:13a" in found["BLEU"][1]
    assert "smooth:exp" in found["BLEU"][1]
    assert "nc:6|nw:0" in found["chrF"][1]


def test_exact_is_the_share_of_answers_equal_to_any_reference():
    assert by_name(ONE)["exact"][0] == 0.0  # the third differs in one capital
    assert by_name(TWO)["exact"][0] == 25.0
    assert {one.name: one.value for one in score(ANSWERS, [[a] for a in ANSWERS], False)} == pytest.approx(
        {"BLEU": 100, "chrF": 100, "BLEU, tokenised, lower-cased": 100, "exact": 100}
    )


def test_answers_without_references_are_refused():
    with pytest.raises(ValueError, match="zip"):
        score(ANSWERS, TWO[:-1], tokenised=False)


def test_a_tokenised_text_of_many_lines_raises_no_warning(caplog):
    """A scorer may suspect a hundred lines that end in " ."; that the text is tokenised is known here."""
    for tokenised in (True, False):
        score(["a dog runs ."] * 150, [["a dog runs ."]] * 150, tokenised)
    assert not caplog.records
