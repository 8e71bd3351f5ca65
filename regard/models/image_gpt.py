"""Image GPT: a GPT on pixels.  Each pixel, row by row, is predicted from those before it.

Chen et al. 2020 (iGPT), https://cdn.openai.com/papers/Generative_Pretraining_from_Pixels_V2.pdf

    logits of the next pixel's colour
                │
           ┌────┴────┐
           │   GPT   │
           └────┬────┘
    start, pixel 1, pixel 2, …

A colour has one of `levels` intensities per channel and is one token id; the start token is the last id.

Shapes: B batch, T = 1 + pixels, D width, V = levels ** channels + 1 token ids.
"""

from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from regard.config import STRICT, Family, check_model, require_divisible, require_max, require_min
from regard.layers.locality_init import init_local_heads
from regard.models.gpt import GPT, GPTConfig

__all__ = ["FAMILY", "SIZES", "ImageGPT", "ImageGPTConfig"]

# Offsets (rows, columns) from the predicted pixel to the attended token, which holds the pixel before its own position: above,
# above to the left and right, two to the left, two above.  The current token itself holds the pixel to the left.
NEIGHBOURS = ((-1, 1), (-1, 0), (-1, 2), (0, -1), (-2, 1), (0, -2), (-2, 2), (-2, 0))
SHARPNESS = 4.0  # of heads initialized to attend to neighbours


@dataclass(frozen=True, config=STRICT)
class ImageGPTConfig:
    """The defaults are iGPT-S, section 3.3 of the paper: 32 × 32 pixels of 512 colours."""

    image: int = 32  # side of the square image, in pixels
    channels: int = 3
    levels: int = 8  # intensities of a channel
    dim: int = 512
    depth: int = 24
    heads: int = 8
    mlp_ratio: int = 4  # width of the mlp, as a multiple of dim
    dropout: float = 0.0  # after each sub-layer and on the embeddings

    def __post_init__(self) -> None:
        require_min(2, levels=self.levels)
        require_max(256, levels=self.levels)
        check_model(self)
        require_divisible(self.dim, self.heads)
        if self.levels**self.channels > 65_536:
            raise ValueError(f"{self.levels} levels in {self.channels} channels make {self.levels**self.channels:,} colours; "
                             f"use fewer levels, such as 8")  # fmt: skip

    @property
    def colours(self) -> int:
        """Number of colours; also the id of the start token."""
        return int(self.levels**self.channels)

    @property
    def gpt(self) -> GPTConfig:
        """Config of the GPT."""
        return GPTConfig(vocab=self.colours + 1, dim=self.dim, depth=self.depth, heads=self.heads, mlp_ratio=self.mlp_ratio,
                         max_len=self.image**2, dropout=self.dropout, attention_dropout=0.0)  # fmt: skip


SIZES = {  # small, medium and large: section 3.3 of the paper, heads as released
    "tiny": ImageGPTConfig(image=28, channels=1, dim=128, depth=4, heads=4), "small": ImageGPTConfig(),
    "medium": ImageGPTConfig(dim=1024, depth=36), "large": ImageGPTConfig(dim=1536, depth=48, heads=16),
}  # fmt: skip


class ImageGPT(nn.Module):
    """`forward` returns logits.  `decode.fast.decoder` generates an image one pixel at a time."""

    def __init__(self, config: ImageGPTConfig):
        super().__init__()
        self.config, self.gpt = config, GPT(config.gpt)
        self.output, self.max_len, embed = self.gpt.output, self.gpt.max_len, self.gpt.embed
        init_local_heads([block.attn for block in self.gpt.blocks], embed.positions.table, [embed.tokens.weight],
                         [config.image, config.image], NEIGHBOURS, SHARPNESS, 0.02)  # fmt: skip

    def features(self, tokens: Tensor) -> Tensor:
        """Input of the output layer: (B, T) → (B, T, D)."""
        return self.gpt.features(tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next pixel: (B, T) → (B, T, V)."""
        return self.gpt(tokens)


FAMILY = Family(ImageGPTConfig, SIZES, ImageGPT, "image-decoder")
