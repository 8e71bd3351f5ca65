"""The start/step protocol: what a model must offer to be decoded, and `reorder` for picking rows of any state.

Shapes: B batch, S source length, V vocabulary.
"""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

__all__ = ["Decoder", "reorder"]


@runtime_checkable
class Decoder(Protocol):
    """A model that reads once and then answers token by token.

    The state is any nest of tensors, batch first, or of things that have a `reorder` of their own.
    """

    def start(self, source: Tensor) -> Any:
        """Read the source (B, S) → the state before the first token."""

    def step(self, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The last token (B,) and the state before it → logits (B, V) of the next one and the state after it."""


def reorder(state: Any, rows: Tensor) -> Any:
    """The same state for other rows of the batch: picked, repeated or left out, in the order of `rows` (R,).

    Rows given as (B, W) are those of W beams of each of B sentences; a state with a `reorder` of its own may know how to
    share what the beams of one sentence have in common.
    """
    if isinstance(state, Tensor):
        return state.index_select(0, rows.flatten())
    if hasattr(state, "reorder"):
        return state.reorder(rows)
    if isinstance(state, dict):
        return {key: reorder(part, rows) for key, part in state.items()}
    parts = [reorder(part, rows) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
