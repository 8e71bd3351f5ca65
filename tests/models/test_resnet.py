"""ResNet, plain and with attention: parameter counts, parity with Hugging Face, the gate, invalid configs."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

from regard.interop.resnet import FAMILY
from regard.interop.tables import HFCheckpoint
from regard.layers.conv import ConvNorm, fold_batch_norms
from regard.layers.tap import watch
from regard.models.resnet import SIZES, GatedAttention, ResNet, ResNetConfig

SMALL = {"image": 16, "stem": "cifar", "dim": 8, "dims": [16, 32], "depths": [1, 2], "heads": 2, "classes": 5}
COUNTS = {"18": 11_689_512, "34": 21_797_672, "50": 25_557_032, "101": 44_549_160, "152": 60_192_808, "20": 272_474}


def resnet(**changes: object) -> ResNet:
    torch.manual_seed(0)
    return ResNet(ResNetConfig(**{**SMALL, **changes}))


def with_statistics(model: nn.Module) -> nn.Module:
    """Give its batch norms the random statistics and weights of a trained model."""
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            for scale in (part.weight.data, part.running_var):
                scale.uniform_(0.5, 1.5)
            for shift in (part.bias.data, part.running_mean):
                shift.normal_(std=0.3)
    return model.eval()


@pytest.mark.parametrize("size", list(COUNTS))
def test_a_size_has_the_parameters_of_the_released_model(size):
    with torch.device("meta"):
        assert sum(p.numel() for p in ResNet(SIZES[size]).parameters()) == COUNTS[size]


# Hugging Face


def both(**sizes: object) -> tuple[nn.Module, ResNet]:
    """Theirs, and ours with their weights, by the table of names."""
    torch.manual_seed(0)
    theirs = with_statistics(transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes)))
    table, weights, described = FAMILY, dict(theirs.state_dict()), theirs.config.to_dict()
    config = table.parse_config(HFCheckpoint(described, weights))
    ours, used = ResNet(config).eval(), set()
    state = ours.state_dict()
    for names in table.map_tensors(config):
        assert len(names.hf) == 1
        state.pop(names.ours).copy_(weights[names.hf[0]])
        used |= {*names.hf}
    assert not state  # every tensor of ours was loaded
    assert all(name.endswith(table.ignored) for name in weights.keys() - used)  # and every tensor of theirs used
    return theirs, ours


@torch.inference_mode()
@pytest.mark.parametrize(
    "sizes",
    [
        {"layer_type": "bottleneck", "embedding_size": 8, "hidden_sizes": [16, 32, 32], "depths": [1, 2, 2]},
        {"layer_type": "basic", "embedding_size": 8, "hidden_sizes": [8, 16, 32], "depths": [2, 1, 2]},
        {"layer_type": "bottleneck", "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "num_channels": 1},
    ],
    ids=["bottleneck", "basic", "grey, no first shortcut"],
)
def test_logits_equal_hugging_face_s_for_both_blocks(sizes):
    theirs, ours = both(num_labels=5, **sizes)
    x = torch.randn(3, ours.config.channels, 37, 50) * torch.tensor([0.3, 1, 3])[:, None, None, None]
    wanted = theirs(x).logits
    assert (wanted[0] - wanted[2]).abs().max() > 0.1  # it depends on the image
    torch.testing.assert_close(ours(x), wanted, rtol=0, atol=1e-4)


@torch.inference_mode()
def test_logits_equal_hugging_face_s_at_the_size_of_resnet_50():
    theirs, ours = both(num_labels=1000)
    assert ours.config == SIZES["50"]
    x = torch.randn(2, 3, 64, 64).double()  # with random weights, float32 is not precise enough
    torch.testing.assert_close(ours.double()(x), theirs.double()(x).logits, rtol=0, atol=1e-8)


def test_an_exported_config_is_imported_again_as_it_was():
    table, config = FAMILY, ResNetConfig(dim=8, dims=[8, 16], depths=[1, 2], block="basic", classes=7)
    described = table.describe(config)
    assert table.parse_config(HFCheckpoint(described, {"classifier.1.weight": torch.zeros(7, 16)})) == config
    assert transformers.ResNetConfig(**described).num_labels == 7


@pytest.mark.parametrize("changes", [{"attention": [1], "heads": 1, "stem": "imagenet"}, {"stem": "cifar"}], ids=str)
def test_a_model_that_hugging_face_lacks_is_not_exported(changes):
    with pytest.raises(ValueError, match=r"this resnet has .* Hugging Face's has"):
        FAMILY.describe(ResNetConfig(**{**SMALL, **changes}))


def test_a_checkpoint_with_the_stride_in_the_first_convolution_is_refused():
    with pytest.raises(ValueError, match="downsample_in_bottleneck = True; regard's model has False"):
        HFCheckpoint({"downsample_in_bottleneck": True}, {}).check(FAMILY.keys)


# Attention


@torch.no_grad()
def test_a_gate_of_zero_leaves_the_logits_of_the_plain_network_bit_for_bit():
    plain, gated = resnet(), resnet(attention=[1, 2])
    assert all(layer.gate == 0 for layer in gated.attention)
    gated.load_state_dict(with_statistics(plain).state_dict(), strict=False)  # all weights but those of the attention
    gated.eval()
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(gated(x), plain(x))
    gated.attention[0].gate.fill_(0.5)
    assert not torch.allclose(gated(x), plain(x))


@torch.no_grad()
def test_gated_attention_equals_a_loop_in_plain_python():
    torch.manual_seed(0)
    layer, x = GatedAttention(8, 2).double(), torch.randn(2, 8, 2, 3).double()
    layer.gate.fill_(0.7)
    wanted, width = x.clone(), 2  # of a head: two heads share half of the channels
    for b, (y, c) in itertools.product(range(2), itertools.product(range(2), range(3))):
        q, k, v = (layer.attn.qkv.weight @ x[b].flatten(1) + layer.attn.qkv.bias[:, None]).chunk(3)  # each (4, 6)
        mixed = []
        for head in range(2):
            rows = slice(head * width, (head + 1) * width)
            power = [math.exp(q[rows, 3 * y + c] @ k[rows, j] / math.sqrt(width)) for j in range(6)]
            mixed += [sum(p * v[row, j] for j, p in enumerate(power)) / sum(power) for row in range(rows.start, rows.stop)]
        wanted[b, :, y, c] += 0.7 * (layer.attn.out.weight @ torch.stack(mixed) + layer.attn.out.bias)
    torch.testing.assert_close(layer(x), wanted)


@torch.no_grad()
def test_watch_collects_weights_between_all_positions():
    model, x = resnet(attention=[2]).eval(), torch.randn(3, 3, 16, 12)
    model.attention[1].gate.fill_(1.0)
    with watch(model) as attended:
        logits = model(x)
    [weights] = attended["attention.1.attn"]
    assert weights.shape == (3, 2, 8 * 6, 8 * 6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 48))
    torch.testing.assert_close(model(x), logits)


def test_the_gate_gets_a_gradient_at_zero():
    model = resnet(attention=[2])
    model(torch.randn(4, 3, 16, 16))[:, 0].sum().backward()
    assert model.attention[1].gate.grad.abs() > 0


# Convolutions and norms


def test_a_batch_norm_has_running_statistics_but_no_batch_count():
    model = resnet()
    names = {name.rsplit(".", 1)[-1] for name, _ in model.named_buffers()}
    assert names == {"running_mean", "running_var"}
    before = model.stem[0].norm.running_mean.clone()
    model(torch.randn(4, 3, 16, 16))
    assert not torch.equal(model.stem[0].norm.running_mean, before)


@torch.no_grad()
def test_folding_removes_the_batch_norms_and_keeps_the_logits():
    model, x = with_statistics(resnet(attention=[2])), torch.randn(2, 3, 16, 16)
    folded = fold_batch_norms(copy.deepcopy(model))
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    torch.testing.assert_close(folded(x), model(x), rtol=1e-4, atol=1e-5)
    assert torch.equal(fold_batch_norms(folded)(x), folded(x))  # folding twice changes nothing


def test_the_memory_format_of_the_input_does_not_matter():
    model, x = resnet().eval(), torch.randn(2, 3, 16, 16)
    other = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(model(x), model(other))
    with torch.no_grad():
        grid = x
        for part in (model.stem, *model.stages):
            grid = part(grid)  # channels first
        torch.testing.assert_close(model.classifier(grid.mean((2, 3))), model(x))


@pytest.mark.parametrize(("kernel", "stride", "side", "wanted"), [(3, 1, 7, 7), (3, 2, 7, 4), (1, 2, 8, 4), (7, 2, 9, 5)])
def test_a_stride_keeps_the_first_position_and_every_other(kernel, stride, side, wanted):
    assert ConvNorm(2, 4, kernel, stride)(torch.randn(2, 2, side, side + 1)).shape[2:] == (wanted, -(-(side + 1) // stride))


def test_each_stage_but_the_first_halves_the_grid():
    assert resnet().encode(torch.randn(2, 3, 16, 12)).shape == (2, 32, 8, 6)
    assert resnet(stem="imagenet").encode(torch.randn(2, 3, 64, 64)).shape == (2, 32, 8, 8)


def test_drop_path_skips_branches_during_training_only():
    model, x = with_statistics(resnet(drop_path=0.9)), torch.randn(8, 3, 16, 16)
    assert torch.equal(model(x), model(x))
    model.stages.train()
    assert not torch.equal(model(x), model(x))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depths": [1]}, "dims has 2 stages and depths 1; give one number per stage in both"),
        ({"dims": [], "depths": []}, "dims has 0 stages"),
        ({"dims": [16, 30]}, "width 30 is not 4 times a bottleneck; use a multiple of 4"),
        ({"dims": [16, 0]}, "dims is 0; use 1 or more"),
        ({"attention": [3]}, "attention is 3; use 2 or less"),
        ({"attention": [0]}, "attention is 0; use 1 or more"),
        ({"attention": [1], "heads": 3}, "width 8 does not split into 3 heads; use a multiple of 3"),
        ({"block": "wide"}, "'basic' or 'bottleneck'"),
        ({"stem": "large"}, "'imagenet' or 'cifar'"),
        ({"drop_path": 1.0}, "drop_path is 1.0; use 0 or more and less than 1"),
        ({"widths": [1]}, "widths"),
    ],
    ids=str,
)
def test_an_invalid_config_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ResNetConfig(**{**SMALL, **changes})


def test_images_with_other_channels_are_refused():
    with pytest.raises(ValueError, match=r"images have 1 channels, the model reads 3; .* model\.channels=1"):
        resnet()(torch.randn(1, 1, 16, 16))


@pytest.mark.parametrize("changes", [{"block": "basic"}, {"attention": [1, 2]}], ids=["plain", "attention"])
def test_it_overfits_one_small_batch(changes):
    model = resnet(**changes)
    x, wanted = torch.randn(8, 3, 16, 16), torch.arange(8) % 5
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(40):
        loss = F.cross_entropy(model(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    for layer in model.attention:
        assert isinstance(layer, nn.Identity) or layer.gate.abs() > 1e-3  # the gate has opened
