"""Images side by side in one PNG file.  Shapes: B images, Y X rows and columns, C channels."""

import math
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from regard.data.files import write_atomic

__all__ = ["check_out", "save_image_grid"]

SMALLEST = 84  # pixels: smaller images are enlarged by a whole factor, so that pixels stay square
GAP = 6  # pixels between images


def check_out(file: Path) -> None:
    """Refuse a file that cannot be written, before hours of generating."""
    if file.suffix.lower() != ".png":
        raise ValueError(f"cannot write {file.name}; give a name that ends in .png")
    if not file.parent.is_dir():
        raise ValueError(f"no folder {file.parent}; make it, or choose another --out")


def save_image_grid(images: npt.NDArray[np.uint8], file: Path) -> None:
    """Arrange images (B, Y, X, C) in a grid that is about square, and write it."""
    check_out(file)
    scale = -(-SMALLEST // images.shape[1])
    large = images.repeat(scale, 1).repeat(scale, 2)
    columns = math.ceil(math.sqrt(len(large)))
    height, width = (side + GAP for side in large.shape[1:3])
    shape = (height * -(-len(large) // columns) + GAP, width * columns + GAP, large.shape[3])
    grid = np.full(shape, 128, np.uint8)
    for index, image in enumerate(large):
        top, left = GAP + index // columns * height, GAP + index % columns * width
        grid[top : top + image.shape[0], left : left + image.shape[1]] = image
    content = BytesIO()
    Image.fromarray(grid[..., 0] if grid.shape[2] == 1 else grid).save(content, "PNG")
    write_atomic(file, content.getvalue())
