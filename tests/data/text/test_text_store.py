"""A corpus on disk holds the tokens that encoding gives, in order, and is found again while nothing changed."""

import json
import os
import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.data.text import batches as batch
from regard.data.text import store
from regard.data.text.config import TextData
from regard.data.text.store import UNKNOWN, TextStore, encode_labeled, encode_pairs, encode_text
from regard.data.text.tokenizer import EOS, KINDS, train_bpe, train_tokenizer
from regard.data.text.toys import toy_pairs

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


def put(pairs, tokenizer, max_len=256, identity="x", **how):
    return encode_pairs(lambda: iter(pairs), "the corpus", identity, tokenizer, max_len, **how)


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


def test_pairs_taken_from_a_pool_are_copies_in_the_order_given(tokenizer):
    pool, wanted = put(PAIRS, tokenizer).read([0]), encoded(PAIRS, tokenizer)
    rows = np.array([7, 0, 49, 7])
    taken = pool.take(rows)
    got = [taken.tokens[a : a + s + t].tolist() for a, s, t in zip(*taken[1:], strict=True)]
    assert got == [wanted[row][0] + wanted[row][1] for row in rows]
    assert taken.sources.tolist() == [len(wanted[row][0]) for row in rows]
    assert not np.shares_memory(taken.tokens, pool.tokens)


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
    found = put(mixed, tokenizer, max_len=12)
    assert (found.pairs, found.empty, found.too_long) == (len(mixed) - empty - over, empty, over)
    assert read_all(found) == [pair for pair in tokens if all(pair) and max(map(len, pair)) <= 12]


def test_a_pair_of_exactly_max_len_tokens_is_kept():
    found = put([("1 2 3", "4"), ("1 2 3 4", "5")], Wide(), max_len=3)
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


def test_the_longest_sentence_that_fits_a_store_is_the_longest_a_config_allows():
    most = 65_535  # lengths take two bytes
    found = put([(" ".join(["7"] * most), "5")], Wide(), max_len=most)
    assert [(len(source), len(target)) for source, target in read_all(found)] == [(most, 1)]
    assert TextData(max_len=most).max_len == most
    with pytest.raises(ValueError, match="max_len"):
        TextData(max_len=most + 1)


def test_an_encoded_corpus_is_found_again(tokenizer):
    first = put(PAIRS, tokenizer)

    def never():
        raise AssertionError("encoded again")

    again = encode_pairs(never, "the corpus", "x", tokenizer, 256)
    assert again.folder == first.folder
    assert read_all(again) == read_all(first)


def test_a_corpus_is_encoded_again_after_anything_it_depends_on_changed(tokenizer):
    folders = {
        put(PAIRS, tokenizer).folder,
        put(PAIRS, tokenizer, identity="y").folder,
        put(PAIRS, tokenizer, max_len=100).folder,
        put(PAIRS, train_bpe((side for pair in PAIRS for side in pair), 100)).folder,
    }
    assert len(folders) == 4


def test_different_corpora_have_different_digests(tokenizer):
    digests = [put(pairs, tokenizer, identity=number).digest for number, pairs in enumerate([
        PAIRS, PAIRS[:-1], [*PAIRS[1:], PAIRS[0]], [(b, a) for a, b in PAIRS],
    ])]  # fmt: skip
    assert len(set(digests)) == 4
    assert put(PAIRS, tokenizer, identity="elsewhere").digest == digests[0]


def test_the_digest_depends_on_where_a_source_ends():
    assert put([("1 2", "3")], Wide(), identity=1).digest != put([("1", "2 3")], Wide(), identity=2).digest


def test_a_corpus_cut_off_while_it_was_encoded_is_encoded_again(tokenizer, cache):
    def cut():
        yield from PAIRS[:10]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_pairs(cut, "the corpus", "x", tokenizer, 256)
    assert os.listdir(cache / "stores") == []
    assert put(PAIRS, tokenizer).pairs == 50


def test_a_folder_without_its_last_file_is_encoded_again(tokenizer):
    found = put(PAIRS, tokenizer)
    (found.folder / "about.json").unlink()
    (found.folder / "tokens.bin").write_bytes(b"")
    assert read_all(put(PAIRS, tokenizer)) == encoded(PAIRS, tokenizer)


def test_progress_counts_pairs_read(tokenizer, monkeypatch):
    monkeypatch.setattr(store, "BLOCK", 20)
    reported = []
    put(PAIRS, tokenizer, progress=reported.append)
    assert reported == [20, 40, 50]


@pytest.mark.parametrize(("pairs", "message"), [
    ([], "the corpus holds no sentence pair to use; give a file"),
    ([("", "a"), ("a", "")], "no sentence pair to use: 2 pairs have an empty side, 0 more than 2 tokens; give a file"),
    ([("a b c d", "a")], "0 pairs have an empty side, 1 more than 2 tokens"),
])  # fmt: skip
def test_a_corpus_without_a_pair_to_use_is_refused_with_the_reason(tokenizer, cache, pairs, message):
    with pytest.raises(ValueError, match=message):
        put(pairs, tokenizer, max_len=2)
    assert os.listdir(cache / "stores") == []


def test_about_describes_the_store(tokenizer):
    found = put(PAIRS, tokenizer)
    about = json.loads((found.folder / "about.json").read_text())
    assert about["pairs"] == 50
    sizes = {name: (found.folder / name).stat().st_size for name in ("tokens.bin", "lengths.bin", "blocks.bin")}
    tokens = sum(len(source) + len(target) for source, target in encoded(PAIRS, tokenizer))
    assert sizes["tokens.bin"] == 2 * tokens
    assert sizes["blocks.bin"] == 8
    assert batch.POOL * store.BLOCK == 65_536  # as the documentation says


# --- labelled texts ---

TEXTS = [("1 2 3", "yes"), ("4", "no"), ("5 6 7 8 9", "yes"), (" ", "no"), ("10 11", "maybe")]
CLASSES = ("no", "yes", "maybe")


def put_labels(rows, labels=CLASSES, max_len=256, identity="labels", **how):
    return encode_labeled(lambda: iter(rows), labels, "the texts", identity, Wide(), max_len, **how)


@pytest.mark.parametrize("block", [1, 2, 4096])
def test_a_labelled_text_is_stored_as_tokens_and_a_class_id(monkeypatch, block):
    monkeypatch.setattr(store, "BLOCK", block)
    found = put_labels(TEXTS)
    assert read_all(found) == [([1, 2, 3], [1]), ([4], [0]), ([5, 6, 7, 8, 9], [1]), ([10, 11], [2])]
    assert (found.pairs, found.empty, found.too_long) == (4, 1, 0)


def test_a_long_text_is_cut_not_left_out():
    found = put_labels(TEXTS, max_len=2)
    assert read_all(found) == [([1, 2], [1]), ([4], [0]), ([5, 6], [1]), ([10, 11], [2])]
    assert (found.pairs, found.empty, found.too_long) == (4, 1, 2)


@pytest.mark.parametrize("block", [2, 4096])
def test_a_class_never_seen_in_training_is_named_with_its_example(monkeypatch, cache, block):
    monkeypatch.setattr(store, "BLOCK", block)
    with pytest.raises(ValueError, match="the texts, example 5") as error:
        put_labels(TEXTS, ("no", "yes"))
    for word in ("'maybe'", "'10 11'", "a label never seen in training", "known are no, yes", "leave it out"):
        assert word in str(error.value)
    assert os.listdir(cache / "stores") == []


def test_labelled_texts_are_encoded_anew_if_the_classes_are_others():
    first, second = put_labels(TEXTS), put_labels(TEXTS, ("maybe", "no", "yes"))
    assert [target for _, target in read_all(second)] == [[2], [1], [2], [0]]
    assert first.digest != second.digest
    pairs = encode_pairs(lambda: iter([("1 2 3", "4")]), "pairs", "labels", Wide(), 256)
    assert len({first.folder, second.folder, pairs.folder}) == 3


def test_only_empty_labelled_texts_are_refused():
    wanted = r"the texts holds no labelled text to use: 1 pairs .*; give a file with text and class"
    with pytest.raises(ValueError, match=wanted):
        put_labels([("", "no")])


# --- plain text ---

STORY = ["A cat sat on the mat.\n", "\n", " \n", "The cat's hat\n", "\n", "\n", "it was   red!\r\n", "the END"]


def put_text(pieces, tokenizer, identity="text", **how):
    return encode_text(lambda: iter(pieces), "the text", identity, tokenizer, **how)


@pytest.mark.parametrize("kind", KINDS)
def test_a_removed_word_is_the_unknown_token_of_every_tokenizer(kinds, kind):
    tokenizer = kinds[kind]
    ids = put_text([f"the {UNKNOWN} sat\n", f"{UNKNOWN}"], tokenizer).tokens.tolist()
    assert ids.count(tokenizer.special.unk) == 2
    assert tokenizer.decode(ids[: ids.index(tokenizer.special.unk)]).strip() == "the"


@pytest.fixture(scope="module")
def kinds():
    return {kind: train_tokenizer(STORY * 5, kind, 400) for kind in KINDS}


@pytest.mark.parametrize("chunk", [1, 20, 1 << 18])
@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_a_text_comes_back_from_its_tokens(kinds, monkeypatch, kind, chunk):
    monkeypatch.setattr(store, "CHUNK", chunk)
    found = put_text(STORY, kinds[kind])
    assert kinds[kind].decode(found.tokens.tolist()) == "".join(STORY)
    assert found.tokens.tolist() == [token for ids in kinds[kind].encode(STORY) for token in ids]
    assert EOS not in found.tokens


@pytest.mark.parametrize("chunk", [1, 20, 1 << 18])
@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_without_line_ends_each_line_that_is_not_empty_ends_with_the_end_token(kinds, monkeypatch, kind, chunk):
    monkeypatch.setattr(store, "CHUNK", chunk)
    lines = [line for line in kinds[kind].encode(STORY) if line]
    assert len(lines) == 4
    assert put_text(STORY, kinds[kind]).tokens.tolist() == [token for line in lines for token in (*line, EOS)]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["a ", "cat", "\n", " ", "\r\n", "t", "."]), min_size=1, max_size=30), st.integers(1, 9))
def test_how_a_text_is_cut_into_pieces_does_not_matter_if_lines_and_words_stay_whole(kinds, words, chunk):
    text = "".join(words)
    lines = text.splitlines(keepends=True)
    for kind, tokenizer in kinds.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "CHUNK", chunk)
            try:
                found = put_text(lines, tokenizer, [kind, words, chunk]).tokens.tolist()
            except ValueError:
                assert not text.strip()
                assert not tokenizer.keeps_newlines
                continue
            cut = [piece for line in lines for piece in re.split(r"(?<=\S)(?= )", line)]  # before each space
            assert put_text(cut, tokenizer, [kind, words, chunk, "cut"]).tokens.tolist() == found
        if tokenizer.keeps_newlines:
            assert tokenizer.decode(found) == text
        else:
            assert found.count(EOS) == sum(bool(line.strip()) for line in text.split("\n"))


def test_a_text_on_disk_cannot_be_changed_and_knows_its_length(kinds):
    found = put_text(STORY, kinds["bytes"])
    assert isinstance(found.tokens, np.memmap)
    assert found.tokens.dtype == np.uint16
    assert len(found) == len(found.tokens)
    with pytest.raises(ValueError, match="read-only"):
        found.tokens[0] = 1


def test_a_large_vocabulary_takes_four_bytes_a_token():
    class Lines(Wide):
        keeps_newlines = True

    assert put_text(["70000 5\n", "99999"], Lines()).tokens.tolist() == [70000, 5, 99999]
    assert put_text(["70000 5\n", "99999"], Lines()).tokens.dtype == np.uint32


def test_an_encoded_text_is_found_again_and_apart_from_others(kinds):
    first = put_text(STORY, kinds["bytes"])

    def never():
        raise AssertionError("encoded again")

    assert encode_text(never, "the text", "text", kinds["bytes"]).folder == first.folder
    others = [
        put_text(STORY, kinds["bpe"]),
        put_text(STORY[:3], kinds["bytes"], "other"),
        put_text(STORY, kinds["bytes"], "same"),
    ]
    assert len({first.folder, *(other.folder for other in others)}) == 4
    assert [other.digest == first.digest for other in others] == [False, False, True]


def test_a_text_cut_off_while_it_was_encoded_is_encoded_again(kinds, cache):
    def cut():
        yield from STORY[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_text(cut, "the text", "text", kinds["bytes"])
    assert os.listdir(cache / "stores") == []
    found = put_text(STORY, kinds["bytes"])
    (found.folder / "about.json").unlink()
    assert isinstance(put_text(STORY, kinds["bytes"]), TextStore)


@pytest.mark.parametrize(("kind", "pieces"), [("bpe", []), ("bpe", ["\n", " \n"]), ("characters", [])])
def test_a_text_without_a_token_is_refused(kinds, cache, kind, pieces):
    with pytest.raises(ValueError, match="the text holds no text to use; give a file with text in it"):
        put_text(pieces, kinds[kind])
    assert os.listdir(cache / "stores") == []


def test_progress_counts_tokens(kinds, monkeypatch):
    monkeypatch.setattr(store, "CHUNK", 30)
    reported: list[int] = []
    found = put_text(STORY, kinds["characters"], progress=reported.append)
    assert reported == sorted(reported)
    assert len(reported) > 1
    assert reported[-1] == len(found) == len("".join(STORY))


def test_a_longer_text_takes_no_more_memory(kinds, monkeypatch):
    monkeypatch.setattr(store, "CHUNK", 1000)

    def peak(lines: int) -> int:
        tracemalloc.start()
        try:
            text = lambda: ("A cat sat on the mat.\n" for _ in range(lines))  # noqa: E731
            encode_text(text, "the text", lines, kinds["characters"])
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(20_000) < 1.5 * peak(1000)
