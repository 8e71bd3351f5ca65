"""Swin V1 and V2: parity with Hugging Face on images of any size, windows, received attention, invalid configs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from regard.decode.fast import column_major
from regard.interop import weights as interop
from regard.interop.swin import V1, V2
from regard.layers import linear
from regard.layers.attention import QKVWithoutKeyBias
from regard.layers.biases import relative_position_index
from regard.layers.linear import to_int8
from regard.layers.tap import watch
from regard.models import swin
from regard.models.swin import SIZES, Swin, SwinConfig, attention_received

CLOSE = {"rtol": 0, "atol": 1e-4}
VERSIONS = pytest.mark.parametrize("version", ["v1", "v2"])
THEIRS = {
    "v1": (transformers.SwinConfig, transformers.SwinForImageClassification),
    "v2": (transformers.Swinv2Config, transformers.Swinv2ForImageClassification),
}
SMALL = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 3], "num_heads": [2, 4], "window_size": 4,
         "num_labels": 5}  # fmt: skip


def tiny(version: Any = "v1", **changes: Any) -> SwinConfig:
    return SwinConfig(**{"image": 16, "patch": 2, "dim": 8, "depths": [2, 2], "heads": [2, 4], "window": 4, "mlp_ratio": 2,
                         "classes": 3, "version": version, **changes})  # fmt: skip


def with_large_weights(model: nn.Module) -> Any:
    torch.manual_seed(3)
    for name, p in model.named_parameters():
        nn.init.normal_(p, std=0.15)
        if name.endswith(("logit_scale", "temperature")):
            nn.init.uniform_(p, 3, 6)  # some are above log(100), and are clamped
    for part in model.modules():
        if isinstance(part, QKVWithoutKeyBias):
            nn.init.zeros_(part.bias.chunk(3)[1])  # as it always is
    return model.eval()


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(interop, "HF_FAMILIES", {"swin": V1, "swinv2": V2})


def imported(theirs: Any, folder: Path) -> Swin:
    theirs.save_pretrained(folder)
    family, _, model = interop.import_model(folder)
    assert family == "swin"
    return model


@torch.inference_mode()
def both(theirs: Any, ours: Swin, *size: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(size)
    return ours(x), theirs(x).logits


def test_the_released_sizes_have_the_published_parameter_counts():
    with torch.device("meta"):
        counts = {name: sum(p.numel() for p in Swin(SIZES[name]).parameters()) for name in ("tiny", "v2-tiny")}
    assert counts["tiny"] == 28_288_354
    assert counts["v2-tiny"] == 28_351_570


@pytest.mark.parametrize(("changes", "hint"), [
    ({}, ""), ({"image": 448}, ""), ({"image": 28}, "; use model.image=224"),  # a grid of 7 cannot be halved
    ({"image": 225}, "; use model.image=224 or model.image=448"),
    ({"image": 96}, "; use model.window=6 or model.image=224"),
    ({"version": "v2", "image": 128, "window": 8}, ""),  # grids of 32, 16, 8 and 4, the last one window
    ({"version": "v2", "image": 224, "window": 8}, "; use model.window=7 or model.image=128 or model.image=256"),
    ({"image": 32, "patch": 2, "window": 4, "depths": [2, 2, 2], "heads": [3, 6, 12]}, ""),
])  # fmt: skip
def test_the_advice_for_an_image_that_windows_do_not_tile_names_sizes_that_they_do(changes, hint):
    advice = SwinConfig(**changes).advice
    assert advice.endswith(hint)
    assert bool(advice) == bool(hint)
    for key, value in re.findall(r"model\.(\w+)=(\d+)", hint):
        assert not SwinConfig(**{**changes, key: int(value)}).advice


@pytest.mark.parametrize("name", list(SIZES))
def test_every_size_has_the_parameters_of_hugging_face_s_model(name):
    config = SIZES[name]
    kind, model = THEIRS[config.version]
    described = V1.describe(config)
    with torch.device("meta"):
        ours, theirs = Swin(config), model(kind(**described))
    idle = sum(len(part.bias) // 3 for part in ours.modules() if isinstance(part, QKVWithoutKeyBias))  # biases of keys
    assert sum(p.numel() for p in ours.parameters()) - idle == sum(p.numel() for p in theirs.parameters())


@VERSIONS
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"image_size": 36, "window_size": 5, "mlp_ratio": 2.0},  # windows tile no grid, and the second is odd
        {"depths": [1, 2, 2], "num_heads": [1, 2, 2], "num_channels": 1, "window_size": 3},
    ],
)
def test_logits_equal_hugging_face_s(known, tmp_path, version, changes):
    kind, model = THEIRS[version]
    theirs = with_large_weights(model(kind(**{**SMALL, **changes})))
    size, channels = theirs.config.image_size, theirs.config.num_channels
    ours, wanted = both(theirs, imported(theirs, tmp_path), 3, channels, size, size)
    assert wanted.std() > 0.1
    torch.testing.assert_close(ours, wanted, **CLOSE)


@VERSIONS
@pytest.mark.parametrize("size", [(32, 44), (46, 30), (31, 51), (64, 64), (41, 41)])
def test_logits_equal_hugging_face_s_on_images_of_any_size(known, tmp_path, version, size):
    kind, model = THEIRS[version]
    theirs = with_large_weights(model(kind(**SMALL)))  # a new model each time: theirs keeps its windows shrunk
    torch.testing.assert_close(*both(theirs, imported(theirs, tmp_path), 2, 3, *size), **CLOSE)


@pytest.mark.parametrize(
    "changes",
    [
        {"window_size": 16},  # larger than the second grid
        {"window_size": 8, "pretrained_window_sizes": [6, 3]},
        {"window_size": 8, "pretrained_window_sizes": [0, 5, 0, 0]},
    ],
)
@pytest.mark.parametrize("size", [(32, 32), (10, 38)])
def test_v2_uses_the_windows_of_its_training(known, tmp_path, changes, size):
    theirs = with_large_weights(transformers.Swinv2ForImageClassification(transformers.Swinv2Config(**{**SMALL, **changes})))
    torch.testing.assert_close(*both(theirs, imported(theirs, tmp_path), 2, 3, *size), **CLOSE)


@VERSIONS
def test_logits_of_the_tiny_size_equal_hugging_face_s(known, tmp_path, version):
    kind, model = THEIRS[version]
    config = kind(num_labels=1000) if version == "v1" else kind(image_size=256, window_size=8, num_labels=1000)
    torch.manual_seed(0)
    theirs = model(config).eval()
    for name, p in theirs.named_parameters():
        if "bias" in name or "norm" in name:
            nn.init.normal_(p, mean=float("norm.weight" in name), std=0.3)
    ours = imported(theirs, tmp_path)
    assert ours.config == SwinConfig(**{**vars(SIZES["tiny" if version == "v1" else "v2-tiny"]), "drop_path": 0.1})
    got, wanted = both(theirs, ours, 1, 3, config.image_size, config.image_size)
    assert wanted.std() > 0.1
    torch.testing.assert_close(got, wanted, **CLOSE)


@VERSIONS
def test_hugging_face_loads_an_exported_model(known, tmp_path, version):
    pretrained_windows = {"pretrained_windows": [5, 0]} if version == "v2" else {}
    ours = with_large_weights(Swin(tiny(version, drop_path=0.2, **pretrained_windows)))
    interop.export_model("swin", ours.config, ours, tmp_path)
    theirs, report = THEIRS[version][1].from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(*both(theirs.eval(), ours, 2, 3, 16, 24), **CLOSE)
    again = interop.import_model(tmp_path)[2]
    assert again.config == ours.config
    for (name, p), (other, q) in zip(ours.named_parameters(), again.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("use_absolute_embeddings", True, "config.json has use_absolute_embeddings = True; regard's model has False"),
        ("hidden_act", "relu", "config.json has hidden_act = 'relu'; regard's model has 'gelu'"),
        ("mlp_ratio", 2.5, "config.json has mlp_ratio = 2.5; regard's model has a whole number"),
        ("num_heads", [3, 4], "width 8 does not split into 3 heads"),
        ("image_size", [32, 36], "config.json has image_size = [32, 36]; regard's model reads squares"),
        ("depths", None, "config.json.depths: Input should be a valid list"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_with_the_reason(known, tmp_path, key, value, wanted):
    transformers.SwinForImageClassification(transformers.SwinConfig(**SMALL)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(ValueError, match=re.escape(wanted)):
        interop.import_model(tmp_path)


def test_a_window_larger_than_the_grid_shrinks_and_uses_the_middle_of_its_table():
    large, small = with_large_weights(Swin(tiny(window=4))), with_large_weights(Swin(tiny(window=2)))
    state = large.state_dict()
    for name in state:
        if name.endswith("bias.table"):
            state[name] = state[name].view(7, 7, -1)[2:5, 2:5].flatten(0, 1)
    small.load_state_dict(state)
    x = torch.randn(2, 3, 4, 4)  # grids of 2 × 2 and 1 × 1
    torch.testing.assert_close(large(x), small(x))


@VERSIONS
def test_inference_in_chunks_gives_the_same_logits(monkeypatch, version):
    monkeypatch.setattr(linear, "ONEDNN_MIN", 0)
    model, x = (with_large_weights(Swin(tiny(version))), torch.randn(5, 3, 150, 142))  # large: one image per chunk
    assert 75 * 71 > 4096
    training = model(x)
    with torch.inference_mode():
        inference = model(x)
    assert training.requires_grad
    torch.testing.assert_close(inference, training.detach(), rtol=0, atol=1e-5)


@VERSIONS
@pytest.mark.parametrize("change", [column_major, to_int8])
@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_column_major_and_int8_weights_give_nearly_the_same_logits(monkeypatch, version, change):
    model, x = with_large_weights(Swin(tiny(version))), torch.randn(2, 3, 16, 16)
    monkeypatch.setattr(linear, "ONEDNN_MIN", 0)
    with torch.inference_mode():
        before, after = model(x), change(model)(x)
        monkeypatch.setattr(linear, "ONEDNN", None)
        usual = model(x)
    torch.testing.assert_close(before, after, rtol=0, atol=0.1 if change is to_int8 else 1e-5)
    torch.testing.assert_close(after, usual, rtol=0, atol=1e-6)  # int8 weights are used there too


@VERSIONS
def test_no_weights_are_cached_from_an_earlier_image(version):
    swin.plan_windows.cache_clear()
    relative_position_index.cache_clear()
    model, x = with_large_weights(Swin(tiny(version))), torch.randn(1, 3, 16, 16)
    with torch.inference_mode():
        before = model(x)
    for p in model.parameters():
        p.data.mul_(0.5)  # without increasing its version counter
    assert not torch.allclose(model(x), before, atol=1e-2)
    other = Swin(model.config).eval()
    other.load_state_dict(model.state_dict())
    with torch.inference_mode():
        assert torch.equal(model(x), other(x))
    model(x).sum().backward()  # tensors cached in inference mode do not break autograd


@VERSIONS
def test_it_overfits_a_small_batch(version):
    torch.manual_seed(0)
    model, x, y = Swin(tiny(version, drop_path=0.1)), torch.randn(6, 3, 16, 16), torch.tensor([0, 1, 2, 0, 1, 2])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert nn.functional.cross_entropy(model.eval()(x), y) < 0.1
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def received_by_loop(weights: Tensor, window: int, shift: int, rows: int, columns: int) -> Tensor:
    """Attention that each position receives, one pair at a time: weights (N, H, M · M, M · M) → (H, rows, columns)."""
    down, across = -(-rows // window), -(-columns // window)
    received = torch.zeros(weights.shape[1], rows, columns)
    for n in range(down * across):
        for query in range(window**2):
            for key in range(window**2):
                positions = []
                for index in (query, key):
                    y = n // across * window + index // window + shift
                    x = n % across * window + index % window + shift
                    positions.append((y % (down * window), x % (across * window)))
                if all(y < rows and x < columns for y, x in positions):
                    received[:, positions[1][0], positions[1][1]] += weights[n, :, query, key]
    return received / received.mean((1, 2), keepdim=True)


@VERSIONS
@pytest.mark.parametrize("size", [(16, 16), (22, 13)])
def test_received_attention_equals_a_loop_over_all_pairs(monkeypatch, version, size):
    monkeypatch.setattr(swin, "CHUNK", 1)  # without a tap, one image at a time
    model, x = with_large_weights(Swin(tiny(version))), torch.randn(2, 3, *size)
    with torch.no_grad(), watch(model) as attended:
        watched = model(x)
    torch.testing.assert_close(watched, model(x).detach(), rtol=0, atol=1e-5)
    assert list(attended) == [f"stages.{i}.blocks.{n}.attn" for i in range(2) for n in range(2)]
    for name, calls in attended.items():
        [weights] = calls  # the whole batch in one call
        stage = int(name.split(".")[1])
        rows, columns = model.grids(*size)[stage]
        block = model.get_submodule(name.removesuffix(".attn"))
        window, shift = block.fit(block.window, block.shift, rows, columns)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        received = attention_received(weights, block, rows, columns)
        assert received.shape == (2, model.config.heads[stage], rows, columns)
        torch.testing.assert_close(received.mean((2, 3)), torch.ones(2, model.config.heads[stage]))
        for image, ours in zip(weights.chunk(2), received, strict=True):
            torch.testing.assert_close(ours, received_by_loop(image, window, shift, rows, columns))


def test_grids_are_those_of_the_stages():
    model = Swin(tiny(depths=[1, 1, 1], heads=[1, 2, 2]))
    with torch.no_grad():
        shapes = []
        for stage in model.stages:
            stage.register_forward_hook(lambda _, __, out: shapes.append(tuple(out.shape[1:3])))
        model(torch.randn(1, 3, 27, 40))
    assert model.grids(27, 40) == shapes == [(14, 20), (7, 10), (4, 5)]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"heads": [2]}, "2 depths and 1 heads; give one of each per stage"),
        ({"heads": [2, 3]}, "width 16 does not split into 3 heads; use a multiple of 3"),
        ({"depths": [], "heads": []}, "stages is 0; use 1 or more"),
        ({"depths": [2, 0]}, r"depths\[1\] is 0; use 1 or more"),
        ({"pretrained_windows": [4, 4]}, r"pretrained_windows is \[4, 4\]; give one per stage of a v2, or none"),
        ({"drop_path": 1.0}, "drop_path is 1.0; use 0 or more and less than 1"),
        ({"depths": (2, 2)}, "valid list"),
        ({"version": "v3"}, "'v1' or 'v2'"),
    ],
)
def test_an_invalid_config_is_refused(changes, wanted):
    with pytest.raises(ValueError, match=wanted):
        tiny(**changes)
