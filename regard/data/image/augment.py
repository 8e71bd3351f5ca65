"""Change pictures at random, so that a model sees each of them a little different every time.

`crop` and `flip` move a picture; `augment` makes two changes to it that leave its class as it is, as RandAugment does
(Cubuk et al. 2020, https://arxiv.org/abs/1909.13719); `erase` hides a rectangle of it (Zhong et al. 2020,
https://arxiv.org/abs/1708.04896); `mixup` lays it over another (Zhang et al. 2018, https://arxiv.org/abs/1710.09412).

All are for a whole batch at once, of bytes until they are mixed, and draw from the generator they are given: the same
seed gives the same pictures.

Shapes: B batch, C channels, Y X rows and columns, N side of the picture that is cut out.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

__all__ = ["CHANGES", "MOVES", "augment", "change", "crop", "erase", "flip", "mixup"]

EACH = 2  # changes of a picture
GREY = 128  # what stands where there is nothing to see
LUMA = (0.299, 0.587, 0.114)  # how bright red, green and blue are, ITU-R 601
AREA = (0.02, 0.33)  # shares of a picture that a rectangle hides
ASPECT = 10 / 3  # its height over its width, at most; and its width over its height

# What strength 1 does.
TURN = 30.0  # degrees
SHEAR = 0.3  # of its height
MOVE = 0.45  # of its side
ENHANCE = 0.9  # brightness, contrast, colour and sharpness, more or less
BITS = 4  # of 8, that are lost


def crop(x: Tensor, side: int, pad: int, generator: Generator) -> Tensor:
    """Cut a square out at random, of a picture with a mirror of itself around it, `pad` pixels wide: (B, C, N, N)."""
    b, c, y, width = x.shape
    rows = _places(y, side, pad, b, generator)  # (B, N)
    columns = _places(width, side, pad, b, generator)
    at = rows[:, :, None] * width + columns[:, None, :]  # (B, N, N)
    return x.reshape(b, c, -1).gather(2, at.view(b, 1, -1).expand(b, c, -1)).view(b, c, side, side)


def _places(length: int, side: int, pad: int, count: int, generator: Generator) -> Tensor:
    """Which of `length` places each cut takes, those beyond the edges mirrored: (count, side)."""
    first = torch.randint(length + 2 * pad - side + 1, (count, 1), generator=generator) - pad
    last = length - 1
    return last - (last - (first + torch.arange(side)).abs()).abs()


def flip(x: Tensor, generator: Generator) -> Tensor:
    """Mirror half of the pictures, left to right."""
    chosen = (torch.rand(len(x), generator=generator) < 0.5).nonzero()[:, 0]
    return x.index_copy(0, chosen, x[chosen].flip(-1))


def erase(x: Tensor, rate: float, generator: Generator) -> Tensor:
    """Make a rectangle of a share of the pictures grey; its size, shape and place are random."""
    b, _, y, width = x.shape
    chance, area, aspect, top, left = torch.rand(5, b, generator=generator)
    area = (AREA[0] + (AREA[1] - AREA[0]) * area) * y * width
    aspect = ASPECT ** (2 * aspect - 1)
    rows = _inside(y, (area * aspect).sqrt(), top)  # (B, Y)
    columns = _inside(width, (area / aspect).sqrt(), left)  # (B, X)
    hidden = rows[:, :, None] & columns[:, None, :] & (chance < rate)[:, None, None]
    return x.masked_fill(hidden[:, None], GREY)


def _inside(length: int, long: Tensor, where: Tensor) -> Tensor:
    """Which of `length` places lie in a piece as long as given, that begins at a share `where` of all it could: (B, length)."""
    long = long.round().clamp(1, length)
    first = (where * (length + 1 - long)).floor()
    place = torch.arange(length)
    return (place >= first[:, None]) & (place < (first + long)[:, None])


def mixup(x: Tensor, label: Tensor, alpha: float, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Lay another picture of the batch over each: (B, C, Y, X), the labels of the others (B,), shares of the first (B,).

    The share is drawn from Beta(α, α): with a small α mostly one picture is seen, with 1 any share is as likely.
    """
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))  # torch's Beta takes no generator
    part = torch.from_numpy(rng.beta(alpha, alpha, len(x))).to(x.dtype)
    other = torch.randperm(len(x), generator=generator)
    return torch.lerp(x[other], x, part[:, None, None, None]), label[other], part


def augment(x: Tensor, strength: float, generator: Generator) -> Tensor:
    """Make two changes to each picture, drawn from all there are, of a strength from 0 to 1 one way or the other."""
    if not strength:
        return x
    for _ in range(EACH):
        which = torch.randint(1 + len(MOVES) + len(CHANGES), (len(x),), generator=generator)
        way = torch.randint(2, (len(x),), generator=generator) * 2 - 1
        x = change(x, which, way * strength)
    return x


def change(x: Tensor, which: Tensor, amount: Tensor) -> Tensor:
    """Make one change to each picture of bytes: nothing (0), one of `MOVES`, or, after those, one of `CHANGES`.

    `which` (B,), `amount` (B,) from -1 to 1.  Pictures that change alike are done together.
    """
    x = x.clone()
    moved = ((which > 0) & (which <= len(MOVES))).nonzero()[:, 0]
    if len(moved):
        x[moved] = _move(x[moved], which[moved], amount[moved])
    for number, make in enumerate(CHANGES.values(), 1 + len(MOVES)):
        rows = (which == number).nonzero()[:, 0]
        if len(rows):
            x[rows] = make(x[rows], amount[rows][:, None, None, None])
    return x


def _bytes(x: Tensor) -> Tensor:
    return x.round().clamp(0, 255).to(torch.uint8)


MOVES = ("rotate", "shear x", "shear y", "move x", "move y")


def _move(x: Tensor, which: Tensor, amount: Tensor) -> Tensor:
    """Turn, slant or shift each picture about its middle; what comes from outside is grey."""
    angle = amount * math.radians(TURN)
    cos, sin, slant = angle.cos(), angle.sin(), amount * SHEAR
    shift = (amount * MOVE * x.shape[-1]).round() * 2 / x.shape[-1]  # whole pixels; the whole side is 2
    one, none = torch.ones_like(amount), torch.zeros_like(amount)
    where = torch.stack([  # for each kind of move, from where a pixel at (x, y, 1) comes
        torch.stack([cos, -sin, none, sin, cos, none]),
        torch.stack([one, slant, none, none, one, none]),
        torch.stack([one, none, none, slant, one, none]),
        torch.stack([one, none, shift, none, one, none]),
        torch.stack([one, none, none, none, one, shift]),
    ])  # (5, 6, B)  # fmt: skip
    matrix = where[which - 1, :, torch.arange(len(x))].view(-1, 2, 3)
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)  # (B, Y, X, 2)
    return _bytes(F.grid_sample(x.float() - GREY, grid, align_corners=False) + GREY)


def _grey(x: Tensor) -> Tensor:
    """How bright each pixel is: (B, 1, Y, X)."""
    if x.shape[1] != len(LUMA):
        return x.float().mean(1, keepdim=True)
    return (x.float() * torch.tensor(LUMA)[:, None, None]).sum(1, keepdim=True)


def _from(dull: Tensor, x: Tensor, amount: Tensor) -> Tensor:
    """Go from a picture without something towards the picture, and beyond it if `amount` is above 0."""
    return _bytes(dull + (x.float() - dull) * (1 + ENHANCE * amount))


def _brightness(x: Tensor, amount: Tensor) -> Tensor:
    return _from(torch.zeros(()), x, amount)


def _contrast(x: Tensor, amount: Tensor) -> Tensor:
    return _from(_grey(x).mean((1, 2, 3), keepdim=True).round(), x, amount)


def _colour(x: Tensor, amount: Tensor) -> Tensor:
    return _from(_grey(x).round(), x, amount)


def _sharpness(x: Tensor, amount: Tensor) -> Tensor:
    """Against a picture of which each pixel is mixed with its eight neighbours; the edge stays as it is."""
    soft = x.float()
    if min(x.shape[-2:]) > 2:
        tall = soft[:, :, :-2] + soft[:, :, 1:-1] + soft[:, :, 2:]  # (B, C, Y - 2, X)
        around = tall[..., :-2] + tall[..., 1:-1] + tall[..., 2:]  # (B, C, Y - 2, X - 2)
        middle = soft[:, :, 1:-1, 1:-1]
        soft[:, :, 1:-1, 1:-1] = ((around + 4 * middle) / 13).round()
    return _from(soft, x, amount)


def _posterize(x: Tensor, amount: Tensor) -> Tensor:
    lost = (amount.abs() * BITS).round().to(torch.uint8)
    return x >> lost << lost


def _solarize(x: Tensor, amount: Tensor) -> Tensor:
    """Turn the brightest into their negative."""
    return torch.where(x.float() >= 256 * (1 - amount.abs()), 255 - x, x)


def _autocontrast(x: Tensor, amount: Tensor) -> Tensor:
    """Stretch each channel so that it goes from black to white; it has no strength."""
    low, high = x.float().flatten(2).aminmax(dim=2)
    span = (high - low)[:, :, None, None]
    stretched = (x.float() - low[:, :, None, None]) * (255 / span.clamp(min=1))
    return torch.where(span > 0, _bytes(stretched), x)


def _equalize(x: Tensor, amount: Tensor) -> Tensor:
    """Spread the values of each channel so that all are about as frequent; it has no strength."""
    flat = x.flatten(0, 1).flatten(1).long()  # (B · C, Y · X)
    count = torch.zeros(len(flat), 256, dtype=torch.long).scatter_add_(1, flat, torch.ones_like(flat))
    below = count.cumsum(1) - count
    step = below.gather(1, flat.amax(1, keepdim=True)) // 255  # all but the brightest value, over 255
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(1, flat), flat).to(torch.uint8).view(x.shape)


CHANGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": _brightness,
    "contrast": _contrast,
    "colour": _colour,
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
}
