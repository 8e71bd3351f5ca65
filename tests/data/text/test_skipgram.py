"""Skip-gram batches: what they drop, how far windows reach, what they draw, and that they resume."""

from itertools import islice, pairwise

import numpy as np
import pytest

from regard.data.text import skipgram
from regard.data.text.skipgram import WordSampler, all_skipgrams, count_words, keep_probability, noise_distribution, skipgrams

EOS, FIRST = 2, 4  # ids below FIRST are special
WINDOW = 3


def make_text(lines, length, vocab=40, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.integers(FIRST, vocab, (lines, length))
    return np.concatenate([rows, np.full((lines, 1), EOS)], 1).ravel().astype(np.uint16)


def sampler_of(text, window=WINDOW, sample=0.0, vocab=40):
    return WordSampler.of(count_words(text, vocab, range(FIRST)), window, sample, EOS)


def pairs_of(batch):
    """The (centre, context) pairs of a batch, one by one, and for each its distance."""
    window = (batch.words.shape[1] - batch.left.shape[1]) // 2
    found = []
    for words, lefts, rights in zip(batch.words.tolist(), batch.left.tolist(), batch.right.tolist(), strict=True):
        for place, (left, right) in enumerate(zip(lefts, rights, strict=True), window):
            found += [(words[place], words[place + k], k) for k in range(-left, right + 1) if k]
    return found


# Laws of the distributions


def test_an_occurrence_is_kept_with_the_probability_of_the_authors_program():
    counts = np.array([0, 900, 90, 9, 1])
    by_hand = [0, *(min(1, (0.01 / (n / 1000)) ** 0.5 + 0.01 / (n / 1000)) for n in (900, 90, 9, 1))]
    assert keep_probability(counts, 0.01) == pytest.approx(by_hand)
    assert keep_probability(counts, 0.0).tolist() == [0, 1, 1, 1, 1]


def test_a_batch_drops_words_as_often_as_the_law_says():
    text = np.tile(np.array([4] * 8 + [5], np.uint16), 5000)
    sampler = sampler_of(text, sample=0.02)
    [batch] = all_skipgrams(text, sampler, 45_000)
    window = sampler.window
    centres = batch.words[:, window:-window][(batch.left + batch.right) > 0].numpy()
    for word, count in ((4, 40_000), (5, 5_000)):
        wanted, sd = count * sampler.keep[word], (count * sampler.keep[word] * (1 - sampler.keep[word])) ** 0.5
        assert sampler.keep[word] < 1
        assert abs((centres == word).sum() - wanted) < 4 * sd


def test_every_reach_of_a_window_is_equally_likely():
    text = make_text(1, 60_000)
    [batch] = all_skipgrams(text, sampler_of(text, window=5), 100_000)
    reaches = np.bincount(batch.left.numpy().ravel(), minlength=6)[1:]
    assert np.abs(reaches - 12_000).max() < 4 * (60_000 * 0.2 * 0.8) ** 0.5


def test_negatives_follow_the_counts_to_the_power_of_three_quarters(monkeypatch):
    monkeypatch.setattr(skipgram, "SHARED_NEGATIVES", 200_000)
    counts = np.array([0, 0, 0, 0, 1, 16, 81, 256])
    wanted = np.array([0, 0, 0, 0, 1, 8, 27, 64]) / 100
    assert noise_distribution(counts) == pytest.approx(wanted)
    text = np.array([4, 5, 6, 7] * 4, np.uint16)
    [batch] = all_skipgrams(text, WordSampler.of(counts, WINDOW, 0.0, EOS), 100)
    found = np.bincount(batch.negatives.numpy().ravel(), minlength=8) / batch.negatives.numel()
    assert np.abs(found - wanted).max() < 4 * (0.25 / 200_000) ** 0.5
    assert found[:FIRST].sum() == 0


def test_words_are_counted_and_special_tokens_are_not(monkeypatch):
    monkeypatch.setattr(skipgram, "CHUNK", 7)
    text = make_text(10, 5)
    wanted = np.array([(text == word).sum() if word >= FIRST else 0 for word in range(40)])
    assert count_words(text, 40, range(FIRST)).tolist() == wanted.tolist()


# Pairs


@pytest.mark.parametrize("length", [1, 2, 3, 7, 9, 150])
def test_pairs_are_those_of_a_plain_loop_over_the_lines(length):
    text = make_text(12, length)
    batches = list(all_skipgrams(text, sampler_of(text, window=1), 10_000))  # every reach is 1: nothing is random
    wanted = []
    for line in text.reshape(12, length + 1)[:, :-1].tolist():
        wanted += [(a, b, 1) for a, b in pairwise(line)]
        wanted += [(b, a, -1) for a, b in pairwise(line)]
    assert sorted(pair for batch in batches for pair in pairs_of(batch)) == sorted(wanted)
    assert sum(batch.tokens for batch in batches) == len(wanted)


def test_no_pair_crosses_a_line_or_has_a_special_token():
    text = np.concatenate([[4, 5, 3, 6, EOS, 7, 8, EOS, 9, EOS]] * 30).astype(np.uint16)
    [batch] = all_skipgrams(text, sampler_of(text, window=5), 1000)
    lines = {frozenset((a, b)) for a, b, _ in pairs_of(batch)}
    assert lines == {frozenset(pair) for pair in ((4, 5), (4, 6), (5, 6), (7, 8))}  # an unknown word, 3, is left out


def test_an_epoch_reads_nearly_the_whole_text_in_another_order():
    text = make_text(300, 30)
    sampler = sampler_of(text, window=1)
    epochs = {0: [], 1: []}
    for make, after in skipgrams(text, sampler, 2000, 1):
        epoch = after.epoch - (after.batch == 0)
        if epoch > 1:
            break
        epochs[epoch] += pairs_of(make())
    assert epochs[0] != epochs[1]
    assert all(0.75 < len(pairs) / (300 * 29 * 2) <= 1 for pairs in epochs.values())  # a random part of a segment is cut


def test_batches_resume_identically_from_any_position():
    text = make_text(100, 40)
    sampler = sampler_of(text, sample=0.01)
    stream = list(islice(skipgrams(text, sampler, 1500, 7), 9))
    for at in range(8):
        resumed = skipgrams(text, sampler, 1500, 7, stream[at][1])
        for (make, after), (again, same) in zip(stream[at + 1 :], resumed, strict=False):
            assert after == same
            assert all((a == b).all() for a, b in zip(make(), again(), strict=True))


def test_evaluation_drops_and_draws_the_same_words_every_time():
    text = make_text(50, 20)
    first, second = (list(all_skipgrams(text, sampler_of(text, sample=0.01), 300)) for _ in range(2))
    assert all((a == b).all() for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))


def test_subsampling_never_empties_a_batch():
    text = np.array([4, 4, 4, EOS] * 40, np.uint16)
    sampler = sampler_of(text, sample=1e-9)
    assert all(make().tokens > 0 for make, _ in islice(skipgrams(text, sampler, 8, 1), 40))


@pytest.mark.parametrize("length", [0, 1])
def test_a_text_too_short_for_a_pair_is_refused_without_keys_that_word_data_lacks(length):
    text = np.full(length, FIRST, np.uint16)
    with pytest.raises(ValueError, match=f"^a text of {length} tokens has no pair of words; give a longer text$"):
        next(skipgrams(text, sampler_of(make_text(2, 5)), 20, 1))


def test_a_text_without_pairs_is_refused():
    text = np.array([4, EOS] * 40, np.uint16)
    with pytest.raises(ValueError, match="no line of this text has two words"):
        next(skipgrams(text, sampler_of(text), 20, 1))
    assert list(all_skipgrams(text, sampler_of(text), 20)) == []
