"""BPE-dropout: its splits have the distribution of the library's own; texts, order and reproducibility are kept."""

from collections import Counter

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.text import bpe_dropout
from regard.data.text.bpe_dropout import BPEDropout
from regard.data.text.config import TextData
from regard.data.text.store import Pool
from regard.data.text.tokenizer import Tokenizer, train_bpe, train_tokenizer

LINE = "the lowest tower, lower than the widest towel; newer rest. best wedding weather (ever) we've tested: west"
WORDS = LINE.split()
LINES = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))]
TOKENIZER = train_bpe(LINES, 70)


# Encodes "ings" as ▁, ing, s: the space is a token of its own, and may be merged with the letter after it.
LONE_SPACE = train_bpe(["singing ringing bringing stinging"] * 20 + ["i a in"], 33)


def pool_of(pairs: list[tuple[str, str]], tokenizer: Tokenizer = TOKENIZER) -> Pool:
    sides = [tokenizer.encode([side])[0] for pair in pairs for side in pair]
    lengths = np.array([len(side) for side in sides])
    tokens = np.array([token for side in sides for token in side], dtype=np.uint16)
    sources, targets = lengths[::2], lengths[1::2]
    return Pool(tokens, np.cumsum(sources + targets) - sources - targets, sources, targets)


def sides_of(pool: Pool) -> list[list[int]]:
    bounds = np.cumsum(np.stack((pool.sources, pool.targets), 1).ravel())
    return [side.tolist() for side in np.split(pool.tokens, bounds[:-1])]


def split_again(pairs, rate, seed=0, max_len=500, tokenizer=TOKENIZER):
    return BPEDropout(tokenizer, rate, max_len)(pool_of(pairs, tokenizer), np.random.default_rng(seed))


def algorithm_1(text: str, rate: float, tokenizer: Tokenizer, rng: np.random.Generator) -> tuple[int, ...]:
    """The paper's algorithm on a text that is one word, written out."""
    vocab, merges = tokenizer.bpe_merges()
    tokens = ["▁", *text]
    while True:
        possible = [at for at in range(len(tokens) - 1) if (tokens[at], tokens[at + 1]) in merges and rng.random() >= rate]
        if not possible:
            return tuple(vocab[token] for token in tokens)
        best = min(possible, key=lambda at: merges.index((tokens[at], tokens[at + 1])))
        tokens[best : best + 2] = [tokens[best] + tokens[best + 1]]


def require_alike(ours: Counter, theirs: Counter, count: int) -> None:
    assert len(theirs) > 1
    for split in ours | theirs:
        share = (ours[split] + theirs[split]) / (2 * count)
        # Of about a thousand comparisons in all none should be off by six standard deviations of the difference of two counts.
        assert abs(ours[split] - theirs[split]) <= 6 * (2 * count * share * (1 - share)) ** 0.5 + 1e-9, split


def counted(text: str, rate: float, count: int, tokenizer: Tokenizer) -> Counter:
    return Counter(map(tuple, sides_of(split_again([(text, text)] * (count // 2), rate, tokenizer=tokenizer))))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("word", ["lowest", "weather", "tested", "ings"])
def test_splits_have_the_distribution_of_the_papers_algorithm(word, rate):
    tokenizer, rng = LONE_SPACE if word == "ings" else TOKENIZER, np.random.default_rng(1)
    theirs = Counter(algorithm_1(word, rate, tokenizer, rng) for _ in range(3000))
    require_alike(counted(word, rate, 3000, tokenizer), theirs, 3000)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("text", ["lowest", "weather", "the best (we", "best-newer"])
def test_texts_are_split_as_by_the_librarys_own_dropout(text, rate):
    """Not words such as "ings", where it tries a dropped merge again, against the paper."""
    inner = tokenizers.Tokenizer.from_str(TOKENIZER._inner.to_str())
    inner.model.dropout = rate
    theirs = Counter(tuple(inner.encode(text, add_special_tokens=False).ids) for _ in range(3000))
    require_alike(counted(text, rate, 3000, TOKENIZER), theirs, 3000)


@settings(max_examples=60)
@given(
    pairs=st.lists(st.tuples(*[st.lists(st.sampled_from([*WORDS, "…", "ßx", "w--w", "'"]), min_size=1).map(" ".join)] * 2),
                   min_size=1, max_size=6),
    rate=st.sampled_from([0.0, 0.1, 0.5, 0.99]), seed=st.integers(0, 100),
)  # fmt: skip
def test_the_text_stays_the_same(pairs, rate, seed):
    before, after = pool_of(pairs), split_again(pairs, rate, seed)
    for old, new in zip(sides_of(before), sides_of(after), strict=True):
        assert TOKENIZER.decode(new) == TOKENIZER.decode(old)
        assert rate > 0 or new == old
    assert (after.starts == np.cumsum(after.sources + after.targets) - after.sources - after.targets).all()
    assert after.tokens.dtype == before.tokens.dtype


def test_nearly_every_merge_dropped_leaves_characters():
    [source, target] = sides_of(split_again([("lowest tower,", "best")], 1 - 1e-9))
    assert TOKENIZER.ids_to_tokens(source) == list("▁lowest▁tower,")
    assert TOKENIZER.ids_to_tokens(target) == list("▁best")


def test_more_pairs_than_are_split_at_once_stay_in_order(monkeypatch):
    monkeypatch.setattr(bpe_dropout, "PAIRS", 3)
    monkeypatch.setattr(bpe_dropout, "LONGEST", 2)  # others are not remembered
    pairs = list(zip(LINES, WORDS, strict=True))
    after = sides_of(split_again(pairs, 0.3))
    assert [TOKENIZER.decode(side) for side in after] == [side for pair in pairs for side in pair]


def test_a_seed_gives_the_same_splits_again_and_another_seed_others():
    pairs = [(line, line) for line in LINES]
    first, again, other = (split_again(pairs, 0.3, seed).tokens.tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_side_that_would_be_too_long_stays_as_it_was():
    pairs = [("the", LINES[0]), (LINES[1], "the")]
    before = sides_of(pool_of(pairs))
    longest = max(map(len, before))
    after = sides_of(split_again(pairs, 0.9, max_len=longest))
    assert [new for new, old in zip(after, before, strict=True) if len(old) > 9] == [old for old in before if len(old) > 9]
    assert any(new != old for new, old in zip(after, before, strict=True))


def test_pairs_in_any_order_of_memory_keep_their_sides():
    pool = pool_of([("the lowest", "tower"), ("best", "newer rest.")])
    shuffled = Pool(pool.tokens, pool.starts[::-1], pool.sources[::-1], pool.targets[::-1])
    found = sides_of(BPEDropout(TOKENIZER, 0.0, 50)(shuffled, np.random.default_rng(0)))
    assert [TOKENIZER.decode(side) for side in found] == ["best", "newer rest.", "the lowest", "tower"]


@pytest.mark.parametrize("kind", ["bytes", "wordpiece", "characters", "words"])
def test_other_tokenizers_are_refused(kind):
    with pytest.raises(ValueError, match="leave it out"):
        BPEDropout(train_tokenizer(LINES, kind, 300), 0.1, 50)
    with pytest.raises(ValueError, match=f"tokenizer={kind} does not make; use tokenizer=bpe"):
        TextData(source="reverse", tokenizer=kind, bpe_dropout=0.1)
