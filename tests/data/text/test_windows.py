"""Windows of a text: every token once an epoch, in an order that can be resumed."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import built

from regard.data.position import DataPosition
from regard.data.text import windows as streams_of
from regard.data.text.tokenizer import SpecialTokens
from regard.data.text.windows import all_masked_windows, all_span_windows, all_windows

TOKENS = SpecialTokens(pad=0, bos=1, eos=2, unk=3, mask=4, sentinels=tuple(range(5, 25)))
SPECIAL = range(25)


def windows(*how):
    return built(streams_of.windows(*how))


def masked_windows(*how):
    return built(streams_of.masked_windows(*how))


def span_windows(*how):
    return built(streams_of.span_windows(*how))


def epoch_of(text, length, tokens, seed, epoch):
    """The windows of one epoch, and where it cut first."""
    found = []
    for batch, after in windows(text, length, tokens, seed, DataPosition(epoch)):
        found.append(batch.text)
        if after.epoch > epoch:
            return torch.cat(found)


@given(seed=st.integers(0, 1000), count=st.integers(20, 300), length=st.integers(2, 15), tokens=st.integers(1, 100))
def test_an_epoch_reads_each_token_at_most_once_and_leaves_out_less_than_two_windows(seed, count, length, tokens):
    text = np.arange(count, dtype=np.uint16)
    rows = epoch_of(text, length, tokens, seed, 0)
    assert (rows.diff() == 1).all()  # each window is a piece of the text
    predicted = rows[:, 1:].flatten().tolist()
    assert len(predicted) == len(set(predicted))
    assert count - len(predicted) < 2 * length + 1


@given(seed=st.integers(0, 1000), count=st.integers(1, 40))
def test_training_resumes_from_any_position(seed, count):
    text = np.random.default_rng(0).integers(0, 1000, 200).astype(np.uint16)
    whole = list(islice(windows(text, 7, 30, seed), count + 10))
    again = list(islice(windows(text, 7, 30, seed, whole[count - 1][1]), 10))
    for (one, after), (other, other_after) in zip(whole[count:], again, strict=True):
        assert torch.equal(one.text, other.text)
        assert after == other_after


def test_epochs_and_seeds_differ():
    text = np.arange(1000, dtype=np.uint16)
    first, second, other = epoch_of(text, 10, 100, 1, 0), epoch_of(text, 10, 100, 1, 1), epoch_of(text, 10, 100, 2, 0)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)
    cuts = {int(epoch_of(text, 10, 100, 1, epoch)[0, 0]) % 10 for epoch in range(60)}
    assert cuts == set(range(10))  # every epoch cuts elsewhere, anywhere


@given(count=st.integers(2, 100), length=st.integers(1, 20), tokens=st.integers(1, 50))
def test_evaluation_predicts_every_token_but_the_first_once(count, length, tokens):
    text = np.arange(count, dtype=np.uint16)
    found = [token for batch in all_windows(text, length, tokens) for token in batch.text[:, 1:].flatten().tolist()]
    assert found == list(range(1, count))


def test_a_text_shorter_than_a_window_is_refused():
    with pytest.raises(ValueError, match=r"5 tokens has no window of 6; give more text, or lower data\.max_len"):
        next(windows(np.arange(5, dtype=np.uint16), 5, 10, 0))
    with pytest.raises(ValueError, match="3 tokens has no window of 4"):
        next(masked_windows(np.arange(3, dtype=np.uint16), 6, 10, 0, TOKENS, SPECIAL, 1000))
    with pytest.raises(ValueError, match="3 tokens has no window of 6"):
        next(span_windows(np.arange(3, dtype=np.uint16), 6, 10, 0, TOKENS))


def test_a_text_of_one_window_is_read_in_every_epoch():
    text = np.arange(6, dtype=np.uint16)
    for batch, after in islice(windows(text, 5, 10, 0), 5):
        assert batch.text.tolist() == [text.tolist()]
        assert (after.pool, after.batch) == (0, 0)


def test_a_batch_has_as_many_windows_as_fit_the_budget():
    text = np.arange(1000, dtype=np.uint16)
    sizes = {len(batch.text) for batch, _ in islice(windows(text, 10, 47, 0), 20)}
    assert sizes == {4}
    assert {len(batch.text) for batch, _ in islice(windows(text, 10, 3, 0), 20)} == {1}
    assert next(windows(text, 10, 47, 0))[0].tokens == 40


def test_a_memory_mapped_text_gives_the_same_batches(tmp_path):
    text = np.random.default_rng(0).integers(100, 1000, 500).astype(np.uint16)
    text.tofile(tmp_path / "tokens.bin")
    disk = np.memmap(tmp_path / "tokens.bin", dtype=np.uint16, mode="r")
    for kind in (
        lambda tokens: windows(tokens, 7, 30, 1),
        lambda tokens: masked_windows(tokens, 9, 30, 1, TOKENS, SPECIAL, 1000),
        lambda tokens: span_windows(tokens, 9, 30, 1, TOKENS),
    ):
        for (one, _), (other, _) in zip(islice(kind(text), 30), islice(kind(disk), 30), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one[:2], other[:2], strict=True))


def text_between(batch) -> list[list[int]]:
    """The text of masked windows; their start and end, and which tokens are masked, are checked on the way."""
    assert (batch.truth[:, 0] == TOKENS.bos).all()
    assert (batch.truth[:, -1] == TOKENS.eos).all()
    assert torch.equal(batch.shown[~batch.chosen], batch.truth[~batch.chosen])
    assert not torch.isin(batch.truth[batch.chosen], torch.tensor([*SPECIAL, TOKENS.bos, TOKENS.eos])).any()
    assert batch.tokens == int(batch.chosen.sum()) > 0
    return batch.truth[:, 1:-1].tolist()


@given(seed=st.integers(0, 1000), count=st.integers(20, 300), length=st.integers(4, 15), tokens=st.integers(1, 100))
def test_an_epoch_of_masked_windows_reads_each_token_at_most_once(seed, count, length, tokens):
    text = np.arange(100, 100 + count, dtype=np.uint16)
    rows: list[list[int]] = []
    for batch, after in masked_windows(text, length, tokens, seed, TOKENS, SPECIAL, 1000):
        assert batch.shown.shape[1] == length
        assert batch.shown.numel() <= tokens or len(batch.shown) == 1
        rows += text_between(batch)
        if after.epoch:
            break
    assert all(row == list(range(row[0], row[0] + length - 2)) for row in rows)
    read = [token for row in rows for token in row]
    assert len(read) == len(set(read))
    assert count - len(read) < 2 * (length - 2)


@settings(max_examples=25)
@given(seed=st.integers(0, 100), stop=st.integers(1, 40))
def test_masked_windows_and_spans_resume_from_any_position_bit_for_bit(seed, stop):
    text = np.random.default_rng(0).integers(100, 1000, 200).astype(np.uint16)
    for kind in (
        lambda position: masked_windows(text, 9, 30, seed, TOKENS, SPECIAL, 1000, position),
        lambda position: span_windows(text, 9, 30, seed, TOKENS, position),
    ):
        whole = list(islice(kind(DataPosition()), stop + 10))
        again = islice(kind(DataPosition(*list(whole[stop - 1][1]))), 10)
        for (one, after), (other, other_after) in zip(whole[stop:], again, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one[:2], other[:2], strict=True))
            assert after == other_after


def test_every_epoch_batch_and_seed_masks_other_tokens():
    text = np.full(102, 500, dtype=np.uint16)  # all alike: only the masks can differ
    at = [tuple(b.chosen.flatten().tolist()) for b, _ in islice(masked_windows(text, 52, 100, 1, TOKENS, SPECIAL, 1000), 20)]
    other = [tuple(b.chosen.flatten().tolist()) for b, _ in islice(masked_windows(text, 52, 100, 2, TOKENS, SPECIAL, 1000), 20)]
    assert len({*at, *other}) == 40
    left = [tuple(b.source.flatten().tolist()) for b, _ in islice(span_windows(text, 50, 100, 1, TOKENS), 20)]
    assert len(set(left)) == 20


@given(count=st.integers(2, 100), length=st.integers(4, 20), tokens=st.integers(1, 50))
def test_evaluation_masks_the_same_tokens_every_time(count, length, tokens):
    text = np.arange(100, 100 + count, dtype=np.uint16)
    first, again = ([*all_masked_windows(text, length, tokens, TOKENS, SPECIAL, 1000)] for _ in range(2))
    assert [token for batch in first for row in text_between(batch) for token in row] == text.tolist()
    assert all(torch.equal(a, b) for one, two in zip(first, again, strict=True) for a, b in zip(one, two, strict=True))


def restore(left, spans, sentinels):
    """The text that spans were cut out of."""
    answers, current = {}, []
    for token in spans.tolist():
        if token in sentinels:
            current = answers.setdefault(token, [])
        else:
            current.append(token)
    return [token for kept in left.tolist() for token in (answers.get(kept, []) if kept in sentinels else [kept])]


def unspanned(batch) -> list[list[int]]:
    """The windows that spans were cut out of, put together again; starts and ends are checked on the way."""
    assert (batch.source[:, -1] == TOKENS.eos).all()
    assert (batch.target[:, 0] == TOKENS.bos).all()
    assert (batch.target[:, -1] == TOKENS.eos).all()
    assert batch.tokens == batch.target[:, 1:].numel()  # nothing is padding
    rows = zip(batch.source[:, :-1].numpy(), batch.target[:, 1:-1].numpy(), strict=True)
    return [restore(source, target, TOKENS.sentinels) for source, target in rows]


@given(count=st.integers(2, 200), length=st.integers(2, 60), tokens=st.integers(1, 100), seed=st.integers(0, 99))
def test_source_and_target_of_spans_restore_the_text(count, length, tokens, seed):
    text = np.arange(100, 100 + count, dtype=np.uint16)
    whole = [token for batch in all_span_windows(text, length, tokens, TOKENS) for row in unspanned(batch) for token in row]
    assert whole == text[: len(whole)].tolist()
    assert count - len(whole) == (count % length == 1)
    if count >= length:
        batch, _ = next(span_windows(text, length, tokens, seed, TOKENS))
        assert all(row == list(range(row[0], row[0] + length)) for row in unspanned(batch))
        assert batch.pad == TOKENS.pad


def test_windows_without_a_token_to_mask_are_skipped_and_a_text_of_them_refused():
    text = np.array([TOKENS.eos, 500] * 50, dtype=np.uint16)  # windows of one token, every other one an end
    stream = masked_windows(text, 3, 3, 0, TOKENS, SPECIAL, 1000)
    assert all(batch.truth[0, 1] == 500 for batch, _ in islice(stream, 120))  # more than two epochs
    assert len(list(all_masked_windows(text, 3, 3, TOKENS, SPECIAL, 1000))) == 50
    with pytest.raises(ValueError, match="only special tokens, none to mask"):
        next(masked_windows(np.full(50, TOKENS.eos, dtype=np.uint16), 10, 20, 0, TOKENS, SPECIAL, 1000))


@pytest.mark.parametrize(("make", "message"), [
    (lambda text: next(masked_windows(text, 2, 9, 0, TOKENS, SPECIAL, 1000)), "2 tokens has no room .* data.max_len=3"),
    (lambda text: next(masked_windows(text, 9, 9, 0, TOKENS._replace(mask=None), SPECIAL, 1000)), r"wanted \[MASK\] or <mask>"),
    (lambda text: next(span_windows(text, 9, 9, 0, TOKENS._replace(sentinels=(8,)))), "1 sentinels cannot mark a span"),
    (lambda text: next(all_windows(text[:1], 9, 9)), "1 tokens has no next token to predict"),
    (lambda text: next(all_span_windows(text[:1], 9, 9, TOKENS)), "1 tokens has no span to spare"),
])  # fmt: skip
def test_texts_that_cannot_be_cut_or_masked_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(np.arange(100, 150, dtype=np.uint16))


def test_a_batch_is_built_when_it_is_asked_for(monkeypatch):
    text, built_batches = np.arange(100, 400, dtype=np.uint16), []
    mask = streams_of.mask_tokens
    monkeypatch.setattr(streams_of, "mask_tokens", lambda *how: built_batches.append(1) or mask(*how))
    makes = [make for make, _ in islice(streams_of.masked_windows(text, 9, 30, 1, TOKENS, SPECIAL, 1000), 10)]
    assert not built_batches
    wanted = [batch for batch, _ in islice(masked_windows(text, 9, 30, 1, TOKENS, SPECIAL, 1000), 10)]
    assert all(torch.equal(makes[i]().shown, wanted[i].shown) for i in (7, 2, 7))  # in any order, again and again


def test_one_window_of_a_masked_batch_is_read_before_it_is_built(monkeypatch):
    text = np.arange(100, 400, dtype=np.uint16)
    read: list[int] = []
    isin = np.isin
    monkeypatch.setattr(streams_of.np, "isin", lambda values, *how: read.append(values.size) or isin(values, *how))
    next(streams_of.masked_windows(text, 9, 30, 1, TOKENS, SPECIAL, 1000))
    assert read == [7]
