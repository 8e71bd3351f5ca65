"""Attention of a recurrent decoder, whose state looks at the source once a time step.

Shapes: B sources, W beams of each, R = B · W rows, S source length, H width of a state, D width of the source.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.layers.attention import attend
from regard.layers.cache import KeysValues
from regard.layers.scores import RecurrentScore
from regard.layers.tap import AttentionCall, note_memory, tap_of

__all__ = ["CrossAttention", "source_of_rows"]


class CrossAttention(nn.Module):
    """Attention of a decoder's state to the source, one head."""

    watchable: ClassVar[bool] = True  # by `watch`

    def __init__(self, score: RecurrentScore):
        super().__init__()
        self.score = score

    def keys_values(self, memory: Tensor) -> KeysValues:
        """Project the source (B, S, D) once: keys (B, 1, S, ·) and values (B, 1, S, D)."""
        note_memory(self, memory)
        memory = memory[:, None]  # (B, 1, S, D)
        return KeysValues(self.score.keys(memory), memory)

    def forward(self, hidden: Tensor, memory: KeysValues, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """States (B, W, H) → contexts (B, W, D) and attention weights (B, W, S)."""
        q = hidden[:, None]  # (B, 1, W, H)
        mixed, weights = attend(q, *memory, score=self.score, mask=mask, need_weights=True)
        assert weights is not None
        if (tap := tap_of(self)) is not None:
            mixed = tap(AttentionCall(q, *memory, weights, mixed, score=self.score, mask=mask, x=hidden))
        return mixed[:, 0], weights[:, 0]


def source_of_rows(rows: Tensor, beams: int, sources: int) -> Tensor | None:
    """The source of each row of a decoder's state, or None if those are all sources in their order, so nothing moves.

    `rows` is (R,), or (B, W) with the beams of one source in each line; each source had `beams` rows.
    """
    source = (rows if rows.ndim == 2 else rows[:, None])[:, 0] // beams
    return None if torch.equal(source, torch.arange(sources, device=rows.device)) else source
