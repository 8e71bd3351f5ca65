"""`blocked_topk` against torch's `topk`, `blocked_logsumexp` against its `logsumexp`."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.decode.topk import COLUMNS, ROWS, blocked_logsumexp, blocked_topk

law = settings(max_examples=100)

seeds, few, long = st.integers(0, 10_000), st.integers(1, 10), st.integers(2 * COLUMNS, 5000)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check(x: Tensor, k: int, add: Tensor | None = None) -> None:
    """The values of topk, largest first, and distinct indices that hold them; any index for -inf."""
    before, together = x.clone(), (x if add is None else x + add[:, :, None]).flatten(1)
    values, index = blocked_topk(x, k, add)
    assert torch.equal(values, together.topk(k).values)
    real = values > -math.inf
    assert torch.equal(together.gather(1, index)[real], values[real])
    assert all(len(set(row[ok].tolist())) == ok.sum() for row, ok in zip(index, real, strict=True))
    assert torch.equal(x, before)


# blocked_topk


@law
@given(seed=seeds, batch=st.integers(1, 4), width=st.integers(1, 5), k=few, data=st.data())
def test_blocked_topk_equals_topk_for_long_and_short_rows(seed, batch, width, k, data):
    vocab = data.draw(st.integers(-(-k // width), 5000))
    check(normal(seed, batch, width, vocab), k, normal(seed + 1, batch, width) if data.draw(st.booleans()) else None)


@law
@given(seed=seeds, vocab=long, width=st.integers(1, 4), k=few)
def test_beams_with_low_or_infinite_offsets_are_handled(seed, vocab, width, k):
    add = 5 * normal(seed + 1, 2, width)
    add[0, 1:] = -math.inf  # as at the first step of a search
    check(normal(seed, 2, width, vocab), k, add)


@law
@given(seed=seeds, levels=st.integers(1, 30), k=few, vocab=long, width=st.integers(1, 3))
def test_ties_give_distinct_indices(seed, levels, k, vocab, width):
    x = torch.randint(levels, (2, width, vocab), generator=torch.Generator().manual_seed(seed))
    check(x.float(), k)


@law
@given(seed=seeds, k=few, vocab=long, width=st.integers(1, 3), data=st.data())
def test_the_largest_values_may_share_one_column_or_lie_at_the_end(seed, k, vocab, width, data):
    x = normal(seed, 2, width, vocab)
    column = data.draw(st.integers(0, COLUMNS - 1))
    for part in (x[0, -1, column::COLUMNS], x[1, 0, -data.draw(st.integers(1, 300)) :]):
        part += 5 + normal(seed + 1, len(part)).abs()
    check(x, k, normal(seed + 2, 2, width))


@law
@given(seed=seeds, k=few, vocab=long, data=st.data())
def test_rows_of_minus_infinity_are_handled(seed, k, vocab, data):
    x = torch.full((3, 1, vocab), -math.inf)
    finite = data.draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=k))
    x[1, 0, finite] = normal(seed, len(finite))
    x[2] = normal(seed + 1, vocab)
    check(x, k)


@pytest.mark.parametrize("vocab", [2 * COLUMNS - 1, 2 * COLUMNS, 2 * COLUMNS + 1, 3 * COLUMNS - 1, 19 * COLUMNS])
@pytest.mark.parametrize("k", [1, 10, 64])
def test_vocabularies_near_a_multiple_of_the_block_are_handled(vocab, k):
    check(normal(k, 1, 1, vocab), k)
    check(normal(k, 1, 1, vocab), k, normal(k + 1, 1, 1))
    check(normal(k, 1, 3, vocab), k, normal(k + 1, 1, 3))


def test_non_contiguous_inputs_are_handled():
    wide = normal(0, 3, 4, 9000)
    check(wide[1:2, 1:3, 13:5001], 3, normal(1, 1, 2))
    check(wide.double().transpose(0, 1), 5, normal(1, 4, 3).double())


# blocked_logsumexp


@settings(max_examples=40)
@given(seed=seeds, rows=st.integers(1, 3 * ROWS + 1), vocab=st.integers(1, 600), size=st.sampled_from([0.1, 3.0, 300.0]),
       data=st.data())  # fmt: skip
def test_blocked_logsumexp_equals_logsumexp(seed, rows, vocab, size, data):
    x = size * normal(seed, rows, vocab)
    x[data.draw(st.integers(0, rows - 1)), : vocab - 1] = -math.inf
    x[data.draw(st.integers(0, rows - 1))] = data.draw(st.sampled_from([-math.inf, 0.0]))
    before = x.clone()
    torch.testing.assert_close(blocked_logsumexp(x), x.double().logsumexp(-1).float(), rtol=1e-6, atol=1e-5)
    assert torch.equal(x, before)
