"""Sets of speech in their official formats, served on this machine and read through the public API."""

import gzip
import io
import lzma
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from regard.data.audio.config import AudioData
from regard.data.audio.features import mfcc
from regard.data.audio.utterances import find_utterances
from regard.data.official.sphere import read_sphere
from regard.data.sources import locate

AN4 = AudioData(source="an4-mfcc", features="mfcc")
ETC = "an4/etc/"
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DATA = os.environ.get("REGARD_DATA", "nowhere")  # before the fixtures take it away


def noise(seed, count=900):
    return np.random.default_rng(seed).integers(-9000, 9000, count, dtype=np.int16)


def as_sound(samples, rate=8000, kind="WAV", **options):
    packed = io.BytesIO()
    soundfile.write(packed, samples, rate, format=kind, subtype="PCM_16", **options)
    return packed.getvalue()


def digits(speakers=("anna", "ben"), count=12):
    names = [f"{digit}_{speaker}_{number}" for digit in range(10) for speaker in speakers for number in range(count)]
    return {name: noise(at, 100 + at) for at, name in enumerate(names)}


def fsdd_files(clips):
    return {f"free-spoken-digit-dataset-1.0.10/recordings/{name}.wav": as_sound(x) for name, x in clips.items()}


def test_spoken_digits_are_split_by_the_number_of_their_recording(publish, pack_tar):
    clips = digits()
    packed = pack_tar({**fsdd_files(clips), "free-spoken-digit-dataset-1.0.10/README.md": b"# FSDD"})
    publish("fsdd", {"free-spoken-digit-dataset-1.0.10.tar.gz": packed})
    numbers = {"test": range(5), "valid": range(5, 10), "train": range(10, 12)}
    for split, wanted in numbers.items():
        found = find_utterances(AudioData(source="fsdd", rate=8000), split)
        names = [name for name in clips if int(name.split("_")[2]) in wanted]
        assert sorted(u.name for u in found.utterances) == sorted(names)
        sounds = list(found.sounds(range(len(found.utterances))))
        for utterance, sound in zip(found.utterances, sounds, strict=True):
            assert np.array_equal(sound, clips[utterance.name])
            digit, speaker, _ = utterance.name.split("_")
            assert (utterance.speaker, utterance.text) == (speaker, WORDS[int(digit)])


@pytest.mark.parametrize(("change", "message"), [
    (lambda files: {k: v for k, v in files.items() if "/7_" not in k}, "has no recording 10 to 999 of the digit 7"),
    (lambda files: {**files, "recordings/3_cleo_1.wav": b"RIFF0000WAVE"}, r"3_cleo_1\.wav of .* is not a sound file"),
    (lambda files: {**files, "recordings/3_cleo_1.wav": as_sound(noise(1), 16_000)}, "at 16000 Hz; wanted"),
    (lambda files: {**files, "recordings/3_cleo_1.wav": as_sound(noise(1).reshape(-1, 2))}, "of 2 channels"),
    (lambda files: {}, "of the digit 0"),
])  # fmt: skip
def test_another_archive_than_that_of_the_digits_is_refused(publish, pack_tar, change, message):
    publish("fsdd", {"free-spoken-digit-dataset-1.0.10.tar.gz": pack_tar(change(fsdd_files(digits(("anna",), 11))))})
    with pytest.raises(ValueError, match=message):
        locate("fsdd", "train", "", "audio")


def test_yes_and_no_are_read_from_the_names(publish, pack_tar):
    names = ["_".join(f"{number:08b}") for number in range(0, 240, 20)]
    clips = {name: noise(at, 200 + at) for at, name in enumerate(names)}
    publish("yesno", {"waves_yesno.tar.gz": pack_tar({f"waves_yesno/{name}.wav": as_sound(x) for name, x in clips.items()})})
    data = AudioData(source="yesno", rate=8000)
    found = {split: find_utterances(data, split) for split in ("train", "valid", "test")}
    assert [u.name for u in found["valid"].utterances] == [names[2], names[8]]
    assert [u.name for u in found["test"].utterances] == [names[5], names[11]]
    assert len(found["train"].utterances) == 8
    (first, *_) = found["test"].sounds([0])
    assert np.array_equal(first, clips[names[5]])
    assert found["test"].utterances[0].text == "NO YES YES NO NO YES NO NO"  # 01100100 is 100


@pytest.mark.skipif(not (Path(DATA) / "yesno").is_dir(), reason="set REGARD_DATA to a folder that holds yesno/")
def test_the_prepared_yesno_comes_out_as_it_is(publish, pack_tar):
    folder = Path(DATA) / "yesno"
    with lzma.open(folder / "audio.npy.xz") as file:
        samples = np.load(file)
    header, *rows = gzip.decompress((folder / "index.tsv.gz").read_bytes()).decode().splitlines()
    cuts = {row.split("\t")[0]: [int(number) for number in row.split("\t")[2:4]] for row in rows}
    files = {f"waves_yesno/{name}.wav": as_sound(samples[start : start + count]) for name, (start, count) in cuts.items()}
    publish("yesno", {"waves_yesno.tar.gz": pack_tar(files)})
    (audio,), (index,) = (locate("yesno", "train", "", text) for text in ("audio", "index"))
    assert gzip.decompress(index.read_bytes()).decode().splitlines() == [header, *rows]
    with lzma.open(audio) as file:
        assert np.array_equal(np.load(file), samples)


def an4_files(**changes):
    names = {"train": ["an1-fash-b", "cen2-fash-b", "cen3-mgah-b", "cen1-mmap-b"], "test": ["an9-mjwl-b", "cen5-mjwl-b"]}
    files = {}
    for split, folder in (("train", "an4_clstk"), ("test", "an4test_clstk")):
        lines = [f"<s> P I T{' T' * at} </s> ({name})" if split == "train" else f"ONE{' TWO' * at} ({name})"
                 for at, name in enumerate(names[split])]  # fmt: skip
        files[f"{ETC}an4_{split}.transcription"] = ("\n".join(lines) + "\n").encode()
        for at, name in enumerate(names[split]):
            sound = as_sound(noise(at, 5000 + 500 * at), 16_000, "NIST", endian="BIG" if at % 2 else "LITTLE")
            files[f"an4/wav/{folder}/{name.split('-')[1]}/{name}.sph"] = sound
    return {**files, **changes}


def test_an4_becomes_cepstra_with_six_speakers_for_validation(publish, pack_tar):
    publish("an4-mfcc", {"an4_sphere.tar.gz": pack_tar(an4_files())})
    found = {split: find_utterances(AN4, split) for split in ("train", "valid", "test")}
    assert found["train"].utterances == [("an1-fash-b", "fash", "P I T"), ("cen2-fash-b", "fash", "P I T T")]
    assert [u.speaker for u in found["valid"].utterances] == ["mgah", "mmap"]
    assert found["test"].utterances[1] == ("cen5-mjwl-b", "mjwl", "ONE TWO")
    (frames,) = found["train"].sounds([1])
    wanted = mfcc(torch.from_numpy(noise(1, 5500).astype(np.float32)) / 32_768)
    np.testing.assert_allclose(frames.astype(np.float32), wanted.numpy(), rtol=2e-3, atol=2e-3)
    assert frames.shape[1] == 13


@pytest.mark.skipif(not (Path(DATA) / "an4-mfcc").is_dir(), reason="set REGARD_DATA to a folder that holds an4-mfcc/")
def test_cepstra_of_an4_recordings_are_those_that_cmu_distributes(publish, pack_tar, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", DATA)
    prepared = {split: find_utterances(AN4, split) for split in ("train", "valid", "test")}
    with zipfile.ZipFile(Path(DATA) / "an4-mfcc" / "raw_samples.zip") as samples:
        sounds = {
            Path(name).stem: soundfile.read(io.BytesIO(samples.read(name)), dtype="int16")[0] for name in samples.namelist()
        }
    monkeypatch.delenv("REGARD_DATA")
    files = {f"an4/wav/x/{name}.sph": as_sound(x, 16_000, "NIST", endian="BIG") for name, x in sounds.items()}
    for official, parts in (("train", ("train", "valid")), ("test", ("test",))):
        lines = [f"<s> {u.text} </s> ({u.name})\n" for part in parts for u in prepared[part].utterances if u.name in sounds]
        files[f"{ETC}an4_{official}.transcription"] = "".join(lines).encode()
    publish("an4-mfcc", {"an4_sphere.tar.gz": pack_tar(files)})
    compared = 0
    for split, part in prepared.items():
        found = find_utterances(AN4, split)
        rows = [part.utterances.index(utterance) for utterance in found.utterances]  # id, speaker and transcript are equal
        for ours, theirs in zip(found.sounds(range(len(rows))), part.sounds(rows), strict=True):
            count = min(len(ours), len(theirs))
            assert len(ours) - count <= 1
            far = np.abs(ours[: count - 1].astype(np.float32) - theirs[: count - 1].astype(np.float32))
            compared += float(np.median(far)) < 0.01
    assert compared == 51


@pytest.mark.parametrize(("changes", "message"), [
    ({f"{ETC}an4_test.transcription": b"ONE an9\n"}, r"an4_test\.transcription line 1 of .* is not a transcript and an id"),
    ({f"{ETC}an4_test.transcription": b"ONE (an10-mjwl-b)\n"}, r"has no recording an10-mjwl-b\.sph"),
    ({"an4/wav/an4_clstk/fash/an1-fash-b.sph": b"RIFF"}, r"an1-fash-b\.sph of .* is not a NIST SPHERE file"),
    ({"an4/wav/an4_clstk/fash/an1-fash-b.sph": as_sound(noise(0), 8000, "NIST")}, "'8000'"),
    ({"an4/wav/an4_clstk/fash/an1-fash-b.sph": as_sound(noise(0), 16_000, "NIST")[:-100]}, "it was cut; get it again"),
])  # fmt: skip
def test_damaged_files_of_an4_are_refused_by_name(publish, pack_tar, changes, message):
    publish("an4-mfcc", {"an4_sphere.tar.gz": pack_tar(an4_files(**changes))})
    with pytest.raises(ValueError, match=message):
        locate("an4-mfcc", "test", "", "features")


def test_an_archive_without_transcripts_is_refused(publish, pack_tar):
    files = {name: content for name, content in an4_files().items() if "an4_test" not in name}
    publish("an4-mfcc", {"an4_sphere.tar.gz": pack_tar(files)})
    with pytest.raises(ValueError, match=r"has no etc/an4_test\.transcription"):
        locate("an4-mfcc", "test", "", "features")


def sphere(lines, size="   1024"):
    return f"NIST_1A\n{size}\n{lines}".encode() + b" " * 1200


ONE_CHANNEL = "sample_rate -i 16000\nsample_byte_format -s2 01\n"


@pytest.mark.parametrize("content", [
    sphere("", "   9999"), sphere("", "  -1024"), sphere("", "     12"), sphere("", "       "), sphere("\xff" * 500),
    sphere(f"sample_count -i 99999999999999999999\n{ONE_CHANNEL}end_head\n"),
    sphere(f"sample_count -i 4\n{ONE_CHANNEL}sample_coding -s26 pcm,embedded-shorten-v2.00\nend_head\n"),
])  # fmt: skip
def test_a_hostile_sphere_header_is_refused_in_one_line(content):
    with pytest.raises(ValueError, match=r"a\.sph") as error:
        read_sphere(content, 16_000, "a.sph")
    assert "\n" not in str(error.value)
