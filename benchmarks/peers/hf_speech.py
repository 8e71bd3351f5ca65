"""Hugging Face's side of speech_speed.py: its Conformer encoder between the two convolutions and the output layer."""

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer import Wav2Vec2ConformerEncoder
from worker import serve, timed


class Subsample(nn.Module):
    """The convolutions before the encoder; both halve time and frequency."""

    def __init__(self, features: int, dim: int):
        super().__init__()
        self.convs = nn.ModuleList((nn.Conv2d(1, dim, 3, 2, 1), nn.Conv2d(dim, dim, 3, 2, 1)))
        self.out = nn.Linear(features // 4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, F, C) → (B, S, D)."""
        x = x[:, None]
        for conv in self.convs:
            x = torch.relu_(conv(x))
        return self.out(x.permute(0, 2, 3, 1).flatten(2))


class Recognizer(nn.Module):
    """Convolutions, encoder, output layer."""

    def __init__(self, shape: dict[str, Any]):
        super().__init__()
        config = transformers.Wav2Vec2ConformerConfig(
            hidden_size=shape["dim"], num_attention_heads=shape["heads"], num_hidden_layers=shape["depth"],
            intermediate_size=shape["mlp_ratio"] * shape["dim"], conv_depthwise_kernel_size=shape["kernel"], hidden_act="swish",
            position_embeddings_type="relative", attn_implementation="sdpa",
        )  # fmt: skip
        self.subsample = Subsample(shape["features"], shape["dim"])
        self.encoder = Wav2Vec2ConformerEncoder(config)
        self.encoder.layer_norm = nn.Identity()  # each layer ends in a norm; this is one more
        self.encoder.pos_conv_embed = nn.Identity()  # not used with relative positions
        self.ctc = nn.Linear(shape["dim"], shape["vocab"])

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        """(B, F, C) → logits (B, S, V)."""
        x = self.subsample(frames)
        padded = bool((lengths < frames.shape[1]).any())
        mask = torch.arange(x.shape[1]) < subsampled(lengths)[:, None] if padded else None
        return self.ctc(self.encoder(x, attention_mask=mask).last_hidden_state)


def subsampled(lengths: Tensor) -> Tensor:
    """Frames after the convolutions."""
    return (lengths + 3) // 4


class Side:
    """What the requests ask of transformers."""

    def prepare(self, folder: str, shape: dict[str, Any]) -> None:
        """Build the model and load its weights."""
        self.model, self.features = Recognizer(shape), shape["features"]
        absent, unknown = self.model.load_state_dict(load_file(Path(folder) / "theirs.safetensors"), strict=False)
        if unknown or any("num_batches_tracked" not in name for name in absent):
            raise ValueError(f"weights do not fit: {unknown} are unknown, {absent} are absent")
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
        """Token ids of each utterance: the most likely of each frame, without repetitions and blanks."""
        best = self.model(frames, lengths).argmax(-1)
        rows = (row[:count].unique_consecutive() for row, count in zip(best, subsampled(lengths).tolist(), strict=True))
        return [row[row != 0].tolist() for row in rows]

    def inputs(self, lengths: list[int]) -> tuple[Tensor, Tensor]:
        """Random frames, zero where there is no utterance, and the lengths."""
        random = torch.Generator().manual_seed(len(lengths))
        frames = torch.randn(len(lengths), max(lengths), self.features, generator=random)
        for row, length in zip(frames, lengths, strict=True):
            row[length:] = 0
        return frames, torch.tensor(lengths)

    def versions(self) -> dict[str, str]:
        """Of the libraries that decide the speed."""
        return {"transformers": transformers.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    side = Side()
    serve({name: getattr(side, name) for name in ("prepare", "logits", "repeat", "versions")})
