"""Batches: every pair or text once an epoch, within the token budget, in an order that can be resumed."""

import weakref
from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streams import built

from regard.data.position import DataPosition
from regard.data.text import batches as batch
from regard.data.text import store
from regard.data.text.batches import PairBatch, all_labeled_batches, all_pair_batches, pad
from regard.data.text.store import encode_labeled, encode_pairs
from regard.data.text.tokenizer import BOS, EOS, PAD, UNK, SpecialTokens
from regard.tasks.metrics import to_device

TOKENS = SpecialTokens(PAD, BOS, EOS, UNK, None, ())
THEIRS = SpecialTokens(pad=7, bos=7, eos=5, unk=6, mask=None, sentinels=())  # another library's, whose start token is the padding


def pair_batches(*how):
    return built(batch.pair_batches(*how))


def labeled_batches(*how):
    return built(batch.labeled_batches(*how))


class Numbers:
    """A tokenizer of numbers written out."""

    vocab, digest = 5000, "numbers"

    def encode(self, lines):
        return [[int(word) for word in line.split()] for line in lines]


def corpus(count: int, max_len: int = 12, seed: int = 0):
    """Pairs whose first token is their index, so that no two are alike."""
    rng = np.random.default_rng(seed)
    pairs = []
    for number in range(count):
        sides = [rng.integers(10, 20, rng.integers(0, max_len)).tolist() for _ in range(2)]
        pairs.append(([100 + number, *sides[0]], [100 + number, *sides[1]]))
    text = [tuple(" ".join(map(str, side)) for side in pair) for pair in pairs]
    return encode_pairs(lambda: iter(text), "numbers", [count, max_len, seed, store.BLOCK], Numbers(), 256), pairs


@pytest.fixture
def small(monkeypatch):
    """Blocks of 5 pairs, pools of 3 blocks: a corpus of 50 has four pools, and no part is full."""
    monkeypatch.setattr(store, "BLOCK", 5)
    monkeypatch.setattr(batch, "POOL", 3)


def pairs_of(one) -> list[tuple[list[int], list[int]]]:
    """The pairs of a batch; its padding, starts and ends are checked on the way."""
    found = []
    for source, target in zip(one.source.tolist(), one.target.tolist(), strict=True):
        s, t = source.index(EOS), target.index(EOS)
        assert target[0] == BOS
        assert set(source[s + 1 :]) <= {PAD}
        assert set(target[t + 1 :]) <= {PAD}
        found.append((source[:s], target[1:t]))
    return found


def epochs(found, tokens: int, seed: int, count: int, position: DataPosition = DataPosition()):
    """The batches of `count` epochs from a position on, each with the position after it."""
    pools = -(-found.blocks // batch.POOL)
    for one, after in pair_batches(found, TOKENS, tokens, seed, position):
        yield one, after
        if (after.epoch, after.pool) == (count - 1, pools):
            return


def test_every_pair_comes_exactly_once_an_epoch(small):
    found, pairs = corpus(50)
    got = [pair for one, _ in epochs(found, 40, 1, 1) for pair in pairs_of(one)]
    assert sorted(got) == sorted(pairs)
    twice = [pair for one, _ in epochs(found, 40, 1, 2) for pair in pairs_of(one)]
    assert Counter(map(str, twice)) == Counter({str(pair): 2 for pair in pairs})
    assert sorted(twice[:50]) == sorted(pairs)


def test_every_pair_comes_once_for_evaluation(small):
    found, pairs = corpus(50)
    got = [pair for one in all_pair_batches(found, TOKENS, 40) for pair in pairs_of(one)]
    assert sorted(got) == sorted(pairs)
    assert [one.source.tolist() for one in all_pair_batches(found, TOKENS, 40)] == [
        one.source.tolist() for one in all_pair_batches(found, TOKENS, 40)
    ]


@pytest.mark.parametrize("count", [1, 4, 5, 6, 15, 16])
def test_a_corpus_of_any_size_is_covered(small, count):
    found, pairs = corpus(count)
    assert sorted(p for one, _ in epochs(found, 30, 1, 1) for p in pairs_of(one)) == sorted(pairs)
    assert sorted(p for one in all_pair_batches(found, TOKENS, 30) for p in pairs_of(one)) == sorted(pairs)


def test_no_batch_is_over_the_budget_unless_it_is_one_pair(small):
    found, _ = corpus(50, max_len=40)
    for tokens in (1, 20, 33, 64, 500):
        streams = ([one for one, _ in epochs(found, tokens, 1, 1)], list(all_pair_batches(found, TOKENS, tokens)))
        for stream in streams:
            for one in stream:
                rows, longer = len(one.source), max(one.source.shape[1], one.target.shape[1] - 1)
                assert rows * longer <= tokens or rows == 1
    assert len(streams[0]) < 50


def test_batches_fill_the_budget(small):
    """Of neighbours in the order of length, the first could not have taken the second's first pair as well."""
    found, _ = corpus(15, max_len=8)  # one pool
    for one, after in pairwise(all_pair_batches(found, TOKENS, 40)):
        longer = max(one.source.shape[1], one.target.shape[1] - 1, *(len(side) + 1 for side in pairs_of(after)[0]))
        assert (len(one.source) + 1) * longer > 40


def test_pairs_of_a_batch_have_similar_lengths(small):
    found, _ = corpus(50, max_len=30)
    real = padded = 0
    for one, _ in epochs(found, 100, 1, 1):
        real, padded = real + int((one.target != PAD).sum()), padded + one.target.numel()
    assert real / padded > 0.75


def test_tokens_are_those_to_predict():
    found, pairs = corpus(20)
    assert sum(one.tokens for one in all_pair_batches(found, TOKENS, 64)) == sum(len(target) + 1 for _, target in pairs)


def listing(found, seed: int, tokens: int = 40, count: int = 1, position: DataPosition = DataPosition()) -> list:
    return [pairs_of(one) for one, _ in epochs(found, tokens, seed, count, position)]


def test_the_order_is_a_function_of_seed_and_epoch(small):
    found, _ = corpus(50)
    assert listing(found, 1) == listing(found, 1)
    assert listing(found, 1) != listing(found, 2)
    both = listing(found, 1, count=2)
    half = len(listing(found, 1))
    assert both[:half] == listing(found, 1)
    assert both[half:] != both[:half]
    assert both[half:] == listing(found, 1, count=2, position=DataPosition(1, 0, 0))


def test_batches_are_not_sorted_by_length_and_blocks_not_in_file_order(small):
    found, _ = corpus(200, max_len=30)
    widths = [one.target.shape[1] for one, _ in epochs(found, 60, 1, 1)]
    assert widths != sorted(widths)
    first = [pair[0][0] - 100 for batch_ in listing(found, 1)[:10] for pair in batch_]
    assert max(first) > 15  # beyond the first block of the file


def test_epochs_group_pairs_differently(small):
    found, _ = corpus(50)
    both = [listing(found, 1, count=epoch + 1, position=DataPosition(epoch, 0, 0)) for epoch in (0, 1)]
    groups = [{frozenset(pair[0][0] for pair in one) for one in order} for order in both]
    assert len(groups[0] & groups[1]) < len(groups[0]) / 2


def test_positions_have_no_gaps(small):
    found, _ = corpus(50)
    positions = [DataPosition(), *(after for _, after in epochs(found, 40, 1, 2))]
    for before, after in pairwise(positions):
        assert after > before
        epoch, pool, number = before
        assert after in ((epoch, pool, number + 1), (epoch, pool + 1, 0), (epoch + 1, 0, 1), (epoch + 1, 1, 0))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 60), tokens=st.integers(5, 120), seed=st.integers(0, 5), stop=st.integers(0, 70),
    sizes=st.sampled_from([(5, 3), (1, 1), (7, 2), (4096, 16)]),
)  # fmt: skip
def test_training_resumes_from_any_position_with_the_same_batches(monkeypatch, count, tokens, seed, stop, sizes):
    monkeypatch.setattr(store, "BLOCK", sizes[0])
    monkeypatch.setattr(batch, "POOL", sizes[1])
    found, _ = corpus(count)
    whole = list(islice(pair_batches(found, TOKENS, tokens, seed), stop + 25))
    position = whole[stop - 1][1] if stop else DataPosition()
    rest = list(islice(pair_batches(found, TOKENS, tokens, seed, DataPosition(*list(position))), 25))
    for (a, after_a), (b, after_b) in zip(whole[stop:], rest, strict=True):
        assert torch.equal(a.source, b.source)
        assert torch.equal(a.target, b.target)
        assert after_a == after_b


def test_resuming_reads_no_earlier_pool(small, monkeypatch):
    found, _ = corpus(50)
    read = []
    real = type(found).read
    monkeypatch.setattr(type(found), "read", lambda self, blocks: read.append(list(blocks)) or real(self, blocks))
    next(pair_batches(found, TOKENS, 40, 1, DataPosition(7, 2, 0)))
    assert len(read) == 1


def test_no_more_than_one_pool_is_in_memory(small, monkeypatch):
    found, _ = corpus(200)
    read = []
    real = type(found).read
    monkeypatch.setattr(type(found), "read", lambda self, blocks: read.append(list(blocks)) or real(self, blocks))
    list(epochs(found, 40, 1, 1))
    list(all_pair_batches(found, TOKENS, 40))
    assert max(map(len, read)) == 3
    assert sorted(b for blocks in read for b in blocks) == sorted([*range(40)] * 2)


def test_pad_gives_each_sentence_its_end():
    assert pad([[5, 6, 7], [8], []], TOKENS).tolist() == [[5, 6, 7, EOS], [8, EOS, PAD, PAD], [EOS, PAD, PAD, PAD]]
    assert pad([[5]], TOKENS).dtype == torch.long
    assert pad([[8, 9], [8]], THEIRS).tolist() == [[8, 9, 5], [8, 5, 7]]


def test_other_special_tokens_are_used_instead_of_ours():
    found, pairs = corpus(20)
    ours, theirs = list(all_pair_batches(found, TOKENS, 64)), list(all_pair_batches(found, THEIRS, 64))
    for one, other in zip(ours, theirs, strict=True):
        for side, here in ((one.source, other.source), (one.target, other.target)):
            for mine, yours in ((PAD, 7), (BOS, 7), (EOS, 5)):
                side = torch.where(side == mine, yours, side)
            assert torch.equal(side, here)
        assert other.tokens == one.tokens
        assert to_device(other, torch.device("cpu")).pad == 7
    assert sum(one.tokens for one in theirs) == sum(len(target) + 1 for _, target in pairs)


def test_a_batch_made_by_hand_has_our_padding():
    assert PairBatch(torch.tensor([[5, EOS]]), torch.tensor([[BOS, 5, EOS, PAD]])).tokens == 2


def labelled_corpus(count: int, max_len: int = 12):
    """Texts whose first token is their index, and whose class is the index modulo 3."""
    rng = np.random.default_rng(1)
    texts = [[100 + n, *rng.integers(10, 20, rng.integers(0, max_len)).tolist()] for n in range(count)]
    rows = [(" ".join(map(str, text)), "abc"[n % 3]) for n, text in enumerate(texts)]
    what = ["labelled", count, max_len, store.BLOCK]
    return encode_labeled(lambda: iter(rows), "abc", "numbers", what, Numbers(), 256), [
        (text, n % 3) for n, text in enumerate(texts)
    ]


def texts_of(one, special: SpecialTokens) -> list[tuple[list[int], int]]:
    """The texts of a batch and their classes, by the mask alone; padding is checked on the way."""
    assert one.mask.shape == (len(one.text), 1, 1, one.text.shape[1])
    found = []
    for text, real, label in zip(one.text, one.mask[:, 0, 0], one.label.tolist(), strict=True):
        assert set(text[~real].tolist()) <= {special.pad}
        first, *inside, last = text[real].tolist()
        assert (first, last) == (special.bos, special.eos)
        found.append((inside, label))
    return found


@pytest.mark.parametrize("special", [TOKENS, THEIRS, SpecialTokens(5, 5, 5, 5, None, ())])  # GPT-2 has one token for all
def test_every_labelled_text_comes_once_an_epoch_with_its_class(small, special):
    found, texts = labelled_corpus(50)
    pools = -(-found.blocks // batch.POOL)
    got = []
    for one, after in labeled_batches(found, special, 40, 1):
        got += texts_of(one, special)
        assert one.text.numel() <= 40 or len(one.text) == 1
        assert one.tokens == len(one.label)
        if (after.epoch, after.pool) == (0, pools):
            break
    assert sorted(got) == sorted(texts)
    assert got != texts
    once = list(all_labeled_batches(found, special, 40))
    assert sorted(text for one in once for text in texts_of(one, special)) == sorted(texts)
    assert max(one.text.numel() for one in once if len(one.text) > 1) <= 40
    assert sum(one.tokens for one in once) == 50


def test_labelled_texts_resume_from_any_position(small):
    found, _ = labelled_corpus(50)
    whole = list(islice(labeled_batches(found, TOKENS, 40, 3), 40))
    for stop in (1, 7, 20):
        rest = islice(labeled_batches(found, TOKENS, 40, 3, whole[stop - 1][1]), 40 - stop)
        for (a, after_a), (b, after_b) in zip(whole[stop:], rest, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, to_device(b, torch.device("cpu")), strict=True))
            assert after_a == after_b


def test_batches_built_late_equal_those_built_at_once(small):
    found, _ = corpus(50)
    makes = [make for make, _ in islice(batch.pair_batches(found, TOKENS, 40, 1), 30)]  # several pools
    for make, (wanted, _) in zip(makes[::-1], [*islice(pair_batches(found, TOKENS, 40, 1), 30)][::-1], strict=True):
        assert torch.equal(make().source, wanted.source)
        assert torch.equal(make().target, wanted.target)


def test_a_batch_is_taken_from_its_pool_when_it_is_built(small, monkeypatch):
    found, _ = corpus(50)
    taken: list[int] = []
    take = batch.Pool.take
    monkeypatch.setattr(batch.Pool, "take", lambda pool, rows: taken.append(len(rows)) or take(pool, rows))
    stream = batch.pair_batches(found, TOKENS, 40, 1)
    make, after = next(stream)
    assert after.batch == 1
    assert taken == []
    make()
    assert len(taken) == 1


def test_no_batch_keeps_a_pool_while_the_next_is_read(small, monkeypatch):
    found, _ = corpus(50)
    alive: list[weakref.ref] = []
    read = type(found).read

    def spy(store, blocks):
        assert not any(tokens() is not None for tokens in alive)
        pool = read(store, blocks)
        alive.append(weakref.ref(pool.tokens))
        return pool

    monkeypatch.setattr(type(found), "read", spy)
    stream, pools = batch.pair_batches(found, TOKENS, 40, 1), set()
    while len(pools) < 3:
        make, after = next(stream)  # as in the training loop, `make` is kept until the next one is there
        make()
        pools.add((after.epoch, after.pool))
    assert len(alive) >= 2
