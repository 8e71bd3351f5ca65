"""Image GPT: causality, colours and token ids, generation."""

import numpy as np
import pytest
import torch

from regard.config import Run
from regard.data.image.batches import dequantize, quantize
from regard.models.image_gpt import ImageGPT, ImageGPTConfig
from regard.tasks.image_generation import ImageGenerator


def image_gpt(**changes: object) -> ImageGPT:
    torch.manual_seed(0)
    shape = {"image": 4, "channels": 1, "levels": 3, "dim": 16, "depth": 2, "heads": 2}
    model = ImageGPT(ImageGPTConfig(**{**shape, **changes}))
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return model.double().eval()


def predictor(model: ImageGPT) -> ImageGenerator:
    return ImageGenerator(model, Run("p", "image-gpt", model.config, task="image_generation"))


def test_later_pixels_do_not_change_the_logits_of_earlier_ones():
    model, ids = image_gpt(), torch.randint(0, 3, (2, 16))
    before = model(ids)
    ids[:, 9:] = (ids[:, 9:] + 1) % 3
    after = model(ids)
    torch.testing.assert_close(after[:, :9], before[:, :9], rtol=0, atol=1e-12)
    assert not torch.allclose(after[:, 9:], before[:, 9:])


@pytest.mark.parametrize(("channels", "levels"), [(1, 2), (1, 16), (1, 256), (3, 2), (3, 8)])
def test_ids_become_colours_and_the_same_ids_again(channels, levels):
    ids = np.random.default_rng(0).integers(0, levels**channels, (3, 25))
    images = dequantize(ids, levels, 5, channels)
    assert images.shape == (3, 5, 5, channels)
    assert (quantize(images, levels) == ids).all()


def test_256_levels_are_lossless_and_fewer_keep_black_and_white():
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 1), dtype=np.uint8)
    assert (dequantize(quantize(images, 256), 256, 4, 1) == images).all()
    ends = np.array([0, 255], dtype=np.uint8).reshape(2, 1, 1, 1)
    assert (dequantize(quantize(ends, 8), 8, 1, 1) == ends).all()


def test_greedy_generation_takes_the_most_likely_pixel_at_each_step():
    model = image_gpt()
    generator = predictor(model)
    pixels = quantize(generator.generate(1, temperature=0.0), 3)
    tokens = torch.cat((torch.tensor([[3]]), torch.from_numpy(pixels)[:, :-1]), 1)
    assert (model(tokens)[..., :3].argmax(-1).numpy() == pixels).all()


def test_samples_depend_on_the_seed_alone():
    model = image_gpt()
    generator = predictor(model)
    first, again, other = (generator.generate(6, seed=seed) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    assert set(np.unique(first)) <= {0, 128, 255}  # the start token is no colour


def test_too_many_colours_and_no_images_are_refused():
    with pytest.raises(ValueError, match="64 levels in 3 channels make 262,144 colours; use fewer levels"):
        ImageGPTConfig(levels=64)
    with pytest.raises(ValueError, match="0 images; ask for 1 to"):
        predictor(image_gpt()).generate(0)
