"""ViT: patch embedding equals a strided convolution, position interpolation, drop path, invalid configs."""

import pytest
import torch
import torch.nn.functional as F

from regard.layers.conv import fold_batch_norms
from regard.layers.positions import LearnedGridPositions
from regard.layers.shapes import to_patches
from regard.models.vit import ViT, ViTConfig

SMALL = {"image": 12, "patch": 4, "dim": 16, "depth": 2, "heads": 2, "classes": 5}


def vit(**changes: object) -> ViT:
    torch.manual_seed(0)
    model = ViT(ViTConfig(**{**SMALL, **changes}))
    for p in model.parameters():  # the classifier starts at zero, which would hide every difference
        torch.nn.init.normal_(p, std=0.3)
    return model.eval()


def test_patch_embedding_equals_a_strided_convolution():
    model, x = vit(), torch.randn(2, 3, 12, 8)
    kernel = model.embed.weight.view(16, 3, 4, 4)
    wanted = F.conv2d(x, kernel, model.embed.bias, stride=4).flatten(2).transpose(1, 2)
    torch.testing.assert_close(model.embed(to_patches(x, 4)), wanted)


def from_patches(x: torch.Tensor, patch: int, rows: int) -> torch.Tensor:
    """Undo `to_patches`: (B, Y · X, C · P · P) → (B, C, Y · P, X · P)."""
    x = x.unflatten(2, (-1, patch, patch)).unflatten(1, (rows, -1))  # (B, Y, X, C, P, P)
    return x.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


@pytest.mark.parametrize(("rows", "columns", "patch"), [(1, 1, 4), (2, 3, 4), (4, 2, 1), (3, 3, 7)])
def test_from_patches_inverts_to_patches(rows, columns, patch):
    x = torch.randn(2, 3, rows * patch, columns * patch)
    patches = to_patches(x, patch)
    assert patches.shape == (2, rows * columns, 3 * patch * patch)
    assert torch.equal(from_patches(patches, patch, rows), x)
    assert torch.equal(patches[1, columns - 1], x[1, :, :patch, -patch:].flatten())


def test_an_image_of_the_base_size_has_196_patches_that_hold_all_its_values():
    patches = to_patches(torch.zeros(1, 3, 224, 224), 16)
    assert patches.shape == (1, 196, 768)
    assert patches.numel() == 224 * 224 * 3


def test_positions_of_the_trained_size_are_not_changed_by_interpolation():
    positions = LearnedGridPositions(8, 4, before=1)
    assert positions(4, 4) is positions.table
    first, grid = positions.table.split((1, 16))
    interpolated = F.interpolate(grid.T.view(1, 8, 4, 4), (4, 4), mode="bicubic")[0].flatten(1).T
    torch.testing.assert_close(torch.cat((first, interpolated)), positions.table)


def test_positions_of_another_size_keep_the_class_token_and_a_constant_grid():
    positions = LearnedGridPositions(3, 2, before=1)
    with torch.no_grad():
        positions.table[1:] = torch.tensor([1.0, 2.0, 3.0])
    found = positions(5, 7)
    assert found.shape == (36, 3)
    assert torch.equal(found[0], positions.table[0])
    torch.testing.assert_close(found[1:], torch.tensor([1.0, 2.0, 3.0]).expand(35, 3))


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_images_of_another_size_are_accepted(pool):
    assert vit(pool=pool)(torch.randn(2, 3, 20, 8)).shape == (2, 5)


def test_without_positions_the_order_of_patches_does_not_matter():
    model = vit(pool="mean")
    torch.nn.init.zeros_(model.positions.table)
    x = torch.randn(1, 3, 12, 12)
    order = torch.randperm(9)
    shuffled = from_patches(to_patches(x, 4)[:, order], 4, 3)
    torch.testing.assert_close(model(shuffled), model(x))
    torch.nn.init.normal_(model.positions.table)
    assert not torch.allclose(model(shuffled), model(x))


def test_the_convolutional_stem_equals_plain_convolutions():
    model, x = vit(convs=[5, 6, 7], image=16, pool="mean"), torch.randn(2, 3, 16, 8)
    h = x
    for layer, stride in zip(model.patches.layers[::2], (1, 2, 2), strict=True):
        norm = layer.norm
        torch.nn.init.normal_(norm.running_mean)
        h = F.conv2d(h, layer.conv.weight, stride=stride, padding=1)
        h = F.batch_norm(h, norm.running_mean, norm.running_var, norm.weight, norm.bias).relu()
    assert h.shape == (2, 7, 4, 2)
    inputs: list[torch.Tensor] = []
    model.embed.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    before = model(x)
    torch.testing.assert_close(inputs[0], h.flatten(2).transpose(1, 2))
    torch.testing.assert_close(fold_batch_norms(model)(x), before, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("patch", "convs", "sizes"), [(4, [8], "1 or 2"), (6, [8, 8, 8], "1 or 2 or 4 or 8")])
def test_convolutions_that_do_not_match_the_patch_are_refused(patch, convs, sizes):
    with pytest.raises(ValueError, match=rf"patches of {patch} pixels.* use a patch of {sizes}, or 'model.convs=\[\]'"):
        ViTConfig(**{**SMALL, "patch": patch, "convs": convs})


def test_a_patch_that_does_not_tile_the_image_is_refused_with_sizes_that_work():
    with pytest.raises(ValueError, match="patch 5 does not tile an image of 12 pixels; use a side of 10 or 15"):
        ViTConfig(**{**SMALL, "patch": 5})
    with pytest.raises(ValueError, match="patch 4 does not tile an image of 14 pixels; use a side of 12 or 16"):
        vit()(torch.randn(1, 3, 14, 12))


def test_drop_path_skips_whole_examples_during_training_only():
    model, x = vit(drop_path=0.5), torch.randn(8, 3, 12, 12)
    plain = vit()
    torch.testing.assert_close(model(x), plain(x))
    model.train()
    torch.manual_seed(1)
    block = model.blocks[-1]
    h = torch.randn(64, 10, 16)
    change = block.mlp_residual(h, lambda y: torch.ones_like(y)) - h
    kept = change.flatten(1)
    torch.testing.assert_close(kept, kept[:, :1].expand_as(kept))  # one decision per example
    assert {round(value, 4) for value in kept[:, 0].tolist()} == {0.0, 2.0}


def test_it_overfits_a_small_batch():
    torch.manual_seed(0)
    model, x, y = ViT(ViTConfig(**SMALL)), torch.randn(10, 3, 12, 12), torch.arange(10) % 5
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(60):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert (model(x).argmax(1) == y).all()
