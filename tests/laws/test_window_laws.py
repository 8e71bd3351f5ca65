"""Laws of Swin's windows: rolled, partitioned and masked, they equal a loop over all pairs of positions."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.layers.attention import Attention, CosineAttention, QKVWithoutKeyBias
from regard.layers.biases import ContinuousPositionBias, RelativePositionBias
from regard.layers.masks import window_mask
from regard.layers.mlp import MLP
from regard.layers.norm import PreNorm, ResPostNorm
from regard.models.swin import Block, keep_window

DIM, HEADS = 6, 2
VERSIONS = pytest.mark.parametrize("version", ["v1", "v2"])
law = settings(max_examples=25, deadline=None)


def block(version: str, window: int, shift: int) -> Block:
    """A block with random weights, in float64."""
    torch.manual_seed(window * 10 + shift)
    if version == "v1":
        attn, bias, wrap = Attention(DIM, HEADS), RelativePositionBias(HEADS, window), partial(PreNorm, DIM, 0.0)
    else:
        attn = Attention(DIM, HEADS, scale=1.0, project=QKVWithoutKeyBias, prepare=CosineAttention(HEADS))
        bias, wrap = ContinuousPositionBias(HEADS, window, hidden=5), partial(ResPostNorm, DIM, 0.0)
    layer = Block(attn, bias, MLP(DIM, 8), wrap, window, shift, keep_window).double()
    for p in layer.parameters():
        nn.init.normal_(p, std=0.7)
    if version == "v2":
        nn.init.zeros_(attn.qkv.bias.chunk(3)[1])  # of the keys, which stays zero
    return layer


def offset_bias(b: Block, head: int, down: int, across: int) -> float:
    """Bias of a key `down` rows above and `across` columns left of its query, by the formulas of the papers."""
    if isinstance(b.bias, RelativePositionBias):
        side = 2 * b.window - 1
        return float(b.bias.table.view(side, side, HEADS)[down + b.window - 1, across + b.window - 1, head])
    parts = [8 * d / max(1, b.window - 1) for d in (down, across)]
    logs = torch.tensor([math.copysign(math.log2(1 + abs(d)) / math.log2(8), d) for d in parts], dtype=torch.float64)
    hidden = (b.bias.up.weight @ logs + b.bias.up.bias).clamp(min=0)
    return 16 / (1 + math.exp(-float(b.bias.down.weight[head] @ hidden)))


def score(b: Block, head: int, query: np.ndarray, key: np.ndarray) -> float:
    """Dot product over √E, or cosine times a temperature of at most 100."""
    if b.attn.prepare is None:
        return float(query @ key) / math.sqrt(len(query))
    lengths = [max(1e-12, math.sqrt(float(x @ x))) for x in (query, key)]
    return min(100.0, math.exp(float(b.attn.prepare.temperature[head]))) * float(query @ key) / math.prod(lengths)


@torch.no_grad()
def by_hand(b: Block, x: Tensor) -> Tensor:
    """Attention between all pairs of positions, masked unless their shifted windows are the same."""
    rows, columns, window, shift = *x.shape[1:3], b.window, b.shift
    down, across = math.ceil(rows / window) * window, math.ceil(columns / window) * window
    grid = torch.zeros(len(x), down, across, DIM, dtype=x.dtype)
    grid[:, :rows, :columns] = x
    positions = list(itertools.product(range(down), range(across)))
    cell = {position: tuple(math.floor((x - shift) / window) for x in position) for position in positions}
    added = {(h, d, a): offset_bias(b, h, d, a) for h in range(HEADS)
             for d in range(1 - window, window) for a in range(1 - window, window)}  # fmt: skip
    qkv = grid @ b.attn.qkv.weight.T + b.attn.qkv.bias  # (B, down, across, 3 D)
    q, k, v = qkv.view(len(x), down, across, 3, HEADS, -1).permute(3, 0, 4, 1, 2, 5).numpy()
    out = np.zeros_like(q)  # (B, H, down, across, E)
    for n, h, (y, z) in itertools.product(range(len(x)), range(HEADS), positions):
        same_window = [(s, t) for s, t in positions if cell[s, t] == cell[y, z]]
        scores = [score(b, h, q[n, h, y, z], k[n, h, s, t]) + added[h, y - s, z - t] for s, t in same_window]
        power = np.exp(np.array(scores) - max(scores))
        for (s, t), weight in zip(same_window, power / power.sum(), strict=True):
            out[n, h, y, z] += weight * v[n, h, s, t]
    joined = torch.from_numpy(out).permute(0, 2, 3, 1, 4).flatten(3)[:, :rows, :columns]
    return joined @ b.attn.out.weight.T + b.attn.out.bias


@VERSIONS
@law
@given(rows=st.integers(1, 7), columns=st.integers(1, 7), window=st.integers(1, 4), data=st.data())
def test_shifted_windows_equal_masked_attention_between_all_pairs(version, rows, columns, window, data):
    layer = block(version, window, data.draw(st.integers(0, window - 1)))
    x = torch.randn(1, rows, columns, DIM, dtype=torch.float64)
    torch.testing.assert_close(layer.attend_windows(x), by_hand(layer, x), rtol=0, atol=1e-10)


@VERSIONS
def test_each_image_of_a_batch_has_the_same_windows(version):
    layer, x = block(version, 3, 1), torch.randn(3, 5, 7, DIM, dtype=torch.float64)
    torch.testing.assert_close(layer.attend_windows(x), torch.cat([layer.attend_windows(image[None]) for image in x]))


@VERSIONS
@pytest.mark.parametrize("side", [1, 4])
def test_a_window_as_large_as_the_image_is_global_attention(version, side):
    layer, x = block(version, side, 0), torch.randn(2, side, side, DIM, dtype=torch.float64)
    everywhere = layer.attn(x.flatten(1, 2), bias=layer.bias(side))
    torch.testing.assert_close(layer.attend_windows(x).flatten(1, 2), everywhere)


def receptive_field(layer: Block, rows: int, columns: int, y: int, z: int) -> set[tuple[int, int]]:
    """Positions whose input changes the output at (y, z), from the Jacobian."""
    x = torch.randn(1, rows, columns, DIM, dtype=torch.float64, requires_grad=True)
    layer(x)[0, y, z].pow(3).sum().backward()
    return {(int(a), int(b)) for a, b in x.grad[0].abs().sum(-1).nonzero()}


@VERSIONS
def test_the_receptive_field_is_the_window_and_moves_with_the_shift(version):
    window = {(y, z) for y in range(3) for z in range(3)}
    assert receptive_field(block(version, 3, 0), 6, 9, 1, 2) == window
    shifted = {(y, z) for y in range(1, 4) for z in range(1, 4)}
    assert receptive_field(block(version, 3, 1), 6, 9, 1, 2) == shifted
    assert receptive_field(block(version, 3, 1), 6, 9, 0, 0) == {
        (0, 0)
    }  # a region of one position, though the roll put others into its window


@VERSIONS
def test_two_blocks_carry_information_across_windows(version):
    first, second = block(version, 3, 0), block(version, 3, 1)
    x = torch.randn(1, 6, 6, DIM, dtype=torch.float64, requires_grad=True)
    second(first(x))[0, 1, 1].pow(3).sum().backward()
    assert x.grad[0].abs().sum(-1).count_nonzero() == 36  # every position of all four windows


@law
@given(rows=st.integers(1, 4), columns=st.integers(1, 4), window=st.integers(1, 5), data=st.data())
def test_the_mask_is_reflexive_and_symmetric(rows, columns, window, data):
    shift = data.draw(st.integers(0, window - 1))
    mask = window_mask(rows * window, columns * window, window, shift)
    assert mask.shape == (rows * columns, window**2, window**2)
    assert mask.diagonal(dim1=1, dim2=2).all()
    assert torch.equal(mask, mask.transpose(1, 2))
    assert mask.all() == (shift == 0)
    # A shift adds one region along each axis.
    assert int((1 / mask.sum(-1)).sum().round()) == (rows + (shift > 0)) * (columns + (shift > 0))
