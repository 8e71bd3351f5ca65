"""Samples → frames: log-mel spectra, or the mel cepstra of CMU Sphinx.

    log-mel    Hann window, power spectrum, Slaney's mel filters, natural logarithm: librosa's conventions
    mfcc       pre-emphasis, Hamming window, power spectrum, HTK's mel filters, logarithm, cosine transform: those of sphinx_fe

Frame i of log-mel is centred on sample i·hop, and sound outside the file is silence, so that padding an utterance with zeros
changes none of its frames.  A window of mfcc begins at sample i·hop.

Shapes: N samples, F frames, C channels (mel filters or cepstra), W samples of a window; `...` is any batch dimensions.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.audio.config import AudioData

__all__ = ["FrontEnd", "front_end", "log_mel", "mel_filters", "mfcc", "normalize_frames", "slaney_edges"]

FLOOR = 1e-10  # smallest mel power, of log-mel
SPHINX_FLOOR = 1e-4  # added to the mel power, of mfcc
PREEMPHASIS = 0.97
FULL_SCALE = 32_768  # Sphinx reads samples as 16-bit integers
LOW, HIGH = 130.0, 6800.0  # Hz, of Sphinx's filters for sound of 16 kHz
SMALLEST_STD = 1e-3  # a constant channel is not amplified


class FrontEnd(NamedTuple):
    """Everything that the frames of a sound depend on."""

    features: str
    rate: int
    mels: int
    ceps: int
    window: float  # milliseconds
    hop: float
    low: float  # Hz
    high: float

    @property
    def channels(self) -> int:
        """Numbers in a frame."""
        return self.ceps if self.features == "mfcc" else self.mels

    @property
    def step(self) -> float:
        """Seconds from one frame to the next: a whole number of samples."""
        return _samples(self.rate, self.hop) / self.rate

    def count(self, samples: int) -> int:
        """The frames of `samples` samples."""
        hop = _samples(self.rate, self.hop)
        if self.features == "log-mel":
            return 1 + samples // hop
        return _mfcc_frames(samples, _samples(self.rate, self.window), hop)

    def compute(self, x: Tensor) -> Tensor:
        """The frames of sound: (..., N) → (..., F, C)."""
        if self.features == "log-mel":
            return log_mel(x, self.rate, self.mels, self.window, self.hop, self.low, self.high)
        return mfcc(x, self.rate, self.ceps, self.mels, self.window, self.hop, self.low, self.high)


def front_end(data: AudioData) -> FrontEnd:
    """The front end that a config describes, with the usual values of its features where it says 0."""
    if data.features == "log-mel":
        usual = (data.mels or 80, data.window or 25.0, data.low, data.high or data.rate / 2)
    else:
        usual = (data.mels or 40, data.window or 25.625, data.low or LOW, data.high or min(HIGH, data.rate / 2))
    mels, window, low, high = usual
    if low >= high:
        raise ValueError(f"data.low={low} is not below data.high={high}; give a lower one")
    if data.features == "mfcc" and data.ceps > mels:
        raise ValueError(f"data.ceps={data.ceps} is more than the {mels} mel filters; use {mels} or less")
    if data.features == "mfcc":
        size = _fft_size(_samples(data.rate, window))
        if not bool(_sphinx_filters(data.rate, size, mels, low, high).isfinite().all()):  # two edges fell on one bin
            raise ValueError(f"data.mels={mels} is more filters than an FFT of {size} samples resolves; use fewer, or a longer "
                             f"data.window than {window:g} ms")  # fmt: skip
    return FrontEnd(data.features, data.rate, mels, data.ceps, window, data.hop, low, high)


def log_mel(x: Tensor, rate: int = 16_000, mels: int = 80, window: float = 25.0, hop: float = 10.0, low: float = 0.0,
            high: float = 0.0) -> Tensor:  # fmt: skip
    """The natural logarithm of mel power: (..., N) → (..., 1 + N // hop, C); `window` and `hop` in milliseconds."""
    width, step = _samples(rate, window), _samples(rate, hop)
    size = _fft_size(width)
    before = size // 2 - (size - width) // 2  # so that the middle of an FFT is at sample i·hop
    frames = 1 + x.shape[-1] // step
    x = F.pad(x, (before, (frames - 1) * step + width - before - x.shape[-1]))
    taper = torch.hann_window(width, dtype=x.dtype)
    power = _power(x, taper, step, size)  # (..., F, size / 2 + 1)
    mel = power @ _slaney_filters(rate, size, mels, low, high or rate / 2).to(x.dtype)
    return mel.clamp(min=FLOOR).log()


def mfcc(x: Tensor, rate: int = 16_000, ceps: int = 13, mels: int = 40, window: float = 25.625, hop: float = 10.0,
         low: float = LOW, high: float = HIGH) -> Tensor:  # fmt: skip
    """Mel cepstra as CMU Sphinx's sphinx_fe computes them: (..., N) → (..., F, C)."""
    width, step = _samples(rate, window), _samples(rate, hop)
    size = _fft_size(width)
    end = (_mfcc_frames(x.shape[-1], width, step) - 1) * step + width
    x = FULL_SCALE * F.pad(x, (1, end - x.shape[-1]))  # silence before and after
    x = x[..., 1:] - PREEMPHASIS * x[..., :-1]
    taper = torch.hamming_window(width, periodic=False, dtype=x.dtype)
    power = _power(x, taper, step, size)
    mel = (power @ _sphinx_filters(rate, size, mels, low, high).to(x.dtype) + SPHINX_FLOOR).log()
    return mel @ _sphinx_cosines(mels, ceps).to(x.dtype)


def _mfcc_frames(samples: int, width: int, step: int) -> int:
    """Whole windows, and one more for the rest."""
    return 1 + max(0, -(-(samples - width) // step))


def _samples(rate: int, milliseconds: float) -> int:
    return max(1, round(rate * milliseconds / 1000))


def _fft_size(width: int) -> int:
    """The smallest power of two that holds a window."""
    return 1 << (width - 1).bit_length()


def _power(x: Tensor, taper: Tensor, step: int, size: int) -> Tensor:
    """The power spectrum of each window: (..., N) → (..., F, size / 2 + 1)."""
    windows = x.unfold(-1, len(taper), step) * taper  # (..., F, W)
    spectrum = torch.view_as_real(torch.fft.rfft(windows, size))
    return spectrum.square().sum(-1)


def mel_filters(edges: Tensor, bins: Tensor) -> Tensor:
    """Triangles of area 1 between the frequencies `edges` (C + 2,), at the frequencies `bins`: (bins, C)."""
    low, mid, high = edges[:-2], edges[1:-1], edges[2:]  # (C,)
    rising = (bins[:, None] - low) / (mid - low)
    falling = (high - bins[:, None]) / (high - mid)
    return torch.minimum(rising, falling).clamp(min=0) * 2 / (high - low)


@lru_cache(maxsize=8)
def _slaney_filters(rate: int, size: int, mels: int, low: float, high: float) -> Tensor:
    """Filters evenly spaced on Slaney's scale."""
    return mel_filters(slaney_edges(mels, low, high), torch.arange(size // 2 + 1, dtype=torch.float64) * rate / size)


def slaney_edges(mels: int, low: float, high: float) -> Tensor:
    """Frequencies in Hz, evenly spaced on Slaney's scale: (C + 2,).  Filter c has its peak at edge c + 1.

    The scale is linear up to 1,000 Hz, 15 mels there, then has 27 mels for a factor of 6.4.
    """

    def to_mel(hz: float) -> float:
        return 3 * hz / 200 if hz < 1000 else 15 + 27 * math.log(hz / 1000) / math.log(6.4)

    mel = torch.linspace(to_mel(low), to_mel(high), mels + 2, dtype=torch.float64)
    return torch.where(mel < 15, 200 * mel / 3, 1000 * 6.4 ** ((mel - 15) / 27))


@lru_cache(maxsize=8)
def _sphinx_filters(rate: int, size: int, mels: int, low: float, high: float) -> Tensor:
    """Filters evenly spaced on HTK's scale, 2595 log10(1 + f / 700), their edges rounded to the bins of the FFT."""
    first, last = (2595 * math.log10(1 + hz / 700) for hz in (low, high))
    edges = 700 * (10 ** (torch.linspace(first, last, mels + 2, dtype=torch.float64) / 2595) - 1)
    edges = (edges * size / rate + 0.5).floor() * rate / size
    return mel_filters(edges, torch.arange(size // 2 + 1, dtype=torch.float64) * rate / size)


@lru_cache(maxsize=8)
def _sphinx_cosines(mels: int, ceps: int) -> Tensor:
    """Sphinx's first cosine transform, in which the lowest filter has half the weight of the others: (mels, ceps)."""
    k, j = torch.arange(ceps, dtype=torch.float64), torch.arange(mels, dtype=torch.float64)[:, None]
    cosines = torch.cos(math.pi / mels * k * (j + 0.5)) / mels
    return cosines * torch.where(j == 0, 0.5, 1.0)


def normalize_frames(frames: Tensor, lengths: Tensor, mean: Tensor | None = None, std: Tensor | None = None) -> Tensor:
    """Make the mean of each channel 0 and its standard deviation 1, over the frames of each utterance or as given.

    frames (B, F, C), lengths (B,), mean and std (B, C).  Padding becomes 0.
    """
    real = (torch.arange(frames.shape[1]) < lengths[:, None])[:, :, None]  # (B, F, 1)
    if mean is None or std is None:
        count = lengths[:, None]
        mean = torch.where(real, frames, 0).sum(1) / count  # (B, C)
        std = (torch.where(real, frames - mean[:, None], 0).square().sum(1) / count).sqrt()
    return torch.where(real, (frames - mean[:, None]) / std.clamp(min=SMALLEST_STD)[:, None], 0)
