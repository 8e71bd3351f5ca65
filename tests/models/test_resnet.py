"""ResNet, plain and with attention: counts, Hugging Face's logits, a gate that begins shut, and what is refused."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

from regard.interop.resnet import FAMILY
from regard.interop.tables import Checkpoint
from regard.layers.conv import ConvNorm, fold_batch_norms
from regard.layers.tap import watch
from regard.models.resnet import SIZES, GatedAttention, ResNet, ResNetConfig

SMALL = {"image": 16, "stem": "cifar", "dim": 8, "dims": [16, 32], "depths": [1, 2], "heads": 2, "classes": 5}
COUNTS = {"18": 11_689_512, "34": 21_797_672, "50": 25_557_032, "101": 44_549_160, "152": 60_192_808, "20": 272_474}


def resnet(**changes: object) -> ResNet:
    torch.manual_seed(0)
    return ResNet(ResNetConfig(**{**SMALL, **changes}))


def counted(model: nn.Module) -> nn.Module:
    """Its batch norms as after some training: no ones and zeros."""
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            for one in (part.weight.data, part.running_var):
                one.uniform_(0.5, 1.5)
            for one in (part.bias.data, part.running_mean):
                one.normal_(std=0.3)
    return model.eval()


@pytest.mark.parametrize("size", list(COUNTS))
def test_a_size_has_the_parameters_of_the_released_model(size):
    with torch.device("meta"):
        assert sum(p.numel() for p in ResNet(SIZES[size]).parameters()) == COUNTS[size]


# Hugging Face


def both(**sizes: object) -> tuple[nn.Module, ResNet]:
    """Theirs, and ours with their weights, by the table of names."""
    torch.manual_seed(0)
    theirs = counted(transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes)))
    table, weights, said = FAMILY, dict(theirs.state_dict()), theirs.config.to_dict()
    config = table.parse_config(Checkpoint(said, weights))
    ours, used = ResNet(config).eval(), set()
    state = ours.state_dict()
    for one in table.map_tensors(config):
        assert len(one.hf) == 1
        state.pop(one.ours).copy_(weights[one.hf[0]])
        used |= {*one.hf}
    assert not state  # each of ours was filled
    assert all(name.endswith(table.ignored) for name in weights.keys() - used)  # and each of theirs had a place
    return theirs, ours


@torch.inference_mode()
@pytest.mark.parametrize(
    "sizes",
    [
        {"layer_type": "bottleneck", "embedding_size": 8, "hidden_sizes": [16, 32, 32], "depths": [1, 2, 2]},
        {"layer_type": "basic", "embedding_size": 8, "hidden_sizes": [8, 16, 32], "depths": [2, 1, 2]},
        {
            "layer_type": "bottleneck",
            "embedding_size": 16,
            "hidden_sizes": [16, 32],
            "depths": [1, 1],
            "num_channels": 1,
        },
    ],
    ids=["bottleneck", "basic", "grey, no first shortcut"],
)
def test_logits_are_theirs_of_any_block(sizes):
    theirs, ours = both(num_labels=5, **sizes)
    x = torch.randn(3, ours.config.channels, 37, 50) * torch.tensor([0.3, 1, 3])[:, None, None, None]
    wanted = theirs(x).logits
    assert (wanted[0] - wanted[2]).abs().max() > 0.1  # it depends on the picture
    torch.testing.assert_close(ours(x), wanted, rtol=0, atol=1e-4)


@torch.inference_mode()
def test_logits_are_theirs_at_the_real_size():
    theirs, ours = both(num_labels=1000)
    assert ours.config == SIZES["50"]
    x = torch.randn(2, 3, 64, 64).double()  # random weights make numbers that float32 is too short for
    torch.testing.assert_close(ours.double()(x), theirs.double()(x).logits, rtol=0, atol=1e-8)


def test_their_config_says_of_ours_what_theirs_says():
    table, config = FAMILY, ResNetConfig(dim=8, dims=[8, 16], depths=[1, 2], block="basic", classes=7)
    said = table.describe(config)
    assert table.parse_config(Checkpoint(said, {"classifier.1.weight": torch.zeros(7, 16)})) == config
    assert transformers.ResNetConfig(**said).num_labels == 7


@pytest.mark.parametrize("changes", [{"attention": [1], "heads": 1, "stem": "imagenet"}, {"stem": "cifar"}], ids=str)
def test_what_they_do_not_have_is_not_exported(changes):
    with pytest.raises(ValueError, match=r"this resnet has .* Hugging Face's has"):
        FAMILY.describe(ResNetConfig(**{**SMALL, **changes}))


def test_a_checkpoint_that_strides_elsewhere_is_refused():
    with pytest.raises(ValueError, match="downsample_in_bottleneck = True; regard's model has False"):
        FAMILY.parse_config(Checkpoint({"downsample_in_bottleneck": True}, {}))


# Attention


@torch.no_grad()
def test_a_gate_of_zero_leaves_the_plain_network_to_the_bit():
    plain, watched = resnet(), resnet(attention=[1, 2])
    assert all(look.gate == 0 for look in watched.attention)
    watched.load_state_dict(counted(plain).state_dict(), strict=False)  # all weights but those of the attention
    watched.eval()
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(watched(x), plain(x))
    watched.attention[0].gate.fill_(0.5)
    assert not torch.allclose(watched(x), plain(x))


@torch.no_grad()
def test_gated_attention_equals_a_loop_of_plain_python():
    torch.manual_seed(0)
    look, x = GatedAttention(8, 2).double(), torch.randn(2, 8, 2, 3).double()
    look.gate.fill_(0.7)
    wanted, width = x.clone(), 2  # of a head: half of the channels are shared by two
    for b, (y, c) in itertools.product(range(2), itertools.product(range(2), range(3))):
        q, k, v = (look.attn.qkv.weight @ x[b].flatten(1) + look.attn.qkv.bias[:, None]).chunk(3)  # each (4, 6)
        mixed = []
        for head in range(2):
            rows = slice(head * width, (head + 1) * width)
            power = [math.exp(q[rows, 3 * y + c] @ k[rows, j] / math.sqrt(width)) for j in range(6)]
            mixed += [
                sum(p * v[row, j] for j, p in enumerate(power)) / sum(power) for row in range(rows.start, rows.stop)
            ]
        wanted[b, :, y, c] += 0.7 * (look.attn.out.weight @ torch.stack(mixed) + look.attn.out.bias)
    torch.testing.assert_close(look(x), wanted)


@torch.no_grad()
def test_who_watches_sees_every_place_look_at_every_place():
    model, x = resnet(attention=[2]).eval(), torch.randn(3, 3, 16, 12)
    model.attention[1].gate.fill_(1.0)
    with watch(model) as seen:
        logits = model(x)
    [weights] = seen["looks.1.attn"]
    assert weights.shape == (3, 2, 8 * 6, 8 * 6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 48))
    torch.testing.assert_close(model(x), logits)


def test_the_gate_opens_when_attention_is_of_use():
    model = resnet(attention=[2])
    model(torch.randn(4, 3, 16, 16))[:, 0].sum().backward()
    assert model.attention[1].gate.grad.abs() > 0


# Convolutions and norms


def test_a_batch_norm_keeps_statistics_but_no_count():
    model = resnet()
    names = {name.rsplit(".", 1)[-1] for name, _ in model.named_buffers()}
    assert names == {"running_mean", "running_var"}
    before = model.stem[0].norm.running_mean.clone()
    model(torch.randn(4, 3, 16, 16))
    assert not torch.equal(model.stem[0].norm.running_mean, before)


@torch.no_grad()
def test_folded_norms_give_the_same_logits_without_a_norm():
    model, x = counted(resnet(attention=[2])), torch.randn(2, 3, 16, 16)
    folded = fold_batch_norms(copy.deepcopy(model))
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    torch.testing.assert_close(folded(x), model(x), rtol=1e-4, atol=1e-5)
    assert torch.equal(fold_batch_norms(folded)(x), folded(x))  # twice is once


def test_the_order_in_memory_does_not_matter():
    model, x = resnet().eval(), torch.randn(2, 3, 16, 16)
    other = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(model(x), model(other))
    with torch.no_grad():
        grid = x
        for part in (model.stem, *model.stages):
            grid = part(grid)  # row by row, as it came
        torch.testing.assert_close(model.classes(grid.mean((2, 3))), model(x))


@pytest.mark.parametrize(
    ("kernel", "stride", "side", "wanted"), [(3, 1, 7, 7), (3, 2, 7, 4), (1, 2, 8, 4), (7, 2, 9, 5)]
)
def test_a_stride_keeps_every_other_place_and_the_first(kernel, stride, side, wanted):
    assert ConvNorm(2, 4, kernel, stride)(torch.randn(2, 2, side, side + 1)).shape[2:] == (
        wanted,
        -(-(side + 1) // stride),
    )


def test_a_grid_is_halved_by_each_stage_but_the_first():
    assert resnet().encode(torch.randn(2, 3, 16, 12)).shape == (2, 32, 8, 6)
    assert resnet(stem="imagenet").encode(torch.randn(2, 3, 64, 64)).shape == (2, 32, 8, 8)


def test_a_branch_is_left_out_for_some_examples_while_training_only():
    model, x = counted(resnet(drop_path=0.9)), torch.randn(8, 3, 16, 16)
    assert torch.equal(model(x), model(x))
    model.stages.train()
    assert not torch.equal(model(x), model(x))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depths": [1]}, "dims has 2 stages and depths 1; give one number a stage in both"),
        ({"dims": [], "depths": []}, "dims has 0 stages"),
        ({"dims": [16, 30]}, "width 30 has no quarter for its bottleneck; use a multiple of 4"),
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
def test_a_config_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ResNetConfig(**{**SMALL, **changes})


def test_pictures_with_other_channels_are_refused():
    with pytest.raises(ValueError, match=r"pictures have 1 channels, the model reads 3; .* model\.channels=1"):
        resnet()(torch.randn(1, 1, 16, 16))


@pytest.mark.parametrize("changes", [{"block": "basic"}, {"attention": [1, 2]}], ids=["plain", "attention"])
def test_it_learns_one_small_batch_by_heart(changes):
    model = resnet(**changes)
    x, wanted = torch.randn(8, 3, 16, 16), torch.arange(8) % 5
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(40):
        loss = F.cross_entropy(model(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    for look in model.attention:
        assert isinstance(look, nn.Identity) or look.gate.abs() > 1e-3  # what is of use is used
