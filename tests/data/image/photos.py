"""Images for tests: noise, smooth images, and the bytes of their files."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

from regard.data.image.io import read_image, resize_square


def noise(y=12, x=18, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (y, x, channels), dtype=np.uint8)


def reading(channels, side):
    return lambda file: resize_square(read_image(file, channels, side), side)


def smooth(y, x, seed=0):
    """An image without fine detail or loud colours, so that JPEG keeps it."""
    small = Image.fromarray(noise(3, 3, seed=seed) // 4 + 96)
    return np.asarray(small.resize((x, y), Image.Resampling.BILINEAR))


def packed(image, kind="PNG", **how):
    """An image as the bytes of a file."""
    image = Image.fromarray(image.squeeze()) if isinstance(image, np.ndarray) else image
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def with_size(png, width, height):
    """A PNG whose header states another size."""
    head = b"IHDR" + struct.pack(">II", width, height) + png[24:29]
    return png[:12] + head + struct.pack(">I", zlib.crc32(head)) + png[33:]


def apart(ours, theirs):
    return np.abs(ours.astype(int) - theirs.astype(int)).max()


def fill(folder, counts, kind="png"):
    """Write `counts` of each class into folders."""
    for index, (label, count) in enumerate(counts.items()):
        for i in range(count):
            file = folder / label / f"{i}.{kind}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(packed(noise(7, 9, seed=100 * index + i)))
    return folder
