"""Heads that start beside: each looks where its offset says, on a line, a grid and a picture read pixel by pixel."""

import pytest
import torch

from regard.layers.attention import Attention
from regard.layers.locality_init import init_local_head, init_local_heads, places
from regard.layers.tap import watch
from regard.models.image_gpt import ImageGPT, ImageGPTConfig
from regard.models.vit import BESIDE, ViT, ViTConfig


@pytest.mark.parametrize("sides", [(30,), (7, 7), (28, 28), (5, 9)])
def test_products_of_places_depend_on_offsets_alone_and_are_largest_at_none(sides):
    table = places(sides, 32).view(*sides, 32)
    near = table[tuple(slice(0, side - 1) for side in sides)].flatten(0, -2)
    moved = table[tuple(slice(1, side) for side in sides)].flatten(0, -2)
    torch.testing.assert_close(near @ near.T, moved @ moved.T, atol=1e-3, rtol=0)
    assert (near @ near.T).argmax(1).tolist() == list(range(len(near)))


def test_each_head_looks_its_offset_away_if_that_is_on_the_grid():
    offsets, sides = [(0, 1), (-2, 0), (1, -1), (0, 0)], (6, 8)
    attention = Attention(64, 4)
    init_local_head(attention, offsets, 16, sharp=5.0)
    x = torch.zeros(1, 48, 64)
    x[0, :, :16] = places(sides, 16)
    x[0, :, 16:] = torch.randn(48, 48)  # contents, which change nothing
    with watch(torch.nn.ModuleList([attention])) as seen, torch.no_grad():
        attention(x)
    [weights] = seen["0"]
    for (down, right), looks in zip(offsets, weights[0], strict=True):
        for row in range(6):
            for column in range(8):
                there = (row + down, column + right)
                if 0 <= there[0] < 6 and 0 <= there[1] < 8:
                    assert int(looks[8 * row + column].argmax()) == 8 * there[0] + there[1]


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_every_weight_can_learn(heads):
    """Heads of 6 are no whole number of waves; one head of 12 leaves half of the width to contents."""
    torch.manual_seed(0)
    attention, table, content = (
        Attention(6 * max(2, heads), heads),
        torch.zeros(12, 6 * max(2, heads)),
        torch.ones(5, 12),
    )
    init_local_heads([attention], table, [content], [3, 4], [(0, 1), (1, 0)], 4.0, 1.0)
    assert content[:, 6 if heads == 1 else 4 :].all()
    x = torch.randn(2, 12, table.shape[1])
    attention(x + table).square().sum().backward()
    changes = attention.qkv.weight.grad.abs().amax(1)  # of each row
    key, query = changes[len(changes) // 3 : len(changes) * 2 // 3], attention.qkv.weight[: len(changes) // 3]
    assert (key > 0).all()
    assert query.abs().amax(1).all()


@pytest.mark.parametrize("changes", [{}, {"pool": "mean"}, {"convs": [8, 16]}])
def test_before_training_a_vit_looks_at_the_patches_beside_each(changes):
    torch.manual_seed(0)
    model = ViT(
        ViTConfig(**{"image": 24, "patch": 4, "dim": 96, "depth": 2, "heads": 4, "classes": 5, **changes})
    ).eval()
    with watch(model) as seen, torch.no_grad():
        model(torch.randn(4, 3, 24, 24))
    [weights] = seen["blocks.0.attn"]  # (4, 4, T, T)
    weights = weights[..., -36:, -36:].unflatten(-1, (6, 6)).unflatten(-3, (6, 6))
    for head, (down, right) in enumerate(BESIDE[:4]):
        beside = [
            weights[:, head, row, column, row + down, column + right] for row in range(1, 5) for column in range(1, 5)
        ]
        assert float(torch.stack(beside).mean()) > 0.7  # of 36 places


def test_before_training_the_pixel_model_looks_at_the_pixel_above():
    torch.manual_seed(0)
    model = ImageGPT(ImageGPTConfig(image=10, channels=1, levels=4, dim=64, depth=1, heads=2)).eval()
    with watch(model) as seen, torch.no_grad():
        model(torch.randint(0, 4, (4, 100)))
    [weights] = seen["gpt.blocks.0.attn"]  # (4, 2, 100, 100)
    # Token t guesses pixel t and holds pixel t - 1; the pixel above is t - 10, which token t - 9 holds.
    for place in (25, 47, 88):
        assert float(weights[:, 0, place, place - 9].mean()) > 0.5
        assert float(weights[:, 1, place, place - 10].mean()) > 0.5


def test_heads_too_narrow_for_places_are_left_as_they_are():
    attention, table = Attention(6, 2), torch.ones(4, 6)
    before = attention.qkv.weight.clone()
    init_local_heads([attention], table, [table], [2, 2], [(0, 1)], 4.0, 1.0)
    assert torch.equal(attention.qkv.weight, before)
    assert table.all()
