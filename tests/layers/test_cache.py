"""A cache against plain concatenation, however it is split, continued and reordered."""

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


def random_keys_values(seed: int, batch: int, tokens: int) -> Tensor:
    """Random keys and values of two heads, (2, B, H, K, E), all different."""
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


# Contents


@law
@given(seed=seeds, batch=st.integers(1, 3), lengths=splits)
def test_a_cache_holds_all_parts_in_the_order_they_were_added(seed, batch, lengths):
    parts = [random_keys_values(seed + i, batch, length) for i, length in enumerate(lengths)]
    cache = Cache()
    for i, part in enumerate(parts, 1):
        cache = cache.add(part)
        holds(cache, joined(*parts[:i]))


@law
@given(seed=seeds, batch=st.integers(1, 3), lengths=splits, left=splits, right=splits)
def test_two_continuations_change_neither_each_other_nor_their_prefix(seed, batch, lengths, left, right):
    prefix = [random_keys_values(seed + i, batch, length) for i, length in enumerate(lengths)]
    first = [random_keys_values(seed + 100 + i, batch, length) for i, length in enumerate(left)]
    second = [random_keys_values(seed + 200 + i, batch, length) for i, length in enumerate(right)]
    start = filled(*prefix)
    left_cache, right_cache = start, start
    for i in range(max(len(first), len(second))):  # in turn
        left_cache = left_cache.add(first[i]) if i < len(first) else left_cache
        right_cache = right_cache.add(second[i]) if i < len(second) else right_cache
    holds(left_cache, joined(*prefix, *first))
    holds(right_cache, joined(*prefix, *second))
    holds(start, joined(*prefix))


@law
@given(seed=seeds, batch=st.integers(1, 4), lengths=splits, later=splits, data=st.data())
def test_reordered_rows_equal_those_of_the_concatenation_and_can_be_continued(seed, batch, lengths, later, data):
    rows = torch.tensor(data.draw(st.lists(st.integers(0, batch - 1), max_size=6)), dtype=torch.long)
    before = [random_keys_values(seed + i, batch, length) for i, length in enumerate(lengths)]
    after = [random_keys_values(seed + 100 + i, len(rows), length) for i, length in enumerate(later)]
    whole = filled(*before)
    reordered = whole.reorder(rows)
    holds(reordered, picked(joined(*before), rows))
    for i, part in enumerate(after, 1):
        reordered = reordered.add(part)
        holds(reordered, joined(picked(joined(*before), rows), *after[:i]))
    holds(whole, joined(*before))


@law
@given(seed=seeds, batch=st.integers(1, 3), data=st.data())
def test_caches_stay_independent_however_they_are_continued_and_reordered(seed, batch, data):
    made = [(filled(first := random_keys_values(seed, batch, 1)), first)]
    for i in range(data.draw(st.integers(1, 12))):
        cache, wanted = made[data.draw(st.integers(0, len(made) - 1))]
        rows = wanted.shape[1]
        if data.draw(st.booleans()):
            part = random_keys_values(seed + i + 1, rows, data.draw(st.integers(0, CAPACITY)))
            made.append((cache.add(part), joined(wanted, part)))
        else:
            order = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=4)))
            made.append((cache.reorder(order), picked(wanted, order)))
    for cache, wanted in made:
        holds(cache, wanted)


def test_an_empty_cache_can_be_reordered():
    empty = Cache().reorder(torch.tensor([1, 0, 1]))
    holds(empty.add(part := random_keys_values(0, 3, 2)), part)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_cache_keeps_the_dtype(dtype):
    part = random_keys_values(0, 2, 3).to(dtype)
    assert filled(part, part).reorder(torch.tensor([1])).all().keys.dtype == dtype


def test_no_gradient_flows_through_a_cache():
    part = random_keys_values(0, 2, 3).requires_grad_()
    assert not any(x.requires_grad for x in filled(part, part).all())


# Cost


def test_appending_copies_only_when_the_capacity_doubles():
    cache, addresses, tokens = Cache(), [], 200
    for i in range(tokens):
        cache = cache.add(random_keys_values(i, 2, 1))
        addresses.append(cache.all().keys.data_ptr())
    moves = [i for i in range(1, tokens) if addresses[i] != addresses[i - 1]]
    assert moves[0] == CAPACITY  # the initial capacity
    assert all(later >= 2 * earlier for earlier, later in itertools.pairwise(moves))
    assert len(moves) == math.ceil(math.log2(tokens / CAPACITY))


def test_the_first_continuation_shares_memory_with_its_prefix_and_a_second_does_not():
    start = filled(random_keys_values(0, 2, 4))
    where = [x.data_ptr() for x in start.all()]
    assert [x.data_ptr() for x in start.add(random_keys_values(1, 2, 1)).all()] == where
    assert not set(where) & {x.data_ptr() for x in start.add(random_keys_values(2, 2, 1)).all()}


def test_a_reordered_cache_keeps_its_spare_capacity():
    reordered = filled(random_keys_values(0, 2, 4)).reorder(torch.tensor([1, 0]))
    assert reordered.add(random_keys_values(1, 2, 1)).all().keys.data_ptr() == reordered.all().keys.data_ptr()


# Attention


@law
@given(seed=seeds, batch=st.integers(1, 3), lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_cached_keys_and_values_equal_those_of_the_whole_sequence(seed, batch, lengths):
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
def test_causal_attention_through_a_cache_equals_one_full_pass(seed, batch, lengths):
    torch.manual_seed(seed)
    attn = Attention(8, 2).double()
    for p in attn.parameters():
        torch.nn.init.normal_(p, std=0.5)
    x = torch.randn(batch, sum(lengths), 8, dtype=torch.float64)
    cache, outputs = Cache(), []
    for part in x.split(lengths, 1):
        cache = cache.add(torch.stack(attn.keys_values(part)))
        outputs.append(attn(part, cache.all(), causal=True))
    wanted = attn(x, attn.keys_values(x), causal=True)  # with separate projections
    torch.testing.assert_close(torch.cat(outputs, 1), wanted)
    torch.testing.assert_close(attn(x, causal=True), wanted)
