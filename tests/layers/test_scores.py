"""Bahdanau's and Luong's scores against loops of plain Python."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.layers.scores import Additive, General, Location


def by_hand(score: Additive, q: torch.Tensor, k: torch.Tensor) -> list[list[float]]:
    """The score v · tanh(W q + U k) of each query and key: q (Q, E), k (K, E)."""
    w, u, v = (layer.weight.tolist() for layer in (score.query, score.key, score.value))

    def score_pair(a, b):
        hidden = [
            math.tanh(sum(x * y for x, y in zip(row_w, a, strict=True)) + sum(x * y for x, y in zip(row_u, b, strict=True)))
            for row_w, row_u in zip(w, u, strict=True)
        ]
        return sum(x * y for x, y in zip(v[0], hidden, strict=True))

    return [[score_pair(a, b) for b in k.tolist()] for a in q.tolist()]


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), queries=st.integers(1, 4), keys=st.integers(1, 4), width=st.integers(1, 4))
def test_the_additive_score_equals_a_plain_python_loop(seed, queries, keys, width):
    torch.manual_seed(seed)
    score = Additive(width, width + 1, 5).double()
    q, k = torch.randn(2, queries, width, dtype=torch.float64), torch.randn(2, keys, width + 1, dtype=torch.float64)
    got = score(q, score.keys(k))
    assert got.shape == (2, queries, keys)
    wanted = torch.tensor([by_hand(score, q[i], k[i]) for i in range(2)], dtype=torch.float64)
    torch.testing.assert_close(got, wanted)


def test_the_additive_score_has_three_matrices_and_no_bias():
    assert {name: tuple(p.shape) for name, p in Additive(4, 3, 6).named_parameters()} == {
        "query.weight": (6, 4),
        "key.weight": (6, 3),
        "value.weight": (1, 6),
    }


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), queries=st.integers(1, 4), keys=st.integers(1, 4))
def test_the_general_score_equals_a_plain_python_loop(seed, queries, keys):
    torch.manual_seed(seed)
    score = General(3, 5).double()
    q, k = torch.randn(queries, 3, dtype=torch.float64), torch.randn(keys, 5, dtype=torch.float64)
    w = score.key.weight.tolist()
    wanted = [[sum(a[i] * w[i][j] * b[j] for i in range(3) for j in range(5)) for b in k.tolist()] for a in q.tolist()]  # q · W k
    torch.testing.assert_close(score(q, score.keys(k)), torch.tensor(wanted, dtype=torch.float64))


def test_a_general_score_with_the_identity_is_the_dot_product():
    score, q, k = General(4, 4), torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    torch.nn.init.eye_(score.key.weight)
    torch.testing.assert_close(score(q, score.keys(k)), q @ k.mT)


def test_a_location_score_depends_on_the_query_and_the_position_alone():
    torch.manual_seed(0)
    score, q, k = Location(4, 6), torch.randn(2, 3, 4), torch.randn(2, 5, 7)
    got = score(q, score.keys(k))
    for position in range(5):
        torch.testing.assert_close(got[..., position], q @ score.query.weight[position])
    assert torch.equal(got, score(q, score.keys(torch.randn(2, 5, 7))))
    torch.testing.assert_close(got[..., :2], score(q, score.keys(k[:, :2])))


def test_a_location_score_refuses_positions_it_was_not_trained_for():
    score = Location(4, 6)
    assert score.keys(torch.randn(1, 6, 7)).shape == (1, 6, 7)
    with pytest.raises(ValueError, match=r"a source of 7 tokens, .* this location score was trained for 6 positions"):
        score.keys(torch.randn(1, 7, 7))
