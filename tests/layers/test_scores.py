"""Bahdanau's score against a loop of plain Python."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.layers.scores import Additive


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
    score = Additive(width, 5).double()
    q, k = (torch.randn(2, n, width, dtype=torch.float64) for n in (queries, keys))
    got = score(q, k)
    assert got.shape == (2, queries, keys)
    wanted = torch.tensor([by_hand(score, q[i], k[i]) for i in range(2)], dtype=torch.float64)
    torch.testing.assert_close(got, wanted)


def test_the_additive_score_has_three_matrices_and_no_bias():
    assert {name: tuple(p.shape) for name, p in Additive(4, 6).named_parameters()} == {
        "query.weight": (6, 4),
        "key.weight": (6, 4),
        "value.weight": (1, 6),
    }
