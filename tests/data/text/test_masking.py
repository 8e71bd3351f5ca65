"""Which tokens are masked, how many, and that spans restore the text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_windows import restore

from regard.data.text.masking import corrupt_spans, mask_tokens

SPECIAL, MASK, VOCAB = (0, 1, 2, 3, 4), 4, 200
SENTINELS = range(1000, 900, -1)

seeds = st.integers(0, 10_000)
lengths = st.integers(2, 200)


@settings(max_examples=30)
@given(seed=seeds, rate=st.sampled_from([0.05, 0.15, 0.4]))
def test_chosen_tokens_are_mostly_masked_sometimes_random_and_sometimes_kept(seed, rate):
    rng = np.random.default_rng(seed)
    text = rng.integers(5, VOCAB, (40, 2500))
    shown, chosen = mask_tokens(text, SPECIAL, MASK, VOCAB, rng, rate)
    share = lambda some: some.sum() / chosen.sum()  # noqa: E731
    near = 2.5 / np.sqrt(chosen.sum())  # five standard deviations of a share, at most
    assert chosen.mean() == pytest.approx(rate, abs=5 * np.sqrt(rate / text.size))
    assert share((shown == MASK) & chosen) == pytest.approx(0.8, abs=near)
    others = (shown != MASK) & (shown != text)
    assert share(others) == pytest.approx(0.1 - 0.1 / (VOCAB - 5), abs=near)
    assert share((shown == text) & chosen) == pytest.approx(0.1 + 0.1 / (VOCAB - 5), abs=near)
    assert (shown == text)[~chosen].all()


@given(seed=seeds)
def test_special_tokens_are_never_chosen_and_never_sampled(seed):
    rng = np.random.default_rng(seed)
    text = rng.integers(0, VOCAB, (8, 200))
    shown, chosen = mask_tokens(text, SPECIAL, MASK, VOCAB, rng, 0.5)
    special = np.isin(text, SPECIAL)
    assert not chosen[special].any()
    assert not np.isin(shown[chosen], [0, 1, 2, 3]).any()


@given(seed=seeds, length=lengths, rate=st.sampled_from([0.05, 0.15, 0.5, 0.9]), mean=st.sampled_from([0.5, 1.0, 3.0, 10.0]))
def test_source_and_target_restore_the_text(seed, length, rate, mean):
    rng = np.random.default_rng(seed)
    text = rng.integers(5, VOCAB, length)
    left, spans = corrupt_spans(text, SENTINELS, rng, rate, mean)
    assert np.array_equal(restore(left, spans, SENTINELS), text)


@given(seed=seeds, length=lengths, rate=st.sampled_from([0.05, 0.15, 0.5]), mean=st.sampled_from([1.0, 3.0]))
def test_the_fraction_cut_out_is_the_rate_and_spans_never_touch(seed, length, rate, mean):
    rng = np.random.default_rng(seed)
    left, spans = corrupt_spans(rng.integers(5, VOCAB, length), SENTINELS, rng, rate, mean)
    special = left[left >= 900]
    cut = int((spans < 900).sum())
    assert cut == min(max(round(length * rate), 1), length - 1)
    assert special.tolist() == list(SENTINELS[: len(special)])  # in their order, each once
    assert spans[spans >= 900].tolist() == list(SENTINELS[: len(special) + 1])  # and one more at the end
    assert spans[-1] == SENTINELS[len(special)]
    assert left[0] < 900  # a text begins with what stays,
    assert not ((left[1:] >= 900) & (left[:-1] >= 900)).any()  # and something stays between two spans


@given(seed=seeds, length=st.integers(1, 10))
def test_at_least_one_token_is_chosen_unless_all_are_special(seed, length):
    rng = np.random.default_rng(seed)
    text = rng.integers(3, 8, (1, length))
    _, chosen = mask_tokens(text, SPECIAL, MASK, VOCAB, rng, 0.01)
    assert chosen.any() == (~np.isin(text, SPECIAL)).any()
    assert not chosen[np.isin(text, SPECIAL)].any()


@given(seed=seeds)
def test_random_tokens_are_sampled_from_all_that_are_not_special(seed):
    rng = np.random.default_rng(seed)
    text = np.full((100, 100), 9)
    shown, chosen = mask_tokens(text, SPECIAL, MASK, 12, rng, 1.0)
    assert chosen.all()
    sampled = shown[(shown != MASK) & (shown != 9)]
    assert set(sampled.tolist()) == {5, 6, 7, 8, 10, 11}


def test_spans_have_three_tokens_on_average_and_all_lengths():
    rng, lengths = np.random.default_rng(0), []
    for _ in range(300):
        _, spans = corrupt_spans(np.full(200, 7), SENTINELS, rng)
        lengths += np.diff(np.flatnonzero(spans >= 900)).tolist()
    inside = np.array(lengths) - 1
    assert inside.mean() == pytest.approx(3, abs=1e-9)  # 30 tokens in 10 spans, every time
    assert set(inside.tolist()) >= {1, 2, 3, 4, 5, 6, 7, 8}
    assert inside.min() == 1


def test_there_are_never_more_spans_than_sentinels_for_them():
    left, spans = corrupt_spans(np.arange(5, 500), SENTINELS[:4], np.random.default_rng(0))
    assert (left >= 900).sum() == 3
    assert np.array_equal(restore(left, spans, SENTINELS[:4]), np.arange(5, 500))


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_sentinels_are_refused(count):
    with pytest.raises(ValueError, match=f"{count} sentinels cannot mark a span and its end; use <extra_id_0>"):
        corrupt_spans(np.arange(5, 50), SENTINELS[:count], np.random.default_rng(0))


def test_a_text_too_short_to_cut_is_refused():
    with pytest.raises(ValueError, match="1 tokens has no span to spare"):
        corrupt_spans(np.array([7]), SENTINELS, np.random.default_rng(0))
