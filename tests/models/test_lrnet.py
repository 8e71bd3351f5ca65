"""LR-Net: parameters and FLOPs of the paper, shapes, attention weights, invalid configs, overfitting a batch."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from regard.layers.tap import watch
from regard.models.lrnet import SIZES, LocalRelation, LRNet, LRNetConfig

SMALL = {"image": 12, "stem": "cifar", "dim": 8, "dims": [16, 32], "widths": [6, 12], "depths": [1, 2], "kernel": 5,
         "channels_per_head": 4, "classes": 5}  # fmt: skip


def lrnet(**changes: object) -> LRNet:
    torch.manual_seed(0)
    return LRNet(LRNetConfig(**{**SMALL, **changes}))


@pytest.mark.parametrize(("size", "millions"), [("26", 14.7), ("50", 23.3)])
def test_a_size_has_the_parameters_of_the_paper(size, millions):
    with torch.device("meta"):
        assert sum(p.numel() for p in LRNet(SIZES[size]).parameters()) / 1e6 == pytest.approx(millions, rel=0.02)


def test_lr_net_50_has_the_flops_of_the_paper():
    calls = []
    with torch.device("meta"):
        model, x = LRNet(SIZES["50"]).eval(), torch.empty(1, 3, 224, 224)
    for part in model.modules():
        if isinstance(part, LocalRelation):
            part.register_forward_hook(lambda part, _, out: calls.append((part.heads, *out.shape[1:])))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    products = counter.get_total_flops() / 2  # all convolutions and the head
    mixing = sum(49 * (channels + heads) * rows * columns for heads, channels, rows, columns in calls)  # values, scores
    assert (products + mixing) / 1e9 == pytest.approx(4.3, rel=0.02)
    assert len(calls) == 1 + 3 + 4 + 6 + 3
    assert calls[0] == (8, 64, 112, 112)
    assert calls[1] == (13, 100, 56, 56)  # 12 heads of 8 channels and one of 4
    assert calls[-1] == (100, 800, 7, 7)


def test_each_stage_but_the_first_halves_the_grid():
    assert lrnet().encode(torch.randn(2, 3, 12, 9)).shape == (2, 32, 6, 5)
    assert lrnet(stem="imagenet").encode(torch.randn(2, 3, 32, 40)).shape == (2, 32, 4, 5)


@torch.no_grad()
@pytest.mark.parametrize("score", ["squared", "absolute", "product"])
def test_watch_collects_neighbourhood_weights_and_leaves_the_logits_unchanged(score):
    model, x = lrnet(score=score).eval(), torch.randn(2, 3, 12, 8)
    with watch(model) as attended:
        logits = model(x)
    shapes = [weights.shape for [weights] in attended.values()]
    assert shapes == [(2, 2, 96, 25), (2, 2, 96, 25), (2, 3, 24, 25), (2, 3, 24, 25)]
    for [weights] in attended.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    corner = attended["stem.0"][0][:, :, 0].unflatten(-1, (5, 5))
    assert (corner[..., :2, :] == 0).all()  # above the image
    assert (corner[..., :, :2] == 0).all()  # left of it
    assert (corner[..., 2:, 2:] > 0).all()
    torch.testing.assert_close(model(x), logits)


def test_the_three_scores_give_different_logits():
    x = torch.randn(1, 3, 12, 12)
    squared, absolute, product = (lrnet(score=score).eval()(x) for score in ("squared", "absolute", "product"))
    assert not torch.allclose(squared, absolute)
    assert not torch.allclose(absolute, product)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel": 4}, "kernel 4 has no centre; use 3 or 5"),
        ({"kernel": 0}, "kernel is 0; use 1 or more"),
        ({"channels_per_head": 0}, "channels_per_head is 0; use 1 or more"),
        ({"widths": [6]}, "dims has 2 stages, widths 1 and depths 2; give one number per stage in each"),
        ({"widths": [6, 0]}, "widths is 0; use 1 or more"),
        ({"score": "cosine"}, "'squared', 'absolute' or 'product'"),
        ({"drop_path": -0.1}, "drop_path is -0.1; use 0 or more and less than 1"),
    ],
    ids=str,
)
def test_an_invalid_config_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        LRNetConfig(**{**SMALL, **changes})


def test_images_with_other_channels_are_refused():
    with pytest.raises(ValueError, match=r"images have 1 channels, the model reads 3; .* model\.channels=1"):
        lrnet()(torch.randn(1, 1, 12, 12))


def test_it_overfits_one_small_batch():
    model = lrnet()
    x, wanted = torch.randn(8, 3, 12, 12), torch.arange(8) % 5
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(40):
        loss = F.cross_entropy(model(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    unused = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert not unused
