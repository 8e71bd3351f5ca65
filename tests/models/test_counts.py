"""Parameters as the papers' released models have them."""

import dataclasses

import pytest

from regard.models import FAMILIES, build_without_memory, preset
from regard.view.cost import cost, image_cost

COUNTS = {  # of the released checkpoints, an output layer tied to the embeddings counted once
    "gpt-small": 124_439_808,
    "gpt-medium": 354_823_168,
    "gpt-large": 774_030_080,
    "gpt-xl": 1_557_611_200,
    "bert-base": 110_106_428 - 1538,  # which also has a next-sentence head
    "bert-large": 336_226_108 - 2050,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-v1.1-small": 76_961_152,
    "t5-v1.1-base": 247_577_856,
    "t5-v1.1-large": 783_150_080,
    "caption-transformer-base": 239_195_904 - 590_592,  # which also has the pooling layer of its ViT
    "word2vec-large": 2 * 692_000 * 300,  # two tables of the vocabulary and width of section 3
}


IMAGE_COUNTS = {  # of the released checkpoints, as in torchvision
    "vit-base": 86_567_656,
    "swin-tiny": 28_288_354,
    "swin-v2-tiny": 28_351_570,  # including 4,416 key biases, which stay zero
    "resnet-50": 25_557_032,
}


def parameters(family, config) -> int:
    """Of the model itself; a tied one counts once.  `cost` counts the same, as the test of its parts shows."""
    return sum(p.numel() for p in build_without_memory(lambda: FAMILIES[family].build(config)).parameters())


@pytest.mark.parametrize("name", list(COUNTS | IMAGE_COUNTS))
def test_a_model_has_the_parameters_of_the_released_one(name):
    assert parameters(*preset(name)) == (COUNTS | IMAGE_COUNTS)[name]


@pytest.mark.parametrize(
    ("name", "millions", "macs"),  # of the released checkpoints; Table 1 of MViTv2
    [("mvit-v2-tiny", 24.17, 4.7), ("mvit-v2-small", 34.87, 7.0), ("mvit-v2-base", 51.47, 10.2)],
)
def test_an_mvit_has_the_parameters_and_multiply_adds_of_the_paper(name, millions, macs):
    whole = image_cost(*preset(name)).whole
    assert round(whole.parameters / 1e6, 2) == millions
    assert whole.flops / 2e9 == pytest.approx(macs, rel=0.02)


def test_lr_net_has_the_size_of_the_paper():
    whole = image_cost(*preset("lrnet-50")).whole  # Table 2
    assert whole.parameters == pytest.approx(23.3e6, rel=0.02)
    assert whole.flops / 2 == pytest.approx(4.3e9, rel=0.02)


def shallow(config):
    """The same model with at most two layers, or two in each stage; layers that are alike cost alike."""
    cut = {"depth": lambda n: min(n, 2), "decoder_depth": lambda n: min(n, 2), "depths": lambda ns: [min(n, 2) for n in ns]}
    return dataclasses.replace(config, **{key: fewer(getattr(config, key)) for key, fewer in cut.items() if hasattr(config, key)})


@pytest.mark.parametrize("family", list(FAMILIES))
def test_parts_add_up_to_the_whole(family):
    for config in map(shallow, list(FAMILIES[family].sizes.values())[:3]):
        *parts, whole = cost(family, config, 8, 5)
        assert whole.parameters == parameters(family, config)
        for field in ("parameters", "flops", "bytes", "score_bytes"):
            assert getattr(whole, field) == sum(getattr(part, field) for part in parts)


@pytest.mark.parametrize(("name", "mlp"), [("gpt-small", 4 * 768), ("bert-base", 4 * 768)])
def test_the_flops_of_the_blocks_follow_the_formula(name, mlp):
    family, config = preset(name)
    s, d = 32, config.dim
    blocks = next(part for part in cost(family, config, s, 1) if part.name == "blocks")
    each = 2 * s * (4 * d * d + 2 * d * mlp)  # four projections and an mlp for each token
    attention = {"gpt": 4 * s * s * d, "bert": 4 * s * s * d}[family]  # scores and mixing for each pair
    assert blocks.flops == config.depth * (each + attention)
