"""Sound files of any kind and rate as samples, whole or in blocks."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sounds import noise, tone, write

from regard.data.audio import io
from regard.data.audio.io import audio_seconds, read_audio, resample, stream_audio

RATIOS = [(8000, 16_000), (16_000, 8000), (44_100, 16_000), (48_000, 16_000), (9, 10), (11, 10), (44_101, 16_000)]


def resample_by_the_formula(x: np.ndarray, source: int, target: int) -> np.ndarray:
    """One output at a time: a sinc below both Nyquist frequencies, 32 zeros to each side, under a Kaiser window."""
    cut = 0.95 * min(1, target / source)
    out = []
    for n in range(-(-len(x) * target // source)):
        at = n * source / target
        k = np.arange(int(np.ceil(at - 32 / cut)), int(np.floor(at + 32 / cut)) + 1)
        t = cut * (at - k)
        h = np.sinc(t) * np.i0(8 * np.sqrt(np.maximum(0, 1 - (t / 32) ** 2)))
        inside = (k >= 0) & (k < len(x))
        out.append((h[inside] * x[k[inside]]).sum() / h.sum())
    return np.array(out)


@pytest.mark.parametrize(("source", "target"), RATIOS)
def test_resampling_equals_the_formula(source, target):
    x = noise(700).astype(np.float64)
    torch.testing.assert_close(resample(torch.from_numpy(x), source, target).numpy(), resample_by_the_formula(x, source, target),
                               rtol=0, atol=1e-9)  # fmt: skip


@pytest.mark.parametrize(("source", "target"), RATIOS)
def test_a_tone_stays_the_same_tone(source, target):
    count, hz = 4000, 0.1 * min(source, target)
    made = resample(torch.from_numpy(tone(count, hz, source)), source, target).numpy()
    wanted = tone(len(made), hz, target)
    assert len(made) == -(-count * target // source)
    edge = 1 + 50 * max(1, target // source)
    np.testing.assert_allclose(made[edge:-edge], wanted[edge:-edge], atol=1e-3)


def test_a_tone_above_the_new_nyquist_frequency_is_removed():
    made = resample(torch.from_numpy(tone(8000, 6000, 16_000)), 16_000, 8000)
    assert made[100:-100].abs().max() < 1e-3


def test_the_same_rate_changes_nothing():
    x = torch.from_numpy(noise(100))
    assert torch.equal(resample(x, 8000, 8000), x)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(cuts=st.lists(st.integers(0, 900), max_size=6), ratio=st.sampled_from(RATIOS[:-1]))
def test_resampling_in_blocks_equals_resampling_whole(cuts, ratio):
    x = torch.from_numpy(noise(900)).double()
    blocks = torch.tensor_split(x, sorted(cuts))
    made = torch.cat(list(io._resample_blocks(blocks, *ratio)))
    torch.testing.assert_close(made, resample(x, *ratio), rtol=0, atol=1e-12)


@pytest.mark.parametrize("ending", ["wav", "flac"])
def test_lossless_files_are_read_exactly(tmp_path, ending):
    x = np.random.default_rng(0).integers(-32_768, 32_767, 1000, dtype=np.int16)
    file = write(tmp_path / f"a.{ending}", x, 16_000)
    assert torch.equal(read_audio(file, 16_000), torch.from_numpy(x / np.float32(32_768)))


@pytest.mark.parametrize("ending", ["wav", "flac", "ogg", "mp3"])
def test_every_format_is_read_at_any_rate(tmp_path, ending):
    x = tone(44_100, 440, 44_100)
    file = write(tmp_path / f"a.{ending}", x, 44_100)
    read = read_audio(str(file), 16_000).numpy()
    assert audio_seconds(file) == pytest.approx(1, abs=0.06)
    assert len(read) == pytest.approx(16_000, abs=1000)  # mp3 pads its ends
    power = np.abs(np.fft.rfft(read[2000:14_000]))
    assert power.argmax() * 16_000 / 12_000 == pytest.approx(440, abs=2)


def test_channels_are_averaged(tmp_path):
    left, right = noise(500, 1), noise(500, 2)
    file = write(tmp_path / "a.wav", np.stack((left, right), 1), subtype="FLOAT")
    torch.testing.assert_close(read_audio(file, 16_000), torch.from_numpy((left + right) / 2))


@pytest.mark.parametrize("rate", [8000, 16_000, 22_050])
@pytest.mark.parametrize("seconds", [0.01, 0.1, 0.37, 60])
def test_a_stream_has_the_samples_of_the_whole_file_in_blocks(tmp_path, monkeypatch, rate, seconds):
    file = write(tmp_path / "a.wav", noise(20_000))
    monkeypatch.setattr(io, "BLOCK", 999)
    blocks = list(stream_audio(file, rate, seconds))
    assert all(len(block) == round(seconds * rate) for block in blocks[:-1])
    assert 0 < len(blocks[-1]) <= round(seconds * rate)
    monkeypatch.undo()
    torch.testing.assert_close(torch.cat(blocks), read_audio(file, rate), rtol=0, atol=1e-6)


def test_a_stream_decodes_no_more_than_it_has_returned_and_one_block(tmp_path, monkeypatch):
    file = write(tmp_path / "a.wav", noise(100_000))
    monkeypatch.setattr(io, "BLOCK", 1000)
    decoded, decode = [0], io._decode

    def counted(path):
        for block in decode(path):
            decoded[0] += len(block)
            yield block

    monkeypatch.setattr(io, "_decode", counted)
    stream = stream_audio(file, 8000, 0.25)  # 4,000 samples of the file
    for number in range(1, 5):
        next(stream)
        assert decoded[0] <= 4000 * number + 2000


@pytest.mark.parametrize("x", [np.zeros(1), np.zeros(5000), np.ones(1)])
@pytest.mark.parametrize("rate", [8000, 16_000, 44_100])
def test_one_sample_and_silence_are_sound(tmp_path, x, rate):
    read = read_audio(write(tmp_path / "a.wav", x), rate)
    assert len(read) == -(-len(x) * rate // 16_000)
    assert read.isfinite().all()
    assert x.any() or not read.any()


def test_unreadable_files_are_refused_in_one_line(tmp_path):
    (tmp_path / "text.wav").write_text("this is text,\nnot sound")
    (tmp_path / "empty.wav").touch()
    (tmp_path / "other.wav").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "folder").mkdir()
    write(tmp_path / "none.wav", np.zeros(0))
    write(tmp_path / "nan.wav", np.array([0, 0.5, np.nan, 0]), subtype="FLOAT")
    write(tmp_path / "inf.wav", np.array([0, np.inf]), subtype="DOUBLE")
    write(tmp_path / "loud.wav", np.array([0, -1e18]), subtype="FLOAT")
    for name, message in (
        (
            "text.wav",
            r"text\.wav is not a readable sound file: it begins with 'this is text,.*'; give a wav, flac, ogg or mp3 file",
        ),
        ("empty.wav", r"empty\.wav is not a readable sound file: it is empty; get it again"),
        ("other.wav", r"other\.wav is not a readable sound file: .*; give a wav, flac, ogg or mp3 file"),
        ("folder", r"folder is a folder; give a sound file"),
        ("missing.wav", r"no file .*missing\.wav; check the path"),
        ("none.wav", r"none\.wav has no samples; give a file with sound in it"),
        ("nan.wav", r"nan\.wav has a sample that is not a number, sample 2; write it again, or leave it out"),
        ("loud.wav", r"loud\.wav has a sample of 1e\+18; samples are between -1 and 1: scale them down"),
        ("inf.wav", r"inf\.wav has a sample that is not a number, sample 1;"),
    ):
        for read in (lambda file: read_audio(file, 16_000), lambda file: list(stream_audio(file, 8000, 1))):
            with pytest.raises(ValueError, match=message) as error:
                read(tmp_path / name)
            assert "\n" not in str(error.value)


def test_a_wav_file_that_is_cut_short_gives_the_samples_it_has(tmp_path):
    file = write(tmp_path / "a.wav", noise(1000))
    content = file.read_bytes()
    (tmp_path / "cut.wav").write_bytes(content[:1044])
    assert torch.equal(read_audio(tmp_path / "cut.wav", 16_000), read_audio(file, 16_000)[:500])


def test_a_flac_file_that_is_cut_short_is_refused(tmp_path):
    file = write(tmp_path / "a.flac", noise(50_000))
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"a\.flac is damaged or cut short after sample 0 \(.*\); replace it"):
        read_audio(file, 16_000)


def test_a_header_of_zero_channels_is_refused(tmp_path):
    file = write(tmp_path / "a.wav", noise(100))
    content = bytearray(file.read_bytes())
    content[22:24] = struct.pack("<H", 0)
    file.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="is not a readable sound file"):
        read_audio(file, 16_000)
