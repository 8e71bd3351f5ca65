"""Masks against plain Python."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.layers.masks import causal_mask, padding_mask


def test_padding_is_masked():
    tokens = torch.tensor([[5, 6, 0, 0], [7, 0, 8, 9]])
    mask = padding_mask(tokens, pad=0)
    assert mask.shape == (2, 1, 1, 4)
    assert mask[:, 0, 0].tolist() == [[True, True, False, False], [True, False, True, True]]


def test_padding_may_have_any_id():
    assert padding_mask(torch.tensor([[0, 3]]), pad=3).flatten().tolist() == [True, False]


@given(queries=st.integers(1, 6), keys=st.integers(1, 6))
def test_a_query_attends_to_its_own_and_earlier_keys_aligned_at_the_end(queries, keys):
    mask = causal_mask(queries, keys)
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[queries - 1 - q <= keys - 1 - k for k in range(keys)] for q in range(queries)]


def test_a_single_query_attends_to_all_keys():
    assert causal_mask(1, 4).tolist() == [[True] * 4]
