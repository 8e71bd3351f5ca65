"""Log-mel and MFCC: equal to plain numpy, to librosa, and to the features that CMU distributes."""

import gzip
import io
import zipfile

import numpy as np
import pytest
import soundfile
import torch
from sounds import noise, require_set

from regard.data.audio.config import AudioData
from regard.data.audio.features import front_end, log_mel, mfcc, normalize_frames

SETTINGS = [(16_000, 80, 25.0, 10.0, 0.0, 8000.0), (8000, 40, 32.0, 12.5, 60.0, 3800.0), (22_050, 64, 25.0, 10.0, 0.0, 11_025.0)]


def slaney(mel: float) -> float:
    """Mel → Hz on Slaney's scale."""
    return mel * 200 / 3 if mel < 15 else 1000 * np.exp((mel - 15) * np.log(6.4) / 27)


def triangles(edges: list[float], rate: int, size: int) -> np.ndarray:
    """Mel filters of area 1, one number at a time."""
    bank = np.zeros((size // 2 + 1, len(edges) - 2))
    for bin_ in range(size // 2 + 1):
        hz = bin_ * rate / size
        for channel, (low, mid, high) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
            if low < hz <= mid:
                bank[bin_, channel] = (hz - low) / (mid - low) * 2 / (high - low)
            elif mid < hz < high:
                bank[bin_, channel] = (high - hz) / (high - mid) * 2 / (high - low)
    return bank


def plain_log_mel(x, rate, mels, window, hop, low, high):
    width, step = round(rate * window / 1000), round(rate * hop / 1000)
    size = 2 ** int(np.ceil(np.log2(width)))
    taper = np.zeros(size)
    taper[(size - width) // 2 : (size - width) // 2 + width] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(width) / width)
    ends = [hz * 3 / 200 if hz < 1000 else 15 + 27 * np.log(hz / 1000) / np.log(6.4) for hz in (low, high)]
    bank = triangles([slaney(mel) for mel in np.linspace(*ends, mels + 2)], rate, size)
    x = np.concatenate((np.zeros(size // 2), x, np.zeros(size)))
    rows = []
    for start in range(0, len(x) - size - size // 2 + 1, step):
        spectrum = np.fft.rfft(x[start : start + size] * taper)
        rows.append(np.log(np.maximum(np.abs(spectrum) ** 2 @ bank, 1e-10)))
    return np.array(rows)


def plain_mfcc(x, rate=16_000):
    """Sphinx's front end, a loop at a time."""
    x = np.concatenate((x * 32_768, np.zeros(500)))
    emphasized = np.array([x[n] - 0.97 * (x[n - 1] if n else 0) for n in range(len(x))])
    points = np.linspace(2595 * np.log10(1 + 130 / 700), 2595 * np.log10(1 + 6800 / 700), 42)
    edges = [np.floor(700 * (10 ** (m / 2595) - 1) / (rate / 512) + 0.5) * rate / 512 for m in points]
    bank, rows = triangles(edges, rate, 512), []
    for start in range(0, max(1, len(x) - 500 - 410 + 160), 160):
        frame = emphasized[start : start + 410] * np.hamming(410)
        mel = np.log(np.abs(np.fft.rfft(frame, 512)) ** 2 @ bank + 1e-4)
        first = (mel[0] / 2 + mel[1:].sum()) / 40
        others = [
            sum(mel[j] * np.cos(np.pi * k * (j + 0.5) / 40) * (1 if j == 0 else 2) for j in range(40)) / 80 for k in range(1, 13)
        ]
        rows.append([first, *others])
    return np.array(rows)


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize("count", [1, 159, 160, 5000])
def test_log_mel_equals_plain_numpy(how, count):
    x = noise(count).astype(np.float64)
    np.testing.assert_allclose(log_mel(torch.from_numpy(x), *how).numpy(), plain_log_mel(x, *how), rtol=0, atol=1e-6)


@pytest.mark.slow  # librosa is not among the test tools
@pytest.mark.parametrize("how", SETTINGS)
def test_log_mel_equals_librosa(how):
    librosa = pytest.importorskip("librosa", reason="no librosa; pip install librosa")
    rate, mels, window, hop, low, high = how
    x, width = noise(20_000).astype(np.float64), round(rate * window / 1000)
    power = librosa.feature.melspectrogram(y=x, sr=rate, n_fft=1 << (width - 1).bit_length(), win_length=width, n_mels=mels,
                                           hop_length=round(rate * hop / 1000), center=True, pad_mode="constant", fmin=low,
                                           fmax=high)  # fmt: skip
    wanted = np.log(np.maximum(power, 1e-10)).T
    np.testing.assert_allclose(log_mel(torch.from_numpy(x), *how).numpy(), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("count", [1, 410, 411, 570, 571, 3000])
def test_mfcc_equals_plain_numpy(count):
    x = noise(count).astype(np.float64)
    np.testing.assert_allclose(mfcc(torch.from_numpy(x)).numpy(), plain_mfcc(x), rtol=0, atol=1e-6)


def test_mfcc_of_the_wav_files_are_the_features_that_cmu_distributes():
    folder, stored = require_set("an4-mfcc"), {}
    for split in ("train", "valid", "test"):
        arrays = np.load(folder / f"{split}.npz")
        parts = np.split(arrays["feats"].astype(np.float64), arrays["offsets"][1:-1])
        names = [line.split("\t")[0] for line in gzip.decompress((folder / f"{split}.tsv.gz").read_bytes()).decode().splitlines()]
        stored |= dict(zip(names, parts, strict=True))
    with zipfile.ZipFile(folder / "raw_samples.zip") as samples:
        assert len(samples.namelist()) == 51
        for name in samples.namelist():
            x, rate = soundfile.read(io.BytesIO(samples.read(name)), dtype="float32")
            made, wanted = mfcc(torch.from_numpy(x), rate).numpy(), stored[name.removesuffix(".wav")]
            np.testing.assert_allclose(made, wanted, rtol=0, atol=0.0041)  # float16 rounds 8 to 16 by up to 0.0039


@pytest.mark.parametrize("features", ["log-mel", "mfcc"])
@pytest.mark.parametrize("rate", [8000, 16_000])
def test_the_count_of_frames_is_known_before_they_are_computed(features, rate):
    front = front_end(AudioData(features=features, rate=rate))
    for count in (1, 79, 80, 81, 399, 400, 401, 410, 411, 570, 571, 5000):
        frames = front.compute(torch.zeros(count))
        assert frames.shape == (front.count(count), front.channels)
        assert frames.isfinite().all()


@pytest.mark.parametrize("features", ["log-mel", "mfcc"])
def test_padding_and_the_other_utterances_of_a_batch_change_nothing(features):
    front = front_end(AudioData(features=features))
    sounds = [torch.from_numpy(noise(count, count)).double() for count in (1, 700, 3000, 5001)]
    batch = front.compute(torch.nn.utils.rnn.pad_sequence(sounds, batch_first=True))
    for row, sound in zip(batch, sounds, strict=True):
        torch.testing.assert_close(row[: front.count(len(sound))], front.compute(sound), rtol=0, atol=1e-9)


def test_normalised_frames_have_mean_0_and_standard_deviation_1_whatever_the_padding():
    frames, lengths = torch.randn(3, 9, 4, dtype=torch.float64) * 5 + 3, torch.tensor([9, 4, 1])
    made = normalize_frames(frames, lengths)
    for row, original, length in zip(made, frames, lengths.tolist(), strict=True):
        wanted = original[:length] - original[:length].mean(0)
        wanted = wanted / wanted.square().mean(0).sqrt() if length > 1 else wanted
        torch.testing.assert_close(row[:length], wanted)
        assert not row[length:].any()
    frames[1, 4:] = torch.nan
    torch.testing.assert_close(normalize_frames(frames, lengths), made)


def test_silence_is_normalised_to_zeros():
    assert not normalize_frames(log_mel(torch.zeros(1, 4000)), torch.tensor([26])).any()


@pytest.mark.parametrize(("how", "message"), [
    ({"low": 5000.0, "high": 4000.0}, r"data\.low=5000\.0 is not below data\.high=4000\.0"),
    ({"features": "mfcc", "ceps": 41}, r"data\.ceps=41 is more than the 40 mel filters; use 40 or less"),
])  # fmt: skip
def test_a_front_end_that_cannot_be_is_refused(how, message):
    with pytest.raises(ValueError, match=message):
        front_end(AudioData(**how))


@pytest.mark.parametrize("keys", [{"mels": 80}, {"window": 5.0}, {"rate": 8000, "mels": 64}])
def test_more_filters_than_the_fft_resolves_are_refused(keys):
    with pytest.raises(
        ValueError, match=r"is more filters than an FFT of \d+ samples resolves; use fewer, or a longer data\.window"
    ):
        front_end(AudioData(features="mfcc", **keys))


def test_the_step_of_frames_is_a_whole_number_of_samples():
    assert front_end(AudioData(rate=22_050)).step == pytest.approx(220 / 22_050)  # not 220.5
