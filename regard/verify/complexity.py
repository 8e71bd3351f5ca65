"""What self-attention, recurrence and convolution cost: operations, sequential steps, and path lengths.

The four layers of the notes' table are the package's: `Attention`, a loop over its `GRUCell`, `ConvNorm` on an image of one row, and
Swin's attention within windows, which is the table's restricted self-attention.

Shapes: n positions, d width, k places of a kernel (its side squared), r positions of a window (its side M squared).
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from regard.layers.attention import Attention
from regard.layers.biases import RelativePositionBias
from regard.layers.conv import ConvNorm
from regard.layers.mlp import MLP
from regard.layers.norm import PreNorm
from regard.layers.recurrent import GRUCell, LSTMCell
from regard.layers.tap import watch
from regard.models.swin import Block, keep_window
from regard.verify.claim import Finding, at_least, at_most, between, claim, close, equals, refutes
from regard.verify.plots import Curves

__all__: list[str] = []

Layer = Callable[[Tensor], Tensor]  # (1, n, d) → (1, n, d)


# The layers


def self_attention(dim: int, heads: int = 1) -> Layer:
    """Every position attends to all positions."""
    return Attention(dim, heads)


def recurrence(dim: int) -> Layer:
    """A GRU: the product with the inputs for all positions at once, the rest one position after the other."""
    cell = GRUCell(dim, dim)

    def run(x: Tensor) -> Tensor:
        hidden, states = x.new_zeros(len(x), dim), list[Tensor]()
        for inputs in cell.inputs(x).unbind(1):
            hidden = cell(inputs, hidden)
            states.append(hidden)
        return torch.stack(states, 1)

    return run


def convolution(dim: int, side: int = 3, dilation: int = 1) -> Layer:
    """A square kernel on an image of one row, so that its neighbours are those of a sequence."""
    layer = ConvNorm(dim, dim, side).eval()
    layer.conv.dilation = (dilation, dilation)
    layer.conv.padding = (side // 2 * dilation, side // 2 * dilation)
    return lambda x: layer(x.transpose(1, 2)[:, :, None])[:, :, 0].transpose(1, 2)


def window_attention(dim: int, side: int, shift: int = 0) -> Layer:
    """Swin's attention within windows of M · M positions, on a grid of M rows; `shift` moves the windows."""
    block = Block(Attention(dim, 1), RelativePositionBias(1, side), MLP(dim, dim), partial(PreNorm, dim, 0.0), side, shift,
                  keep_window)  # fmt: skip
    return lambda x: block.attend_windows(x.unflatten(1, (side, -1))).flatten(1, 2)


# Three measures: operations, the longest chain of them, and who depends on whom


def flops(make: Callable[[], Layer], n: int, d: int, operation: str = "") -> int:
    """FLOPs of the matrix products of a layer, or of one kind of them; a product of (a, b) and (b, c) counts 2abc."""
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        make()(torch.empty(1, n, d))
    counts = counter.get_flop_counts()["Global"]
    return sum(count for name, count in counts.items() if operation in str(name))


def chain_length(output: Tensor, source: Tensor) -> int:
    """How many operations follow each other at least between a leaf and an output, on the longest way."""
    leaf, [start] = _node_of_leaf(source), [output.grad_fn]
    longest: dict[Node, float] = {leaf: 0.0}
    waiting = [start]
    while waiting:  # a loop: recursion would be as deep as the sequence is long
        node = waiting[-1]
        before = [parent for parent, _ in node.next_functions if parent is not None]
        if todo := [parent for parent in before if parent not in longest and parent is not node]:
            waiting += todo
            continue
        waiting.pop()
        longest.setdefault(node, max((1 + longest[parent] for parent in before), default=-math.inf))
    return int(longest[start])


def _node_of_leaf(source: Tensor) -> Node:
    return source.view_as(source).grad_fn.next_functions[0][0]


def dependence(layer: Layer, n: int, d: int) -> Tensor:
    """Which outputs depend on which inputs, from the Jacobian: (n, n), True where output i changes with input j."""
    x = torch.randn(1, n, d, dtype=torch.float64, requires_grad=True)
    y = layer(x)[0]  # (n, d)
    projected = (y * torch.randn_like(y)).sum(-1)  # a sum alone may be constant, as after a layer norm
    rows = [torch.autograd.grad(output, x, retain_graph=True)[0][0] for output in projected]
    return torch.stack(rows).abs().sum(-1) > 0


def path_length(layers: Sequence[Tensor]) -> float:
    """Layers until the last position depends on the first, if these are stacked over and over: `dependence` of each."""
    n = len(layers[0])
    seen = torch.zeros(n, dtype=torch.bool).index_fill(0, torch.tensor(0), True)
    for depth in range(1, 2 * n + 1):
        seen = (layers[(depth - 1) % len(layers)] & seen).any(1)
        if seen[-1]:
            return depth
    return math.inf


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The slope of a line through the logarithms."""
    x, y = torch.tensor(points, dtype=torch.float64).log().unbind(1)
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())
