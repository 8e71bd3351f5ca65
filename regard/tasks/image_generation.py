"""Image generation (Image GPT): images in, a decoder that predicts the next pixel; the run then generates images.

Shapes: B images, T pixels, Y X rows and columns, C channels, V colours and the start token.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.config import Run
from regard.data.image.batches import all_pixel_batches, dequantize, pixel_batches
from regard.data.image.config import ImageData, require_unchanged
from regard.data.image.io import Bytes
from regard.data.image.store import ImageDataset, prepare, read_split
from regard.data.position import BatchStream, DataPosition
from regard.data.text.windows import WindowBatch
from regard.decode import search
from regard.decode.fast import decoder
from regard.tasks.language_model import CausalModel, next_token_loss
from regard.tasks.metrics import Score, evaluate
from regard.tasks.origin import predictor_repr
from regard.tasks.task import Card, Progress, Report, ScoreOptions, Task

__all__ = ["TASK", "ImageGenerator"]

MAX_IMAGES = 4096  # of one call


@dataclass(frozen=True, repr=False)
class ImageGenerator:
    """A trained pixel model."""

    VERBS: ClassVar = ("generate",)  # of the command line
    INPUT: ClassVar = "nothing"
    OUTPUT: ClassVar = "images"
    HINTS: ClassVar = {"show": "generates images and takes none; see some: regard generate THIS_FOLDER --out samples.png"}

    __repr__ = predictor_repr

    model: nn.Module
    run: Run

    @torch.inference_mode()
    def generate(
        self, count: int = 1, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Bytes:  # fmt: skip
        """Generate `count` images, each pixel sampled given those before it, as `search.sampler` describes: (B, Y, X, C).

        A temperature of 0 is greedy; all images are then the same.
        """
        c = self.run.model
        if not 1 <= count <= MAX_IMAGES:
            raise ValueError(f"{count} images; ask for 1 to {MAX_IMAGES:,}")
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed {seed}; use 0 or more and less than 2 ** 63")
        device = next(self.model.parameters()).device
        choose: Callable[[Tensor], Tensor] = search.argmax
        if temperature != 0:
            choose = search.sampler(torch.Generator(device).manual_seed(seed), temperature, top_k, top_p)
        steps, pixels, length = decoder(self.model), [], c.image**2
        for first in range(0, count, self.run.decode.batch_size):
            token = torch.full((min(self.run.decode.batch_size, count - first),), c.colours, device=device)
            state, chosen = steps.start(token[:, None]), []
            for position in range(length):
                logits, state = steps.step(token, state)  # (B, V)
                token = choose(logits[:, : c.colours])  # the start token is not a colour
                chosen.append(token)
                progress(first * length + (position + 1) * len(token))
            pixels.append(torch.stack(chosen, 1).cpu().numpy())  # (B, T)
        return dequantize(np.concatenate(pixels), c.levels, c.image, c.channels)


def _prepare(run: Run, tokenizer: Path, report: Report, progress: Progress) -> ImageDataset:
    require_unchanged(run.data)
    return prepare(run.data, run.model, report, progress, labeled=False)


def _batches(run: Run, dataset: ImageDataset, position: DataPosition) -> BatchStream[WindowBatch]:
    t = run.train
    return pixel_batches(dataset.train, run.model.levels, t.batch_size, t.seed, run.data.fraction, position)


def _validation(run: Run, dataset: ImageDataset) -> Iterator[WindowBatch]:
    return all_pixel_batches(dataset.valid, run.model.levels, run.train.batch_size)


def _score(generator: ImageGenerator, split: str, options: ScoreOptions) -> list[Score]:
    """Bits per pixel: the mean negative log₂-likelihood."""
    run = generator.run
    images = read_split(run.data, run.model, split, options.report, labeled=False)
    batches = all_pixel_batches(images, run.model.levels, run.train.batch_size)
    loss = evaluate(generator.model, batches, next_token_loss)
    how = f"of {run.model.colours} colours, {len(images):,} images of {run.model.image} × {run.model.image}"
    return [Score("bits per pixel", loss / math.log(2), how)]


TASK: Task[CausalModel, ImageDataset, WindowBatch, ImageGenerator] = Task(
    name="image_generation",
    kinds=("image-decoder",),
    data=ImageData,
    card=Card("generates images", "unconditional-image-generation", "generate", "generate(16)", "--out images.png", "nothing"),
    prepare=_prepare,
    batches=_batches,
    validation=_validation,
    loss=next_token_loss,
    predictor=lambda model, run, tokenizer, labels: ImageGenerator(model, run),
    score=_score,
    batch_text=lambda run, batches: f"{run.train.batch_size * batches:,} images",
    unit="pixel",
    perplexity=False,
)
