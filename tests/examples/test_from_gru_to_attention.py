"""Each step from a GRU to attention equals its neighbour in a special case, and the recurrence equals torch's."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from from_gru_to_attention import (
    Projections,
    compare,
    features,
    free_candidates,
    free_weights,
    gate_weights,
    gates_as_attention,
    main,
    printed_sum,
    run_gru,
    separate_keys_and_values,
    several_heads,
    transformer_attention,
    unrolled_sum,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

SCRIPT = Path(__file__).parents[2] / "examples" / "from_gru_to_attention.py"

lengths, widths, seeds = st.integers(1, 40), st.integers(1, 6), st.integers(0, 10_000)


def cell_and_inputs(seed: int, length: int, dim: int) -> tuple[nn.GRUCell, Tensor, Tensor]:
    """A random GRU cell, inputs (T, D) and a start (D,)."""
    torch.manual_seed(seed)
    return nn.GRUCell(dim, dim).requires_grad_(False), torch.randn(length, dim), torch.randn(dim)


def attention_by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal scaled dot-product attention as a loop of plain Python: (T, E) each."""
    q, k, v = q.tolist(), k.tolist(), v.tolist()
    out = []
    for t, query in enumerate(q):
        scores = [sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(len(query)) for key in k[: t + 1]]
        odds = [math.exp(score - max(scores)) for score in scores]
        out.append([sum(w * row[d] for w, row in zip(odds, v, strict=False)) / sum(odds) for d in range(len(v[0]))])
    return torch.tensor(out)


@settings(max_examples=25)
@given(seed=seeds, length=lengths, dim=widths)
def test_the_recurrence_is_that_of_torch(seed, length, dim):
    cell, x, h0 = cell_and_inputs(seed, length, dim)
    h, wanted = h0, []
    for x_t in x:
        h = cell(x_t, h)
        wanted.append(h)
    torch.testing.assert_close(run_gru(cell, x, h0).states, torch.stack(wanted), atol=1e-6, rtol=0)


@settings(max_examples=25)
@given(seed=seeds, length=lengths, dim=widths)
def test_the_unrolled_sum_equals_the_recurrence_for_any_length(seed, length, dim):
    cell, x, h0 = cell_and_inputs(seed, length, dim)
    states, u, candidates = run_gru(cell, x, h0)
    torch.testing.assert_close(unrolled_sum(u, candidates, h0), states, atol=1e-6, rtol=0)


@settings(max_examples=25)
@given(seed=seeds, length=lengths, dim=st.integers(2, 6))
def test_the_formula_of_the_notes_as_printed_does_not(seed, length, dim):
    cell, x, h0 = cell_and_inputs(seed, length, dim)
    states, u, candidates = run_gru(cell, x, torch.zeros_like(h0))  # without h_0, which the printed formula leaves out
    torch.testing.assert_close(unrolled_sum(u, candidates, torch.zeros_like(h0)), states, atol=1e-6, rtol=0)
    assert float((printed_sum(u, candidates) - states).abs().max()) > 1e-4


def test_the_printed_formula_is_evaluated_as_it_is_printed():
    """At t = 2 it reads u_1 u_2 h̃_1 + (empty product) (1 − u_1) h̃_2."""
    u, candidates = torch.tensor([[0.5], [0.8]]), torch.tensor([[1.0], [10.0]])
    torch.testing.assert_close(printed_sum(u, candidates), torch.tensor([[0.5], [0.5 * 0.8 + 0.5 * 10]]))


def test_the_weights_of_three_gates_are_those_computed_by_hand():
    u = torch.tensor([[0.5], [0.8], [0.9]])
    wanted = torch.tensor([[0.5, 0, 0], [0.5 * 0.8, 0.2, 0], [0.5 * 0.8 * 0.9, 0.2 * 0.9, 0.1]])
    torch.testing.assert_close(gate_weights(u).squeeze(-1), wanted)


@settings(max_examples=25)
@given(gates=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30))
def test_the_weights_of_a_state_sum_to_one_minus_the_product_of_its_gates(gates):
    u = torch.tensor(gates)[:, None]
    torch.testing.assert_close(gate_weights(u).sum(1), 1 - u.cumprod(0), atol=1e-6, rtol=0)


@settings(max_examples=25)
@given(seed=seeds, length=lengths, dim=widths)
def test_step_1_with_the_log_of_the_gates_weights_is_step_0(seed, length, dim):
    cell, x, h0 = cell_and_inputs(seed, length, dim)
    states, u, candidates = run_gru(cell, x, h0)
    torch.testing.assert_close(gates_as_attention(u, candidates, h0), states, atol=1e-6, rtol=0)


def test_step_1_also_reproduces_gates_that_are_fully_open_or_closed():
    u, candidates, h0 = torch.tensor([[1.0], [0.0], [1.0]]), torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([7.0])
    assert gates_as_attention(u, candidates, h0).flatten().tolist() == [7.0, 2.0, 2.0]


@settings(max_examples=15)
@given(seed=seeds, length=st.integers(1, 12), dim=widths)
def test_step_1_is_a_softmax_over_the_candidates_so_far(seed, length, dim):
    cell, x, h0 = cell_and_inputs(seed, length, dim)
    candidates = run_gru(cell, x, h0).candidates
    wanted = attention_by_hand(x, candidates, candidates)
    torch.testing.assert_close(free_weights(x, candidates), wanted, atol=1e-5, rtol=1e-5)


@settings(max_examples=25)
@given(seed=seeds, length=lengths, dim=widths)
def test_step_2_is_step_1_if_candidates_ignore_the_previous_state(seed, length, dim):
    cell, x, h0 = cell_and_inputs(seed, length, dim)
    with_memory = run_gru(cell, x, h0).candidates
    cell.weight_hh.zero_()
    without = run_gru(cell, x, h0).candidates
    torch.testing.assert_close(free_candidates(x, features(cell, x)), free_weights(x, without), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(with_memory, without, atol=1e-4)  # the special case is one


@settings(max_examples=25)
@given(seed=seeds, length=lengths, dim=widths)
def test_step_3_with_identities_is_step_2(seed, length, dim):
    cell, x, _ = cell_and_inputs(seed, length, dim)
    f_x, identity = features(cell, x), Projections(*[torch.eye(dim)] * 3)
    torch.testing.assert_close(separate_keys_and_values(x, f_x, identity), free_candidates(x, f_x), atol=1e-6, rtol=1e-6)


@settings(max_examples=15)
@given(seed=seeds, length=st.integers(1, 12), dim=widths)
def test_step_3_finds_by_keys_and_mixes_values(seed, length, dim):
    cell, x, _ = cell_and_inputs(seed, length, dim)
    f_x, (query, key, value) = features(cell, x), torch.randn(3, dim, dim)
    got = separate_keys_and_values(x, f_x, Projections(query, key, value))
    wanted = attention_by_hand((query @ x.T).T, (key @ f_x.T).T, (value @ f_x.T).T)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@settings(max_examples=25)
@given(seed=seeds, length=lengths, heads=st.integers(1, 4), width=st.integers(1, 3))
def test_step_4_is_step_3_in_each_head(seed, length, heads, width):
    dim = heads * width
    cell, x, _ = cell_and_inputs(seed, length, dim)
    f_x, p = features(cell, x), Projections(*torch.randn(3, dim, dim))
    rows = [slice(head * width, (head + 1) * width) for head in range(heads)]
    wanted = [separate_keys_and_values(x, f_x, Projections(*(matrix[part] for matrix in p))) for part in rows]
    torch.testing.assert_close(several_heads(x, f_x, p, heads), torch.cat(wanted, -1), atol=1e-5, rtol=1e-5)


@settings(max_examples=15)
@given(seed=seeds, length=lengths, heads=st.integers(1, 4), width=st.integers(1, 3))
def test_step_4_on_the_inputs_is_the_attention_of_a_transformer_and_of_torch(seed, length, heads, width):
    dim = heads * width
    torch.manual_seed(seed)
    x, p = torch.randn(length, dim), Projections(*torch.randn(3, dim, dim))
    got = several_heads(x, x, p, heads)
    torch.testing.assert_close(got, transformer_attention(x, p, heads), atol=1e-5, rtol=1e-4)
    layer = nn.MultiheadAttention(dim, heads, bias=False)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat(p))
        layer.out_proj.weight.copy_(torch.eye(dim))
        torch.testing.assert_close(got, layer(x, x, x, attn_mask=future, need_weights=False)[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_the_table_shows_equality_at_every_step_but_the_printed_formula(seed):
    table = compare(seed=seed)
    different = [row.step for row in table if row.difference > 2e-6]
    assert different == ["0  as printed"]
    assert {row.step[0] for row in table} == {"G", "0", "1", "2", "3", "4", "→"}


def test_the_example_prints_its_table(capsys):
    main()
    out = capsys.readouterr().out
    assert all(row.step in out and row.equals in out and row.idea in out for row in compare())
    assert "h_3 = 0.36 h̃_1 + 0.18 h̃_2 + 0.10 h̃_3 + 0.36 h_0" in out
    assert max(map(len, out.splitlines())) <= 120


def test_the_script_runs_by_itself():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("From a GRU to attention")
