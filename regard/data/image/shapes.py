"""Generated images of coloured shapes with captions: the place of each shape is known, so attention can be checked.

    "a red circle above a blue square"        each image has two shapes, one above or left of the other

One shape is in each half of the image, and along the other axis they overlap: an image has one caption only.  It is a function
of (split, index): the same on every machine.

Shapes: S side of the image.
"""

import hashlib
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from regard.data.image.io import Bytes

__all__ = ["COLORS", "FORMS", "Box", "ShapeImage", "shape_image"]

COLORS = {"red": (220, 40, 40), "green": (40, 160, 60), "blue": (50, 80, 220), "yellow": (230, 200, 40),
          "purple": (150, 60, 180), "pink": (250, 150, 190)}  # fmt: skip
FORMS = ("circle", "square", "triangle", "cross")
SIZE = (0.22, 0.34)  # of a shape, as a fraction of the side
NOISE = 12  # standard deviation of the background


class Box(NamedTuple):
    """The place of a shape, in pixels: from left, top to right, bottom, the last two excluded."""

    left: int
    top: int
    right: int
    bottom: int


class ShapeImage(NamedTuple):
    """An image, its caption, and where the shapes of the caption are, in the order of their words."""

    image: Bytes  # (S, S, 3)
    caption: str
    forms: tuple[str, str]
    boxes: tuple[Box, Box]


def shape_image(split: str, index: int, side: int = 64) -> ShapeImage:
    """The image number `index` of a split."""
    seed = hashlib.sha256(f"{split} {index} {side}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(seed[:8], "big"))
    background = rng.integers(170, 230) + NOISE * rng.standard_normal((side, side, 1)) + np.zeros(3)
    canvas = Image.fromarray(np.clip(background, 0, 255).astype(np.uint8))
    above, draw = rng.random() < 0.5, ImageDraw.Draw(canvas)
    names, forms, boxes, across = list[str](), list[str](), list[Box](), 0
    for half in range(2):
        form, color, size = str(rng.choice(FORMS)), str(rng.choice(list(COLORS))), round(side * rng.uniform(*SIZE))
        along = int(rng.integers(half * side // 2 + 1, (half + 1) * side // 2 - size))  # one shape in each half
        low, high = (1, side - size) if half == 0 else (max(1, across - size // 2), min(side - size, across + size // 2))
        across = int(rng.integers(low, high))
        left, top = (across, along) if above else (along, across)
        box = Box(left, top, left + size, top + size)
        _draw(draw, form, box, COLORS[color])
        names.append(f"a {color} {form}")
        forms.append(form)
        boxes.append(box)
    caption = f"{names[0]} {'above' if above else 'left of'} {names[1]}"
    return ShapeImage(np.array(canvas), caption, (forms[0], forms[1]), (boxes[0], boxes[1]))


def _draw(draw: ImageDraw.ImageDraw, form: str, box: Box, color: tuple[int, int, int]) -> None:
    left, top, right, bottom = box.left, box.top, box.right - 1, box.bottom - 1
    third = (box.right - box.left) // 3
    if form == "circle":
        draw.ellipse((left, top, right, bottom), color)
    elif form == "square":
        draw.rectangle((left, top, right, bottom), color)
    elif form == "triangle":
        draw.polygon([((left + right) // 2, top), (left, bottom), (right, bottom)], color)
    else:
        draw.rectangle((left + third, top, right - third, bottom), color)
        draw.rectangle((left, top + third, right, bottom - third), color)
