"""Own lists of sound files: what they may hold, and how they are split."""

import gzip
from functools import partial

import numpy as np
import pytest
from sounds import noise, write, write_list

from regard.data.audio.config import AudioData
from regard.data.audio.utterances import find_utterances


def own(folder, lines, **how):
    (folder / "own.tsv").write_text(lines)
    return AudioData(train=str(folder / "own.tsv"), valid=str(folder / "own.tsv"), **how)


def test_paths_are_relative_to_the_list_and_a_third_column_is_the_speaker(tmp_path, monkeypatch):
    write(tmp_path / "clips" / "a.wav", noise(160))
    write(tmp_path / "b.flac", noise(320))
    lines = f"clips/a.wav\tHello there\tanna\n\n{tmp_path / 'b.flac'}\t bye \r\n"
    data = own(tmp_path, lines)
    monkeypatch.chdir("/")
    source = find_utterances(data, "train")
    assert [(u.speaker, u.text) for u in source.utterances] == [("anna", "Hello there"), ("", "bye")]
    assert source.seconds == [0.01, 0.02]
    assert [len(sound) for sound in source.sounds([1, 0])] == [320, 160]


def test_a_list_may_be_compressed(tmp_path):
    file = write_list(tmp_path, 3)
    packed = tmp_path / "list.tsv.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    plain, other = (find_utterances(AudioData(train=str(f), valid=str(f)), "train") for f in (file, packed))
    assert plain.utterances == other.utterances


@pytest.mark.parametrize(("line", "message"), [
    ("a.wav no tab", r"own\.tsv line 2 has no tab; wanted sound file, a tab, transcript"),
    ("a.wav\t ", r"own\.tsv line 2 has no transcript of a\.wav; write one, or leave the line out"),
    ("a.wav\t\tanna", r"own\.tsv line 2 has no transcript of a\.wav"),
    ("z.wav\thello", r"own\.tsv line 2: no file .*z\.wav; correct the path, relative to the TSV file"),
    (".\thello", r"own\.tsv line 2: no file"),
    ("text.wav\thello", r"own\.tsv line 2: .*text\.wav is not a readable sound file: it begins with 'words'"),
])  # fmt: skip
def test_a_bad_line_is_named(tmp_path, line, message):
    write(tmp_path / "a.wav", noise(100))
    (tmp_path / "text.wav").write_text("words")
    with pytest.raises(ValueError, match=message) as error:
        find_utterances(own(tmp_path, f"a.wav\thello\n{line}\n"), "train")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("x", "message"), [
    (np.zeros(0), r"own\.tsv line 1: .*a\.wav has no samples"),
    (np.array([np.nan]), r"own\.tsv line 1: .*a\.wav has a sample that is not a number, sample 0"),
])  # fmt: skip
def test_sound_that_cannot_be_used_is_named_by_its_line(tmp_path, x, message):
    write(tmp_path / "a.wav", x, subtype="FLOAT")
    with pytest.raises(ValueError, match=message):
        list(find_utterances(own(tmp_path, "a.wav\thello\n"), "train").sounds([0]))


def test_an_empty_list_and_no_list_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"own\.tsv is empty; wanted sound file, a tab, transcript"):
        find_utterances(own(tmp_path, "\n"), "train")
    with pytest.raises(ValueError, match=r"no train data; give data\.train=FILE\.tsv"):
        find_utterances(AudioData(), "train")
    with pytest.raises(ValueError, match=r"no file .*nothing\.tsv; check the path"):
        find_utterances(AudioData(train=str(tmp_path / "nothing.tsv")), "train")


def test_a_tenth_is_for_validation_if_no_other_list_is_given(tmp_path):
    data = AudioData(train=str(write_list(tmp_path, 20)))
    train, valid = (find_utterances(data, split) for split in ("train", "valid"))
    names = {u.name for u in valid.utterances}
    assert len(names) == 2
    assert names | {u.name for u in train.utterances} == {f"{n}.wav" for n in range(20)}
    assert not names & {u.name for u in train.utterances}
    lines = (tmp_path / "list.tsv").read_text().splitlines()
    (tmp_path / "list.tsv").write_text("\n".join(reversed(lines)))
    assert {u.name for u in find_utterances(data, "valid").utterances} == names  # whatever the order of the lines


def test_one_utterance_cannot_be_split(tmp_path):
    data = AudioData(train=str(write_list(tmp_path, 1)))
    with pytest.raises(ValueError, match=r"has one utterance; add one for validation, or give data\.valid"):
        find_utterances(data, "valid")


def test_a_speaker_left_out_of_training_is_the_test_split(tmp_path):
    file = write_list(tmp_path, 30)
    data = AudioData(train=str(file), speaker="speaker1")
    names = partial(map, lambda u: u.name)
    train, valid, test = (find_utterances(data, split) for split in ("train", "valid", "test"))
    assert {u.speaker for u in (*train.utterances, *valid.utterances)} == {"speaker0", "speaker2"}
    assert {u.speaker for u in test.utterances} == {"speaker1"}
    assert sorted(names((*train.utterances, *valid.utterances, *test.utterances))) == sorted(f"{n}.wav" for n in range(30))
    lengths = {f"{n}.wav": 2 * (2000 + 317 * n) for n in range(30)}  # 8,000 Hz to 16,000
    for source in (train, test):
        rows = [0, len(source.utterances) - 1]
        assert [len(sound) for sound in source.sounds(rows)] == [lengths[source.utterances[row].name] for row in rows]


def test_an_unknown_speaker_is_refused_with_the_nearest(tmp_path):
    data = AudioData(train=str(write_list(tmp_path, 6)), speaker="speaker7")
    for split in ("train", "test"):
        with pytest.raises(
            ValueError, match=r"has no speaker 'speaker7' \(did you mean 'speaker\d'\?\); speakers are speaker0, speaker1"
        ):
            find_utterances(data, split)
    (tmp_path / "other").mkdir()
    data = AudioData(train=str(write_list(tmp_path / "other", 6, speakers=False)), speaker="anna")
    with pytest.raises(ValueError, match="speakers are none: write the speaker in a third column"):
        find_utterances(data, "train")


@pytest.mark.parametrize(("how", "message"), [
    ({"source": "fsd"}, r"data\.source=fsd is not known \(did you mean 'fsdd'\?\); known are fsdd, an4-mfcc, yesno; for own"),
    ({"source": "mnist"}, r"data\.source=mnist is not a set of speech"),
    ({"source": "an4-mfcc"}, r"data\.features=log-mel, but an4-mfcc holds ready features with features mfcc; set data"),
    ({"source": "an4-mfcc", "features": "mfcc", "rate": 8000}, r"data\.rate=8000, but an4-mfcc .* set data\.rate=16000"),
    ({"source": "an4-mfcc", "features": "mfcc", "mels": 26}, r"data\.mels=26, but an4-mfcc .* set data\.mels=40"),
])  # fmt: skip
def test_a_named_set_that_cannot_be_read_so_is_refused(how, message):
    with pytest.raises(ValueError, match=message):
        find_utterances(AudioData(**how), "train")


@pytest.mark.parametrize(("how", "message"), [
    ({"speed": []}, r"speed is empty; give factors such as \[0\.9, 1\.0, 1\.1\]"),
    ({"speed": [0.3]}, r"speed has the factor 0\.3; use 0\.5 to 2, with two decimals at most"),
    ({"speed": [1.005]}, r"speed has the factor 1\.005"),
    ({"normalize": "none", "time_masks": 1}, r"with normalize=none use time_masks=0 freq_masks=0"),
    ({"source": "fsdd", "train": "a.tsv"}, r"source=fsdd and train=a\.tsv were both given"),
    ({"high": 9000.0}, r"high is 9000\.0; use 8000\.0 or less"),
    ({"join": 0}, "join is 0; use 1 or more"),
    ({"rate": 10}, "rate is 10; use 1000 or more"),
    ({"time_mask": 1.5}, r"time_mask is 1\.5; use 1 or less"),
    ({"max_seconds": 0.0}, r"max_seconds is 0\.0; use 0\.1 or more"),
])  # fmt: skip
def test_a_config_that_cannot_be_is_refused(how, message):
    with pytest.raises(ValueError, match=message):
        AudioData(**how)
