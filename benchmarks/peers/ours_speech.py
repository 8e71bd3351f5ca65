"""regard's side of speech_speed.py: frames in, transcripts by the best path of CTC out."""

import importlib.metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from worker import serve, timed

from regard.decode.ctc import best_path
from regard.models import load_weights
from regard.models.conformer import Conformer, ConformerConfig


class Side:
    """What the requests ask of regard."""

    def prepare(self, folder: str, shape: dict[str, Any]) -> None:
        """Build the model and load its weights."""
        self.model = Conformer(ConformerConfig(**shape))
        load_weights(self.model, Path(folder) / "ours.safetensors")
        self.model.eval().requires_grad_(False)

    @torch.inference_mode()
    def logits(self, lengths: list[int]) -> list[list[float]]:
        """Of the last utterance, of frames that are the same on each side."""
        return self.model(*self.inputs(lengths))[-1].tolist()

    @torch.inference_mode()
    def repeat(self, lengths: list[int], rounds: int) -> float:
        """Seconds of one batch, the mean of several in a row."""
        frames, real = self.inputs(lengths)
        return timed(lambda: [self.transcribe(frames, real) for _ in range(rounds)])[0] / rounds

    def transcribe(self, frames: Tensor, lengths: Tensor) -> list[list[int]]:
        """Token ids of each utterance."""
        log_probs = self.model(frames, lengths).log_softmax(-1)
        return [hypothesis.tokens for hypothesis in best_path(log_probs, self.model.subsampled(lengths))]

    def inputs(self, lengths: list[int]) -> tuple[Tensor, Tensor]:
        """Random frames, zero where there is no utterance, and the lengths."""
        random = torch.Generator().manual_seed(len(lengths))
        frames = torch.randn(len(lengths), max(lengths), self.model.config.features, generator=random)
        for row, length in zip(frames, lengths, strict=True):
            row[length:] = 0
        return frames, torch.tensor(lengths)

    def versions(self) -> dict[str, str]:
        """Of the libraries that decide the speed."""
        return {"regard": importlib.metadata.version("regard"), "torch": torch.__version__}


if __name__ == "__main__":
    side = Side()
    serve({name: getattr(side, name) for name in ("prepare", "logits", "repeat", "versions")})
