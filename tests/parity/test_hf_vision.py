"""ViT, Swin V1 and V2 and ResNet with imported weights: logits equal Hugging Face's, also after export and import.

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
    "vit, two classes": ("ViT", {**VIT, "num_labels": 2}),  # the default, which their config.json omits
    "swin": ("Swin", SWIN),
    "swin, ragged": ("Swin", {**SWIN, "window_size": 5}),  # windows do not tile the grids
    "swinv2": ("Swinv2", SWIN),
    "swinv2, wide windows": ("Swinv2", {**SWIN, "window_size": 8}),  # wider than the last grid
    "swinv2, pretrained windows": ("Swinv2", {**SWIN, "window_size": 6, "pretrained_window_sizes": [4, 3]}),
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


def with_large_weights(model: nn.Module) -> nn.Module:
    """Random weights so large that a wrong layer changes the logits, also where a new model has ones and zeros."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "convolution" in name:
                continue  # a ResNet's are random already
            norm = "norm" in name.lower()
            mean, std = float(norm and name.endswith("weight")), 0.2 if norm or p.ndim > 1 else 0.1
            p.normal_(mean, std, generator=generator)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(std=0.3, generator=generator)
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2, generator=generator)
    return model.eval()


def with_noise(model: nn.Module) -> nn.Module:
    """Initial weights plus noise on biases and norms: larger weights in a large model would exceed float32 precision."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in (p for p in model.parameters() if p.ndim == 1):
            p.add_(torch.randn(p.shape, generator=generator), alpha=0.1)
    return model.eval()


@pytest.fixture(scope="module", params=SMALL)
def both(request, tmp_path_factory):
    """Their model, and ours, imported from its checkpoint."""
    torch.manual_seed(0)
    theirs, folder = with_large_weights(their_model(request.param, SMALL)), tmp_path_factory.mktemp("theirs")
    theirs.save_pretrained(folder)
    return Both(theirs, *import_model(folder))


def images(config: Any, *sides: int, count: int = 3) -> Tensor:
    """Noise, each image with another mean colour: (B, C, Y, X)."""
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(count, config.channels, *(sides or (config.image, config.image)), generator=generator)
    return noise + torch.randn(count, config.channels, 1, 1, generator=generator)


def same(a: nn.Module, b: nn.Module) -> bool:
    ours, other = state_tensors(a), state_tensors(b)
    return ours.keys() == other.keys() and all(torch.equal(ours[name], other[name]) for name in ours)


@torch.inference_mode()
def test_logits_equal_hugging_face_s(both):
    x = images(both.config)
    wanted = both.theirs(x).logits  # (B, N)
    assert wanted.std() > 0.1
    assert (wanted[0] - wanted[1]).abs().max() > 0.1  # it depends on the image
    torch.testing.assert_close(both.ours(x), wanted, **CLOSE)


@torch.inference_mode()
def test_an_exported_model_has_the_same_logits_in_hugging_face(both, tmp_path):
    export_model(both.family, both.config, both.ours, tmp_path)
    again, info = type(both.theirs).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    x = images(both.config)
    torch.testing.assert_close(again.eval()(x).logits, both.theirs(x).logits, **CLOSE)


def test_export_and_import_preserve_every_bit(both, tmp_path):
    export_model(both.family, both.config, both.ours, tmp_path)
    family, config, again = import_model(tmp_path)
    assert (family, config) == (both.family, both.config)
    assert same(again, both.ours)


def test_the_parameter_counts_are_equal(both):
    """So no tensor is read twice, and none is left out."""
    theirs = sum(p.numel() for p in both.theirs.parameters())
    idle = sum(len(part.bias) // 3 for part in both.ours.modules() if isinstance(part, QKVWithoutKeyBias))  # they stay at zero
    assert sum(p.numel() for p in both.ours.parameters()) - idle == theirs


@torch.inference_mode()
@pytest.mark.parametrize("sides", [(32, 32), (16, 16), (24, 36), (48, 20)], ids=str)
@pytest.mark.parametrize("both", ["vit"], indirect=True)
def test_logits_of_a_vit_are_equal_on_another_image_size(both, sides):
    x = images(both.config, *sides)
    wanted = both.theirs(x, interpolate_pos_encoding=True).logits
    torch.testing.assert_close(both.ours(x), wanted, **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("sides", [(32, 32), (25, 31), (40, 23), (19, 24)], ids=str)
@pytest.mark.parametrize("both", ["swin", "swin, ragged", "swinv2", "swinv2, wide windows", "resnet"], indirect=True)
def test_logits_are_equal_on_images_that_do_not_tile(both, sides):
    x = images(both.config, *sides)
    torch.testing.assert_close(both.ours(x), both.theirs(x).logits, **CLOSE)


@torch.inference_mode()
def test_encodings_of_a_vit_without_a_classifier_are_equal(tmp_path):
    torch.manual_seed(0)
    theirs = with_large_weights(transformers.ViTModel(transformers.ViTConfig(**VIT)))
    theirs.save_pretrained(tmp_path)
    _, config, ours = import_model(tmp_path)  # a bare model: no prefix, no head
    x = images(config)
    torch.testing.assert_close(ours.final_norm(ours.encode(x)), theirs(x).last_hidden_state, **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["vit", "swin", "swinv2", "resnet"])
def test_half_precision_checkpoints_are_read(kind, dtype, tmp_path):
    torch.manual_seed(0)
    theirs = with_large_weights(their_model(kind, SMALL))
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    halved = {name: x.to(dtype) if x.is_floating_point() else x for name, x in load_file(file).items()}
    save_file(halved, file, {"format": "pt"})
    _, config, ours = import_model(tmp_path)
    assert {x.dtype for x in state_tensors(ours).values()} == {torch.float32}
    for weight in (*theirs.parameters(), *(x for name, x in theirs.named_buffers() if "running" in name)):
        weight.copy_(weight.to(dtype))
    x = images(config)
    torch.testing.assert_close(ours(x), theirs(x).logits, **CLOSE)


@pytest.mark.parametrize("kind", ["vit", "swin", "resnet"])
def test_sharded_checkpoints_are_read(kind, tmp_path):
    theirs = their_model(kind, SMALL)
    theirs.save_pretrained(tmp_path / "one")
    theirs.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 1
    assert same(import_model(tmp_path / "many")[2], import_model(tmp_path / "one")[2])


def check_real_size(kind: str, home: Path) -> None:
    torch.manual_seed(0)
    theirs = with_noise(their_model(kind, REAL))
    theirs.save_pretrained(home / "theirs")
    pair = Both(theirs, *import_model(home / "theirs"))
    x = images(pair.config, count=2)
    wanted = theirs(x).logits
    assert wanted.std() > 0.01
    torch.testing.assert_close(pair.ours(x), wanted, **CLOSE)
    export_model(pair.family, pair.config, pair.ours, home / "back")
    assert same(import_model(home / "back")[2], pair.ours)
    again = type(theirs).from_pretrained(home / "back").eval()
    torch.testing.assert_close(again(x).logits, wanted, **CLOSE)


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("kind", REAL)
def test_logits_are_equal_at_released_sizes(kind, tmp_path):
    check_real_size(kind, tmp_path)
