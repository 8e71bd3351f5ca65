"""Local attention equals global attention with a neighbourhood mask, for all sizes and both implementations."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.layers import local_attention
from regard.layers.attention import attend
from regard.layers.masks import neighborhood_mask
from regard.layers.scores import absolute_distance, product, squared_distance, summed
from regard.layers.shapes import from_planes, to_neighborhoods, to_planes
from regard.layers.tap import watch
from regard.models.lrnet import LocalRelation

law = settings(max_examples=25)
SCORES = {"squared": squared_distance, "absolute": absolute_distance, "product": product}
BY_HAND = {"squared": lambda q, k: -((q - k) ** 2), "absolute": lambda q, k: -abs(q - k), "product": lambda q, k: q * k}
SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9))  # also smaller than the kernel, and not square
KERNELS = st.sampled_from([1, 3, 5, 7])


def relation(inputs=3, outputs=5, kernel=3, channels_per_head=2, stride=1, score="squared", seed=0) -> LocalRelation:
    """A layer with weights so large that every neighbour matters; 5 channels in heads of 2 leave one head with 1."""
    torch.manual_seed(seed)
    layer = LocalRelation(inputs, outputs, kernel, channels_per_head, SCORES[score], stride).double()
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=0.7)
    return layer


def gathered(layer: LocalRelation, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and weights of the implementation that gathers, which runs while the layer is watched."""
    with watch(layer) as recorded:
        out = layer(x)
    [weights] = recorded[""]
    return out, weights


def by_hand(layer: LocalRelation, x: torch.Tensor, score: str) -> torch.Tensor:
    """Position by position and neighbour by neighbour, in plain Python."""
    values = torch.einsum("oc,bcyx->boyx", layer.value.weight[:, :, 0, 0], x)
    both = torch.einsum("oc,bcyx->boyx", layer.query_key.weight[:, :, 0, 0], values)
    both = both + layer.query_key.bias[:, None, None]
    batch, dim, rows, columns = values.shape
    reach, width = layer.kernel // 2, (dim + layer.padding) // layer.heads
    out = torch.zeros(batch, dim, -(-rows // layer.stride), -(-columns // layer.stride), dtype=torch.float64)
    for b, head, y, x_ in itertools.product(range(batch), range(layer.heads), range(out.shape[2]), range(out.shape[3])):
        q = both[b, head, y * layer.stride, x_ * layer.stride].item()
        near = []
        for down, right in itertools.product(range(-reach, reach + 1), repeat=2):
            row, column = y * layer.stride + down, x_ * layer.stride + right
            if not (0 <= row < rows and 0 <= column < columns):
                continue
            offset = torch.tensor([down, right], dtype=torch.float64) / max(1, reach)
            hidden = (layer.prior.up.weight @ offset + layer.prior.up.bias).clamp(min=0)
            bias = (layer.prior.down.weight[head] @ hidden + layer.prior.down.bias[head]).item()
            k = both[b, layer.heads + head, row, column].item()
            near.append((math.exp(BY_HAND[score](q, k) + bias), row, column))
        total = sum(power for power, _, _ in near)
        for c in range(head * width, min(dim, (head + 1) * width)):
            out[b, c, y, x_] = sum(power / total * values[b, c, row, column].item() for power, row, column in near)
    return out


@pytest.mark.parametrize("score", list(SCORES))
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("kernel", "rows", "columns"), [(3, 4, 3), (5, 2, 5), (7, 3, 4), (3, 1, 1)])
@torch.no_grad()
def test_local_relation_equals_a_loop_in_plain_python(kernel, rows, columns, stride, score):
    layer, x = relation(kernel=kernel, stride=stride, score=score), torch.randn(2, 3, rows, columns).double()
    wanted = by_hand(layer, x, score)
    torch.testing.assert_close(layer(x), wanted)
    torch.testing.assert_close(gathered(layer, x)[0], wanted)


@law
@given(size=SIZES, kernel=KERNELS, score=st.sampled_from(list(SCORES)), seed=st.integers(0, 1000))
@torch.no_grad()
def test_local_attention_equals_masked_global_attention(size, kernel, score, seed):
    rows, columns = size
    layer = relation(outputs=4, kernel=kernel, score=score, seed=seed)
    x = torch.randn(2, 3, rows, columns).double()
    v = layer.value(x)
    q, k = layer.query_key(v).flatten(2)[..., None].chunk(2, 1)  # (B, H, Y · X, 1)
    v = v.flatten(2).unflatten(1, (2, 2)).transpose(2, 3)  # (B, H, Y · X, E)
    positions = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    offset = positions - positions[:, None] + kernel // 2  # from each query to each key, 0 at the neighbourhood's corner
    near = ((offset >= 0) & (offset < kernel)).all(-1)
    index = (offset[..., 0] * kernel + offset[..., 1]).clamp(0, kernel**2 - 1)
    bias = layer.prior()[:, index]  # (H, Y · X, Y · X)
    wanted, _ = attend(q, k, v, score=summed(SCORES[score]), bias=bias, mask=near)
    torch.testing.assert_close(layer(x), wanted.transpose(2, 3).reshape(2, 4, rows, columns))


@law
@given(size=SIZES, kernel=KERNELS, stride=st.integers(1, 3), chunk=st.sampled_from([1, 7, 30, 10_000]),
       score=st.sampled_from(list(SCORES)))  # fmt: skip
def test_shifting_and_gathering_give_the_same_output_and_gradients(size, kernel, stride, chunk, score):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_attention, "CHUNK", chunk)  # one head of one image per chunk, or several, or all
        layer, x = (relation(kernel=kernel, stride=stride, score=score), torch.randn(3, 3, *size).double().requires_grad_())
        leaves = [x, *layer.parameters()]
        shifted = layer(x)
        weight = torch.randn_like(shifted)
        gradients = torch.autograd.grad(shifted, leaves, weight)
        explicit, weights = gathered(layer, x)
        torch.testing.assert_close(shifted, explicit)
        for got, wanted in zip(gradients, torch.autograd.grad(explicit, leaves, weight), strict=True):
            torch.testing.assert_close(got, wanted)
    assert weights.shape == (3, 3, shifted.shape[2] * shifted.shape[3], kernel**2)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@pytest.mark.parametrize("stride", [1, 2])
def test_the_backward_pass_equals_finite_differences(stride):
    layer = relation(inputs=2, outputs=3, stride=stride)
    assert torch.autograd.gradcheck(layer, (torch.randn(2, 2, 3, 4).double().requires_grad_(),))


def test_an_image_does_not_depend_on_the_others_of_its_batch():
    layer, x = relation(kernel=7).float(), torch.randn(3, 3, 5, 4)
    before = layer(x)[1]
    x[0], x[2] = 1e4, -1e4
    assert torch.equal(layer(x)[1], before)


def test_a_position_changes_its_neighbourhood_and_nothing_else():
    layer, x = relation(kernel=5), torch.randn(1, 3, 9, 9).double()
    before = layer(x)
    x[0, :, 4, 4] += 1
    changed = (layer(x) != before).any(1)[0]
    assert changed[2:7, 2:7].all()
    assert changed.sum() == 25


@given(size=SIZES, kernel=KERNELS, stride=st.integers(1, 3))
def test_the_mask_excludes_neighbours_outside_the_image(size, kernel, stride):
    rows, columns = size
    mask, reach = neighborhood_mask(rows, columns, kernel, stride), kernel // 2
    positions = itertools.product(range(0, rows, stride), range(0, columns, stride))
    for inside, (y, x) in zip(mask.tolist(), positions, strict=True):
        near = itertools.product(range(y - reach, y + reach + 1), range(x - reach, x + reach + 1))
        assert inside == [0 <= row < rows and 0 <= column < columns for row, column in near]


@given(size=SIZES, kernel=KERNELS, stride=st.integers(1, 3), heads=st.integers(1, 3), width=st.integers(1, 2))
def test_a_neighbourhood_holds_the_values_around_a_position_and_zeros_outside(size, kernel, stride, heads, width):
    rows, columns = size
    x = torch.arange(1.0, 1 + 2 * heads * width * rows * columns).view(2, heads * width, rows, columns)
    found, reach = to_neighborhoods(x, heads, kernel, stride), kernel // 2
    positions = list(itertools.product(range(0, rows, stride), range(0, columns, stride)))
    assert found.shape == (2, heads, len(positions), kernel**2, width)
    wide = torch.nn.functional.pad(x, [reach] * 4).unflatten(1, (heads, width))
    for n, (row, column) in enumerate(positions):
        wanted = wide[..., row : row + kernel, column : column + kernel].flatten(3).transpose(2, 3)
        assert torch.equal(found[:, :, n], wanted)


@given(size=SIZES, stride=st.integers(1, 3))
def test_planes_hold_every_nth_row_and_column_and_from_planes_inverts_them(size, stride):
    x = torch.arange(2 * 3 * 2 * size[0] * size[1]).view(2, 3, 2, *size)
    planes = to_planes(x, stride)
    for index, plane in enumerate(planes):
        wanted = x[..., index // stride :: stride, index % stride :: stride]
        assert torch.equal(plane.permute(1, 2, 0, 3, 4)[..., : wanted.shape[3], : wanted.shape[4]], wanted)
    assert torch.equal(from_planes(planes, *size), x)


@given(seed=st.integers(0, 1000), queries=st.integers(1, 3), keys=st.integers(1, 3), width=st.integers(1, 3))
@pytest.mark.parametrize("score", list(SCORES))
def test_the_score_of_vectors_is_the_sum_over_their_elements(score, seed, queries, keys, width):
    random = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, n, width, generator=random, dtype=torch.float64) for n in (queries, keys))
    found = summed(SCORES[score])(q, k)
    for b, i, j in itertools.product(range(2), range(queries), range(keys)):
        wanted = sum(BY_HAND[score](*pair) for pair in zip(q[b, i].tolist(), k[b, j].tolist(), strict=True))
        assert found[b, i, j].item() == pytest.approx(wanted)
