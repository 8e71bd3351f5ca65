"""Long sound → pieces of bounded length, cut where it is quietest.

Shapes: N samples.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Piece", "cut_pieces"]

QUIET = 0.2  # seconds over which loudness is averaged: longer than the closure of a consonant, shorter than a pause
GRAIN = 0.01  # seconds between two places that are compared


class Piece(NamedTuple):
    """A part of a sound: its first sample, its samples (N,), and whether the sound ends with it."""

    start: int
    samples: Tensor
    last: bool


def cut_pieces(blocks: Iterable[Tensor], rate: int, seconds: float) -> Iterator[Piece]:
    """Sound that comes in blocks → pieces of at most `seconds`, and at least a quarter of that if the sound is longer.

    Each cut is in the middle of the quietest fifth of a second of the second half of a piece.  One piece and one block are in
    memory at a time.
    """
    size = max(4, round(seconds * rate))
    start, buffer = 0, torch.zeros(0)
    for block in blocks:
        buffer = torch.cat((buffer, block))
        while len(buffer) >= size + size // 4:
            at = _quietest(buffer, size // 2, size, rate)
            yield Piece(start, buffer[:at], last=False)
            start, buffer = start + at, buffer[at:].clone()
    if len(buffer) > size:
        at = _quietest(buffer, size // 2, len(buffer) - size // 4, rate)
        yield Piece(start, buffer[:at], last=False)
        start, buffer = start + at, buffer[at:]
    yield Piece(start, buffer, last=True)


def _quietest(x: Tensor, first: int, last: int, rate: int) -> int:
    """The sample from `first` to `last` around which the mean power is smallest."""
    width, grain = max(1, round(QUIET * rate)), max(1, round(GRAIN * rate))
    around = F.pad(x, (width // 2, width))[first : last + width]  # a window for each sample from `first` on
    power = F.avg_pool1d(around.double().square()[None, None], width, grain)[0, 0]
    return min(last, first + grain * int(power.argmin()))
