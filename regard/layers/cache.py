"""Keys and values that were computed once and are looked at again.

Shapes: B batch, H heads, K keys, E width of one head.
"""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Cache", "KeysValues"]

ROOM = 16  # tokens a new cache has room for


class KeysValues(NamedTuple):
    """Keys and values ready to be looked at, each (B, H, K, E)."""

    keys: Tensor
    values: Tensor


class _Room:
    """Memory for keys and values (2, B, H, room, E), of which the first `filled` of each row are written."""

    def __init__(self, like: Tensor, batch: int, room: int):
        self.both = like.new_empty(2, batch, like.shape[2], room, like.shape[4])
        self.filled = 0


class Cache:
    """The keys and values of all tokens so far, with room for more: a further token costs no copy of those before it.

    A cache never changes: `add` returns a longer one.  The two share their memory, as lists of the same beginning may,
    and only a second continuation of the same beginning makes a copy.  No gradient flows back through it.
    """

    def __init__(self, room: _Room | None = None, used: int = 0):
        self.room, self.used = room, used

    def add(self, now: Tensor) -> "Cache":
        """These tokens, followed by later ones: their keys and values, (2, B, H, K, E)."""
        count = now.shape[3]
        used, room = self.used + count, self.room
        if room is None or room.filled != self.used or used > room.both.shape[3]:
            room = _Room(now, now.shape[1], max(ROOM, 2 * used))
            if self.room is not None:
                room.both[:, :, :, : self.used] = self.room.both[:, :, :, : self.used]
        room.both.narrow(3, self.used, count).copy_(now.detach() if now.requires_grad else now)
        room.filled = used
        return Cache(room, used)

    def all(self) -> KeysValues:
        """All tokens so far, (B, H, K, E)."""
        assert self.room is not None
        return KeysValues(*self.room.both.narrow(3, 0, self.used).unbind())

    @torch.no_grad()
    def reorder(self, rows: Tensor) -> "Cache":
        """The same for other rows of the batch (R,), with room for more."""
        if self.room is None:
            return self
        both = self.room.both
        room = _Room(both, len(rows), both.shape[3])
        room.filled = self.used
        torch.index_select(both[:, :, :, : self.used], 1, rows, out=room.both[:, :, :, : self.used])
        return Cache(room, self.used)
