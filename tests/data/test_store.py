"""A corpus on disk holds the tokens that encoding gives, in order, and is found again while nothing changed."""

import json
import os

import numpy as np
import pytest

from regard.config import DataConfig
from regard.data import batch, store
from regard.data.store import encode
from regard.data.tokenizer import train_bpe
from regard.data.toys import toy_pairs

PAIRS = list(toy_pairs("phrasebook", "train", 50))


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe((side for pair in PAIRS for side in pair), 120)


class Wide:
    """A tokenizer whose vocabulary does not fit 16 bits: its tokens are numbers written out."""

    vocab, digest = 100_000, "wide"

    def encode(self, lines):
        return [[int(word) for word in line.split()] for line in lines]


def read_all(found):
    """All pairs of a store, as lists of tokens."""
    pool = found.read(range(found.blocks))
    rows = zip(pool.starts.tolist(), pool.sources.tolist(), pool.targets.tolist(), strict=True)
    tokens = pool.tokens.tolist()
    return [(tokens[a : a + s], tokens[a + s : a + s + t]) for a, s, t in rows]


def put(pairs, tokenizer, longest=256, identity="x", **how):
    return encode(lambda: iter(pairs), "the corpus", identity, tokenizer, longest, **how)


def encoded(pairs, tokenizer):
    return list(zip(*(tokenizer.encode([pair[side] for pair in pairs]) for side in (0, 1)), strict=True))


@pytest.mark.parametrize("block", [1, 7, 49, 50, 51, 4096])
def test_what_is_read_is_what_encoding_gives(tokenizer, monkeypatch, block):
    monkeypatch.setattr(store, "BLOCK", block)
    found = put(PAIRS, tokenizer)
    assert read_all(found) == encoded(PAIRS, tokenizer)
    assert (found.pairs, found.empty, found.too_long, found.blocks) == (50, 0, 0, -(-50 // block))


@pytest.mark.parametrize("block", [3, 10])
def test_blocks_are_read_in_any_order(tokenizer, monkeypatch, block):
    monkeypatch.setattr(store, "BLOCK", block)
    found, wanted = put(PAIRS, tokenizer), encoded(PAIRS, tokenizer)
    for number in reversed(range(found.blocks)):
        pool = found.read([number])
        assert len(pool.starts) == len(wanted[number * block : (number + 1) * block])
    order = [found.blocks - 1, 0, 2]
    pool = found.read(order)
    expected = [pair for number in order for pair in wanted[number * block : (number + 1) * block]]
    got = [pool.tokens[a : a + s + t].tolist() for a, s, t in zip(pool.starts, pool.sources, pool.targets, strict=True)]
    assert got == [source + target for source, target in expected]


@pytest.mark.parametrize("block", [2, 3, 4096])
def test_empty_and_too_long_pairs_are_left_out_and_counted(tokenizer, monkeypatch, block):
    monkeypatch.setattr(store, "BLOCK", block)
    bad = [("", "a"), ("a", "  "), ("a b c d e f g h", "a"), ("a", "a b c d e f g h")]
    mixed = [pair for good, odd in zip(PAIRS, bad * 13, strict=False) for pair in (odd, good)]
    tokens = encoded(mixed, tokenizer)
    empty = sum(not all(pair) for pair in tokens)
    over = sum(all(pair) and max(map(len, pair)) > 12 for pair in tokens)
    assert empty == 26
    assert 12 < over < 60
    found = put(mixed, tokenizer, longest=12)
    assert (found.pairs, found.empty, found.too_long) == (len(mixed) - empty - over, empty, over)
    assert read_all(found) == [pair for pair in tokens if all(pair) and max(map(len, pair)) <= 12]


def test_a_pair_of_exactly_the_longest_length_is_kept():
    found = put([("1 2 3", "4"), ("1 2 3 4", "5")], Wide(), longest=3)
    assert read_all(found) == [([1, 2, 3], [4])]
    assert found.too_long == 1


def test_a_small_vocabulary_takes_two_bytes_a_token_and_a_large_one_four(tokenizer):
    assert put(PAIRS, tokenizer).dtype == np.uint16
    wide = put([("70000 5", "99999")], Wide(), identity="wide")
    assert wide.dtype == np.uint32
    assert read_all(wide) == [([70000, 5], [99999])]


@pytest.mark.parametrize(("vocab", "dtype"), [(65_535, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_the_largest_token_always_fits(vocab, dtype):
    class Edge(Wide):
        pass

    Edge.vocab = vocab
    found = put([(str(vocab - 1), "4")], Edge(), identity=vocab)
    assert found.dtype == dtype
    assert read_all(found) == [([vocab - 1], [4])]


def test_the_longest_sentence_a_store_can_hold_is_kept_whole_and_no_config_allows_a_longer_one():
    most = 65_535  # lengths take two bytes
    found = put([(" ".join(["7"] * most), "5")], Wide(), longest=most)
    assert [(len(source), len(target)) for source, target in read_all(found)] == [(most, 1)]
    assert DataConfig(longest=most).longest == most
    with pytest.raises(ValueError, match="longest"):
        DataConfig(longest=most + 1)


def test_an_encoded_corpus_is_found_again(tokenizer):
    first = put(PAIRS, tokenizer)

    def never():
        raise AssertionError("encoded again")

    again = encode(never, "the corpus", "x", tokenizer, 256)
    assert again.folder == first.folder
    assert read_all(again) == read_all(first)


def test_it_is_not_found_after_anything_it_depends_on_changed(tokenizer):
    folders = {
        put(PAIRS, tokenizer).folder,
        put(PAIRS, tokenizer, identity="y").folder,
        put(PAIRS, tokenizer, longest=100).folder,
        put(PAIRS, train_bpe((side for pair in PAIRS for side in pair), 100)).folder,
    }
    assert len(folders) == 4


def test_the_digest_tells_corpora_apart(tokenizer):
    digests = [put(pairs, tokenizer, identity=number).digest for number, pairs in enumerate([
        PAIRS, PAIRS[:-1], [*PAIRS[1:], PAIRS[0]], [(b, a) for a, b in PAIRS],
    ])]  # fmt: skip
    assert len(set(digests)) == 4
    assert put(PAIRS, tokenizer, identity="elsewhere").digest == digests[0]


def test_the_digest_tells_where_a_source_ends():
    assert put([("1 2", "3")], Wide(), identity=1).digest != put([("1", "2 3")], Wide(), identity=2).digest


def test_a_corpus_cut_off_while_it_was_encoded_is_encoded_again(tokenizer, cache):
    def cut():
        yield from PAIRS[:10]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode(cut, "the corpus", "x", tokenizer, 256)
    assert os.listdir(cache / "tokens") == []
    assert put(PAIRS, tokenizer).pairs == 50


def test_a_folder_without_its_last_file_is_encoded_again(tokenizer):
    found = put(PAIRS, tokenizer)
    (found.folder / "about.json").unlink()
    (found.folder / "tokens.bin").write_bytes(b"")
    assert read_all(put(PAIRS, tokenizer)) == encoded(PAIRS, tokenizer)


def test_progress_counts_pairs_read(tokenizer, monkeypatch):
    monkeypatch.setattr(store, "BLOCK", 20)
    heard = []
    put(PAIRS, tokenizer, progress=heard.append)
    assert heard == [20, 40, 50]


@pytest.mark.parametrize(("pairs", "message"), [
    ([], "the corpus holds no sentence pair to use; give a file"),
    ([("", "a"), ("a", "")], "no sentence pair to use: 2 pairs have an empty side, 0 more than 2 tokens; give a file"),
    ([("a b c d", "a")], "0 pairs have an empty side, 1 more than 2 tokens"),
])  # fmt: skip
def test_a_corpus_without_a_pair_to_use_is_refused_with_the_reason(tokenizer, cache, pairs, message):
    with pytest.raises(ValueError, match=message):
        put(pairs, tokenizer, longest=2)
    assert os.listdir(cache / "tokens") == []


def test_about_says_what_the_store_holds(tokenizer):
    found = put(PAIRS, tokenizer)
    about = json.loads((found.folder / "about.json").read_text())
    assert about["pairs"] == 50
    sizes = {name: (found.folder / name).stat().st_size for name in ("tokens.bin", "lengths.bin", "blocks.bin")}
    tokens = sum(len(source) + len(target) for source, target in encoded(PAIRS, tokenizer))
    assert sizes["tokens.bin"] == 2 * tokens
    assert sizes["blocks.bin"] == 8
    assert batch.POOL * store.BLOCK == 65_536  # as the documentation says
