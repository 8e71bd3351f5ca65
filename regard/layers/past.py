"""What a decoder has said so far, by several beams of each sentence.

Shapes: B sentences, W beams, R = B · W rows, K keys.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.layers.cache import Cache

__all__ = ["Past"]


class Past(NamedTuple):
    """The keys and values of all tokens so far, for B sentences with W beams each.

    All beams of a sentence share one past that holds the tokens of them all; `seen` says whose is whose.  Beams thus change
    places without a copy.
    """

    blocks: tuple[Cache, ...]
    sentences: int
    seen: Tensor | None = None  # (B, 1, W, K): which keys are a beam's own; None = all
    beams: int = 1
    place: int = 0  # of the next token

    @property
    def next_seen(self) -> Tensor | None:
        """What the next token of each beam may look at: what it saw, and itself."""
        if self.seen is None:
            return None
        own = torch.eye(self.beams, dtype=torch.bool, device=self.seen.device)
        return torch.cat((self.seen, own.expand(len(self.seen), 1, -1, -1)), -1)

    def reorder(self, rows: Tensor) -> tuple["Past", Tensor | None]:
        """The same for other rows, and the sentences they are of, or None if those are all, in their order.

        Rows come as (R,), or as (B, W) with the rows of one sentence in each line.
        """
        rows = rows if rows.ndim == 2 else rows[:, None]
        sentence, parent = rows[:, 0] // self.beams, rows % self.beams
        blocks, seen = self.blocks, self.seen
        same = torch.equal(sentence, torch.arange(self.sentences, device=rows.device))
        if not same:  # else nothing is copied
            blocks = tuple(block.reorder(sentence) for block in blocks)
            seen = None if seen is None else seen.index_select(0, sentence)
        if seen is None and rows.shape[1] > 1:
            seen = torch.ones(len(rows), 1, 1, blocks[0].used, dtype=torch.bool, device=rows.device)
        if seen is not None:
            seen = seen.gather(2, parent[:, None, :, None].expand(-1, -1, -1, seen.shape[-1]))
        return Past(blocks, len(rows), seen, rows.shape[1], self.place), None if same else sentence
