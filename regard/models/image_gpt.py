"""A Transformer on pixels: a picture is read as a text, row by row, and each pixel guessed from those before it.

Chen et al. 2020 (iGPT), https://cdn.openai.com/papers/Generative_Pretraining_from_Pixels_V2.pdf

    logits of the next pixel's colour
                │
           ┌────┴────┐
           │   GPT   │
           └────┬────┘
    start, pixel 1, pixel 2, …

A colour is one of `levels` in each channel, numbered; the start has a number of its own, the last.

Shapes: B batch, T = 1 + pixels, D width, V = levels ** channels + 1 colours and the start.
"""

from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, require_divisible, require_fraction, require_max, require_min
from regard.layers.locality_init import init_local_heads
from regard.models.gpt import GPT, GPTConfig

__all__ = ["SIZES", "ImageGPT", "ImageGPTConfig"]


# Rows and columns from the pixel to guess to the token to look at, which holds the pixel before its own place: above, above to
# the left and right, two to the left, two above.  The one to the left needs no look: the token itself holds it.
AROUND = ((-1, 1), (-1, 0), (-1, 2), (0, -1), (-2, 1), (0, -2), (-2, 2), (-2, 0))
SHARP = 4.0  # how clearly heads look there before training


@dataclass(frozen=True, config=STRICT)
class ImageGPTConfig:
    """The defaults are iGPT-S, section 3.3 of the paper: 32 × 32 pixels of 512 colours."""

    image: int = 32  # side of the square picture, in pixels
    channels: int = 3
    levels: int = 8  # brightnesses of a channel
    dim: int = 512
    depth: int = 24
    heads: int = 8
    mlp_ratio: int = 4  # the mlp is this many times as wide
    dropout: float = 0.0  # after each sub-layer and on the embeddings

    def __post_init__(self) -> None:
        require_min(1, image=self.image, channels=self.channels)
        require_min(2, levels=self.levels)
        require_max(256, levels=self.levels)
        if self.levels**self.channels > 65_536:
            raise ValueError(
                f"{self.levels} levels in {self.channels} channels make {self.levels**self.channels:,} colours; "
                f"use fewer levels, such as 8"
            )
        require_min(1, dim=self.dim, depth=self.depth, heads=self.heads, mlp_ratio=self.mlp_ratio)
        require_divisible(self.dim, self.heads)
        require_fraction(dropout=self.dropout)

    @property
    def colours(self) -> int:
        """How many there are; also the number of the start."""
        return int(self.levels**self.channels)

    @property
    def stack(self) -> GPTConfig:
        """The GPT that reads the pixels."""
        return GPTConfig(vocab=self.colours + 1, dim=self.dim, depth=self.depth, heads=self.heads, mlp_ratio=self.mlp_ratio,
                         max_len=self.image**2, dropout=self.dropout, attention_dropout=0.0)  # fmt: skip


SIZES = {  # small, medium and large: section 3.3 of the paper, heads as released
    "tiny": ImageGPTConfig(image=28, channels=1, dim=128, depth=4, heads=4),
    "small": ImageGPTConfig(),
    "medium": ImageGPTConfig(dim=1024, depth=36),
    "large": ImageGPTConfig(dim=1536, depth=48, heads=16),
}


class ImageGPT(nn.Module):
    """`forward` returns logits.  `decode.fast.decoder` generates an image one pixel at a time."""

    def __init__(self, config: ImageGPTConfig):
        super().__init__()
        self.config, self.gpt = config, GPT(config.stack)
        self.output = self.gpt.output
        embed = self.gpt.embed
        init_local_heads([block.attn for block in self.gpt.blocks], embed.positions.table, [embed.tokens.weight],
                     [config.image, config.image], AROUND, SHARP, 0.02)  # fmt: skip

    @property
    def max_len(self) -> int:
        """Pixels of a picture."""
        return self.gpt.max_len

    def features(self, tokens: Tensor) -> Tensor:
        """What the output layer reads: (B, T) → (B, T, D)."""
        return self.gpt.features(tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the pixel after each: (B, T) → (B, T, V)."""
        return self.gpt(tokens)
