"""An image encoder gives the features that the head of its classifier reads."""

import math

import pytest
import torch
from torch import nn

from regard.models import state_tensors
from regard.models.image_encoder import ENCODERS, ImageEncoder, encoder_table

SMALL = {  # one of each family, for images of 32 pixels
    "resnet": {"family": "resnet", "image": 32, "stem": "cifar", "dim": 8, "dims": [8, 16], "depths": [1, 1], "block": "basic"},
    "lrnet": {"family": "lrnet", "image": 32, "dim": 16, "dims": [32, 64], "widths": [8, 16], "depths": [1, 1]},
    "vit": {"family": "vit", "image": 32, "patch": 8, "dim": 16, "depth": 2, "heads": 2},
    "vit, mean": {"family": "vit", "image": 32, "patch": 8, "dim": 16, "depth": 2, "heads": 2, "pool": "mean"},
    "swin": {"family": "swin", "image": 32, "patch": 4, "dim": 8, "depths": [1, 1], "heads": [2, 2], "window": 4},
    "mvit": {"family": "mvit", "image": 32, "dim": 8, "depths": [1, 1], "heads": 1},
}


def make_classifier(kind):
    """A classifier with random weights, and an encoder that has taken them over."""
    table = encoder_table({**SMALL[kind], "classes": 7})
    torch.manual_seed(0)
    encoder = ImageEncoder(table)
    net = ENCODERS[table["family"]].build(encoder.config)
    weights, taken = state_tensors(net), state_tensors(encoder.net)
    assert taken.keys() == {name for name in weights if not name.startswith("classifier.")}
    for name, tensor in weights.items():
        tensor.data.add_(torch.rand(tensor.shape), alpha=0.3)  # variances too, which stay above 0
        if name in taken:
            taken[name].data.copy_(tensor)
    return net.eval(), encoder.eval()


@pytest.mark.parametrize("kind", SMALL)
@torch.inference_mode()
def test_the_head_on_the_pooled_features_gives_the_logits_of_the_classifier(kind):
    net, encoder = make_classifier(kind)
    images = torch.randn(3, 3, 32, 32)
    features = encoder(images)
    assert features.shape == (3, encoder.tokens, encoder.width)
    pooled = features[:, 0] if encoder.extra else features.mean(1)
    torch.testing.assert_close(net.classifier(pooled), net(images))
    assert net(images).std() > 1e-3


@pytest.mark.parametrize("kind", SMALL)
@torch.inference_mode()
def test_a_class_token_comes_before_a_square_grid(kind):
    _, encoder = make_classifier(kind)
    side = round((encoder.tokens - encoder.extra) ** 0.5)
    assert side**2 + encoder.extra == encoder.tokens
    assert encoder.extra == (kind == "vit")


def test_a_table_has_every_key_of_its_family_and_reads_back_equal():
    table = encoder_table({"family": "vit", "size": "tiny", "image": 64})
    assert (table["family"], table["dim"], table["image"], table["patch"]) == ("vit", 192, 64, 16)
    assert "size" not in table
    assert encoder_table(table) == table


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "encoder.family is None; image models are resnet, lrnet, vit, swin, mvit"),
        ({"family": "swim"}, r"encoder.family is 'swim' \(did you mean 'swin'\?\); image models are resnet"),
        ({"family": "vit", "size": "tinny"}, r"encoder.size is 'tinny' \(did you mean 'tiny'\?\); sizes are tiny, small, base"),
        ({"family": "vit", "pach": 8}, r"unknown key encoder.pach \(did you mean 'encoder.patch'\?\); keys of encoder are image"),
        ({"family": "vit", "patch": 15}, "encoder: patch 15 does not tile an image of 224 pixels"),
        ({"family": "resnet", "dims": "wide"}, r"encoder\.dims: Input should be a valid list, such as \[1,2\], got 'wide'"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(table, message):
    with pytest.raises(ValueError, match=message) as error:
        encoder_table(table)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
def test_the_pixels_of_a_token_are_centred_where_the_encoder_says(stem):
    """With positive weights and pixels every layer is linear, so the gradient of a token shows the pixels it is made of."""
    table = {"family": "resnet", "image": 64, "stem": stem, "dim": 2, "dims": [2, 2], "depths": [1, 1], "block": "basic"}
    encoder = ImageEncoder(encoder_table(table)).double().eval()
    if stem == "imagenet":
        encoder.net.stem[-1] = nn.AvgPool2d(3, 2, 1)  # the largest of equal values would be the first
    with torch.no_grad():
        for part in encoder.modules():
            if isinstance(part, nn.Conv2d):
                part.weight.fill_(0.1)
    image = torch.ones(1, 3, 64, 64, dtype=torch.float64, requires_grad=True)
    side = math.isqrt(encoder.tokens)
    stride, cell = 64 / side, side // 2
    weights = torch.autograd.grad(encoder(image)[0, cell * side + cell].sum(), image)[0].abs().sum((0, 1))  # (Y, X)
    middle = torch.arange(64, dtype=torch.float64) + 0.5
    for axis in (0, 1):
        centre = float((weights.sum(axis) * middle).sum() / weights.sum())
        assert centre == pytest.approx((cell + 0.5 - encoder.shift) * stride)


def test_patches_are_centred_in_their_cells():
    assert ImageEncoder(encoder_table({"family": "vit", "image": 32, "patch": 8, "dim": 8, "depth": 1, "heads": 2})).shift == 0
