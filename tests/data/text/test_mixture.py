"""`MixedStore`: each set has its share of an epoch, in an order that is a function of (seed, epoch)."""

from itertools import islice

import numpy as np
import pytest

from regard.data.position import DataPosition
from regard.data.text import batches, mixture, store
from regard.data.text.batches import pair_batches
from regard.data.text.config import TextData, parse_mix
from regard.data.text.mixture import MixedStore
from regard.data.text.store import encode_pairs
from regard.data.text.tokenizer import train_tokenizer


@pytest.fixture
def make_store(monkeypatch):
    """Stores of numbered pairs, in blocks of 8."""
    for module in (store, mixture):
        monkeypatch.setattr(module, "BLOCK", 8)
    monkeypatch.setattr(batches, "POOL", 4)
    tokenizer = train_tokenizer(["0123456789 on"], "characters", 40)

    def make(name, count):
        pairs = [(f"{name}{i}", "0" * (1 + i % 5)) for i in range(count)]
        return encode_pairs(lambda: iter(pairs), name, [name, count], tokenizer, 20)

    return make, tokenizer


def read_epoch(mixed, tokenizer, seed, epoch):
    """The sources of an epoch, by set."""
    found = {"n": [], "o": []}
    for pool in mixed.pools(seed, epoch, 4):
        pairs = mixed.read(pool)
        for start, length in zip(pairs.starts, pairs.sources, strict=True):
            text = tokenizer.decode(pairs.tokens[start : start + length].tolist())
            found[text[0]].append(int(text[1:]))
    return found


@pytest.mark.parametrize(("new", "old", "share"), [(30, 100, 0.5), (30, 7, 0.5), (50, 100, 0.2), (20, 41, 0.8), (3, 100, 0.25)])
def test_an_epoch_has_every_own_pair_once_and_the_others_by_their_share(make_store, new, old, share):
    make, tokenizer = make_store
    mixed = MixedStore(make("n", new), [(make("o", old), share)])
    for epoch in range(3):
        found = read_epoch(mixed, tokenizer, 1, epoch)
        assert sorted(found["n"]) == list(range(new))
        assert len(found["o"]) == mixed.counts[0] == round(new * share / (1 - share))
        assert mixed.pairs == new + len(found["o"])


@pytest.mark.parametrize(("old", "epochs"), [(100, 10), (7, 2)])
def test_no_old_pair_comes_again_before_all_others_have(make_store, old, epochs):
    make, tokenizer = make_store
    mixed = MixedStore(make("n", 30), [(make("o", old), 0.5)])
    found = [number for epoch in range(epochs) for number in read_epoch(mixed, tokenizer, 1, epoch)["o"]]
    for first in range(0, len(found) - old + 1, old):
        assert sorted(found[first : first + old]) == list(range(old))
    assert found[:5] != sorted(found[:5]) or found[5:10] != sorted(found[5:10])  # shuffled


def test_the_order_is_a_function_of_seed_and_epoch(make_store):
    make, tokenizer = make_store
    first, again = (MixedStore(make("n", 30), [(make("o", 100), 0.5)]) for _ in range(2))
    assert read_epoch(first, tokenizer, 1, 2) == read_epoch(again, tokenizer, 1, 2)
    assert read_epoch(first, tokenizer, 1, 2) != read_epoch(first, tokenizer, 2, 2)
    assert read_epoch(first, tokenizer, 1, 1)["o"] != read_epoch(first, tokenizer, 1, 2)["o"]
    assert first.digest == again.digest != MixedStore(make("n", 30), [(make("o", 100), 0.4)]).digest != make("n", 30).digest


def test_training_resumes_at_any_batch_of_a_mixture(make_store):
    make, tokenizer = make_store
    mixed = MixedStore(make("n", 30), [(make("o", 100), 0.3), (make("o", 9), 0.2)])
    whole = [(make_batch(), after) for make_batch, after in islice(pair_batches(mixed, tokenizer.special, 60, 5), 40)]
    assert whole[-1][1].epoch >= 2
    for at in (0, 3, 17, 30):
        resumed = islice(pair_batches(mixed, tokenizer.special, 60, 5, whole[at][1]), 5)
        for (make_batch, after), (batch, wanted) in zip(resumed, whole[at + 1 : at + 6], strict=True):
            assert after == wanted
            assert make_batch().source.equal(batch.source)
            assert make_batch().target.equal(batch.target)
    assert whole[0][1] == DataPosition(0, 0, 1)


def test_batches_hold_both_kinds(make_store):
    make, tokenizer = make_store
    mixed = MixedStore(make("n", 30), [(make("o", 100), 0.5)])
    make_batch, _ = next(pair_batches(mixed, tokenizer.special, 200, 1))
    kinds = {tokenizer.decode(row.tolist()).strip()[0] for row in make_batch().source}
    assert kinds == {"n", "o"}


def test_pools_stay_of_one_size_however_little_is_own(make_store):
    make, _ = make_store
    mixed = MixedStore(make("n", 64), [(make("o", 1000), 0.75)])
    assert {len(mixed.read(pool).starts) for pool in mixed.pools(1, 0, 4)} == {32}  # 8 own pairs and 24 others
    assert np.array_equal(np.sort(np.concatenate([pool.blocks for pool in mixed.pools(1, 0, 4)])), np.arange(8))


def test_shares_are_read_and_wrong_ones_refused_in_one_line():
    assert parse_mix("runs/enfr:0.5, C:\\general.tsv:0.2") == [("runs/enfr", 0.5), ("C:\\general.tsv", 0.2)]
    assert parse_mix("") == []
    for wrong in ("runs/enfr", "runs/enfr:1", "runs/enfr:-0.1", "runs/enfr:half", ":0.5", "runs/enfr:nan"):
        with pytest.raises(ValueError, match=r"such as runs/enfr:0\.5"):
            parse_mix(wrong)
    with pytest.raises(ValueError, match=r"shares of 1\.1 in all"):
        parse_mix("a:0.6,b:0.5")
    with pytest.raises(ValueError, match="twice"):
        TextData(mix="a:0.2,a:0.5")
