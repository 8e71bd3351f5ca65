"""Who may look at whom, in plain Python."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.layers.masks import causal_mask, padding_mask


def test_padding_may_not_be_looked_at():
    tokens = torch.tensor([[5, 6, 0, 0], [7, 0, 8, 9]])
    mask = padding_mask(tokens, pad=0)
    assert mask.shape == (2, 1, 1, 4)
    assert mask[:, 0, 0].tolist() == [[True, True, False, False], [True, False, True, True]]


def test_padding_may_be_another_number():
    assert padding_mask(torch.tensor([[0, 3]]), pad=3).flatten().tolist() == [True, False]


@given(queries=st.integers(1, 6), keys=st.integers(1, 6))
def test_a_query_sees_its_own_key_and_those_before_it_counted_from_the_end(queries, keys):
    mask = causal_mask(queries, keys)
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[queries - 1 - q <= keys - 1 - k for k in range(keys)] for q in range(queries)]


def test_a_single_query_sees_its_whole_past():
    assert causal_mask(1, 4).tolist() == [[True] * 4]
