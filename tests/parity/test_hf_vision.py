"""ViT, Swin of both versions and ResNet are Hugging Face's, with imported weights: same logits, there and back again.

Shapes: B batch, C channels, Y X rows and columns, N classes.
"""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.interop.hf import export_model, import_model
from regard.layers.attention import QKVWithoutKeyBias
from regard.models import state_tensors

CLOSE = {"rtol": 0, "atol": 1e-4}

VIT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 24,
       "patch_size": 4, "num_labels": 5}  # fmt: skip
SWIN = {"embed_dim": 16, "depths": [2, 3], "num_heads": [2, 4], "window_size": 3, "image_size": 24, "patch_size": 2,
        "num_labels": 5}  # fmt: skip
RESNET = {"embedding_size": 8, "hidden_sizes": [16, 32, 32], "depths": [1, 2, 1], "num_labels": 5}
SMALL = {  # kind → their class, its config
    "vit": ("ViT", VIT),
    "vit, grey": ("ViT", {**VIT, "num_channels": 1}),
    "vit, two classes": ("ViT", {**VIT, "num_labels": 2}),  # which their config.json does not mention
    "swin": ("Swin", SWIN),
    "swin, ragged": ("Swin", {**SWIN, "window_size": 5}),  # that do not tile the grids
    "swinv2": ("Swinv2", SWIN),
    "swinv2, wide windows": ("Swinv2", {**SWIN, "window_size": 8}),  # wider than the last grid
    "swinv2, measured": ("Swinv2", {**SWIN, "window_size": 6, "pretrained_window_sizes": [4, 3]}),
    "resnet": ("ResNet", RESNET),
    "resnet, basic": ("ResNet", {**RESNET, "layer_type": "basic", "hidden_sizes": [8, 16, 32]}),
}
REAL = {  # the released sizes
    "vit-base": ("ViT", {"num_labels": 1000}),
    "swin-tiny": ("Swin", {"num_labels": 1000}),
    "swinv2-tiny": ("Swinv2", {"image_size": 256, "window_size": 8, "num_labels": 1000}),
    "resnet-50": ("ResNet", {"num_labels": 1000}),
}


class Both(NamedTuple):
    theirs: Any
    family: str
    config: Any
    ours: Any


def their_model(kind: str, table: dict[str, tuple[str, dict[str, Any]]]) -> Any:
    name, sizes = table[kind]
    model = getattr(transformers, f"{name}ForImageClassification")(getattr(transformers, f"{name}Config")(**sizes))
    if name in ("ViT", "Swin"):
        model.set_attn_implementation("eager")  # not the fused kernel that we call
    return model


def louder(model: nn.Module) -> nn.Module:
    """Random weights so large that a wrong layer is seen in the logits, also where a fresh model has ones and zeros."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "convolution" in name:
                continue  # of a ResNet, random enough
            norm = "norm" in name.lower()
            mean, std = float(norm and name.endswith("weight")), 0.2 if norm or p.ndim > 1 else 0.1
            p.normal_(mean, std, generator=generator)
        for name, one in model.named_buffers():
            if name.endswith("running_mean"):
                one.normal_(std=0.3, generator=generator)
            if name.endswith("running_var"):
                one.uniform_(0.5, 2, generator=generator)
    return model.eval()


def nudged(model: nn.Module) -> nn.Module:
    """As a large model starts, whose sums would overflow the precision if it were any louder; but no ones and zeros."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in (p for p in model.parameters() if p.ndim == 1):
            p.add_(torch.randn(p.shape, generator=generator), alpha=0.1)
    return model.eval()


@pytest.fixture(scope="module", params=SMALL)
def both(request, tmp_path_factory):
    """Their model, and ours as imported from what it saved."""
    torch.manual_seed(0)
    theirs, folder = louder(their_model(request.param, SMALL)), tmp_path_factory.mktemp("theirs")
    theirs.save_pretrained(folder)
    return Both(theirs, *import_model(folder))


def pictures(config: Any, *sides: int, count: int = 3) -> Tensor:
    """Noise, each of another colour: (B, C, Y, X)."""
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(count, config.channels, *(sides or (config.image, config.image)), generator=generator)
    return noise + torch.randn(count, config.channels, 1, 1, generator=generator)


def same(a: nn.Module, b: nn.Module) -> bool:
    one, other = state_tensors(a), state_tensors(b)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@torch.inference_mode()
def test_logits_are_theirs(both):
    x = pictures(both.config)
    wanted = both.theirs(x).logits  # (B, N)
    assert wanted.std() > 0.1
    assert (wanted[0] - wanted[1]).abs().max() > 0.1  # it depends on the picture
    torch.testing.assert_close(both.ours(x), wanted, **CLOSE)


@torch.inference_mode()
def test_what_is_exported_opens_there_with_the_same_logits(both, tmp_path):
    export_model(both.family, both.config, both.ours, tmp_path)
    again, info = type(both.theirs).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    x = pictures(both.config)
    torch.testing.assert_close(again.eval()(x).logits, both.theirs(x).logits, **CLOSE)


def test_there_and_back_is_the_same_to_the_bit(both, tmp_path):
    export_model(both.family, both.config, both.ours, tmp_path)
    family, config, again = import_model(tmp_path)
    assert (family, config) == (both.family, both.config)
    assert same(again, both.ours)


def test_every_number_of_theirs_is_ours(both):
    """So that none is read twice, and another never."""
    theirs = sum(p.numel() for p in both.theirs.parameters())
    idle = sum(
        len(part.bias) // 3 for part in both.ours.modules() if isinstance(part, QKVWithoutKeyBias)
    )  # they stay at zero
    assert sum(p.numel() for p in both.ours.parameters()) - idle == theirs


@torch.inference_mode()
@pytest.mark.parametrize("sides", [(32, 32), (16, 16), (24, 36), (48, 20)], ids=str)
@pytest.mark.parametrize("both", ["vit"], indirect=True)
def test_of_a_picture_of_another_size_a_vit_gives_their_logits(both, sides):
    x = pictures(both.config, *sides)
    wanted = both.theirs(x, interpolate_pos_encoding=True).logits
    torch.testing.assert_close(both.ours(x), wanted, **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("sides", [(32, 32), (25, 31), (40, 23), (19, 24)], ids=str)
@pytest.mark.parametrize("both", ["swin", "swin, ragged", "swinv2", "swinv2, wide windows", "resnet"], indirect=True)
def test_of_a_ragged_picture_too(both, sides):
    x = pictures(both.config, *sides)
    torch.testing.assert_close(both.ours(x), both.theirs(x).logits, **CLOSE)


@torch.inference_mode()
def test_vectors_of_a_vit_without_classes_are_theirs(tmp_path):
    torch.manual_seed(0)
    theirs = louder(transformers.ViTModel(transformers.ViTConfig(**VIT)))
    theirs.save_pretrained(tmp_path)
    _, config, ours = import_model(tmp_path)  # a bare model: no prefix, no head
    x = pictures(config)
    torch.testing.assert_close(ours.final_norm(ours.encode(x)), theirs(x).last_hidden_state, **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["vit", "swin", "swinv2", "resnet"])
def test_weights_of_two_bytes_are_read(kind, dtype, tmp_path):
    torch.manual_seed(0)
    theirs = louder(their_model(kind, SMALL))
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    halved = {name: one.to(dtype) if one.is_floating_point() else one for name, one in load_file(file).items()}
    save_file(halved, file, {"format": "pt"})
    _, config, ours = import_model(tmp_path)
    assert {one.dtype for one in state_tensors(ours).values()} == {torch.float32}
    for one in (*theirs.parameters(), *(one for name, one in theirs.named_buffers() if "running" in name)):
        one.copy_(one.to(dtype))
    x = pictures(config)
    torch.testing.assert_close(ours(x), theirs(x).logits, **CLOSE)


@pytest.mark.parametrize("kind", ["vit", "swin", "resnet"])
def test_weights_in_several_files_are_read(kind, tmp_path):
    theirs = their_model(kind, SMALL)
    theirs.save_pretrained(tmp_path / "one")
    theirs.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 1
    assert same(import_model(tmp_path / "many")[2], import_model(tmp_path / "one")[2])


def at_real_size(kind: str, home: Path) -> None:
    torch.manual_seed(0)
    theirs = nudged(their_model(kind, REAL))
    theirs.save_pretrained(home / "theirs")
    found = Both(theirs, *import_model(home / "theirs"))
    x = pictures(found.config, count=2)
    wanted = theirs(x).logits
    assert wanted.std() > 0.01
    torch.testing.assert_close(found.ours(x), wanted, **CLOSE)
    export_model(found.family, found.config, found.ours, home / "back")
    assert same(import_model(home / "back")[2], found.ours)
    again = type(theirs).from_pretrained(home / "back").eval()
    torch.testing.assert_close(again(x).logits, wanted, **CLOSE)


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("kind", REAL)
def test_at_real_sizes_too(kind, tmp_path):
    at_real_size(kind, tmp_path)
