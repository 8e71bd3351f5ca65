"""Laws of Swin's windows: rolled, cut and masked, they are what a loop over all pairs of places says they are."""

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
from regard.models.swin import Block, same

DIM, HEADS = 6, 2
VERSIONS = pytest.mark.parametrize("version", ["v1", "v2"])
law = settings(max_examples=25, deadline=None)


def block(version: str, window: int, shift: int) -> Block:
    """One with random weights, in float64."""
    torch.manual_seed(window * 10 + shift)
    if version == "v1":
        attn, bias, wrap = Attention(DIM, HEADS), RelativePositionBias(HEADS, window), partial(PreNorm, DIM, 0.0)
    else:
        attn = Attention(DIM, HEADS, scale=1.0, project=QKVWithoutKeyBias, prepare=CosineAttention(HEADS))
        bias, wrap = ContinuousPositionBias(HEADS, window, hidden=5), partial(ResPostNorm, DIM, 0.0)
    made = Block(attn, bias, MLP(DIM, 8), wrap, window, shift, same).double()
    for p in made.parameters():
        nn.init.normal_(p, std=0.7)
    if version == "v2":
        nn.init.zeros_(attn.qkv.bias.chunk(3)[1])  # of the keys, as it always is
    return made


def offset_bias(b: Block, head: int, down: int, across: int) -> float:
    """What is added to the score of a key that stands so far above and left of its query, from the papers' formulas."""
    if isinstance(b.bias, RelativePositionBias):
        side = 2 * b.window - 1
        return float(b.bias.table.view(side, side, HEADS)[down + b.window - 1, across + b.window - 1, head])
    parts = [8 * d / max(1, b.window - 1) for d in (down, across)]
    logs = torch.tensor([math.copysign(math.log2(1 + abs(d)) / math.log2(8), d) for d in parts], dtype=torch.float64)
    hidden = (b.bias.up.weight @ logs + b.bias.up.bias).clamp(min=0)
    return 16 / (1 + math.exp(-float(b.bias.down.weight[head] @ hidden)))


def score(b: Block, head: int, query: np.ndarray, key: np.ndarray) -> float:
    """How alike a query and a key are: their dot product over √E, or the cosine times a temperature of at most 100."""
    if b.attn.prepare is None:
        return float(query @ key) / math.sqrt(len(query))
    lengths = [max(1e-12, math.sqrt(float(one @ one))) for one in (query, key)]
    return min(100.0, math.exp(float(b.attn.prepare.temperature[head]))) * float(query @ key) / math.prod(lengths)


@torch.no_grad()
def by_hand(b: Block, x: Tensor) -> Tensor:
    """Attention of all pairs of places, of which only those look at each other whose shifted window is the same."""
    rows, columns, window, shift = *x.shape[1:3], b.window, b.shift
    down, across = math.ceil(rows / window) * window, math.ceil(columns / window) * window
    grid = torch.zeros(len(x), down, across, DIM, dtype=x.dtype)
    grid[:, :rows, :columns] = x
    places = list(itertools.product(range(down), range(across)))
    cell = {place: tuple(math.floor((one - shift) / window) for one in place) for place in places}
    added = {(h, d, a): offset_bias(b, h, d, a) for h in range(HEADS)
             for d in range(1 - window, window) for a in range(1 - window, window)}  # fmt: skip
    qkv = grid @ b.attn.qkv.weight.T + b.attn.qkv.bias  # (B, down, across, 3 D)
    q, k, v = qkv.view(len(x), down, across, 3, HEADS, -1).permute(3, 0, 4, 1, 2, 5).numpy()
    out = np.zeros_like(q)  # (B, H, down, across, E)
    for n, h, (y, z) in itertools.product(range(len(x)), range(HEADS), places):
        seen = [(s, t) for s, t in places if cell[s, t] == cell[y, z]]
        scores = [score(b, h, q[n, h, y, z], k[n, h, s, t]) + added[h, y - s, z - t] for s, t in seen]
        power = np.exp(np.array(scores) - max(scores))
        for (s, t), weight in zip(seen, power / power.sum(), strict=True):
            out[n, h, y, z] += weight * v[n, h, s, t]
    joined = torch.from_numpy(out).permute(0, 2, 3, 1, 4).flatten(3)[:, :rows, :columns]
    return joined @ b.attn.out.weight.T + b.attn.out.bias


@VERSIONS
@law
@given(rows=st.integers(1, 7), columns=st.integers(1, 7), window=st.integers(1, 4), data=st.data())
def test_shifted_windows_are_masked_attention_of_all_pairs(version, rows, columns, window, data):
    made = block(version, window, data.draw(st.integers(0, window - 1)))
    x = torch.randn(1, rows, columns, DIM, dtype=torch.float64)
    torch.testing.assert_close(made.look(x), by_hand(made, x), rtol=0, atol=1e-10)


@VERSIONS
def test_each_picture_of_a_batch_has_the_same_windows(version):
    made, x = block(version, 3, 1), torch.randn(3, 5, 7, DIM, dtype=torch.float64)
    torch.testing.assert_close(made.look(x), torch.cat([made.look(one[None]) for one in x]))


@VERSIONS
@pytest.mark.parametrize("side", [1, 4])
def test_a_window_as_large_as_the_picture_is_global_attention(version, side):
    made, x = block(version, side, 0), torch.randn(2, side, side, DIM, dtype=torch.float64)
    everywhere = made.attn(x.flatten(1, 2), bias=made.bias(side))
    torch.testing.assert_close(made.look(x).flatten(1, 2), everywhere)


def reached(made: Block, rows: int, columns: int, y: int, z: int) -> set[tuple[int, int]]:
    """The places whose vectors change what comes out at (y, z), from the Jacobian."""
    x = torch.randn(1, rows, columns, DIM, dtype=torch.float64, requires_grad=True)
    made(x)[0, y, z].pow(3).sum().backward()
    return {(int(a), int(b)) for a, b in x.grad[0].abs().sum(-1).nonzero()}


@VERSIONS
def test_without_a_shift_nothing_crosses_a_window_and_with_one_it_does(version):
    window = {(y, z) for y in range(3) for z in range(3)}
    assert reached(block(version, 3, 0), 6, 9, 1, 2) == window
    shifted = {(y, z) for y in range(1, 4) for z in range(1, 4)}
    assert reached(block(version, 3, 1), 6, 9, 1, 2) == shifted
    assert reached(block(version, 3, 1), 6, 9, 0, 0) == {
        (0, 0)
    }  # a region of one, though the roll put others beside it


@VERSIONS
def test_two_blocks_carry_what_one_window_knows_into_the_next(version):
    first, second = block(version, 3, 0), block(version, 3, 1)
    x = torch.randn(1, 6, 6, DIM, dtype=torch.float64, requires_grad=True)
    second(first(x))[0, 1, 1].pow(3).sum().backward()
    assert x.grad[0].abs().sum(-1).count_nonzero() == 36  # from every place of all four windows


@law
@given(rows=st.integers(1, 4), columns=st.integers(1, 4), window=st.integers(1, 5), data=st.data())
def test_the_mask_lets_all_look_at_themselves_and_whoever_looks_be_looked_at(rows, columns, window, data):
    shift = data.draw(st.integers(0, window - 1))
    mask = window_mask(rows * window, columns * window, window, shift)
    assert mask.shape == (rows * columns, window**2, window**2)
    assert mask.diagonal(dim1=1, dim2=2).all()
    assert torch.equal(mask, mask.transpose(1, 2))
    assert mask.all() == (shift == 0)
    # Cutting before or after the first window leaves as many regions as windows, and one more each way.
    assert int((1 / mask.sum(-1)).sum().round()) == (rows + (shift > 0)) * (columns + (shift > 0))
