"""Random changes of speech: speed perturbation and SpecAugment.

`change_speed` plays sound faster or slower (https://www.isca-archive.org/interspeech_2015/ko15_interspeech.html), `spec_augment`
sets spans of frames and bands of channels to 0, the mean of normalised frames (https://arxiv.org/abs/1904.08779, not warped).

Shapes: B batch, N samples, F frames, C channels.
"""

import torch
from torch import Generator, Tensor

from regard.data.audio.io import resample

__all__ = ["change_speed", "length_after", "spec_augment"]


def change_speed(x: Tensor, factor: float) -> Tensor:
    """Play sound `factor` times as fast, resampled; ready frames are interpolated: (N,) or (F, C) → as many / `factor`."""
    if factor == 1:
        return x
    if x.dim() == 1:
        return resample(x, round(100 * factor), 100)
    at = (torch.arange(length_after(len(x), factor, ready=True)) * factor).clamp(max=len(x) - 1)
    before = at.floor().long()
    after = (before + 1).clamp(max=len(x) - 1)
    return torch.lerp(x[before], x[after], (at - before)[:, None].to(x.dtype))


def length_after(length: int, factor: float, *, ready: bool) -> int:
    """How many samples, or `ready` frames, `change_speed` returns."""
    if factor == 1:
        return length
    return max(1, round(length / factor)) if ready else -(-length * 100 // round(100 * factor))


def spec_augment(frames: Tensor, lengths: Tensor, generator: Generator, *, time_masks: int, time_mask: float, freq_masks: int,
                 freq_mask: int) -> Tensor:  # fmt: skip
    """Set random spans of each utterance to 0: frames (B, F, C), lengths (B,).

    Each of `time_masks` spans covers up to a fraction `time_mask` of the utterance, each of `freq_masks` bands up to `freq_mask`
    channels; all sizes are equally likely, also 0.
    """
    batch, count, channels = frames.shape
    masked = torch.zeros(batch, count, channels, dtype=torch.bool)
    for _ in range(time_masks):
        masked |= _spans(lengths, (time_mask * lengths).floor(), count, generator)[:, :, None]
    for _ in range(freq_masks):
        every = torch.full_like(lengths, channels)
        masked |= _spans(every, every.clamp(max=freq_mask), channels, generator)[:, None, :]
    return frames.masked_fill(masked, 0)


def _spans(lengths: Tensor, largest: Tensor, count: int, generator: Generator) -> Tensor:
    """One random span inside each row of `lengths`, of at most `largest`: (B, count), True inside."""
    size, start = torch.rand(2, len(lengths), generator=generator)
    size = (size * (largest + 1)).floor()
    first = (start * (lengths - size + 1)).floor()
    index = torch.arange(count)
    return (index >= first[:, None]) & (index < (first + size)[:, None])
