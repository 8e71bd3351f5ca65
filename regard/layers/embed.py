"""From token ids to vectors.  Shapes: B batch, T tokens, D width, V vocabulary."""

from torch import Tensor, nn

from regard.layers.dropout import Dropout
from regard.layers.positions import LearnedPositions, SinusoidalPositions

__all__ = ["Embed", "token_table"]


class Embed(nn.Module):
    """Token embedding times a scale, plus position embedding."""

    def __init__(self, tokens: nn.Embedding, positions: SinusoidalPositions | LearnedPositions, dropout: float,
                 scale: float = 1.0):  # fmt: skip
        super().__init__()
        self.tokens, self.positions, self.dropout, self.scale = tokens, positions, Dropout(dropout), scale

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """Ids (B, T), the first at position `start` → (B, T, D)."""
        x = self.tokens(ids) * self.scale  # (B, T, D)
        return self.dropout(x + self.positions(start, start + ids.shape[1]))


def token_table(vocab: int, dim: int) -> nn.Embedding:
    """Token embeddings (V, D), initialized small enough to be tied to the output layer."""
    table = nn.Embedding(vocab, dim)
    nn.init.normal_(table.weight, std=dim**-0.5)
    return table
