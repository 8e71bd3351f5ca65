"""The cost of a model against the closed formulas of the lecture and against a real model."""

import dataclasses
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.layers.tap import watch
from regard.models import FAMILIES, preset
from regard.models.swin import SwinConfig
from regard.models.transformer import SIZES, Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig
from regard.view.cost import changed, cost, image_cost

KIB, MIB, GIB = 2**10, 2**20, 2**30
TINY = {
    "hybrid": {"image": 12, "patch": 4, "dim": 12, "depth": 2, "heads": 3, "convs": [5, 6, 7]},
    "vit": {"image": 12, "patch": 4, "dim": 12, "depth": 2, "heads": 3},
    "swin": {"image": 18, "patch": 2, "dim": 8, "depths": [2, 2], "heads": [2, 4], "window": 4},
    "mvit": {"image": 16, "patch": 2, "dim": 8, "depths": [1, 2], "stride": 2, "kernel": 3},
    "resnet": {"image": 16, "stem": "cifar", "dim": 8, "dims": [8, 16], "depths": [1, 1], "block": "basic",
               "attention": [1, 2], "heads": 2},
    "lrnet": {"image": 16, "stem": "cifar", "dim": 8, "dims": [16, 16], "widths": [12, 16], "depths": [1, 1], "kernel": 3},
}  # fmt: skip

law = settings(max_examples=8)


def encoder_flops(c: TransformerConfig, s: int) -> int:
    """Four projections and an mlp for each token; scores and mixing for each pair."""
    return c.depth * (2 * s * (4 + 2 * c.mlp_ratio) * c.dim**2 + 4 * s * s * c.dim)


def decoder_flops(c: TransformerConfig, s: int, t: int) -> int:
    """As the encoder, and cross-attention with keys and values of the source."""
    across = 2 * (2 * t + 2 * s) * c.dim**2 + 4 * t * s * c.dim
    return c.depth * (2 * t * (4 + 2 * c.mlp_ratio) * c.dim**2 + 4 * t * t * c.dim + across)


def by_name(c: TransformerConfig, s: int, t: int):
    return {part.name.removesuffix(" (tied)"): part for part in cost("transformer", c, s, t)}


def test_the_encoder_of_the_base_model_costs_as_in_the_lecture():
    s, d = 100, 512
    assert by_name(SIZES["base"], s, 7)["encoder"].flops == 6 * s * 2 * 12 * d * d + 6 * 4 * s * s * d


@law
@given(
    s=st.integers(1, 40), t=st.integers(1, 40), heads=st.integers(1, 3), depth=st.integers(1, 3),
    mlp_ratio=st.integers(1, 4), tied=st.booleans(), norm=st.sampled_from(["pre", "post"]),
)  # fmt: skip
def test_flops_bytes_and_parameters_follow_their_formulas(s, t, heads, depth, mlp_ratio, tied, norm):
    c = TransformerConfig(
        vocab=50, dim=8 * heads, depth=depth, heads=heads, mlp_ratio=mlp_ratio, tied=tied, norm=norm
    )  # fmt: skip
    parts = by_name(c, s, t)
    assert parts["embeddings"].flops == 0
    assert parts["encoder"].flops == encoder_flops(c, s)
    assert parts["decoder"].flops == decoder_flops(c, s, t)
    assert parts["output"].flops == 2 * t * c.dim * c.vocab
    assert parts["encoder"].score_bytes == 4 * depth * heads * s * s
    assert parts["decoder"].score_bytes == 4 * depth * heads * (t * t + t * s)
    assert all(part.bytes == 4 * part.parameters for part in parts.values())
    *others, whole = parts.values()
    for field in ("parameters", "flops", "bytes", "score_bytes"):
        assert getattr(whole, field) == sum(getattr(part, field) for part in others)
    assert whole.parameters == sum(p.numel() for p in Transformer(c).parameters())


@pytest.mark.parametrize(
    ("tied", "wanted"),
    [(True, {"embeddings": 18_944_000, "encoder": 18_915_328, "decoder": 25_225_216, "output (tied)": 0,
             "all": 63_084_544}),
     (False, {"embeddings": 37_888_000, "encoder": 18_915_328, "decoder": 25_225_216, "output": 18_981_000,
              "all": 101_009_544})],
    ids=["tied", "untied"],
)  # fmt: skip
def test_the_base_models_parameters_are_counted_part_by_part(tied, wanted):
    parts = cost("transformer", dataclasses.replace(SIZES["base"], tied=tied), 10, 10)
    assert {part.name: part.parameters for part in parts} == wanted


def test_learned_positions_count_as_embeddings():
    c = TransformerConfig(vocab=50, dim=8, depth=2, heads=2, positions="learned", max_len=40)
    parts = by_name(c, 9, 7)
    assert parts["embeddings"].parameters == 50 * 8 + 2 * 40 * 8
    assert parts["encoder"].flops == encoder_flops(c, 9)
    assert parts["all"].parameters == sum(p.numel() for p in Transformer(c).parameters())


def test_counting_does_not_advance_the_random_generator():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    cost("transformer", SIZES["tiny"], 5, 5)
    assert torch.equal(torch.get_rng_state(), before)


# -- images


def counted(name: str, **values):
    family, config = preset(name)
    return image_cost(family, changed(name, family, config, values))


@pytest.mark.parametrize(("image", "patches"), [(48, 9), (224, 196), (256, 256)])
def test_patches_of_16_pixels_are_as_many_as_in_the_lecture(image, patches):
    assert counted("vit-base", image=image, pool="mean").tokens == patches
    assert counted("vit-base", image=image).tokens == 1 + patches  # and the class token


@pytest.mark.parametrize(("image", "entries", "kib", "mib"), [(224, 14**4, 150.0625, 112.546875), (256, 16**4, 256, 192)])
def test_a_transformer_on_patches_has_the_scores_of_the_lecture(image, entries, kib, mib):
    found = counted("vit-large", image=image, depth=48, pool="mean")  # 48 layers of 16 heads
    assert found.entries == entries
    assert found.entry_bytes == kib * KIB
    assert found.whole.score_bytes == mib * MIB


def test_a_transformer_on_pixels_would_store_768_gib_of_scores():
    found = counted("image-gpt-large", image=128)
    assert (found.tokens, found.entries, found.entry_bytes) == (128**2, 128**4, GIB)
    assert found.whole.score_bytes == 768 * GIB


@law
@given(
    side=st.integers(1, 4), patch=st.integers(1, 4), heads=st.integers(1, 3), depth=st.integers(1, 3),
    mlp_ratio=st.integers(1, 4), pool=st.sampled_from(["token", "mean"]), channels=st.integers(1, 3),
)  # fmt: skip
def test_a_vits_flops_follow_the_formula(side, patch, heads, depth, mlp_ratio, pool, channels):
    c = ViTConfig(image=side * patch, patch=patch, channels=channels, dim=4 * heads, heads=heads, depth=depth,
                  mlp_ratio=mlp_ratio, classes=5, pool=pool)  # fmt: skip
    found, p, t = image_cost("vit", c), side**2, side**2 + (pool == "token")
    parts = {part.name: part for part in found.parts}
    assert parts["embed"].flops == 2 * p * patch**2 * channels * c.dim
    assert parts["blocks"].flops == depth * (2 * t * (4 + 2 * mlp_ratio) * c.dim**2 + 4 * t * t * c.dim)
    assert parts["classifier"].flops == 2 * c.dim * 5
    assert parts["all"].flops == sum(parts[name].flops for name in ("embed", "blocks", "classifier"))
    assert (found.image, found.tokens, found.entries) == (side * patch, t, t * t)
    assert parts["all"].score_bytes == parts["blocks"].score_bytes == 4 * depth * heads * t * t
    assert parts["all"].parameters == sum(weight.numel() for weight in ViT(c).parameters())


@law
@given(
    side=st.sampled_from([4, 8, 12]), window=st.sampled_from([2, 4]), heads=st.integers(1, 3),
    version=st.sampled_from(["v1", "v2"]),
)  # fmt: skip
def test_scores_in_windows_grow_linearly_with_the_image(side, window, heads, version):
    c = SwinConfig(image=2 * side, patch=2, dim=4 * heads, depths=[2], heads=[heads], window=window, version=version)
    found = image_cost("swin", c)
    assert (found.tokens, found.entries) == (side**2, window**2 * side**2)
    assert found.whole.score_bytes == 4 * 2 * heads * window**2 * side**2


def test_windows_of_7_have_a_64th_of_the_scores_of_global_attention():
    assert counted("swin-tiny").entries == 153_664
    assert counted("swin-tiny", window=56).entries == 56**4 == 9_834_496 == 64 * 153_664


def test_a_window_that_does_not_tile_the_grid_is_padded():
    assert counted("swin-v2-tiny").entries == 8**2 * 64**2
    found = counted("swin-v2-tiny", image=224)
    assert (found.tokens, found.entries) == (56**2, 8**2 * 56**2)  # 7 × 7 windows of 8 × 8
    ragged = counted("swin-v2-tiny", image=232)
    assert (ragged.tokens, ragged.entries) == (64**2, 8**2 * 64**2)  # 58 positions a side, in 8 windows


def test_a_resnet_without_attention_has_no_scores(regard):
    found = counted("resnet-50")
    assert (found.tokens, found.entries, found.whole.score_bytes) == (0, 0, 0)
    [row] = [line for line in regard("cost", "resnet-50").out.splitlines() if "resnet-50" in line]
    assert [cell.strip() for cell in row.strip("│ ").split("│")][2:] == ["-", "25,557,032", "8,178,368,512", "-", "-", "-"]


@pytest.mark.parametrize("family", [*(family for family, f in FAMILIES.items() if f.kind == "image-encoder"), "hybrid"])
def test_scores_are_as_many_as_a_real_model_has(family):
    shape, family = TINY[family], family.replace("hybrid", "vit")
    config = FAMILIES[family].config(**shape)
    found, model = image_cost(family, config), FAMILIES[family].build(config).eval()
    with watch(model) as recorded, torch.inference_mode():
        model(torch.zeros(2, config.channels, config.image, config.image))
    scores = [weights.numel() // 2 for calls in recorded.values() for weights in calls]
    assert scores
    assert found.whole.score_bytes == 4 * sum(scores)
    assert found.whole.parameters == sum(weight.numel() for weight in model.parameters())
    for field in ("parameters", "flops", "bytes", "score_bytes"):
        assert getattr(found.whole, field) == sum(getattr(part, field) for part in found.parts[:-1])


def test_cost_prints_one_table_for_all_image_models(regard):
    result = regard("cost", "vit-large", "image-gpt-large", "depth=48", "heads=16", "--image", 128)
    assert result.code == 0, result.err
    [vit], [pixel] = ([line for line in result.out.splitlines() if name in line] for name in ("vit-large", "image-gpt-large"))
    assert [word for word in pixel.split("│") if "768 GiB" in word]
    assert "268,435,456" in pixel
    assert "1 GiB" in pixel
    assert "4,225" in vit  # 8 × 8 patches and the class token, squared
    assert result.out.count("forward FLOPs") == 1


@pytest.mark.parametrize(
    ("words", "figures"),
    [
        (("vit-large", "--image", 48, "pool=mean"), (" 9 ", " 81 ")),
        (("vit-large", "pool=mean", "depth=48"), ("196", "38,416", "150.06 KiB", "112.55 MiB")),
        (("vit-large", "pool=mean", "depth=48", "--image", 256), ("256", "65,536", "256 KiB", "192 MiB")),
        (("vit-base",), ("197", "86,567,656", "35,127,656,448")),
        (("swin-tiny", "--image", 224), ("3,136", "153,664", "28,288,354")),
        (("swin-tiny", "window=56"), ("3,136", "9,834,496")),
    ],
)
def test_cost_prints_the_counts_of_the_lecture(regard, words, figures):
    result = regard("cost", *words)
    assert result.code == 0, result.err
    [row] = [line for line in result.out.splitlines() if str(words[0]) in line]
    for figure in figures:
        assert figure in row


def test_cost_of_text_and_image_models_prints_both_kinds_of_tables(regard):
    result = regard("cost", "transformer-base", "vit-tiny", "gpt-small")
    assert result.out.count("forward FLOPs") == 3
    assert "63,084,544" in result.out
    assert "5,717,416" in result.out
    counts = json.loads(regard("cost", "transformer-base", "vit-tiny", "--json").out)
    assert counts["transformer-base"][-1]["parameters"] == 63_084_544
    assert {key: counts["vit-tiny"][key] for key in ("image", "tokens", "parameters", "entries", "entry_bytes")} == {
        "image": 224, "tokens": 197, "parameters": 5_717_416, "entries": 197**2, "entry_bytes": 4 * 197**2,
    }  # fmt: skip
    assert sum(part["flops"] for part in counts["vit-tiny"]["parts"][:-1]) == counts["vit-tiny"]["flops"]


def test_changes_apply_to_every_model(regard):
    counts = json.loads(regard("cost", "gpt-small", "bert-base", "model.depth=2", "--json").out)
    assert {name: parts[1]["parameters"] for name, parts in counts.items()} == dict.fromkeys(counts, 2 * 7_087_872)


def test_an_image_that_windows_do_not_tile_is_counted_with_advice(regard):
    result = regard("cost", "swin-tiny", "vit-base", "--image", 96)
    assert result.code == 0
    assert result.err.splitlines() == [
        "regard: swin-tiny: windows of 7 do not tile an image of 96 pixels, so its edges are padded; use "
        "model.window=6 or model.image=224"
    ]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("vit-base", "--image", 225), "patch 16 does not tile an image of 225 pixels; use a side of 224 or 240"),
        (("vit-base", "--image", 0), "image is 0; use 1 or more"),
        (("vit-base", "dept=3"), "unknown key vit-base.dept (did you mean 'vit-base.depth'?)"),
        (("vit-base", "depth=many"), "vit-base.depth"),
        (("vit-base", "heads=5"), "width 768 does not split into 5 heads"),
        (("gpt-small", "--image", 224), "--image 224 is for image models"),
        (("depth=3",), "depth=3 changes no model"),
        (("vit-bass",), "did you mean 'vit-base'"),
    ],
)
def test_mistakes_of_cost_are_one_line(regard, words, hint):
    result = regard("cost", *words)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert hint in result.err
