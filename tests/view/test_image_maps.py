"""Attention maps over images as plain data and as drawings."""

import dataclasses
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from regard.config import Run, to_toml
from regard.data.image.config import ImageData
from regard.layers.tap import tap_of, watch
from regard.models import FAMILIES, saved_tensors
from regard.models.image_gpt import ImageGPT, ImageGPTConfig
from regard.models.lrnet import LocalRelation, LRNetConfig
from regard.models.swin import plan_windows
from regard.run_folder import RunFolder
from regard.tasks.image_classification import ImageClassifier
from regard.tasks.image_generation import ImageGenerator
from regard.tasks.load import load
from regard.view.image_maps import MAX_HEADS, ImageMap, Panel, map_image_attention, to_file
from regard.view.panels import CONTRAST, GAP, HEADER, OPACITY, PALE, PANEL, TITLE
from regard.view.record import rollout
from regard.view.scale import preference_note, ratio_colour

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


def test_maps_of_a_shared_lrnet_leave_the_model_as_it_is_and_agree_in_threads(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a hook on a model that other threads use")

    monkeypatch.setattr(torch.nn.Module, "register_forward_pre_hook", refuse)
    monkeypatch.setattr(torch.nn.Module, "register_forward_hook", refuse)
    predictor, images = classifier("lrnet", **LRNET), [random_image(13) for _ in range(4)]
    alone = [map_image_attention(predictor, image, 3) for image in images]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda image: map_image_attention(predictor, image, 3), images))
    for one, other in zip(alone, together, strict=True):
        for panel, same in zip(one.panels, other.panels, strict=True):
            torch.testing.assert_close(torch.tensor(same.weights), torch.tensor(panel.weights))


@pytest.mark.parametrize("sizes", [LRNET, LRNET | {"image": 45, "stem": "imagenet"}, LRNET | {"image": 64, "stem": "imagenet"}])
def test_the_grids_of_an_lrnet_are_the_sizes_of_its_inputs(sizes):
    model, found = FAMILIES["lrnet"].build(LRNetConfig(**sizes)).eval(), dict[str, tuple[int, ...]]()
    for name, part in model.named_modules():
        if isinstance(part, LocalRelation):
            part.register_forward_pre_hook(lambda _, inputs, name=name: found.update({name: tuple(inputs[0].shape[2:])}))
    model(torch.zeros(1, sizes["channels"], sizes["image"], sizes["image"]))
    assert {name: (side, side) for name, side in model.input_sides(sizes["image"]).items()} == found


def test_a_resnet_without_attention_is_shown_by_its_class_activation_map():
    predictor = classifier("resnet", **{**RESNET, "attention": []})
    found = map_image_attention(predictor, random_image(16))
    [panel] = found.panels
    assert panel.title == "evidence for its class"
    assert sum(map(sum, panel.weights)) == pytest.approx(1, abs=1e-5)
    assert found.title == "tiny (resnet): class activation map (no attention), 8 × 8 cells"
    for chosen, option in (({"layer": 2}, "--layer"), ({"head": 2}, "--head"), ({"layer": 1, "head": 1}, "--layer and --head")):
        with pytest.raises(ValueError, match=f"^a class activation map has no layers or heads; leave {option} out$"):
            map_image_attention(predictor, random_image(16), **chosen)


def test_a_class_activation_map_of_one_cell_says_so(tmp_path):
    predictor = classifier("resnet", **{**RESNET, "attention": [], "image": 16, "stem": "imagenet", "depths": [1, 1, 1],
                                        "dims": [8, 8, 16]})  # fmt: skip
    found = map_image_attention(predictor, random_image(16))
    assert np.shape(found.panels[0].weights) == (1, 1)
    assert found.title.endswith(", one cell")
    found.save(tmp_path / "map.svg")
    words = " ".join((tmp_path / "map.svg").read_text().split())
    assert "no preference" not in words
    assert "one cell: a larger model.image" in words


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
def test_the_map_holds_the_models_input(side, channels):
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
    assert all(tap_of(part) is None for part in predictor.model.modules())


# -- drawings

FLAT, PEAK = [[1 / 16] * 4] * 4, [[float((y, x) == (1, 2)) for x in range(4)] for y in range(4)]


def map_with(heads: int, side: int = 28, weights=PEAK) -> ImageMap:
    panels = [Panel("rollout to layer 2", weights), *(Panel(f"head {n}", weights) for n in range(1, heads + 1))]
    return ImageMap("t", "a $5 bag", 0.5, np.full((side, side, 1), 100).tolist(), panels)


def panel_pixels(attention: ImageMap, file: Path, index: int = 1) -> np.ndarray:
    """The pixels of one of the square panels of a drawing in one row; the picture is panel 0."""
    to_file(attention, file)
    with Image.open(file) as drawn:
        pixels = np.asarray(drawn.convert("RGB")).astype(int)
    top, left, side = (round(160 * inches) for inches in (HEADER + TITLE, GAP + (PANEL + GAP) * index, PANEL))
    return pixels[top + 3 : top + side - 3, left + 3 : left + side - 3]


def on_paper(colour, grey: int = 100) -> list[float]:
    return [OPACITY * c + (1 - OPACITY) * (PALE + CONTRAST * grey) for c in colour]


@pytest.mark.parametrize("side", [28, 224])
def test_a_place_has_the_colour_of_its_multiple_of_uniform_attention(tmp_path, side):
    weights = [[0.0, 1 / 64, 1 / 32, 1 / 16], [1 / 8, 1 / 4, 0.0, 1 / 16], *[[(1 - 1 / 64 - 1 / 32 - 1 / 2) / 8] * 4] * 2]
    square = panel_pixels(map_with(1, side, weights), tmp_path / "map.png", 2)
    for y, row in enumerate(weights):
        for x, weight in enumerate(row):
            got = square[square.shape[0] * (2 * y + 1) // 8, square.shape[1] * (2 * x + 1) // 8]
            assert got == pytest.approx(on_paper(ratio_colour(weight * 16)), abs=4)


def test_all_panels_and_all_drawings_have_one_scale(tmp_path):
    faint = [[1 / 16 + (0.005 if (y, x) == (1, 2) else -0.005 / 15) for x in range(4)] for y in range(4)]
    flat, nearly, peak = (panel_pixels(map_with(1, weights=w), tmp_path / "m.png") for w in (FLAT, faint, PEAK))
    assert flat.std((0, 1)).max() < 1
    assert nearly.std((0, 1)).max() < 3  # a faint preference stays faint
    assert peak.std((0, 1)).max() > 20


def test_uniform_attention_is_called_no_preference_and_a_peak_is_not(tmp_path):
    to_file(map_with(1, weights=FLAT), tmp_path / "flat.svg")
    to_file(map_with(1, weights=PEAK), tmp_path / "peak.svg")
    assert (tmp_path / "flat.svg").read_text().count(">no preference<") == 2
    assert "no preference" not in (tmp_path / "peak.svg").read_text()
    assert "up to 16× uniform" in (tmp_path / "peak.svg").read_text()
    assert all(f">{tick}<" in (tmp_path / "flat.svg").read_text() for tick in ("× uniform", "≤ 1/8", "1", "≥ 8"))


@pytest.mark.parametrize(("family", "sizes"), [("vit", VIT), ("swin", SWIN), ("resnet", RESNET), ("mvit", MVIT)])
def test_a_random_model_has_no_preference_and_its_panels_are_flat(tmp_path, family, sizes):
    predictor = classifier(family, **sizes)
    for p in predictor.model.parameters():
        nn.init.normal_(p, std=0.02)  # as BERT and ViT are initialised
    attention = map_image_attention(predictor, np.full((40, 40, 1), 100, np.uint8))
    for panel in attention.panels:
        assert preference_note(panel.weights) == "no preference"
    grey = dataclasses.replace(attention, panels=attention.panels[-1:], picture=None, windows=None)
    assert panel_pixels(grey, tmp_path / "map.png").std((0, 1)).max() < 4
    to_file(grey, tmp_path / "map.svg")
    assert ">no preference" in (tmp_path / "map.svg").read_text()


@pytest.mark.parametrize(("family", "sizes"), [("swin", SWIN), ("resnet", RESNET)])
def test_a_model_as_it_is_built_has_no_preference(family, sizes):
    torch.manual_seed(0)
    config = FAMILIES[family].config(**sizes)
    run = Run("tiny", family, config, task="image_classification", data=ImageData())
    predictor = ImageClassifier(FAMILIES[family].build(config).eval(), run, LABELS)
    for panel in map_image_attention(predictor, random_image(16)).panels:
        assert preference_note(panel.weights) == "no preference"


def test_a_peaked_model_has_a_preference():
    predictor = classifier("vit", **VIT)
    for p in predictor.model.parameters():
        nn.init.normal_(p, std=1.0)
    attention = map_image_attention(predictor, random_image(12))
    assert all(preference_note(panel.weights).startswith("up to") for panel in attention.panels if panel.title.startswith("head"))


def test_attention_on_the_class_token_is_named(tmp_path):
    panel = Panel("head 1", [[0.1, 0.1], [0.1, 0.1]])
    to_file(ImageMap("t", "", 0.0, [[[0]]], [panel]), tmp_path / "map.svg")
    assert "no preference, 60% on the class token" in (tmp_path / "map.svg").read_text()


@pytest.mark.parametrize(("left", "coloured"), [(0.04, False), (0.06, True)])
def test_a_head_that_attends_to_the_class_token_alone_has_no_colours(tmp_path, left, coloured):
    panels = [Panel("head 1", (left * np.array(PEAK)).tolist())]
    attention = dataclasses.replace(map_with(1), panels=panels)
    square = panel_pixels(attention, tmp_path / "map.png")
    assert (abs(square[..., 0] - square[..., 2]).max() > 20) == coloured
    to_file(attention, tmp_path / "map.svg")
    written = (tmp_path / "map.svg").read_text()
    assert (">96% on the class token<" in written) == (not coloured)
    assert ("up to 16× uniform, 94% on the class" in written) == coloured


def test_titles_of_all_panels_are_at_one_height(tmp_path):
    short, long = Panel("head 1", FLAT), Panel("head 2", (0.5 * np.array(PEAK)).tolist())
    to_file(dataclasses.replace(map_with(1), panels=[short, long]), tmp_path / "map.svg")
    written = (tmp_path / "map.svg").read_text()
    at = [re.search(rf' y="([\d.]+)"[^>]*>{name}</text>', written) for name in ("head 1", "head 2")]
    assert at[0] is not None
    assert at[1] is not None
    assert at[0][1] == at[1][1]
    assert ">token<" in written  # the second note has two lines


# -- the user's picture


@pytest.mark.parametrize("data", [{}, {"fit": "squash"}, {"resize": 20}, {"resize": 12, "resample": "bilinear"}])
@pytest.mark.parametrize("shape", [(60, 90), (90, 60), (64, 64), (48, 400)])
def test_the_region_is_the_part_that_the_model_reads(shape, data):
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (6, 6), dtype=np.uint8)
    photo = np.array(Image.fromarray(small).resize(shape[::-1], Image.Resampling.BICUBIC))  # smooth, so that scaling loses little
    predictor = classifier("vit", **VIT)
    predictor = dataclasses.replace(predictor, run=dataclasses.replace(predictor.run, data=ImageData(**data)))
    attention = map_image_attention(predictor, photo)
    top, left, bottom, right = np.array(attention.region) * (*shape, *shape)
    box = (left, top, right, bottom)
    seen = Image.fromarray(photo).resize((12, 12), Image.Resampling.BOX, box=tuple(map(float, box)))
    read = np.array(attention.image)[..., 0]
    assert abs(np.asarray(seen).astype(int) - read).mean() < 6
    other = Image.fromarray(photo).resize((12, 12), Image.Resampling.BOX, box=(0, 0, shape[1] / 2, shape[0] / 2))
    assert abs(np.asarray(other).astype(int) - read).mean() > 12


def test_the_picture_is_the_users_own_upright_and_in_colour(tmp_path):
    photo = Image.new("RGB", (300, 200), (10, 200, 30))
    photo.paste((200, 0, 0), (0, 0, 150, 200))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right to see it upright
    photo.save(tmp_path / "photo.png", exif=exif)
    attention = map_image_attention(classifier("vit", **VIT), tmp_path / "photo.png")  # a model of grey images of 12 pixels
    assert attention.picture.shape == (300, 200, 3)
    assert tuple(attention.picture[10, 100]) == (200, 0, 0)
    assert tuple(attention.picture[290, 100]) == (10, 200, 30)
    large = np.zeros((3000, 2000, 1), np.uint8)
    assert map_image_attention(classifier("vit", **VIT), large).picture.shape == (1024, 683, 3)


def test_the_map_lies_on_the_region_that_the_model_saw(tmp_path):
    picture = np.full((100, 200, 3), 100, np.uint8)
    attention = dataclasses.replace(map_with(1), panels=[Panel("head 1", PEAK)], picture=picture, region=[0.0, 0.25, 1.0, 0.75])
    to_file(attention, tmp_path / "map.png")
    with Image.open(tmp_path / "map.png") as drawn:
        pixels = np.asarray(drawn.convert("RGB")).astype(int)
    orange = np.argwhere((pixels[..., 0] - pixels[..., 2] > 90) & (pixels[..., 1] < 120))
    wide = PANEL * 2**0.5
    column = 160 * (GAP + wide + GAP + wide * (0.25 + 0.5 * 5 / 8))  # the middle of the third of four columns of the region
    orange = orange[orange[:, 1] < 160 * (2 * GAP + 2 * wide)]  # without the legend
    assert orange[:, 1].mean() == pytest.approx(column, abs=8)


def test_a_picture_of_any_shape_is_drawn(tmp_path):
    for rows, columns in ((3, 500), (500, 3), (1, 1), (40, 100)):
        attention = map_image_attention(classifier("vit", **VIT), np.full((rows, columns, 3), 90, np.uint8))
        attention.save(tmp_path / "map.png")
        with Image.open(tmp_path / "map.png") as drawn:
            assert max(drawn.size) < 4000


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "I;16"])
def test_pil_images_and_arrays_are_taken(mode):
    predictor = classifier("vit", **{**VIT, "channels": 3})
    photo = Image.fromarray(random_image(30, 3)).convert("L" if mode == "I;16" else mode)
    photo = Image.fromarray(np.asarray(photo).astype(np.uint16) * 257) if mode == "I;16" else photo
    wanted = {"RGBA": "RGB"}.get(mode)
    [[same]] = predictor.classify([np.array(photo.convert(wanted or "RGB"))]) if mode != "I;16" else [[None]]
    [[got]] = predictor.classify([photo])
    assert same is None or got == same
    assert np.shape(map_image_attention(predictor, photo).picture) == (30, 30, 3)


def test_an_array_of_rows_and_columns_is_a_grey_image():
    predictor, image = classifier("vit", **VIT), random_image(30)
    assert predictor.classify([image[..., 0]]) == predictor.classify([image])
    colour = classifier("vit", **{**VIT, "channels": 3})
    assert colour.classify([image]) == colour.classify([image.repeat(3, 2)])


def test_one_image_instead_of_a_list_is_refused():
    predictor = classifier("vit", **VIT)
    for image in (random_image(12), Image.new("L", (12, 12)), "boot.png"):
        with pytest.raises(ValueError, match="a list of images is wanted, not one"):
            predictor.classify(image)
    with pytest.raises(ValueError, match=r"an array of float32, \(12, 12\); wanted bytes"):
        predictor.classify([np.zeros((12, 12), np.float32)])


# -- Swin's windows


@pytest.mark.parametrize(("layer", "ends"), [(1, [0.5]), (2, [0.25, 0.75]), (3, []), (4, [])])
def test_the_windows_of_a_block_end_where_its_plan_cuts_the_grid(layer, ends):
    attention = map_image_attention(classifier("swin", **SWIN), random_image(16), layer)
    assert attention.windows == [ends, ends]
    side, shift = (8, 2 if layer == 2 else 0) if layer < 3 else (4, 0)
    plan = plan_windows(side, side, 4, shift, torch.device("cpu"))
    window_of = torch.empty(side * side, dtype=torch.long)
    window_of[plan.order] = torch.arange(side * side) // 16
    region = window_of.view(side, side)[0]
    wanted = [n / side for n in range(1, side) if region[n] != region[n - 1]]
    assert set(wanted) <= set(ends)
    assert "shifted by 2" in attention.title if layer == 2 else "shifted" not in attention.title


@pytest.mark.parametrize("layer", [1, 2])
def test_padding_in_a_window_is_not_a_preference(layer):
    """A Swin whose scores are all equal attends evenly, also in windows that are partly padding."""
    predictor = classifier("swin", **{**SWIN, "image": 20})  # 10 × 10 positions in windows of 4
    for p in predictor.model.parameters():
        nn.init.zeros_(p)
    attention = map_image_attention(predictor, random_image(20), layer)
    assert attention.uniform is not None
    for panel in attention.panels:
        assert preference_note(panel.weights) == (
            "no preference" if layer == 2 else "down to 1/3.2× uniform"
        )  # a shift masks padding
        assert np.array(panel.weights) == pytest.approx(np.array(attention.uniform), rel=1e-4)
        assert preference_note(panel.weights, attention.uniform) == "no preference"
    assert map_image_attention(classifier("swin", **SWIN), random_image(16)).uniform is None


def test_windows_are_drawn_over_each_panel(tmp_path):
    whole = ImageMap("t", "", 0.0, np.full((8, 8, 1), 100).tolist(), [Panel("head 1", FLAT)])
    plain, lined = (panel_pixels(m, tmp_path / "m.png") for m in (whole, dataclasses.replace(whole, windows=[[0.5], [0.25]])))
    dark = np.argwhere(lined.sum(-1) < 200)
    assert not (plain.sum(-1) < 200).any()
    assert {round(4 * x / len(lined)) for _, x in dark if (dark[:, 1] == x).sum() > 300} == {1}
    assert {round(4 * y / len(lined)) for y, _ in dark if (dark[:, 0] == y).sum() > 300} == {2}


def test_a_drawing_grows_with_the_heads_up_to_a_limit_that_is_noted(tmp_path):
    assert to_file(map_with(2), tmp_path / "few.png") == []
    assert to_file(map_with(MAX_HEADS), tmp_path / "most.png") == []
    [note] = to_file(map_with(MAX_HEADS + 4), tmp_path / "more.png")
    assert note == "12 of 16 heads are drawn; --head N draws another, a .json file holds all"
    few, most, more = (size_of(tmp_path / f"{name}.png") for name in ("few", "most", "more"))
    assert few[0] * few[1] < most[0] * most[1] == more[0] * more[1]


def size_of(file: Path) -> tuple[int, int]:
    with Image.open(file) as drawn:
        return drawn.size


def test_a_colour_image_is_drawn_in_colour_first(tmp_path):
    red = ImageMap("t", "red", 1.0, np.full((8, 8, 3), (250, 10, 20)).tolist(), [Panel("head 1", [[0.5, 0.5]])])
    assert (panel_pixels(red, tmp_path / "map.png", 0) == (250, 10, 20)).all()


def test_a_map_is_saved_shown_in_a_notebook_and_its_repr_is_short(tmp_path):
    attention = map_image_attention(classifier("vit", **VIT), random_image(300))
    assert attention.save(tmp_path / "map.png") == tmp_path / "map.png"
    assert attention._repr_png_().startswith(b"\x89PNG")
    assert repr(attention).startswith("ImageMap('tiny (vit), layer 3 of 3: attention of the class token, 3 × 3 cells', ")
    assert len(repr(attention)) < 140


def test_a_json_file_holds_all_heads(tmp_path):
    attention = map_image_attention(classifier("vit", **VIT), random_image(12))
    to_file(attention, tmp_path / "map.json")
    read = json.loads((tmp_path / "map.json").read_text(encoding="utf-8"))
    assert ImageMap(**{**read, "panels": [Panel(**panel) for panel in read["panels"]]}) == attention


@pytest.mark.parametrize("name", ["map.bmp", "map", "no/map.png"])
def test_a_file_that_cannot_be_drawn_is_refused_and_nothing_is_written(tmp_path, name):
    with pytest.raises(ValueError, match=r"cannot write|no folder"):
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
    assert result.out.startswith("boot.png: ")
    assert result.out.rstrip().endswith("saved boot-attention.png")
    assert any(label in result.out for label in LABELS)
    with Image.open(tmp_path / "boot-attention.png") as drawn:
        assert drawn.width > 800
    result = regard("show", run, "boot.png", "--out", "other.json", "--layer", 1, "--head", 2)
    assert result.out.rstrip().endswith("saved other.json")
    read = json.loads((tmp_path / "other.json").read_text())
    assert [panel["title"] for panel in read["panels"]] == ["rollout to layer 1", "head 2"]


def test_photos_of_one_name_do_not_overwrite_each_others_maps(regard, run, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Image.fromarray(random_image(30)[..., 0]).save(tmp_path / folder / "x.png")
    result = regard("show", run, "a/x.png", "b/x.png")
    assert [line.split("saved ")[1] for line in result.out.splitlines()] == ["x-attention.png", "x-attention-2.png"]
    first = (tmp_path / "x-attention.png").read_bytes()
    assert regard("show", run, "a/x.png").out.rstrip().endswith("saved x-attention-3.png")
    assert (tmp_path / "x-attention.png").read_bytes() == first
    result = regard("show", run, "a/x.png", "b/x.png", "--out", "both.png")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "--out both.png is one file, and there are 2 inputs" in result.err


def test_show_skips_what_it_cannot_read_and_goes_on(regard, run, tmp_path):
    (tmp_path / "bad.jpg").write_text("no image")
    (tmp_path / "photos" / "a").mkdir(parents=True)
    Image.fromarray(random_image(30)[..., 0]).save(tmp_path / "photos" / "a" / "x.png")
    result = regard("show", run, "bad.jpg", "boot.png", "photos", "none.png")
    assert result.code == 0
    assert [line.split(": ")[0] for line in result.out.splitlines()] == ["bad.jpg", "boot.png", "photos/a/x.png", "none.png"]
    assert result.out.splitlines()[0] == "bad.jpg: skipped"
    assert result.err.startswith("regard: skipped 2 of 4:\n  bad.jpg is not a readable image")
    assert (tmp_path / "boot-attention.png").is_file()
    assert (tmp_path / "x-attention.png").is_file()
    assert regard("show", run, "bad.jpg", "boot.png", "--strict").code == 2
    result = regard("show", run, "bad.jpg", "none.png")
    assert (result.code, result.out) == (2, "")


def test_a_file_name_is_exact_in_a_pipe_and_the_map_has_a_plain_name(regard, run, tmp_path):
    name = "b\x1b[31m\u202eoot.png"
    (tmp_path / "boot.png").rename(tmp_path / name)
    result = regard("show", run, name)
    assert result.code == 0, result.err
    assert result.out.startswith(f"{name}: ")
    assert result.out.endswith("saved b_[31m_oot-attention.png\n")
    assert (tmp_path / "b_[31m_oot-attention.png").is_file()


def test_the_drawing_names_the_run_the_file_and_the_training(regard, run, tmp_path):
    (run / "log.jsonl").write_text('{"step": 1, "final_loss": 1.5, "minutes": 0.1, "accuracy": 22.5}\n')
    result = regard("show", run, "boot.png", "--out", "map.svg")
    written = (tmp_path / "map.svg").read_text()
    assert ">tiny (vit), layer 3 of 3: attention of the class token, 3 × 3 cells<" in written
    assert ">boot.png, trained for 1 step, validation accuracy 22.5<" in written
    assert "was trained for 1 step, validation accuracy 22.5; maps after fewer than 100 steps show little" in result.err
    (run / "log.jsonl").write_text('{"step": 1200, "final_loss": 1.5}\n')
    result = regard("show", run, "boot.png", "--out", "map.json")
    assert result.err == ""
    found = map_image_attention(load(run), tmp_path / "boot.png").source
    assert found == "boot.png, trained for 1,200 steps, validation loss 1.50"
    assert map_image_attention(load(run), random_image(30)).source == "trained for 1,200 steps, validation loss 1.50"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("boot.png", "--which", "encoder"), "which 'encoder' is for translators"),
        (("none.png",), "no file none.png"),
        (("tiny",), "the folder tiny holds no file that ends in"),
        (("boot.png", "--layer", "4"), "no layer 4; this model has layers 1 to 3"),
        (("boot.png", "--out", "x.gif"), "cannot write x.gif"),
        (("boot.png", "--out", "no/x.png"), "no folder no"),
        (("boot.png", "--beam", "2"), "beam 2 is for translations"),
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
