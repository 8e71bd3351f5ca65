"""From token numbers to vectors.

Shapes: B batch, T tokens, D width, V vocabulary.
"""

from collections.abc import Callable

from torch import Tensor, nn

from regard.layers.dropout import Dropout
from regard.layers.positions import LearnedPositions, SinusoidalPositions

__all__ = ["Embed", "token_table"]


class Embed(nn.Module):
    """Look up each token's vector, times a scale, and add where it stands."""

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: SinusoidalPositions | LearnedPositions,
        dropout: float,
        scale: float = 1.0,
    ):
        super().__init__()
        self.tokens, self.positions, self.dropout, self.scale = tokens, positions, Dropout(dropout), scale

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """Ids (B, T), the first of them standing at place `start` → (B, T, D)."""
        x = self.tokens(ids) * self.scale  # (B, T, D)
        return self.dropout(x + self.positions(start, start + ids.shape[1]))

    def at_hand(self) -> Callable[[Tensor, int], Tensor]:
        """The same for tokens (R,) that all stand at one place, as a plain function that drops nothing: → (R, D)."""
        table, scale, positions = self.tokens.weight, self.scale, self.positions.forward
        return lambda ids, place: table.index_select(0, ids).mul_(scale).add_(positions(place, place + 1))


def token_table(vocab: int, dim: int) -> nn.Embedding:
    """A table of token vectors (V, D), started small enough to be tied to the output layer."""
    table = nn.Embedding(vocab, dim)
    nn.init.normal_(table.weight, std=dim**-0.5)
    return table
