"""Our GRU and LSTM steps against torch's layers with copied weights; sequences without their padding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regard.layers.recurrent import LSTM, GRUCell, LSTMState, reversing_index, run_unpadded

few = settings(max_examples=15)
seeds, sizes = st.integers(0, 1000), st.integers(1, 5)


def copied(gru: nn.GRU) -> GRUCell:
    cell = GRUCell(gru.input_size, gru.hidden_size)
    with torch.no_grad():
        for layer, ours in (("ih", cell.inputs), ("hh", cell.recurrent)):
            ours.weight.copy_(getattr(gru, f"weight_{layer}_l0"))
            ours.bias.copy_(getattr(gru, f"bias_{layer}_l0"))
    return cell


@few
@given(seed=seeds, batch=sizes, steps=st.integers(1, 9), dim=sizes, hidden=sizes)
def test_a_gru_cell_equals_torch_with_copied_weights(seed, batch, steps, dim, hidden):
    torch.manual_seed(seed)
    gru = nn.GRU(dim, hidden, batch_first=True)
    x, h = torch.randn(batch, steps, dim), torch.randn(batch, hidden)
    wanted, _ = gru(x, h[None])
    cell, got = copied(gru), []
    for inputs in cell.inputs(x).unbind(1):
        h = cell(inputs, h)
        got.append(h)
    torch.testing.assert_close(torch.stack(got, 1), wanted, rtol=0, atol=1e-6)


def test_a_gru_cell_has_the_gradients_of_torch():
    torch.manual_seed(0)
    gru = nn.GRU(3, 4, batch_first=True)
    cell, x, h = copied(gru), torch.randn(2, 5, 3), torch.zeros(2, 4)
    gru(x)[0].square().sum().backward()
    got = []
    for inputs in cell.inputs(x).unbind(1):
        h = cell(inputs, h)
        got.append(h)
    torch.stack(got).square().sum().backward()
    for theirs, ours in ((gru.weight_ih_l0, cell.inputs.weight), (gru.weight_hh_l0, cell.recurrent.weight)):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-5)


def test_recurrent_weights_start_orthogonal():
    for weight in GRUCell(3, 6).recurrent.weight.chunk(3):
        torch.testing.assert_close(weight @ weight.T, torch.eye(6), rtol=0, atol=1e-5)


@few
@given(seed=seeds, batch=sizes, steps=st.integers(1, 9), depth=st.integers(1, 3))
def test_single_lstm_steps_equal_torch_over_the_whole_sequence(seed, batch, steps, depth):
    torch.manual_seed(seed)
    lstm, x = LSTM(3, 4, depth, batch_first=True, dropout=0.5 if depth > 1 else 0.0).eval(), torch.randn(batch, steps, 3)
    theirs = nn.LSTM(3, 4, depth, batch_first=True)
    theirs.load_state_dict(lstm.state_dict())
    h, c = torch.randn(2, depth, batch, 4)
    wanted, (last_h, last_c) = theirs(x, (h, c))
    state, got = LSTMState(h.transpose(0, 1), c.transpose(0, 1)), []
    for token in x.unbind(1):
        y, state = lstm.step(token, state)
        got.append(y)
    torch.testing.assert_close(torch.stack(got, 1), wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(state.hidden.transpose(0, 1), last_h, rtol=0, atol=1e-6)
    torch.testing.assert_close(state.cell.transpose(0, 1), last_c, rtol=0, atol=1e-6)


@few
@given(seed=seeds, lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), more=st.integers(0, 3))
def test_padding_is_neither_read_nor_written(seed, lengths, more):
    torch.manual_seed(seed)
    gru = nn.GRU(3, 4, batch_first=True, bidirectional=True)
    x = torch.randn(len(lengths), max(lengths) + more, 3)
    outputs, last = run_unpadded(gru, x, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        alone, end = gru(x[row : row + 1, :length])
        torch.testing.assert_close(outputs[row, :length], alone[0], rtol=0, atol=1e-6)
        torch.testing.assert_close(last[:, row], end[:, 0], rtol=0, atol=1e-6)
        assert not outputs[row, length:].any()


def test_an_empty_row_is_read_as_one_step():
    gru, x = nn.GRU(3, 4, batch_first=True), torch.randn(2, 2, 3)
    outputs, _ = run_unpadded(gru, x, torch.tensor([0, 2]))
    torch.testing.assert_close(outputs[1], gru(x[1:])[0][0])
    assert outputs.isfinite().all()


@pytest.mark.parametrize("lengths", [[4, 2, 1], [3, 3, 0]])
def test_reversal_moves_real_steps_only(lengths):
    x = torch.arange(12).view(3, 4)
    wanted = [[*row[:length][::-1], *row[length:]] for row, length in zip(x.tolist(), lengths, strict=True)]
    index = reversing_index(torch.tensor(lengths), 4)
    assert x.gather(1, index).tolist() == wanted
    assert x.gather(1, index).gather(1, index).equal(x)  # twice is once back
