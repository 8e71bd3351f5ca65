"""`highest` against torch's own `topk`, `log_total` against its `logsumexp`."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.decode.topk import COLUMNS, ROWS, blocked_logsumexp, blocked_topk

law = settings(max_examples=100)

seeds, few, long = st.integers(0, 10_000), st.integers(1, 10), st.integers(2 * COLUMNS, 5000)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check(x: Tensor, k: int, add: Tensor | None = None) -> None:
    """The very values of topk, largest first, and places that hold them, none of them twice; of -inf any place."""
    before, together = x.clone(), (x if add is None else x + add[:, :, None]).flatten(1)
    values, where = blocked_topk(x, k, add)
    assert torch.equal(values, together.topk(k).values)
    real = values > -math.inf
    assert torch.equal(together.gather(1, where)[real], values[real])
    assert all(len(set(row[ok].tolist())) == ok.sum() for row, ok in zip(where, real, strict=True))
    assert torch.equal(x, before)


# The largest


@law
@given(seed=seeds, batch=st.integers(1, 4), width=st.integers(1, 5), k=few, data=st.data())
def test_it_is_topk_whether_rows_are_long_or_short(seed, batch, width, k, data):
    vocab = data.draw(st.integers(-(-k // width), 5000))
    check(drawn(seed, batch, width, vocab), k, drawn(seed + 1, batch, width) if data.draw(st.booleans()) else None)


@law
@given(seed=seeds, vocab=long, width=st.integers(1, 4), k=few)
def test_a_beam_far_behind_gives_none_and_a_beam_that_cannot_be_is_no_trouble(seed, vocab, width, k):
    add = 5 * drawn(seed + 1, 2, width)
    add[0, 1:] = -math.inf  # as at the first step of a search
    check(drawn(seed, 2, width, vocab), k, add)


@law
@given(seed=seeds, levels=st.integers(1, 30), k=few, vocab=long, width=st.integers(1, 3))
def test_among_equal_numbers_each_place_is_given_once(seed, levels, k, vocab, width):
    x = torch.randint(levels, (2, width, vocab), generator=torch.Generator().manual_seed(seed))
    check(x.float(), k)


@law
@given(seed=seeds, k=few, vocab=long, width=st.integers(1, 3), data=st.data())
def test_the_largest_may_stand_anywhere_even_all_in_one_column_or_at_the_end(seed, k, vocab, width, data):
    x = drawn(seed, 2, width, vocab)
    column = data.draw(st.integers(0, COLUMNS - 1))
    for places in (x[0, -1, column::COLUMNS], x[1, 0, -data.draw(st.integers(1, 300)) :]):
        places += 5 + drawn(seed + 1, len(places)).abs()
    check(x, k, drawn(seed + 2, 2, width))


@law
@given(seed=seeds, k=few, vocab=long, data=st.data())
def test_rows_of_what_cannot_be_are_no_trouble(seed, k, vocab, data):
    x = torch.full((3, 1, vocab), -math.inf)
    some = data.draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=k))
    x[1, 0, some] = drawn(seed, len(some))
    x[2] = drawn(seed + 1, vocab)
    check(x, k)


@pytest.mark.parametrize("vocab", [2 * COLUMNS - 1, 2 * COLUMNS, 2 * COLUMNS + 1, 3 * COLUMNS - 1, 19 * COLUMNS])
@pytest.mark.parametrize("k", [1, 10, 64])
def test_one_row_of_just_so_many_columns(vocab, k):
    check(drawn(k, 1, 1, vocab), k)
    check(drawn(k, 1, 1, vocab), k, drawn(k + 1, 1, 1))
    check(drawn(k, 1, 3, vocab), k, drawn(k + 1, 1, 3))


def test_a_part_of_a_wider_table():
    wide = drawn(0, 3, 4, 9000)
    check(wide[1:2, 1:3, 13:5001], 3, drawn(1, 1, 2))
    check(wide.double().transpose(0, 1), 5, drawn(1, 4, 3).double())


# The sum of all odds


@settings(max_examples=40)
@given(seed=seeds, rows=st.integers(1, 3 * ROWS + 1), vocab=st.integers(1, 600), size=st.sampled_from([0.1, 3.0, 300.0]),
       data=st.data())  # fmt: skip
def test_the_logarithm_of_all_odds_is_logsumexp(seed, rows, vocab, size, data):
    x = size * drawn(seed, rows, vocab)
    x[data.draw(st.integers(0, rows - 1)), : vocab - 1] = -math.inf
    x[data.draw(st.integers(0, rows - 1))] = data.draw(st.sampled_from([-math.inf, 0.0]))
    before = x.clone()
    torch.testing.assert_close(blocked_logsumexp(x), x.double().logsumexp(-1).float(), rtol=1e-6, atol=1e-5)
    assert torch.equal(x, before)
