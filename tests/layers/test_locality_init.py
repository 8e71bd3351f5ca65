"""Locality init: before training each head attends to its offset, on a line, on a grid and in an image GPT."""

import pytest
import torch

from regard.layers.attention import Attention
from regard.layers.locality_init import init_local_head, init_local_heads, position_waves
from regard.layers.tap import watch
from regard.models.image_gpt import ImageGPT, ImageGPTConfig
from regard.models.vit import NEIGHBOURS, ViT, ViTConfig


@pytest.mark.parametrize("sides", [(30,), (7, 7), (28, 28), (5, 9)])
def test_dot_products_of_positions_depend_on_the_offset_and_peak_at_zero(sides):
    table = position_waves(sides, 32).view(*sides, 32)
    near = table[tuple(slice(0, side - 1) for side in sides)].flatten(0, -2)
    moved = table[tuple(slice(1, side) for side in sides)].flatten(0, -2)
    torch.testing.assert_close(near @ near.T, moved @ moved.T, atol=1e-3, rtol=0)
    assert (near @ near.T).argmax(1).tolist() == list(range(len(near)))


def test_each_head_attends_to_its_offset_where_that_lies_on_the_grid():
    offsets, sides = [(0, 1), (-2, 0), (1, -1), (0, 0)], (6, 8)
    attention = Attention(64, 4)
    init_local_head(attention, offsets, 16, sharpness=5.0)
    x = torch.zeros(1, 48, 64)
    x[0, :, :16] = position_waves(sides, 16)
    x[0, :, 16:] = torch.randn(48, 48)  # content, which has no effect
    with watch(torch.nn.ModuleList([attention])) as attended, torch.no_grad():
        attention(x)
    [weights] = attended["0"]
    for (down, right), head in zip(offsets, weights[0], strict=True):
        for row in range(6):
            for column in range(8):
                y, z = row + down, column + right
                if 0 <= y < 6 and 0 <= z < 8:
                    assert int(head[8 * row + column].argmax()) == 8 * y + z


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_every_weight_gets_a_gradient(heads):
    """Heads of width 6 hold no whole number of sinusoids; one head of 12 leaves half of the width to content."""
    torch.manual_seed(0)
    attention, table, content = (Attention(6 * max(2, heads), heads), torch.zeros(12, 6 * max(2, heads)), torch.ones(5, 12))
    init_local_heads([attention], table, [content], [3, 4], [(0, 1), (1, 0)], 4.0, 1.0)
    assert content[:, 6 if heads == 1 else 4 :].all()
    x = torch.randn(2, 12, table.shape[1])
    attention(x + table).square().sum().backward()
    gradient = attention.qkv.weight.grad.abs().amax(1)  # of each row
    (_, key, _), (query, _, _) = gradient.chunk(3), attention.qkv.weight.chunk(3)
    assert (key > 0).all()
    assert query.abs().amax(1).all()


@pytest.mark.parametrize("changes", [{}, {"pool": "mean"}, {"convs": [8, 16]}])
def test_an_untrained_vit_attends_to_neighbouring_patches(changes):
    torch.manual_seed(0)
    model = ViT(ViTConfig(**{"image": 24, "patch": 4, "dim": 96, "depth": 2, "heads": 4, "classes": 5, **changes})).eval()
    with watch(model) as attended, torch.no_grad():
        model(torch.randn(4, 3, 24, 24))
    [weights] = attended["blocks.0.attn"]  # (4, 4, T, T)
    weights = weights[..., -36:, -36:].unflatten(-1, (6, 6)).unflatten(-3, (6, 6))
    for head, (down, right) in enumerate(NEIGHBOURS[:4]):
        neighbour = [weights[:, head, row, column, row + down, column + right] for row in range(1, 5) for column in range(1, 5)]
        assert float(torch.stack(neighbour).mean()) > 0.7  # of 36 positions


def test_an_untrained_image_gpt_attends_to_the_pixel_above():
    torch.manual_seed(0)
    model = ImageGPT(ImageGPTConfig(image=10, channels=1, levels=4, dim=64, depth=1, heads=2)).eval()
    with watch(model) as attended, torch.no_grad():
        model(torch.randint(0, 4, (4, 100)))
    [weights] = attended["gpt.blocks.0.attn"]  # (4, 2, 100, 100)
    # Token t predicts pixel t and holds pixel t - 1; the pixel above is t - 10, which token t - 9 holds.
    for t in (25, 47, 88):
        assert float(weights[:, 0, t, t - 9].mean()) > 0.5
        assert float(weights[:, 1, t, t - 10].mean()) > 0.5


def test_heads_too_narrow_for_positions_stay_unchanged():
    attention, table = Attention(6, 2), torch.ones(4, 6)
    before = attention.qkv.weight.clone()
    init_local_heads([attention], table, [table], [2, 2], [(0, 1)], 4.0, 1.0)
    assert torch.equal(attention.qkv.weight, before)
    assert table.all()
