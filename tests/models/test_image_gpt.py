"""The pixel Transformer: no pixel sees those after it, numbers are colours and back, drawing steps as it reads."""

import numpy as np
import pytest
import torch

from regard.config import Run
from regard.data.image.batches import dequantize, quantize
from regard.decode.painter import ImageGenerator
from regard.models.image_gpt import ImageGPT, ImageGPTConfig


def pixel(**changes: object) -> ImageGPT:
    torch.manual_seed(0)
    shape = {"image": 4, "channels": 1, "levels": 3, "dim": 16, "depth": 2, "heads": 2}
    model = ImageGPT(ImageGPTConfig(**{**shape, **changes}))
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return model.double().eval()


def test_later_pixels_do_not_change_what_is_guessed_of_earlier_ones():
    model, numbers = pixel(), torch.randint(0, 3, (2, 16))
    before = model(numbers)
    numbers[:, 9:] = (numbers[:, 9:] + 1) % 3
    after = model(numbers)
    torch.testing.assert_close(after[:, :9], before[:, :9], rtol=0, atol=1e-12)
    assert not torch.allclose(after[:, 9:], before[:, 9:])


@pytest.mark.parametrize(("channels", "levels"), [(1, 2), (1, 16), (1, 256), (3, 2), (3, 8)])
def test_numbers_are_colours_and_back(channels, levels):
    numbers = np.random.default_rng(0).integers(0, levels**channels, (3, 25))
    pictures = dequantize(numbers, levels, 5, channels)
    assert pictures.shape == (3, 5, 5, channels)
    assert (quantize(pictures, levels) == numbers).all()


def test_of_256_levels_nothing_is_lost_and_of_few_black_and_white_stay():
    pictures = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 1), dtype=np.uint8)
    assert (dequantize(quantize(pictures, 256), 256, 4, 1) == pictures).all()
    ends = np.array([0, 255], dtype=np.uint8).reshape(2, 1, 1, 1)
    assert (dequantize(quantize(ends, 8), 8, 1, 1) == ends).all()


def test_what_is_drawn_greedily_is_the_likeliest_pixel_each_time():
    model = pixel()
    painter = ImageGenerator(model, Run("p", "image-gpt", model.config, task="pixels"))
    drawn = quantize(painter.draw(1, temperature=0.0), 3)
    read = torch.cat((torch.tensor([[3]]), torch.from_numpy(drawn)[:, :-1]), 1)
    assert (model(read)[..., :3].argmax(-1).numpy() == drawn).all()


def test_draws_differ_by_seed_and_not_otherwise():
    model = pixel()
    painter = ImageGenerator(model, Run("p", "image-gpt", model.config, task="pixels"))
    first, again, other = (painter.draw(6, seed=seed) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    assert set(np.unique(first)) <= {0, 128, 255}  # a start is no colour


def test_too_many_colours_are_refused():
    with pytest.raises(ValueError, match="64 levels in 3 channels make 262,144 colours; use fewer levels"):
        ImageGPTConfig(levels=64)
    with pytest.raises(ValueError, match="0 pictures; ask for 1 to"):
        ImageGenerator(pixel(), None).draw(0)
