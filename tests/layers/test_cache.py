"""A cache against the plain concatenation of what was put in, however it was split, continued and taken."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.layers.attention import Attention
from regard.layers.cache import CAPACITY, Cache

law = settings(max_examples=40)

seeds = st.integers(0, 10_000)
splits = st.lists(st.integers(1, 2 * CAPACITY), min_size=1, max_size=6)


def drawn(seed: int, batch: int, tokens: int) -> Tensor:
    """Random keys and values of two heads, (2, B, H, K, E), no number twice."""
    return torch.randn(2, batch, 2, tokens, 3, generator=torch.Generator().manual_seed(seed))


def joined(*parts: Tensor) -> Tensor:
    return torch.cat(parts, 3)


def picked(from_: Tensor, rows: Tensor) -> Tensor:
    return from_.index_select(1, rows)


def filled(*parts: Tensor) -> Cache:
    cache = Cache()
    for part in parts:
        cache = cache.add(part)
    return cache


def holds(cache: Cache, wanted: Tensor) -> None:
    keys, values = cache.all()
    assert torch.equal(keys, wanted[0])
    assert torch.equal(values, wanted[1])


# What is in it


@law
@given(seed=seeds, batch=st.integers(1, 3), lengths=splits)
def test_what_was_added_piece_by_piece_is_all_there_in_order(seed, batch, lengths):
    parts = [drawn(seed + i, batch, length) for i, length in enumerate(lengths)]
    cache = Cache()
    for i, part in enumerate(parts, 1):
        cache = cache.add(part)
        holds(cache, joined(*parts[:i]))


@law
@given(seed=seeds, batch=st.integers(1, 3), inherit_from_init=splits, left=splits, right=splits)
def test_two_continuations_disturb_neither_each_other_nor_their_beginning(seed, batch, inherit_from_init, left, right):
    beginning = [drawn(seed + i, batch, length) for i, length in enumerate(inherit_from_init)]
    first = [drawn(seed + 100 + i, batch, length) for i, length in enumerate(left)]
    second = [drawn(seed + 200 + i, batch, length) for i, length in enumerate(right)]
    start = filled(*beginning)
    one, other = start, start
    for i in range(max(len(first), len(second))):  # in turn
        one = one.add(first[i]) if i < len(first) else one
        other = other.add(second[i]) if i < len(second) else other
    holds(one, joined(*beginning, *first))
    holds(other, joined(*beginning, *second))
    holds(start, joined(*beginning))


@law
@given(seed=seeds, batch=st.integers(1, 4), lengths=splits, later=splits, data=st.data())
def test_rows_taken_are_those_of_the_concatenation_and_can_be_continued(seed, batch, lengths, later, data):
    rows = torch.tensor(data.draw(st.lists(st.integers(0, batch - 1), max_size=6)), dtype=torch.long)
    before = [drawn(seed + i, batch, length) for i, length in enumerate(lengths)]
    after = [drawn(seed + 100 + i, len(rows), length) for i, length in enumerate(later)]
    whole = filled(*before)
    taken = whole.reorder(rows)
    holds(taken, picked(joined(*before), rows))
    for i, part in enumerate(after, 1):
        taken = taken.add(part)
        holds(taken, joined(picked(joined(*before), rows), *after[:i]))
    holds(whole, joined(*before))


@law
@given(seed=seeds, batch=st.integers(1, 3), data=st.data())
def test_however_caches_are_continued_and_taken_each_keeps_its_own(seed, batch, data):
    made = [(filled(first := drawn(seed, batch, 1)), first)]
    for i in range(data.draw(st.integers(1, 12))):
        cache, wanted = made[data.draw(st.integers(0, len(made) - 1))]
        rows = wanted.shape[1]
        if data.draw(st.booleans()):
            part = drawn(seed + i + 1, rows, data.draw(st.integers(0, CAPACITY)))
            made.append((cache.add(part), joined(wanted, part)))
        else:
            order = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=4)))
            made.append((cache.reorder(order), picked(wanted, order)))
    for cache, wanted in made:
        holds(cache, wanted)


def test_an_empty_cache_has_any_rows():
    empty = Cache().reorder(torch.tensor([1, 0, 1]))
    holds(empty.add(part := drawn(0, 3, 2)), part)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_numbers_keep_their_kind(dtype):
    part = drawn(0, 2, 3).to(dtype)
    assert filled(part, part).reorder(torch.tensor([1])).all().keys.dtype == dtype


def test_no_gradient_flows_back_through_it():
    part = drawn(0, 2, 3).requires_grad_()
    assert not any(x.requires_grad for x in filled(part, part).all())


# What it costs


def test_a_single_line_of_tokens_is_copied_only_when_its_room_has_doubled():
    cache, places, tokens = Cache(), [], 200
    for i in range(tokens):
        cache = cache.add(drawn(i, 2, 1))
        places.append(cache.all().keys.data_ptr())
    moves = [i for i in range(1, tokens) if places[i] != places[i - 1]]
    assert moves[0] == CAPACITY  # so many had room
    assert all(later >= 2 * sooner for sooner, later in itertools.pairwise(moves))
    assert len(moves) == math.ceil(math.log2(tokens / CAPACITY))


def test_a_continuation_shares_memory_with_its_beginning_and_a_second_one_does_not():
    start = filled(drawn(0, 2, 4))
    where = [x.data_ptr() for x in start.all()]
    assert [x.data_ptr() for x in start.add(drawn(1, 2, 1)).all()] == where
    assert not set(where) & {x.data_ptr() for x in start.add(drawn(2, 2, 1)).all()}


def test_a_taken_cache_keeps_room_for_more():
    taken = filled(drawn(0, 2, 4)).reorder(torch.tensor([1, 0]))
    assert taken.add(drawn(1, 2, 1)).all().keys.data_ptr() == taken.all().keys.data_ptr()


# What attention does with it


@law
@given(seed=seeds, batch=st.integers(1, 3), lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_a_cache_followed_by_later_keys_is_all_of_them(seed, batch, lengths):
    torch.manual_seed(seed)
    attn = Attention(8, 2).double()
    x = torch.randn(batch, sum(lengths), 8, dtype=torch.float64)
    whole = attn.keys_values(x)
    parts = filled(*(torch.stack(attn.keys_values(part)) for part in x.split(lengths, 1))).all()
    assert whole.keys.shape == (batch, 2, sum(lengths), 4)
    for got, wanted in zip(parts, whole, strict=True):
        torch.testing.assert_close(got, wanted)


@law
@given(seed=seeds, batch=st.integers(1, 3), lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_looking_back_through_a_cache_equals_looking_at_all_at_once(seed, batch, lengths):
    torch.manual_seed(seed)
    attn = Attention(8, 2).double()
    for p in attn.parameters():
        torch.nn.init.normal_(p, std=0.5)
    x = torch.randn(batch, sum(lengths), 8, dtype=torch.float64)
    past, seen = Cache(), []
    for part in x.split(lengths, 1):
        past = past.add(torch.stack(attn.keys_values(part)))
        seen.append(attn(part, past.all(), causal=True))
    wanted = attn(x, attn.keys_values(x), causal=True)  # queries, keys and values from products of their own
    torch.testing.assert_close(torch.cat(seen, 1), wanted)
    torch.testing.assert_close(attn(x, causal=True), wanted)
