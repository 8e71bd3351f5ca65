"""Swin is Hugging Face's, of both versions: same parameters, same logits, on pictures that windows tile and on others."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from regard.interop import weights as interop
from regard.interop.swin import V1, V2
from regard.layers import linear
from regard.layers.attention import QKVWithoutKeyBias
from regard.layers.biases import relative_position_index
from regard.layers.linear import column_major, to_int8
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


def loud(model: nn.Module) -> Any:
    torch.manual_seed(3)
    for name, p in model.named_parameters():
        nn.init.normal_(p, std=0.15)
        if name.endswith(("logit_scale", "temperature")):
            nn.init.uniform_(p, 3, 6)  # some are above the logarithm of 100, and are cut
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


def test_the_released_sizes_have_their_parameters():
    with torch.device("meta"):
        counts = {name: sum(p.numel() for p in Swin(SIZES[name]).parameters()) for name in ("tiny", "v2-tiny")}
    assert counts["tiny"] == 28_288_354
    assert counts["v2-tiny"] == 28_351_570


@pytest.mark.parametrize(("changes", "said"), [
    ({}, ""), ({"image": 448}, ""), ({"image": 28}, " is model.image=224"),  # a grid of 7 cannot be halved
    ({"image": 225}, " is model.image=224 or model.image=448"),
    ({"image": 96}, " is model.window=6 or model.image=224"),
    ({"version": "v2", "image": 128, "window": 8}, ""),  # grids of 32, 16, 8 and 4, the last one window
    ({"version": "v2", "image": 224, "window": 8}, " is model.window=7 or model.image=128 or model.image=256"),
    ({"image": 32, "patch": 2, "window": 4, "depths": [2, 2, 2], "heads": [3, 6, 12]}, ""),
])  # fmt: skip
def test_a_picture_that_windows_do_not_tile_is_told_which_would(changes, said):
    advice = SwinConfig(**changes).advice
    assert advice.endswith(said)
    assert bool(advice) == bool(said)
    for key, value in re.findall(r"model\.(\w+)=(\d+)", said):
        assert not SwinConfig(**{**changes, key: int(value)}).advice


@pytest.mark.parametrize("name", list(SIZES))
def test_every_size_is_the_released_one_s_shape(name):
    config = SIZES[name]
    kind, model = THEIRS[config.version]
    said = V1.describe(config)
    with torch.device("meta"):
        ours, theirs = Swin(config), model(kind(**said))
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
def test_logits_are_hugging_face_s(known, tmp_path, version, changes):
    kind, model = THEIRS[version]
    theirs = loud(model(kind(**{**SMALL, **changes})))
    size, channels = theirs.config.image_size, theirs.config.num_channels
    ours, wanted = both(theirs, imported(theirs, tmp_path), 3, channels, size, size)
    assert wanted.std() > 0.1
    torch.testing.assert_close(ours, wanted, **CLOSE)


@VERSIONS
@pytest.mark.parametrize("size", [(32, 44), (46, 30), (31, 51), (64, 64), (41, 41)])
def test_logits_are_hugging_face_s_on_any_picture(known, tmp_path, version, size):
    kind, model = THEIRS[version]
    theirs = loud(model(kind(**SMALL)))  # a new one for each: theirs remembers how far it shrank its windows
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
def test_windows_of_v2_are_those_of_its_training(known, tmp_path, changes, size):
    theirs = loud(transformers.Swinv2ForImageClassification(transformers.Swinv2Config(**{**SMALL, **changes})))
    torch.testing.assert_close(*both(theirs, imported(theirs, tmp_path), 2, 3, *size), **CLOSE)


@VERSIONS
def test_logits_of_the_tiny_size_are_hugging_face_s(known, tmp_path, version):
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
def test_hugging_face_opens_what_is_exported(known, tmp_path, version):
    pretrained_windows = {"pretrained_windows": [5, 0]} if version == "v2" else {}
    ours = loud(Swin(tiny(version, drop_path=0.2, **pretrained_windows)))
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
        ("image_size", [32, 32], "config.json has image_size = [32, 32]; wanted a number"),
        ("depths", None, "config.json.depths: Input should be a valid list"),
    ],
)
def test_a_checkpoint_that_does_not_fit_says_why(known, tmp_path, key, value, wanted):
    transformers.SwinForImageClassification(transformers.SwinConfig(**SMALL)).save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**said, key: value}))
    with pytest.raises(ValueError, match=re.escape(wanted)):
        interop.import_model(tmp_path)


def test_a_window_larger_than_the_grid_shrinks_and_reads_the_middle_of_its_table():
    large, small = loud(Swin(tiny(window=4))), loud(Swin(tiny(window=2)))
    state = large.state_dict()
    for name in state:
        if name.endswith("bias.table"):
            state[name] = state[name].view(7, 7, -1)[2:5, 2:5].flatten(0, 1)
    small.load_state_dict(state)
    x = torch.randn(2, 3, 4, 4)  # grids of 2 × 2 and 1 × 1
    torch.testing.assert_close(large(x), small(x))


@VERSIONS
def test_without_gradients_the_same_numbers_come_faster(monkeypatch, version):
    monkeypatch.setattr(linear, "MUCH", 0)
    model, x = loud(Swin(tiny(version))), torch.randn(5, 3, 150, 142)  # so large that pictures go one at a time
    assert 75 * 71 > 4096
    learning = model(x)
    with torch.inference_mode():
        fast = model(x)
    assert learning.requires_grad
    torch.testing.assert_close(fast, learning.detach(), rtol=0, atol=1e-5)


@VERSIONS
@pytest.mark.parametrize("change", [column_major, to_int8])
@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_other_forms_of_the_weights_give_nearly_the_same(monkeypatch, version, change):
    model, x = loud(Swin(tiny(version))), torch.randn(2, 3, 16, 16)
    monkeypatch.setattr(linear, "MUCH", 0)
    with torch.inference_mode():
        before, after = model(x), change(model)(x)
        monkeypatch.setattr(linear, "ONEDNN", None)
        usual = model(x)
    torch.testing.assert_close(before, after, rtol=0, atol=0.1 if change is to_int8 else 1e-5)
    torch.testing.assert_close(after, usual, rtol=0, atol=1e-6)  # weights of one byte are not passed over in silence


@VERSIONS
def test_nothing_learnt_is_remembered_from_an_earlier_picture(version):
    swin.cut.cache_clear()
    relative_position_index.cache_clear()
    model, x = loud(Swin(tiny(version))), torch.randn(1, 3, 16, 16)
    with torch.inference_mode():
        before = model(x)
    for p in model.parameters():
        p.data.mul_(0.5)  # without a trace in its version
    assert not torch.allclose(model(x), before, atol=1e-2)
    other = Swin(model.config).eval()
    other.load_state_dict(model.state_dict())
    with torch.inference_mode():
        assert torch.equal(model(x), other(x))
    model(x).sum().backward()  # what was kept by a picture seen without gradients does not stand in their way


@VERSIONS
def test_it_learns_a_small_batch_by_heart(version):
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


def put_back_by_hand(weights: Tensor, window: int, shift: int, rows: int, columns: int) -> Tensor:
    """What each place got, one pair at a time: weights (N, H, M · M, M · M) → (H, rows, columns)."""
    down, across = -(-rows // window), -(-columns // window)
    got = torch.zeros(weights.shape[1], rows, columns)
    for n in range(down * across):
        for query in range(window**2):
            for key in range(window**2):
                places = []
                for one in (query, key):
                    y = n // across * window + one // window + shift
                    x = n % across * window + one % window + shift
                    places.append((y % (down * window), x % (across * window)))
                if all(y < rows and x < columns for y, x in places):
                    got[:, places[1][0], places[1][1]] += weights[n, :, query, key]
    return got / got.mean((1, 2), keepdim=True)


@VERSIONS
@pytest.mark.parametrize("size", [(16, 16), (22, 13)])
def test_what_each_place_received_is_put_back_on_the_picture(monkeypatch, version, size):
    monkeypatch.setattr(swin, "AT_ONCE", 1)  # unless someone watches, pictures go one at a time
    model, x = loud(Swin(tiny(version))), torch.randn(2, 3, *size)
    with torch.no_grad(), watch(model) as seen:
        watched = model(x)
    torch.testing.assert_close(watched, model(x).detach(), rtol=0, atol=1e-5)
    assert list(seen) == [f"stages.{i}.blocks.{n}.attn" for i in range(2) for n in range(2)]
    for name, calls in seen.items():
        [weights] = calls  # all pictures of a batch in one call
        stage = int(name.split(".")[1])
        rows, columns = model.grids(*size)[stage]
        block = model.get_submodule(name.removesuffix(".attn"))
        window, shift = block.fit(block.window, block.shift, rows, columns)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        got = attention_received(weights, block, rows, columns)
        assert got.shape == (2, model.config.heads[stage], rows, columns)
        torch.testing.assert_close(got.mean((2, 3)), torch.ones(2, model.config.heads[stage]))
        for one, mine in zip(weights.chunk(2), got, strict=True):
            torch.testing.assert_close(mine, put_back_by_hand(one, window, shift, rows, columns))


def test_grids_are_those_the_stages_work_on():
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
        ({"heads": [2]}, "2 depths and 1 heads; give one of each for every stage"),
        ({"heads": [2, 3]}, "width 16 does not split into 3 heads; use a multiple of 3"),
        ({"depths": [], "heads": []}, "stages is 0; use 1 or more"),
        ({"depths": [2, 0]}, r"depths\[1\] is 0; use 1 or more"),
        ({"pretrained_windows": [4, 4]}, "give one window for every stage of a v2, or none"),
        ({"drop_path": 1.0}, "drop_path is 1.0; use 0 or more and less than 1"),
        ({"depths": (2, 2)}, "valid list"),
        ({"version": "v3"}, "'v1' or 'v2'"),
    ],
)
def test_a_config_that_cannot_be_built_is_refused(changes, wanted):
    with pytest.raises(ValueError, match=wanted):
        tiny(**changes)
