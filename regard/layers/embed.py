"""From token numbers to vectors.

Shapes: B batch, T tokens, D width, V vocabulary.
"""

from collections.abc import Callable

from torch import Tensor, nn

from regard.layers.dropout import Dropout
from regard.layers.positions import Learned, Sinusoid

__all__ = ["Embed", "token_table"]


class Embed(nn.Module):
    """Look up each token's vector, times √D, and add where it stands (section 3.4 of the paper).

    The √D undoes the small start (standard deviation 1/√D) that lets the same matrix also be the output layer.
    """

    def __init__(self, tokens: nn.Embedding, positions: Sinusoid | Learned, dropout: float):
        super().__init__()
        self.tokens, self.positions, self.dropout = tokens, positions, Dropout(dropout)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """Ids (B, T), the first of them standing at place `start` → (B, T, D)."""
        x = self.tokens(ids) * self.tokens.embedding_dim**0.5  # (B, T, D)
        return self.dropout(x + self.positions(start, start + ids.shape[1]))

    def at_hand(self) -> Callable[[Tensor, int], Tensor]:
        """The same for tokens (R,) that all stand at one place, as a plain function that drops nothing: → (R, D)."""
        table, scale, positions = self.tokens.weight, self.tokens.embedding_dim**0.5, self.positions.forward
        return lambda ids, place: table.index_select(0, ids).mul_(scale).add_(positions(place, place + 1))


def token_table(vocab: int, dim: int) -> nn.Embedding:
    """A table of token vectors (V, D), started small enough to be tied to the output layer."""
    table = nn.Embedding(vocab, dim)
    nn.init.normal_(table.weight, std=dim**-0.5)
    return table
