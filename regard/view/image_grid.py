"""Pictures side by side on one sheet, as a PNG file.

Shapes: B pictures, Y X rows and columns, C channels.
"""

import math
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from regard.data.files import write_atomic

__all__ = ["check_out", "save_image_grid"]

SMALLEST = (
    84  # pixels of a picture on the sheet: smaller ones are enlarged by a whole number, so that pixels stay square
)
GAP = 6  # pixels between pictures


def check_out(file: Path) -> None:
    """Refuse a file that no sheet can be written to, before hours are spent drawing."""
    if file.suffix.lower() != ".png":
        raise ValueError(f"cannot write {file.name}; give a name that ends in .png")
    if not file.parent.is_dir():
        raise ValueError(f"no folder {file.parent}; make it, or choose another --out")


def save_image_grid(pictures: npt.NDArray[np.uint8], file: Path) -> None:
    """Lay pictures (B, Y, X, C) out in rows, about as many as columns, and write them."""
    check_out(file)
    scale = -(-SMALLEST // pictures.shape[1])
    large = pictures.repeat(scale, 1).repeat(scale, 2)
    columns = math.ceil(math.sqrt(len(large)))
    high, wide = (side + GAP for side in large.shape[1:3])
    sheet = np.full((high * -(-len(large) // columns) + GAP, wide * columns + GAP, large.shape[3]), 128, np.uint8)
    for number, picture in enumerate(large):
        top, left = GAP + number // columns * high, GAP + number % columns * wide
        sheet[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    held = BytesIO()
    Image.fromarray(sheet[..., 0] if sheet.shape[2] == 1 else sheet).save(held, "PNG")
    write_atomic(file, held.getvalue())
