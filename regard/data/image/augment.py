"""Random augmentation of images: crop, flip, RandAugment, random erasing, mixup.

`augment` applies two random operations (RandAugment, https://arxiv.org/abs/1909.13719), `erase` a grey rectangle
(https://arxiv.org/abs/1708.04896), `mixup` blends two images (https://arxiv.org/abs/1710.09412).  Each works on a whole
batch, of bytes up to mixup, and samples from the given generator: the same seed gives the same images.

Shapes: B batch, C channels, Y X rows and columns, N side of the crop.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

__all__ = ["GEOMETRIC", "PHOTOMETRIC", "apply_operations", "augment", "crop", "erase", "flip", "mixup"]

OPERATIONS = 2  # for each image
GREY = 128  # fills empty areas
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in brightness, ITU-R 601
AREA = (0.02, 0.33)  # of an image that a rectangle erases, smallest and largest fraction
ASPECT = 10 / 3  # largest aspect ratio of the rectangle

# Effects at magnitude 1.
ROTATE = 30.0  # degrees
SHEAR = 0.3  # of the height
TRANSLATE = 0.45  # of the side
ENHANCE = 0.9  # brightness, contrast, colour and sharpness, more or less
BITS = 4  # lowest of 8 bits set to zero


def crop(x: Tensor, side: int, pad: int, generator: Generator) -> Tensor:
    """Crop a random square from each image, padded by `pad` mirrored pixels: (B, C, N, N)."""
    b, c, y, width = x.shape
    rows = _crop_indices(y, side, pad, b, generator)  # (B, N)
    columns = _crop_indices(width, side, pad, b, generator)
    at = rows[:, :, None] * width + columns[:, None, :]  # (B, N, N)
    return x.reshape(b, c, -1).gather(2, at.view(b, 1, -1).expand(b, c, -1)).view(b, c, side, side)


def _crop_indices(length: int, side: int, pad: int, count: int, generator: Generator) -> Tensor:
    """Indices below `length` of each crop, mirrored beyond the edges: (count, side)."""
    first = torch.randint(length + 2 * pad - side + 1, (count, 1), generator=generator) - pad
    last = length - 1
    return last - (last - (first + torch.arange(side)).abs()).abs()


def flip(x: Tensor, generator: Generator) -> Tensor:
    """Mirror half of the images, left to right."""
    chosen = (torch.rand(len(x), generator=generator) < 0.5).nonzero()[:, 0]
    return x.index_copy(0, chosen, x[chosen].flip(-1))


def erase(x: Tensor, rate: float, generator: Generator) -> Tensor:
    """Make a rectangle of random size, shape and position grey in a fraction `rate` of the images."""
    b, _, y, width = x.shape
    chance, area, aspect, top, left = torch.rand(5, b, generator=generator)
    area = (AREA[0] + (AREA[1] - AREA[0]) * area) * y * width
    aspect = ASPECT ** (2 * aspect - 1)
    rows = _inside(y, (area * aspect).sqrt(), top)  # (B, Y)
    columns = _inside(width, (area / aspect).sqrt(), left)  # (B, X)
    erased = rows[:, :, None] & columns[:, None, :] & (chance < rate)[:, None, None]
    return x.masked_fill(erased[:, None], GREY)


def _inside(length: int, size: Tensor, start: Tensor) -> Tensor:
    """A mask of intervals of the given sizes; `start` is a fraction of the possible starts: (B, length)."""
    size = size.round().clamp(1, length)
    first = (start * (length + 1 - size)).floor()
    index = torch.arange(length)
    return (index >= first[:, None]) & (index < (first + size)[:, None])


def mixup(x: Tensor, label: Tensor, alpha: float, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Blend each image with another: images, labels of the others (B,), and weights of the first (B,), from Beta(α, α)."""
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))  # torch's Beta takes no generator
    part = torch.from_numpy(rng.beta(alpha, alpha, len(x))).to(x.dtype)
    other = torch.randperm(len(x), generator=generator)
    return torch.lerp(x[other], x, part[:, None, None, None]), label[other], part


def augment(x: Tensor, strength: float, generator: Generator) -> Tensor:
    """Apply two random operations to each image, of magnitude `strength` (0 to 1) and random sign."""
    if not strength:
        return x
    for _ in range(OPERATIONS):
        which = torch.randint(1 + len(GEOMETRIC) + len(PHOTOMETRIC), (len(x),), generator=generator)
        sign = torch.randint(2, (len(x),), generator=generator) * 2 - 1
        x = apply_operations(x, which, sign * strength)
    return x


def apply_operations(x: Tensor, which: Tensor, magnitude: Tensor) -> Tensor:
    """Apply one operation to each image of bytes: none (0), one of `GEOMETRIC`, or, after those, one of `PHOTOMETRIC`.

    `which` (B,), `magnitude` (B,) from -1 to 1.  Images with the same operation are processed together.
    """
    x = x.clone()
    rows = ((which > 0) & (which <= len(GEOMETRIC))).nonzero()[:, 0]
    if len(rows):
        x[rows] = _warp(x[rows], which[rows], magnitude[rows])
    for index, operation in enumerate(PHOTOMETRIC.values(), 1 + len(GEOMETRIC)):
        rows = (which == index).nonzero()[:, 0]
        if len(rows):
            x[rows] = operation(x[rows], magnitude[rows][:, None, None, None])
    return x


def _to_bytes(x: Tensor) -> Tensor:
    return x.round().clamp(0, 255).to(torch.uint8)


GEOMETRIC = ("rotate", "shear x", "shear y", "translate x", "translate y")


def _warp(x: Tensor, which: Tensor, magnitude: Tensor) -> Tensor:
    """Rotate, shear or translate each image about its centre; pixels from outside are grey."""
    angle = magnitude * math.radians(ROTATE)
    cos, sin, slant = angle.cos(), angle.sin(), magnitude * SHEAR
    shift = (magnitude * TRANSLATE * x.shape[-1]).round() * 2 / x.shape[-1]  # whole pixels; the whole side is 2
    one, none = torch.ones_like(magnitude), torch.zeros_like(magnitude)
    where = torch.stack([  # for each operation, where the pixel at (x, y, 1) comes from
        torch.stack([cos, -sin, none, sin, cos, none]),
        torch.stack([one, slant, none, none, one, none]),
        torch.stack([one, none, none, slant, one, none]),
        torch.stack([one, none, shift, none, one, none]),
        torch.stack([one, none, none, none, one, shift]),
    ])  # (5, 6, B)  # fmt: skip
    matrix = where[which - 1, :, torch.arange(len(x))].view(-1, 2, 3)
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)  # (B, Y, X, 2)
    return _to_bytes(F.grid_sample(x.float() - GREY, grid, align_corners=False) + GREY)


def _grey(x: Tensor) -> Tensor:
    """Brightness: (B, 1, Y, X)."""
    if x.shape[1] != len(LUMA):
        return x.float().mean(1, keepdim=True)
    return (x.float() * torch.tensor(LUMA)[:, None, None]).sum(1, keepdim=True)


def _enhance(degenerate: Tensor, x: Tensor, magnitude: Tensor) -> Tensor:
    """Interpolate from a degenerate image to the image, and beyond it for positive magnitudes, as in PIL."""
    return _to_bytes(degenerate + (x.float() - degenerate) * (1 + ENHANCE * magnitude))


def _sharpness(x: Tensor, magnitude: Tensor) -> Tensor:
    """Against a blur with the eight neighbours; the edge pixels stay."""
    soft = x.float()
    if min(x.shape[-2:]) > 2:
        tall = soft[:, :, :-2] + soft[:, :, 1:-1] + soft[:, :, 2:]  # (B, C, Y - 2, X)
        around = tall[..., :-2] + tall[..., 1:-1] + tall[..., 2:]  # (B, C, Y - 2, X - 2)
        middle = soft[:, :, 1:-1, 1:-1]
        soft[:, :, 1:-1, 1:-1] = ((around + 4 * middle) / 13).round()
    return _enhance(soft, x, magnitude)


def _posterize(x: Tensor, magnitude: Tensor) -> Tensor:
    lost = (magnitude.abs() * BITS).round().to(torch.uint8)
    return x >> lost << lost


def _autocontrast(x: Tensor, magnitude: Tensor) -> Tensor:
    """Stretch each channel to black and white; the magnitude is ignored."""
    low, high = x.float().flatten(2).aminmax(dim=2)
    span = (high - low)[:, :, None, None]
    stretched = (x.float() - low[:, :, None, None]) * (255 / span.clamp(min=1))
    return torch.where(span > 0, _to_bytes(stretched), x)


def _equalize(x: Tensor, magnitude: Tensor) -> Tensor:
    """Equalize the histogram of each channel; the magnitude is ignored."""
    flat = x.flatten(0, 1).flatten(1).long()  # (B · C, Y · X)
    count = torch.zeros(len(flat), 256, dtype=torch.long).scatter_add_(1, flat, torch.ones_like(flat))
    below = count.cumsum(1) - count
    step = below.gather(1, flat.amax(1, keepdim=True)) // 255  # all but the brightest value, over 255
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(1, flat), flat).to(torch.uint8).view(x.shape)


PHOTOMETRIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda x, magnitude: _enhance(torch.zeros(()), x, magnitude),
    "contrast": lambda x, magnitude: _enhance(_grey(x).mean((1, 2, 3), keepdim=True).round(), x, magnitude),
    "colour": lambda x, magnitude: _enhance(_grey(x).round(), x, magnitude),
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": lambda x, magnitude: torch.where(x.float() >= 256 * (1 - magnitude.abs()), 255 - x, x),  # inverts bright pixels
    "autocontrast": _autocontrast, "equalize": _equalize,
}  # fmt: skip
