"""A picture in, its class out.

Shapes: B pictures, Y X rows and columns, C channels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from regard.config import Run
from regard.data.image.batches import to_model_input
from regard.data.image.config import ImageData
from regard.data.image.io import Bytes
from regard.data.image.store import read_square, resize_function, resize_side
from regard.decode.reader import Guess

__all__ = ["UNTRAINED", "ImageClassifier"]

UNTRAINED = (
    "this model has learnt no classes; train it on some: regard train images init=THIS_FOLDER data.train=PICTURES"
)


@dataclass(frozen=True)
class ImageClassifier:
    """A model of pictures, the run it comes from, and the names of the classes it knows."""

    VERBS: ClassVar = ("classify",)  # of the command line, that take it

    model: Any
    run: Run
    labels: tuple[str, ...]

    @torch.inference_mode()
    def classify(
        self, pictures: Sequence[str | Path | Bytes], top: int = 1, progress: Callable[[int], None] = lambda done: None
    ) -> list[list[Guess]]:
        """The likeliest classes of each picture, a file or an array (Y, X, C) of bytes, best first."""
        if isinstance(pictures, str | Path):
            raise ValueError("a list of pictures is wanted, not one; put it in brackets")
        if "classifier" in self.run.untrained.split(","):
            raise ValueError(UNTRAINED)
        found, size = [], self.run.decode.batch_size
        for first in range(0, len(pictures), size):
            seen = torch.cat([self.read(one) for one in pictures[first : first + size]])  # (B, C, Y, X)
            odds, best = self.model(seen).softmax(-1).topk(min(top, len(self.labels)))
            for ps, numbers in zip(odds.tolist(), best.tolist(), strict=True):
                found.append([Guess(self.labels[n], p) for n, p in zip(numbers, ps, strict=True)])
            progress(len(found))
        return found

    def read(self, picture: str | Path | Bytes) -> Tensor:
        """What the model sees of a picture: its middle, scaled; (1, C, Y, X)."""
        return to_model_input(self.square(picture)[None], self.run.model.image, cast(ImageData, self.run.data)).to(
            self._device
        )

    def square(self, picture: str | Path | Bytes) -> Bytes:
        """The middle of a picture, as training saw it: (Y, X, C)."""
        c, how = self.run.model, cast(ImageData, self.run.data)
        side = resize_side(how, c.image)
        if isinstance(picture, str | Path):
            return read_square(how, c, side, Path(picture))
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != c.channels or not picture.size:
            raise ValueError(
                f"an array of {picture.dtype}, {picture.shape}; wanted bytes (uint8), rows × columns × {c.channels}"
            )
        return resize_function(how, c.image)(picture, side)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device
