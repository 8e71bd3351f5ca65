"""Position embeddings: the lecture's numbers, and the properties of section 3.5 of the paper."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.layers.positions import LearnedPositions, SinusoidalPositions, sinusoid

law = settings(max_examples=25)


def test_the_first_positions_have_the_values_of_the_lecture():
    wanted = torch.tensor([[0, 1, 0, 1, 0, 1], [0.8415, 0.5403, 0.0464, 0.9989, 0.0022, 1.0000]])
    torch.testing.assert_close(sinusoid(2, 6), wanted, rtol=0, atol=5e-5)


@law
@given(length=st.integers(1, 60), dim=st.integers(1, 17))
def test_the_table_is_the_papers_formula(length, dim):
    wanted = [[(math.cos if i % 2 else math.sin)(p / 10_000 ** ((i - i % 2) / dim)) for i in range(dim)] for p in range(length)]
    table = sinusoid(length, dim)
    assert table.shape == (length, dim)
    torch.testing.assert_close(table, torch.tensor(wanted), rtol=0, atol=1e-6)
    assert table.abs().max() <= 1


def test_all_positions_differ():
    assert len(sinusoid(2000, 16).unique(dim=0)) == 2000


@law
@given(position=st.integers(0, 100), ahead=st.integers(0, 100), half=st.integers(1, 8))
def test_an_offset_is_a_rotation_independent_of_the_position(position, ahead, half):
    table = sinusoid(201, 2 * half).double()
    for i in range(half):
        angle = ahead / 10_000 ** (2 * i / (2 * half))
        rotation = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        here, there = table[position, 2 * i : 2 * i + 2], table[position + ahead, 2 * i : 2 * i + 2]
        torch.testing.assert_close(rotation.double() @ here, there, rtol=0, atol=1e-5)


@law
@given(start=st.integers(0, 40), more=st.integers(1, 40), dim=st.integers(1, 9))
def test_the_sinusoid_grows_on_demand_with_the_same_values(start, more, dim):
    positions = SinusoidalPositions(dim, max_len=4)
    before = positions(0, 4).clone()
    assert torch.equal(positions(start, start + more), sinusoid(start + more, dim)[start:])
    assert torch.equal(positions(0, 4), before)


def test_a_grown_table_keeps_its_dtype_and_is_never_saved():
    positions = SinusoidalPositions(4, max_len=2).double()
    assert positions(0, 50).dtype == torch.float64
    assert positions.state_dict() == {}


def test_a_table_grown_in_inference_mode_works_in_training():
    positions, x = SinusoidalPositions(4, max_len=2), torch.randn(1, 9, 4, requires_grad=True)
    with torch.inference_mode():
        positions(0, 9)
    (x + positions(0, 9)).square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * (x + sinusoid(9, 4)).detach())


def test_learned_positions_are_rows_of_a_trained_table():
    positions = LearnedPositions(4, max_len=6)
    positions(2, 5).sum().backward()
    assert torch.equal(positions(2, 5), positions.table[2:5])
    assert positions.table.grad[:, 0].tolist() == [0, 0, 1, 1, 1, 0]


def test_more_tokens_than_learned_positions_are_refused():
    positions = LearnedPositions(4, max_len=6)
    assert positions(0, 6).shape == (6, 4)
    with pytest.raises(ValueError, match=r"7 tokens are more than the 6 learned positions; .*model.max_len=7"):
        positions(5, 7)
