"""Recurrent layers: an LSTM that also runs one step at a time, cells of a GRU and an LSTM, and how padding is left out.

Shapes: B batch, T time steps, D width of the input, H width of the state, L layers.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.layers.linear import Linear

__all__ = ["LSTM", "GRUCell", "LSTMCell", "LSTMState", "reversing_index", "run_unpadded"]


class LSTMState(NamedTuple):
    """The state of all layers, batch first, as the searches reorder it."""

    hidden: Tensor  # (B, L, H)
    cell: Tensor  # (B, L, H)


class LSTM(nn.LSTM):
    """torch's fused LSTM for whole sequences, and the same weights one step at a time."""

    def step(self, x: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """One time step of all layers, without dropout: (B, D) and the state before → (B, H) and the state after."""
        hidden, cell = list[Tensor](), list[Tensor]()
        for weights, h, c in zip(self.all_weights, *(part.unbind(1) for part in state), strict=True):
            x, after = torch.lstm_cell(x, [h, c], *weights)  # (B, H)
            hidden.append(x)
            cell.append(after)
        return x, LSTMState(torch.stack(hidden, 1), torch.stack(cell, 1))


class GRUCell(nn.Module):
    """One time step of a GRU, as torch computes it.

    The product with the input comes from outside: `inputs` computes it for all time steps at once, and more may be added.
    """

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.inputs, self.recurrent = Linear(dim, 3 * hidden), Linear(hidden, 3 * hidden)  # rows: reset, update, candidate
        for weight in self.recurrent.weight.data.chunk(3):
            nn.init.orthogonal_(weight)

    def forward(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        """Input product (B, 3H) and state before (B, H) → state after (B, H)."""
        width = hidden.shape[-1]
        recurrent = self.recurrent(hidden)  # (B, 3H)
        gates = torch.sigmoid(inputs[:, : 2 * width] + recurrent[:, : 2 * width])
        reset, update = gates.chunk(2, -1)  # (B, H)
        candidate = torch.tanh(torch.addcmul(inputs[:, 2 * width :], reset, recurrent[:, 2 * width :]))
        return torch.lerp(candidate, hidden, update)  # update · hidden + (1 - update) · candidate


class LSTMCell(nn.Module):
    """One time step of an LSTM, as torch computes it; the product with the input comes from outside, as for `GRUCell`."""

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.inputs, self.recurrent = Linear(dim, 4 * hidden), Linear(hidden, 4 * hidden, bias=False)
        # Rows: input, forget, candidate, output.  A forget gate that starts open remembers from the first steps on.
        nn.init.constant_(self.inputs.bias[hidden : 2 * hidden], 1.0)
        for weight in self.recurrent.weight.data.chunk(4):
            nn.init.orthogonal_(weight)

    def forward(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Input product (B, 4H), state and cell before (B, H) → state and cell after."""
        enter, forget, candidate, leave = (inputs + self.recurrent(hidden)).chunk(4, -1)  # (B, H)
        cell = torch.addcmul(torch.sigmoid(forget) * cell, torch.sigmoid(enter), torch.tanh(candidate))
        return torch.sigmoid(leave) * torch.tanh(cell), cell


def run_unpadded(rnn: nn.RNNBase, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor]]:
    """Run a batch-first RNN on the first `lengths` (B,) steps of each row of x (B, T, D): → outputs (B, T, ·), last states.

    Outputs at the padding are zero.  A backward direction starts at the last real step of its row.
    """
    if x.is_meta:  # no lengths either: `regard cost` counts a model without data
        outputs, last = rnn(x)
        return outputs, last
    lengths = lengths.clamp(min=1).cpu()  # torch packs no empty row
    packed, last = rnn(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    return pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])[0], last


def reversing_index(lengths: Tensor, steps: int) -> Tensor:
    """For each row its first `lengths` (B,) positions in reverse, then those of its padding: (B, T), for `gather`.

    Reading the reversed row again by this index restores it.
    """
    position = torch.arange(steps, device=lengths.device)  # (T,)
    return torch.where(position < lengths[:, None], lengths[:, None] - 1 - position, position)
