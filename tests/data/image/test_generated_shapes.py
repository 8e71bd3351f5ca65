"""Generated shapes: the boxes are where the shapes are, and an image has one caption only."""

import numpy as np
import pytest

from regard.data.image.shapes import COLORS, Box, shape_image

IMAGES = [shape_image("test", index) for index in range(200)]


def test_an_image_is_a_function_of_split_and_index():
    again = shape_image("test", 3)
    assert (again.image == IMAGES[3].image).all()
    assert again[1:] == IMAGES[3][1:]
    assert (shape_image("train", 3).image != IMAGES[3].image).any()


def test_the_boxes_hold_all_pixels_of_the_shapes_named_and_nothing_else_does():
    for made in IMAGES:
        named = [COLORS[word] for word in made.caption.split() if word in COLORS]
        outside = np.ones((64, 64), bool)
        for color, box in zip(named, made.boxes, strict=True):
            part = np.s_[box.top : box.bottom, box.left : box.right]
            drawn = (made.image[part] == color).all(-1)
            assert drawn.any(0).all()  # from left to right
            assert drawn.any(1).all()  # from top to bottom
            outside[part] = False
        grey = made.image[outside].astype(int)
        assert (grey == grey[:, :1]).all()  # the background


def overlap(a: tuple[int, int], b: tuple[int, int]) -> int:
    return min(a[1], b[1]) - max(a[0], b[0])


def test_one_caption_only_is_true_of_an_image():
    relations = {"above": 0, "left of": 0}
    for made in IMAGES:
        first, second = made.boxes
        rows, columns = ([(b.top, b.bottom) for b in made.boxes], [(b.left, b.right) for b in made.boxes])
        above = first.bottom <= 32 <= second.top and overlap(*columns) > 0
        left = first.right <= 32 <= second.left and overlap(*rows) > 0
        assert above != left
        relation = "above" if above else "left of"
        assert f" {relation} " in made.caption
        relations[relation] += 1
    assert min(relations.values()) > 60


def test_the_words_name_the_forms_in_order():
    for made in IMAGES:
        assert tuple(word for word in made.caption.split() if word in made.forms) == made.forms


@pytest.mark.parametrize("side", [32, 64, 128])
def test_shapes_stay_inside_an_image_of_any_size(side):
    for index in range(50):
        made = shape_image("train", index, side)
        assert made.image.shape == (side, side, 3)
        for box in made.boxes:
            assert isinstance(box, Box)
            assert 0 <= box.left < box.right <= side
            assert 0 <= box.top < box.bottom <= side
