"""Sound files → samples: mono, at the rate a model reads; long files come in blocks.

Resampling is a sum over a windowed sinc, y[n] = Σ_k x[k] h(n·from/to − k), computed for each phase of n.  Sound before the
first and after the last sample is silence.

Shapes: N samples, K taps of the filter.
"""

import io
import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import torch
from torch import Tensor

__all__ = ["SoundFile", "audio_rate", "audio_seconds", "read_audio", "resample", "stream_audio"]

SoundFile = str | Path | bytes  # a file, or its content

ZEROS = 32  # zero crossings of the sinc on each side
ROLLOFF = 0.95  # where the filter cuts, as a fraction of the lower of the two Nyquist frequencies
BETA = 8.0  # of the Kaiser window
HEAD = 256  # bytes of a file that tell what it is instead of sound
BLOCK = 1 << 18  # samples of a file that are decoded together
TABLE = 1 << 20  # numbers in the largest table for all phases at once
CHUNK = 1 << 22  # numbers gathered at once: bounds the memory of resampling
LOUDEST = 1e5  # a sample of a float file; integers that were never scaled to -1…1 are below, those whose power overflows above
TAPS = 1 << 24  # of the largest filter: a header may claim any rate


def read_audio(file: SoundFile, rate: int) -> Tensor:
    """Read a sound file (wav, flac, ogg, mp3): (N,) float32, from -1 to 1, `rate` samples a second; channels are averaged."""
    blocks = list(_resample_blocks(_decode(file), _open(file).samplerate, rate))
    return torch.cat(blocks)


def stream_audio(file: SoundFile, rate: int, seconds: float) -> Iterator[Tensor]:
    """Read a long file in blocks of `seconds`, the last one shorter: together the samples of `read_audio`, in bounded memory."""
    size = max(1, round(seconds * rate))
    parts, held = list[Tensor](), 0
    for block in _resample_blocks(_decode(file), _open(file).samplerate, rate):
        parts.append(block)
        held += len(block)
        if held >= size:
            joined = torch.cat(parts)
            whole = held // size * size
            yield from joined[:whole].split(size)
            parts, held = [joined[whole:].clone()], held - whole
    if held:
        yield torch.cat(parts)


def audio_seconds(file: SoundFile) -> float:
    """How long a sound file is, from its header."""
    with _open(file) as sound:
        return sound.frames / sound.samplerate


def audio_rate(file: SoundFile) -> int:
    """The samples a second of a sound file, from its header."""
    with _open(file) as sound:
        return int(sound.samplerate)


def _open(file: SoundFile) -> soundfile.SoundFile:
    if isinstance(file, bytes):
        try:
            return soundfile.SoundFile(io.BytesIO(file))
        except (soundfile.SoundFileError, OSError, TypeError) as error:
            raise ValueError(f"the sound is not readable: {_describe_content(file[:HEAD], error)}") from None
    path = Path(file)
    if not path.exists():
        raise ValueError(f"no file {path}; check the path")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a sound file")
    try:
        return soundfile.SoundFile(path)
    except (soundfile.SoundFileError, OSError, TypeError) as error:
        raise ValueError(f"{path} is not a readable sound file: {_describe(path, error)}") from None


def _describe(path: Path, error: Exception) -> str:
    """Say what kind of file it is instead, and what to do."""
    try:
        with open(path, "rb") as stream:
            head = stream.read(HEAD)
    except OSError as reason:
        return f"{reason.strerror}; give a file that can be read"
    if head and path.suffix.lower() == ".raw":
        return "raw samples do not say their rate; convert them to wav"
    return _describe_content(head, error)


def _describe_content(head: bytes, error: Exception) -> str:
    """The same, from the first bytes."""
    if not head:
        return "it is empty; get it again"
    if b"\0" not in head and head.decode("utf-8", "ignore").replace("\n", "").replace("\r", "").replace("\t", "").isprintable():
        return f"it begins with {head[:20].decode('utf-8', 'ignore')!r}; give a wav, flac, ogg or mp3 file"
    why = " ".join(str(getattr(error, "error_string", error)).split()).rstrip(".")
    return f"{why}; give a wav, flac, ogg or mp3 file"


def _decode(file: SoundFile) -> Iterator[Tensor]:
    """The samples of a file in blocks, mono, at its own rate; (N,) each."""
    total, name = 0, "the sound" if isinstance(file, bytes) else file
    with _open(file) as sound:
        while True:
            try:
                block = sound.read(BLOCK, dtype="float32", always_2d=True)  # (N, channels)
            except soundfile.SoundFileError as error:
                why = " ".join(str(getattr(error, "error_string", error)).split()).rstrip(".")
                raise ValueError(f"{name} is damaged or cut short after sample {total:,} ({why}); replace it") from None
            if not len(block):
                break
            mono = block[:, 0] if block.shape[1] == 1 else block.mean(1)
            if not np.isfinite(mono).all():
                at = total + int(np.flatnonzero(~np.isfinite(mono))[0])
                raise ValueError(f"{name} has a sample that is not a number, sample {at:,}; write it again, or leave it out")
            if (loudest := float(np.abs(mono).max())) > LOUDEST:
                raise ValueError(f"{name} has a sample of {loudest:.3g}; samples are between -1 and 1: scale them down")
            total += len(block)
            yield torch.from_numpy(np.ascontiguousarray(mono))
    if not total:
        raise ValueError(f"{name} has no samples; give a file with sound in it")


def resample(x: Tensor, source: int, target: int) -> Tensor:
    """Change the rate of sound from `source` to `target` samples a second: (N,) → (⌈N·target/source⌉,)."""
    return torch.cat(list(_resample_blocks([x], source, target)))


class _Filter(NamedTuple):
    """The windowed sinc for a ratio of rates: `up` outputs for `down` inputs."""

    up: int
    down: int
    taps: Tensor  # (up, K): of each phase
    first: Tensor  # (up,): the input that the first tap of each phase reads, from the start of its group

    @property
    def span(self) -> int:
        """Inputs that one group of `up` outputs reads."""
        return int(self.first[-1]) + self.taps.shape[1]

    @property
    def before(self) -> int:
        """Inputs that a group reads before its own first one."""
        return self.taps.shape[1] // 2

    def apply(self, x: Tensor) -> Tensor:
        """Inputs of whole groups → their outputs, `up` for each group."""
        taps, outputs = self.taps.to(x.dtype), []
        groups = x.unfold(0, self.span, self.down)  # (groups, span)
        if self.up * self.span > TABLE:  # an odd ratio, such as 44,101 to 16,000: one tap at a time is never stored twice
            for group in groups:
                outputs.append((group.unfold(0, taps.shape[1], 1)[self.first] * taps).sum(1))
            return torch.cat(outputs)
        table = x.new_zeros(self.up, self.span)
        table.scatter_(1, self.first[:, None] + torch.arange(taps.shape[1]), taps)
        for part in groups.split(max(1, CHUNK // self.span)):
            outputs.append((part @ table.T).flatten())
        return torch.cat(outputs)


@lru_cache(maxsize=32)
def _filter(up: int, down: int) -> _Filter:
    cut = min(1.0, up / down) * ROLLOFF
    width = math.ceil(ZEROS / cut)
    if up * (2 * width + 1) > TAPS:
        raise ValueError(f"sound at {down / up:,.3f} times the rate of the model; the filter between the two would not fit into "
                         f"memory: convert it to 16,000, 44,100 or 48,000 samples a second")  # fmt: skip
    phase = torch.arange(up, dtype=torch.int64) * down
    offset = torch.arange(-width, width + 1) - (phase % up).double()[:, None] / up  # (up, K)
    t = cut * offset
    inside = (1 - (t / ZEROS) ** 2).clamp(min=0).sqrt()
    taps = torch.sinc(t) * torch.special.i0(BETA * inside) * (t.abs() < ZEROS)
    return _Filter(up, down, taps / taps.sum(1, keepdim=True), phase // up)  # a constant stays the same constant


def _resample_blocks(blocks: Iterable[Tensor], source: int, target: int) -> Iterator[Tensor]:
    """Resample sound that comes in blocks: the same samples as in one block."""
    if source == target:
        yield from blocks
        return
    divisor = math.gcd(source, target)
    sinc = _filter(target // divisor, source // divisor)
    total, made, buffer = 0, 0, None

    for block in blocks:
        total += len(block)
        buffer = torch.cat((block.new_zeros(sinc.before) if buffer is None else buffer, block))
        groups = (len(buffer) - sinc.span) // sinc.down + 1
        if groups > 0:
            yield sinc.apply(buffer[: (groups - 1) * sinc.down + sinc.span])
            buffer, made = buffer[groups * sinc.down :], made + groups * sinc.up

    # The last groups read silence beyond the end.
    left = -(-total * sinc.up // sinc.down) - made
    if buffer is not None and left > 0:
        groups = -(-left // sinc.up)
        padded = buffer.new_zeros((groups - 1) * sinc.down + sinc.span)
        padded[: len(buffer)] = buffer[: len(padded)]
        yield sinc.apply(padded)[:left]
