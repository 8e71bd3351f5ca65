"""`reorder` on any nest of tensors."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decode.step import reorder


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


X, Y = torch.arange(12).view(4, 3), torch.arange(4) * 10


@given(rows=st.lists(st.integers(0, 3), max_size=6))
def test_rows_are_selected_repeated_and_left_out_in_order(rows):
    selected = reorder(X, torch.tensor(rows, dtype=torch.long))
    assert selected.tolist() == [X[row].tolist() for row in rows]


@pytest.mark.parametrize("nest", [(X, Y), [X, Y], Pair(X, Y), {"x": X, "y": Y}], ids=["tuple", "list", "named", "dict"])
def test_a_nest_keeps_its_type(nest):
    selected = reorder(nest, torch.tensor([2, 0]))
    assert type(selected) is type(nest)
    left, right = selected.values() if isinstance(nest, dict) else selected
    assert left.tolist() == [[6, 7, 8], [0, 1, 2]]
    assert right.tolist() == [20, 0]
    if isinstance(nest, dict):
        assert list(selected) == ["x", "y"]


def test_nested_nests_are_reordered():
    selected = reorder({"a": (Pair(X, Y), [Y, (X,)]), "b": ()}, torch.tensor([3]))
    assert selected["b"] == ()
    pair, [y, (x,)] = selected["a"]
    assert isinstance(pair, Pair)
    assert pair.right.tolist() == y.tolist() == [30]
    assert pair.left.tolist() == x.tolist() == [[9, 10, 11]]


def test_reordered_rows_are_a_copy():
    x = X.clone()
    reorder(x, torch.tensor([0]))[:] = -1
    assert torch.equal(x, X)
