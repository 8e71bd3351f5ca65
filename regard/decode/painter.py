"""Nothing in, pictures out: a model that draws, pixel by pixel.

Shapes: B pictures, T pixels, Y X rows and columns, C channels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.config import Run
from regard.data.image.batches import dequantize
from regard.decode import search

__all__ = ["ImageGenerator"]

MOST = 4096  # pictures on a sheet


@dataclass(frozen=True)
class ImageGenerator:
    """A model of pixels and the run it comes from."""

    VERBS: ClassVar = ("generate",)  # of the command line, that take it

    model: Any
    run: Run

    @torch.inference_mode()
    def draw(
        self,
        count: int = 1,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        progress: Callable[[int], None] = lambda done: None,
    ) -> npt.NDArray[np.uint8]:
        """So many pictures, each pixel drawn by its odds after those before it, as `search.drawing` says: (B, Y, X, C).

        A temperature of 0 takes the likeliest each time; all pictures are then the same.
        """
        c = self.model.config
        if not 1 <= count <= MOST:
            raise ValueError(f"{count} pictures; ask for 1 to {MOST:,}")
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed {seed}; use 0 or more and less than 2 ** 63")
        device = next(self.model.parameters()).device
        choose: Callable[[Tensor], Tensor] = search.argmax
        if temperature != 0:
            choose = search.sampler(torch.Generator(device).manual_seed(seed), temperature, top_k, top_p)
        numbers = []
        for first in range(0, count, self.run.decode.batch_size):
            token = torch.full((min(self.run.decode.batch_size, count - first),), c.colours, device=device)
            state, drawn = self.model.start(token[:, None]), []
            for place in range(c.image**2):
                logits, state = self.model.step(token, state)  # (B, V)
                token = choose(logits[:, : c.colours])  # a start is no colour
                drawn.append(token)
                progress(first * c.image**2 + (place + 1) * len(token))
            numbers.append(torch.stack(drawn, 1).cpu().numpy())  # (B, T)
        return dequantize(np.concatenate(numbers), c.levels, c.image, c.channels)
