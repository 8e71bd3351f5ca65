"""Attention maps over images as plain data and as drawings."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from regard.config import Run, to_toml
from regard.data.image.config import ImageData
from regard.layers.tap import watch
from regard.models import FAMILIES, saved_tensors
from regard.models.image_gpt import ImageGPT, ImageGPTConfig
from regard.run_folder import RunFolder
from regard.tasks.image_classification import ImageClassifier
from regard.tasks.image_generation import ImageGenerator
from regard.view.draw import STOPS
from regard.view.image_maps import MAX_HEADS, ImageMap, Panel, map_image_attention, rollout, to_file

LABELS = ("a $5 bag", "boot", "coat")
VIT = {"image": 12, "patch": 4, "channels": 1, "dim": 12, "depth": 3, "heads": 3, "classes": 3}
SWIN = {"image": 16, "patch": 2, "channels": 1, "dim": 8, "depths": [2, 2], "heads": [2, 4], "window": 4, "classes": 3}
MVIT = {"image": 16, "patch": 2, "channels": 1, "dim": 8, "depths": [1, 2], "stride": 2, "kernel": 3, "classes": 3}
RESNET = {"image": 16, "channels": 1, "stem": "cifar", "dim": 8, "dims": [8, 16], "depths": [1, 1], "block": "basic",
          "attention": [2], "heads": 2, "classes": 3}  # fmt: skip


LRNET = {"image": 13, "channels": 1, "stem": "cifar", "dim": 6, "dims": [8, 8], "widths": [6, 6], "depths": [1, 1], "kernel": 3,
         "channels_per_head": 4, "classes": 3}  # fmt: skip


def classifier(family: str, **sizes) -> ImageClassifier:
    """An untrained model with large weights, so that all maps differ."""
    torch.manual_seed(0)
    config = FAMILIES[family].config(**sizes)
    model = FAMILIES[family].build(config).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return ImageClassifier(model, Run("tiny", family, config, task="image_classification", data=ImageData()), LABELS)


def random_image(side: int, channels: int = 1):
    return np.random.default_rng(0).integers(0, 256, (side, side, channels), dtype=np.uint8)


def weights_of(predictor: ImageClassifier, image) -> list[torch.Tensor]:
    with watch(predictor.model) as recorded, torch.inference_mode():
        predictor.model(predictor.to_input(image))
    return [calls[0] for calls in recorded.values()]


def grids(attention: ImageMap) -> dict[str, torch.Tensor]:
    return {panel.title: torch.tensor(panel.weights) for panel in attention.panels}


# -- maps


def test_rollout_is_the_product_of_all_layers_with_their_residual_paths():
    torch.manual_seed(0)
    layers = [torch.rand(2, 4, 4).softmax(-1) for _ in range(3)]
    wanted = [[float(i == j) for j in range(4)] for i in range(4)]
    for weights in layers:
        step = [[0.5 * (float(weights[:, i, j].mean()) + (i == j)) for j in range(4)] for i in range(4)]
        step = [[weight / sum(row) for weight in row] for row in step]
        wanted = [[sum(step[i][k] * wanted[k][j] for k in range(4)) for j in range(4)] for i in range(4)]
    torch.testing.assert_close(rollout(layers), torch.tensor(wanted))


@pytest.mark.parametrize("layer", [None, 1, 3])
def test_a_vit_is_shown_by_the_attention_of_its_class_token(layer):
    predictor, image = classifier("vit", **VIT), random_image(12)
    weights = weights_of(predictor, image)
    got = grids(map_image_attention(predictor, image, layer))
    for head in range(3):
        row = weights[(layer or 3) - 1][0, head, 0]  # of the class token
        torch.testing.assert_close(got[f"head {head + 1}"], torch.stack([row[1 + 3 * y : 4 + 3 * y] for y in range(3)]))
    whole = rollout([each[0] for each in weights[: layer or 3]])
    torch.testing.assert_close(got[next(iter(got))].flatten(), whole[0, 1:])
    assert list(got) == [f"rollout to layer {layer or 3}", "head 1", "head 2", "head 3"]


def test_without_a_class_token_the_map_is_the_mean_over_all_queries():
    predictor, image = classifier("vit", **VIT, pool="mean"), random_image(12)
    last = weights_of(predictor, image)[-1][0]
    attention = map_image_attention(predictor, image)
    for head in range(3):
        wanted = [sum(float(last[head, q, k]) for q in range(9)) / 9 for k in range(9)]
        torch.testing.assert_close(grids(attention)[f"head {head + 1}"].flatten(), torch.tensor(wanted))
    assert [float(grid.sum()) for grid in grids(attention).values()] == pytest.approx([1.0] * 4)
    assert "class token" not in attention.title


@pytest.mark.parametrize("layer", [1, 2, 3, 4])
def test_windows_return_to_their_positions(layer):
    predictor, image = classifier("swin", **SWIN), random_image(16)
    weights = weights_of(predictor, image)[layer - 1]
    side, window = (8, 4) if layer < 3 else (4, 4)
    shift = 2 if layer == 2 else 0  # only the first stage has more than one window; its second block is shifted
    wanted = torch.zeros(weights.shape[1], side, side)
    for n, each in enumerate(weights):  # (H, M · M, M · M)
        for position in range(window**2):
            y = (n // (side // window) * window + position // window + shift) % side
            x = (n % (side // window) * window + position % window + shift) % side
            wanted[:, y, x] = each[:, :, position].sum(-1) / side**2
    got = grids(map_image_attention(predictor, image, layer))
    assert list(got) == [f"head {n}" for n in range(1, len(wanted) + 1)]
    torch.testing.assert_close(torch.stack(list(got.values())), wanted)


@pytest.mark.parametrize(
    ("family", "sizes", "layer", "side"), [("mvit", MVIT, 1, 4), ("mvit", MVIT, None, 4), ("resnet", RESNET, None, 8)]
)
def test_other_models_are_shown_on_the_grid_of_their_keys(family, sizes, layer, side):
    predictor, image = classifier(family, **sizes), random_image(16)
    weights = weights_of(predictor, image)[(layer or 0) - 1][0]
    got = grids(map_image_attention(predictor, image, layer))
    assert {tuple(each.shape) for each in got.values()} == {(side, side)}
    for n, each in enumerate(weights, 1):
        torch.testing.assert_close(got[f"head {n}"].flatten(), each.mean(0))


@pytest.mark.parametrize(("layer", "side", "stride"), [(1, 13, 1), (2, 13, 1), (3, 13, 2)])
def test_neighbourhoods_are_summed_at_their_positions(layer, side, stride):
    predictor, image = classifier("lrnet", **LRNET), random_image(13)
    weights = weights_of(predictor, image)[layer - 1][0]  # (H, Q, R · R)
    wanted, wide = torch.zeros(2, side, side), -(-side // stride)
    assert weights.shape == (2, wide**2, 9)
    for position in range(wide**2):
        for n in range(9):
            y, x = position // wide * stride + n // 3 - 1, position % wide * stride + n % 3 - 1
            if 0 <= y < side and 0 <= x < side:
                wanted[:, y, x] += weights[:, position, n] / wide**2
    got = grids(map_image_attention(predictor, image, layer))
    torch.testing.assert_close(torch.stack(list(got.values())), wanted)
    assert [float(each.sum()) for each in wanted] == pytest.approx([1.0, 1.0])
    assert not any(part._forward_pre_hooks for part in predictor.model.modules())


def test_a_resnet_without_attention_is_shown_by_its_class_activation_map():
    predictor = classifier("resnet", **{**RESNET, "attention": []})
    found = map_image_attention(predictor, random_image(16))
    [panel] = found.panels
    assert panel.title == "evidence for its class"
    assert sum(map(sum, panel.weights)) == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match=r"tiny is a resnet without attention; .* 'model\.attention=\[2\]'"):
        map_image_attention(predictor, random_image(16), layer=1)


def test_one_head_can_be_chosen():
    predictor, image = classifier("vit", **VIT), random_image(12)
    every, single = map_image_attention(predictor, image), map_image_attention(predictor, image, head=2)
    assert single.panels == [every.panels[0], every.panels[2]]


@pytest.mark.parametrize(
    ("which", "message"),
    [({"layer": 0}, "no layer 0; this model has layers 1 to 3"), ({"layer": 4}, "no layer 4"),
     ({"head": 0}, "no head 0; layer 3 has heads 1 to 3"), ({"layer": 1, "head": 4}, "no head 4; layer 1 has")],
)  # fmt: skip
def test_a_layer_or_head_out_of_range_is_refused(which, message):
    with pytest.raises(ValueError, match=message):
        map_image_attention(classifier("vit", **VIT), random_image(12), **which)


@pytest.mark.parametrize(("side", "channels"), [(12, 1), (12, 3), (33, 1), (64, 3)])
def test_the_image_shown_is_the_models_input(side, channels):
    predictor, image = classifier("vit", **{**VIT, "channels": channels}), random_image(side, channels)
    attention = map_image_attention(predictor, image)
    assert np.shape(attention.image) == (12, 12, channels)
    torch.testing.assert_close(torch.tensor(attention.image).permute(2, 0, 1)[None] / 127.5 - 1, predictor.to_input(image))
    [[best]] = predictor.classify([image])
    assert (attention.prediction, attention.probability) == (best.text, pytest.approx(best.probability))


def test_an_untrained_classifier_is_shown_without_a_prediction():
    predictor, image = classifier("vit", **VIT), random_image(12)
    bare = dataclasses.replace(predictor, run=dataclasses.replace(predictor.run, untrained=("classifier",)))
    assert map_image_attention(bare, image).panels == map_image_attention(predictor, image).panels
    assert map_image_attention(bare, image).caption == "untrained classifier"


@pytest.mark.parametrize(("prediction", "caption"), [("boot", "boot 25.0%"), ("x" * 30, "x" * 20 + "… 25.0%")])
def test_a_long_class_name_is_truncated_and_its_probability_is_not(prediction, caption):
    assert ImageMap("t", prediction, 0.25, [[[0]]], []).caption == caption


def test_mapping_attention_leaves_the_model_unchanged():
    predictor, image = classifier("vit", **VIT), random_image(12)
    before = predictor.classify([image], 3)
    map_image_attention(predictor, image)
    assert predictor.classify([image], 3) == before
    assert all(getattr(part, "tap", None) is None for part in predictor.model.modules())


# -- drawings


def map_with(heads: int, side: int = 28) -> ImageMap:
    one_hot = [[float((y, x) == (1, 2)) for x in range(4)] for y in range(4)]
    panels = [Panel("rollout to layer 2", one_hot), *(Panel(f"head {n}", one_hot) for n in range(1, heads + 1))]
    return ImageMap("t", "a $5 bag", 0.5, np.full((side, side, 1), 100).tolist(), panels)


@pytest.mark.parametrize("side", [28, 224])
def test_the_attended_position_is_light_and_the_others_are_dark(tmp_path, side):
    to_file(map_with(1, side), tmp_path / "map.png")
    with Image.open(tmp_path / "map.png") as drawn:
        assert drawn.format == "PNG"
        pixels = np.asarray(drawn.convert("RGB")).astype(int)
    third = pixels[:, 2 * pixels.shape[1] // 3 :]  # the head's
    rows, columns = np.nonzero((third != 255).any(-1) & (abs(third - third[..., :1]).max(-1) > 10))
    square = third[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]  # the drawing without its title
    cells = [[square[square.shape[0] * (2 * y + 1) // 8, square.shape[1] * (2 * x + 1) // 8].sum() for x in range(4)]
             for y in range(4)]  # fmt: skip
    light = np.array(cells)
    assert np.unravel_index(light.argmax(), light.shape) == (1, 2)
    assert light[1, 2] > 1.5 * light[3, 0]
    mixed = [0.62 * c + 0.38 * (64 + 0.6 * 100) for c in STOPS[0]]
    assert square[-3, 3] == pytest.approx(mixed, abs=12)


def test_a_drawing_grows_with_the_heads_up_to_a_limit_that_is_noted(tmp_path):
    assert to_file(map_with(2), tmp_path / "few.png") == []
    assert to_file(map_with(MAX_HEADS), tmp_path / "most.png") == []
    [note] = to_file(map_with(MAX_HEADS + 4), tmp_path / "more.png")
    assert note == "12 of 16 heads are drawn; --head N draws another, a .json file holds all"
    few, most, more = (size_of(tmp_path / f"{name}.png") for name in ("few", "most", "more"))
    assert few < most == more


def size_of(file: Path) -> tuple[int, int]:
    with Image.open(file) as drawn:
        return drawn.size


def test_a_colour_image_is_drawn_in_colour_first(tmp_path):
    red = ImageMap("t", "red", 1.0, np.full((8, 8, 3), (250, 10, 20)).tolist(), [Panel("head 1", [[0.5, 0.5]])])
    to_file(red, tmp_path / "map.png")
    with Image.open(tmp_path / "map.png") as drawn:
        assert drawn.convert("RGB").getpixel((drawn.width // 4, drawn.height * 3 // 5)) == (250, 10, 20)


def test_a_json_file_holds_all_heads(tmp_path):
    attention = map_image_attention(classifier("vit", **VIT), random_image(12))
    to_file(attention, tmp_path / "map.json")
    read = json.loads((tmp_path / "map.json").read_text(encoding="utf-8"))
    assert ImageMap(**{**read, "panels": [Panel(**panel) for panel in read["panels"]]}) == attention


@pytest.mark.parametrize("name", ["map.bmp", "map", "no/map.png"])
def test_a_file_that_cannot_be_drawn_is_refused_and_nothing_is_written(tmp_path, name):
    with pytest.raises(ValueError, match=r"cannot draw|no folder"):
        to_file(map_with(1), tmp_path / name)
    assert not list(tmp_path.iterdir())


# -- the verb


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """A folder `tiny` with an untrained ViT, and an image, in the current folder."""
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "tiny", classifier("vit", **VIT), LABELS)
    Image.fromarray(random_image(30)[..., 0]).save("boot.png")
    return tmp_path / "tiny"


def save_run(folder: Path, predictor: ImageClassifier | ImageGenerator, labels: tuple[str, ...] = ()) -> None:
    files, run = RunFolder(folder), predictor.run
    folder.mkdir()
    files.write_description(run.family, dataclasses.asdict(run.model), "0")
    files.run.write_text(to_toml(run))
    if labels:
        files.write_labels(labels)
    save_file(saved_tensors(predictor.model), files.weights)


def test_show_draws_over_an_image_and_prints_the_file(regard, run, tmp_path):
    result = regard("show", run, "boot.png")
    assert result.code == 0, result.err
    assert result.out.rstrip().endswith("saved boot-attention.png")
    assert any(label in result.out for label in LABELS)
    with Image.open(tmp_path / "boot-attention.png") as drawn:
        assert drawn.width > 800
    result = regard("show", run, "boot.png", "--out", "other.json", "--layer", 1, "--head", 2)
    assert result.out.rstrip().endswith("saved other.json")
    read = json.loads((tmp_path / "other.json").read_text())
    assert [panel["title"] for panel in read["panels"]] == ["rollout to layer 1", "head 2"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("none.png",), "no file none.png"),
        (("tiny",), "tiny is a folder"),
        (("boot.png", "--layer", "4"), "no layer 4; this model has layers 1 to 3"),
        (("boot.png", "--out", "x.gif"), "cannot draw x.gif"),
        (("boot.png", "--out", "no/x.png"), "no folder no"),
        (("boot.png", "--beam", "2"), "--beam 2 is for translations"),
    ],
)
def test_mistakes_of_show_are_one_line(regard, run, tmp_path, words, hint):
    result = regard("show", run, *words)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert hint in result.err
    assert not list(tmp_path.glob("*-attention.png"))


def test_an_image_generator_is_refused_by_show(regard, tmp_path):
    config = ImageGPTConfig(image=4, channels=1, levels=2, dim=8, depth=1, heads=1)
    run = Run("tiny", "image-gpt", config, task="image_generation", data=ImageData())
    save_run(tmp_path / "image-gpt", ImageGenerator(ImageGPT(config), run))
    result = regard("show", tmp_path / "image-gpt", "boot.png")
    assert result.code == 2
    assert "regard generate" in result.err
