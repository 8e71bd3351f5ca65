"""The decoder protocol that every search uses, and `reorder`, which selects rows of a decoder's state.

Shapes: B sentences, W beams, R rows, S source length, V vocabulary.
"""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = ["Decoder", "Source", "reorder"]


class Source(Protocol):
    """What is decoded: token ids (B, S), or any batch that its decoder's `start` reads, such as `conformer.Utterances`."""

    def __len__(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """Where the search runs."""


@runtime_checkable
class Decoder(Protocol):
    """Reads a source once, then maps one token after another to the logits of the next.

    The searches call `start`, then `step` with one token of each row, and `reorder` the state when beams swap parents or
    sentences leave the batch.  A state is immutable, so that a step may be repeated.  It is any nest of tensors, batch
    first, or of objects with their own `reorder`.  `decode.fast.decoder` makes one from a model.

    A decoder with an attribute `normalized = True` returns scores that are summed as they are, instead of logits.
    """

    def start(self, source: Any) -> Any:
        """Read the source or prompt, token ids (B, S) or another `Source` → the state before the first token."""

    def step(self, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The last token (R,) and the state before it → logits (R, V) of the next one and the state after it."""


def reorder(state: Any, rows: Tensor) -> Any:
    """Select rows of a state's batch, repeated or left out, in the order of `rows` (R,).

    Rows given as (B, W) are those of W beams of each of B sentences; a state with its own `reorder` may share what the
    beams of one sentence have in common.
    """
    if isinstance(state, Tensor):
        return state.index_select(0, rows.flatten())
    if hasattr(state, "reorder"):
        return state.reorder(rows)
    if isinstance(state, dict):
        return {key: reorder(part, rows) for key, part in state.items()}
    parts = [reorder(part, rows) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
