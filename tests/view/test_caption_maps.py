"""Where a caption model looks for each word: the weights are those of the model, and the drawing shows them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from tiny_captioners import CAPTIONS, RESNET, captioner, random_image

from regard.data.image.shapes import Box
from regard.data.text.tokenizer import KINDS, train_tokenizer
from regard.layers.tap import tap_of, watch
from regard.view import caption_maps
from regard.view.caption_maps import (
    CaptionMap,
    attention_inside,
    caption_weights,
    map_caption,
    to_file,
    to_terminal,
    upsample,
    words_of_caption,
)
from regard.view.image_maps import Panel
from regard.view.panels import CONTRAST, GAP, HEADER, OPACITY, PALE, PANEL, TITLE
from regard.view.scale import ratio_colour

BOTH = pytest.mark.parametrize("family", ["captioner", "caption-transformer"])


def grids(attention: CaptionMap) -> torch.Tensor:
    return torch.tensor([word.weights for word in attention.words])  # (words, Y, X)


@BOTH
@pytest.mark.parametrize("beam", [1, 5])
def test_the_weights_of_each_word_sum_to_one(family, beam):
    attention = map_caption(captioner(family), random_image(), beam=beam)
    side = 8 if family == "captioner" else 4
    assert attention.words
    assert grids(attention).shape[1:] == (side, side)
    torch.testing.assert_close(grids(attention).sum((1, 2)), torch.ones(len(attention.words)))
    assert [word.title for word in attention.words] == attention.caption.split()


@BOTH
def test_the_maps_of_a_beam_search_are_those_of_its_caption_step_by_step(family):
    predictor, image = captioner(family, tokenizer="words"), random_image()
    [caption] = predictor.caption([image], beam=5)
    assert len(caption.ids) > 3
    x, bos, extra = predictor.to_input(image), predictor.tokenizer.special.bos, predictor.model.encoder.extra
    wanted = []
    for length in range(len(caption.ids)):  # each prefix by itself: no later token can have changed a weight
        with watch(predictor.model) as recorded, torch.inference_mode():
            predictor.model(x, torch.tensor([[bos, *caption.ids[:length]]]))
        calls = recorded["decoder.cross" if family == "captioner" else "decoder.2.cross"]
        row = calls[-1][0, :, -1, extra:].mean(0)  # the last token's, (S,)
        wanted.append(row / row.sum())
    got = map_caption(predictor, image, beam=5)
    texts = [word.title for word in got.words]
    kept = [n for n, token in enumerate(caption.ids) if token not in predictor.tokenizer.special_ids]
    assert texts == [predictor.tokenizer.decode([caption.ids[n]]) for n in kept]
    torch.testing.assert_close(grids(got).flatten(1), torch.stack([wanted[n] for n in kept]), atol=1e-6, rtol=1e-4)
    assert map_caption(predictor, image, caption=caption) == got


@BOTH
def test_watching_the_decoder_step_by_step_gives_the_same_weights(family):
    predictor, image = captioner(family), random_image()
    [caption] = predictor.caption([image], beam=1)
    with watch(predictor.model) as recorded, torch.inference_mode():
        [[found]] = predictor.search(predictor.to_input(image), 1, 1.0)
    assert found.tokens == caption.ids
    names = [name for name, calls in recorded.items() if name.endswith("cross") and calls]
    for name, layer in zip(names, caption_weights(predictor, image, caption.ids), strict=True):
        steps = torch.cat(recorded[name], -2)[0, :, : len(caption.ids), predictor.model.encoder.extra :]  # (H, T, S)
        torch.testing.assert_close(layer.flatten(2), steps, atol=1e-5, rtol=1e-3)


def test_a_uniform_model_has_uniform_maps_and_a_uniform_overlay(tmp_path):
    attention = map_caption(captioner(attention="uniform"), random_image())
    torch.testing.assert_close(grids(attention), torch.full_like(grids(attention), 1 / 64))
    torch.testing.assert_close(upsample(grids(attention)[0], 100), torch.full((100, 100), 1 / 64))
    grey = CaptionMap("t", "a dog", np.full((32, 32, 3), 100).tolist(), attention.words[:1])
    to_file(grey, tmp_path / "uniform.png")
    panel = first_word(tmp_path / "uniform.png")[3:-3, 3:-3]
    assert (panel.max((0, 1)) - panel.min((0, 1)) <= 1).all()
    mixed = [OPACITY * c + (1 - OPACITY) * (PALE + CONTRAST * 100) for c in ratio_colour(1.0)]
    assert panel.mean((0, 1)) == pytest.approx(mixed, abs=4)
    to_file(grey, tmp_path / "uniform.svg")
    assert "no preference" in (tmp_path / "uniform.svg").read_text()
    console = Console(width=80, no_color=True)
    with console.capture() as captured:
        console.print(to_terminal(attention, 80))
    assert "no preference" in captured.get()


def test_the_last_layer_and_the_mean_of_heads_are_the_default_and_others_can_be_chosen():
    predictor, image = captioner("caption-transformer", encoder=RESNET), random_image()
    default = map_caption(predictor, image)
    assert default.words == map_caption(predictor, image, layer=3).words
    assert default.words != map_caption(predictor, image, layer=1).words
    heads = [grids(map_caption(predictor, image, layer=2, head=head)) for head in (1, 2)]
    torch.testing.assert_close(torch.stack(heads).mean(0), grids(map_caption(predictor, image, layer=2)))
    assert default.title.endswith("layer 3 of 3, mean of 2 heads")
    assert "layer 2 of 3, head 1" in map_caption(predictor, image, layer=2, head=1).title


def test_the_weight_of_a_class_token_is_left_out_and_the_others_are_scaled():
    predictor, image = captioner("caption-transformer"), random_image()
    [caption] = predictor.caption([image])
    with watch(predictor.model) as recorded, torch.inference_mode():
        predictor.model(predictor.to_input(image), torch.tensor([[predictor.tokenizer.special.bos]]))
    [weights] = recorded["decoder.2.cross"]  # (1, H, 1, 1 + S)
    grid = weights[0, :, 0, 1:].mean(0)
    assert grid.shape == (16,)
    assert float(grid.sum()) < 0.999
    first = type(caption)("a", ["▁a"], predictor.tokenizer.tokens_to_ids(["▁a"]), None)
    got = map_caption(predictor, image, caption=first)
    torch.testing.assert_close(grids(got)[0].flatten(), grid / grid.sum())
    assert got.title.endswith("without the class token")


@pytest.mark.parametrize(
    ("which", "message"),
    [({"layer": 0}, "no layer 0; this model has layers 1 to 3"), ({"layer": 4}, "no layer 4"), ({"head": 3}, "heads 1 to 2")],
)
def test_a_layer_or_head_out_of_range_is_refused(which, message):
    with pytest.raises(ValueError, match=message):
        map_caption(captioner("caption-transformer"), random_image(), **which)


def test_a_caption_as_long_as_the_context_is_mapped():
    predictor = captioner("caption-transformer", max_len=5)
    [caption] = predictor.caption([random_image()], beam=1)
    assert len(caption.ids) == 5
    assert map_caption(predictor, random_image(), beam=1).caption == caption.text


@pytest.mark.parametrize("kind", KINDS)
def test_every_tokenizer_gives_the_words_of_the_caption(kind):
    tokenizer = train_tokenizer(CAPTIONS, kind, 300 if kind == "bytes" else 30)
    for text in (*CAPTIONS, "square"):
        [ids] = tokenizer.encode([text])
        words = words_of_caption(tokenizer, ids)
        assert [word for word, _ in words] == tokenizer.decode(ids).split()
        assert [position for _, tokens in words for position in tokens] == list(range(len(ids)))
    if kind in ("bpe", "wordpiece", "characters"):
        assert max(len(tokens) for _, tokens in words) > 1


def test_the_weights_of_a_split_word_are_the_mean_of_its_tokens():
    predictor, image = captioner(), random_image()
    [ids] = predictor.tokenizer.encode(["a square"])
    [caption] = predictor.caption([image], beam=1)
    given = type(caption)("a square", predictor.tokenizer.ids_to_tokens(ids), ids, None)
    assert len(ids) > 2
    [layer] = caption_weights(predictor, image, ids)  # (1, T, Y, X)
    got = map_caption(predictor, image, caption=given)
    assert [word.title for word in got.words] == ["a", "square"]
    torch.testing.assert_close(grids(got)[1], layer[0, 1:].mean(0))


def test_special_tokens_belong_to_no_word():
    tokenizer = train_tokenizer(CAPTIONS, "words", 30)
    [ids] = tokenizer.encode(["a red circle"])
    assert words_of_caption(tokenizer, [ids[0], tokenizer.special.unk, *ids[1:]]) == [("a", [0]), ("red", [2]), ("circle", [3])]
    assert words_of_caption(tokenizer, [tokenizer.special.unk]) == []


def test_an_empty_caption_is_drawn_as_the_plain_image(tmp_path):
    predictor, image = captioner(), random_image()
    [caption] = predictor.caption([image], beam=1)
    empty = map_caption(predictor, image, caption=type(caption)("", [], [], None))
    assert empty.words == []
    assert to_file(empty, tmp_path / "empty.png") == []
    with Image.open(tmp_path / "empty.png") as drawn:
        assert drawn.width > 400


def test_the_picture_is_the_users_own_and_the_region_what_the_model_read():
    attention = map_caption(captioner(), random_image(50)[:40])
    assert (attention.picture == random_image(50)[:40]).all()
    top, left, bottom, right = attention.region
    assert (bottom - top) * 40 == pytest.approx((right - left) * 50, abs=1)
    assert 0 < top < bottom < 1
    assert map_caption(captioner(), Image.fromarray(random_image(50)[:40])) == attention


def test_a_map_is_saved_shown_in_a_notebook_and_its_repr_is_short(tmp_path):
    attention = map_caption(captioner(), random_image())
    assert attention.save(tmp_path / "map.png").stat().st_size > 1000
    assert attention._repr_png_().startswith(b"\x89PNG")
    assert repr(attention).startswith("CaptionMap('tiny (captioner): attention for each word', ")
    assert len(repr(attention)) < 120


def test_the_map_holds_the_models_input():
    predictor, image = captioner(), random_image(50)
    shown = torch.tensor(map_caption(predictor, image).image)
    torch.testing.assert_close(shown.permute(2, 0, 1)[None] / 127.5 - 1, predictor.to_input(image))


def test_mapping_leaves_the_model_unchanged():
    predictor, image = captioner(), random_image()
    before = predictor.caption([image])
    map_caption(predictor, image)
    assert predictor.caption([image]) == before
    assert all(tap_of(part) is None for part in predictor.model.modules())


# -- drawings


def map_with(words: int, side: int = 32, grid: int = 8, caption: str = "a $5 dog") -> CaptionMap:
    one_hot = [[float((y, x) == (2, 5)) for x in range(grid)] for y in range(grid)]
    return CaptionMap("t", caption, np.full((side, side, 3), 100).tolist(), [Panel(f"word{n}", one_hot) for n in range(words)])


def first_word(file: Path) -> np.ndarray:
    """The pixels of the second panel of a drawing whose caption has one line."""
    with Image.open(file) as drawn:
        pixels = np.asarray(drawn.convert("RGB")).astype(int)
    top, left, side = (round(160 * inches) for inches in (HEADER + TITLE, 2 * GAP + PANEL, PANEL))
    return pixels[top : top + side, left : left + side]


@pytest.mark.parametrize("side", [32, 224])
def test_the_place_looked_at_is_orange_and_the_others_are_blue(tmp_path, side):
    to_file(map_with(1, side), tmp_path / "map.png")
    square = first_word(tmp_path / "map.png")
    assert tuple(square[3, 3]) != (255, 255, 255)  # it is the image, without a margin
    assert tuple(square[-3, -3]) != (255, 255, 255)
    middles = np.array([[square[square.shape[0] * (2 * y + 1) // 16, square.shape[1] * (2 * x + 1) // 16] for x in range(8)]
                        for y in range(8)])  # fmt: skip
    warmth = middles[..., 0] - middles[..., 2]
    assert np.unravel_index(warmth.argmax(), warmth.shape) == (2, 5)
    assert warmth[2, 5] > 50
    assert warmth[6, 1] < -30


def test_smooth_weights_are_those_of_the_cells_at_their_centres():
    weights = torch.rand(4, 4)
    smooth = upsample(weights, 4 * 9)
    assert smooth.shape == (36, 36)
    assert float(smooth.min()) >= 0
    assert float(smooth.max()) <= float(weights.max())
    assert float(abs(smooth[4::9, 4::9] - weights).max()) < 0.05


def test_a_shift_moves_the_map_up_and_to_the_left_by_that_part_of_a_cell():
    weights = torch.zeros(8, 8)
    weights[4, 5] = 1.0
    for shift, wanted in ((0.0, (36, 44)), (0.5, (32, 40))):  # the middles of the cells, of 8 pixels
        smooth = upsample(weights, 64, shift)
        middle = torch.arange(64) + 0.5
        found = [float((smooth.sum(axis) * middle).sum() / smooth.sum()) for axis in (1, 0)]
        assert found == pytest.approx(wanted, abs=0.1)


def test_shifted_cells_count_where_they_are():
    weights = torch.zeros(8, 8)
    weights[4, 5] = 1.0
    assert attention_inside(weights, Box(36, 28, 44, 36), 64, shift=0.5) == pytest.approx(1)
    assert attention_inside(weights, Box(40, 32, 48, 40), 64, shift=0.5) == pytest.approx(0.25)


def test_all_words_of_all_captions_have_one_scale(tmp_path):
    faint = [[1 / 64 + (0.002 if (y, x) == (2, 5) else -0.002 / 63) for x in range(8)] for y in range(8)]
    spread = []
    for words in ([Panel("a", faint)], [Panel("a", faint), map_with(1).words[0]]):
        to_file(CaptionMap("t", "a", map_with(1).image, words), tmp_path / "map.png")
        spread.append(first_word(tmp_path / "map.png")[3:-3, 3:-3].std((0, 1)).max())
    assert max(spread) < 3  # a faint preference stays faint, alone and beside a strong one
    assert spread[0] == pytest.approx(spread[1], abs=0.5)


def test_a_long_caption_makes_a_larger_drawing_up_to_a_limit_that_is_noted(tmp_path, monkeypatch):
    assert to_file(map_with(2), tmp_path / "few.png") == []
    assert to_file(map_with(14, caption="a dog " * 20), tmp_path / "many.png") == []
    few, many = (size_of(tmp_path / f"{name}.png") for name in ("few", "many"))
    assert few[0] < many[0]
    assert few[1] < many[1]
    monkeypatch.setattr(caption_maps, "MAX_WORDS", 2)
    [note] = to_file(map_with(3), tmp_path / "most.png")
    assert note == "2 of 3 words are drawn; a .json file holds all"
    assert few == size_of(tmp_path / "most.png")


def size_of(file: Path) -> tuple[int, int]:
    with Image.open(file) as drawn:
        return drawn.size


@pytest.mark.parametrize("suffix", [".svg", ".pdf"])
def test_vector_files_are_written(tmp_path, suffix):
    to_file(map_with(1), tmp_path / f"map{suffix}")
    assert (tmp_path / f"map{suffix}").read_bytes()[:5] in (b"<?xml", b"%PDF-")


def test_a_json_file_holds_the_map(tmp_path):
    attention = map_caption(captioner(), random_image())
    to_file(attention, tmp_path / "map.json")
    read = json.loads((tmp_path / "map.json").read_text(encoding="utf-8"))
    assert CaptionMap(**{**read, "words": [Panel(**word) for word in read["words"]]}) == attention


@pytest.mark.parametrize("name", ["map.bmp", "map", "no/map.png"])
def test_a_file_that_cannot_be_drawn_is_refused_and_nothing_is_written(tmp_path, name):
    with pytest.raises(ValueError, match=r"cannot write|no folder"):
        to_file(map_with(1), tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("grid", "cells"), [(2, 2), (8, 8), (14, 7), (11, 6), (24, 8)])
def test_the_terminal_shows_a_small_grid_for_each_word(grid, cells):
    console = Console(width=80, no_color=True)
    with console.capture() as captured:
        console.print(to_terminal(map_with(5, grid=grid), 80))
    lines = captured.get().splitlines()
    per_row = 80 // (3 * cells + 2)
    assert lines[1].split() == [f"word{n}" for n in range(min(5, per_row))]
    assert max(map(len, lines)) <= 80
    shown = [line for line in lines if "100" in line]
    assert sum(line.count("100") for line in shown) == (5 if grid > 2 else 0)  # a grid of 2 × 2 has no place (2, 5)
    if grid == 8:
        assert lines.index(shown[0]) == 1 + 3
        assert shown[0].index("100") == 3 * 5


@pytest.mark.parametrize("grow", [0, 0.5, 1, 20])
def test_the_attention_inside_a_box_is_that_of_its_pixels(grow):
    weights, rng = torch.rand(8, 4, dtype=torch.float64), np.random.default_rng(0)
    weights /= weights.sum()
    pixels = np.kron(weights.numpy(), np.full((8, 16), 1 / 128))  # each cell's weight, evenly over its pixels
    for _ in range(20):
        left, top, wide, high = rng.integers(0, 40, 4)
        box = Box(left, top, min(64, left + wide), min(64, top + high))
        rows, columns = int(8 * grow), int(16 * grow)
        part = pixels[max(0, top - rows) : box.bottom + rows, max(0, left - columns) : box.right + columns]
        assert attention_inside(weights, box, 64, grow) == pytest.approx(part.sum())
