"""The command line for speech: any sound file, times, JSON, and one line for a file that cannot be read."""

import json

import numpy as np
import pytest
import soundfile
from cli_checks import assert_refused
from tone_speech import say

TEXT = "a c b a"


def sound_file(folder, name, sound=None, rate=8000, **how):
    soundfile.write(folder / name, say(TEXT, rate) if sound is None else sound, rate, **how)
    return folder / name


@pytest.mark.parametrize("kind", ["wav", "flac", "ogg", "mp3"])
def test_any_kind_of_sound_file_any_rate_and_two_channels_are_transcribed(regard, tone_run, tmp_path, kind):
    if kind.upper() not in soundfile.available_formats():
        pytest.skip(f"this libsndfile writes no {kind}")
    mono = say(TEXT, 48_000)
    file = sound_file(tmp_path, f"clip.{kind}", np.stack((mono, mono), 1), 48_000)
    result = regard("transcribe", tone_run, file)
    assert result.code == 0, result.err
    assert result.out == f"{file}\t{TEXT}\n"


def test_times_are_lines_of_words_and_json_has_all(regard, tone_run, tmp_path):
    file = sound_file(tmp_path, "clip.wav")
    result = regard("transcribe", tone_run, file, "--timestamps")
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert [row[3] for row in rows] == TEXT.split()
    assert all(row[0] == str(file) and float(row[1]) < float(row[2]) for row in rows)
    found = json.loads(regard("transcribe", tone_run, file, "--timestamps", "--json", "--beam", 4).out)
    assert (found["source"], found["text"]) == (str(file), TEXT)
    assert [word["text"] for word in found["words"]] == TEXT.split()
    assert found["score"] <= 0


def test_files_come_from_a_list_and_long_ones_in_pieces(regard, tone_run, tmp_path):
    files = [sound_file(tmp_path, f"{number}.wav") for number in range(3)]
    (tmp_path / "list.txt").write_text("".join(f"{file}\n" for file in files))
    result = regard("transcribe", tone_run, "--input", tmp_path / "list.txt", "--piece", 1)
    assert result.out == "".join(f"{file}\t{TEXT}\n" for file in files)


def test_silence_and_one_sample_are_transcribed_and_the_rest_goes_on(regard, tone_run, tmp_path):
    files = [sound_file(tmp_path, "silence.wav", np.zeros(8000)), sound_file(tmp_path, "one.wav", np.zeros(1)),
             sound_file(tmp_path, "clip.wav")]  # fmt: skip
    result = regard("transcribe", tone_run, *files)
    assert result.code == 0, result.err
    assert [line.split("\t")[0] for line in result.out.splitlines()] == [str(file) for file in files]
    assert result.out.endswith(f"{files[2]}\t{TEXT}\n")


def test_a_bad_file_is_skipped_and_marked_and_a_folder_is_all_its_files(regard, tone_run, tmp_path):
    good = sound_file(tmp_path, "good.wav")
    (tmp_path / "text.wav").write_text("this is not sound\n")
    bad = {
        sound_file(tmp_path, "none.wav", np.zeros(0)): "has no samples",
        sound_file(tmp_path, "nan.wav", np.array([0, np.nan]), subtype="FLOAT"): "not a number, sample 1",
        tmp_path / "text.wav": "is not a readable sound file: it begins with 'this is not sound",
        tmp_path / "missing.wav": "no file",
    }
    for file, wanted in bad.items():
        assert_refused(regard("transcribe", tone_run, file), file.name, wanted)
        result = regard("transcribe", tone_run, good, file, good)
        assert (result.code, result.out) == (0, f"{good}\t{TEXT}\n{file}\t\n{good}\t{TEXT}\n")
        assert result.err.count("\n") == 1
        assert wanted in result.err
        assert regard("transcribe", tone_run, good, file, "--strict").code == 2
    found = regard("transcribe", tone_run, tmp_path)
    assert found.code == 0
    assert len(found.out.splitlines()) == 4  # missing.wav is in no folder
    assert found.err.startswith("regard: skipped 3 of 4:")


def test_wrong_options_and_verbs_are_refused(regard, tone_run, tmp_path):
    file = sound_file(tmp_path, "clip.wav")
    assert_refused(regard("transcribe", tone_run, file, "--beam", 0), "beam 0; use a beam of 1 or more")
    assert_refused(regard("transcribe", tone_run, file, "--piece", 0.5), "pieces of 0.5 seconds; use 1 to 60")
    assert_refused(regard("translate", tone_run, "a"), "use regard transcribe")


def test_scores_name_the_characters_never_seen(regard, tone_run, tmp_path):
    sound_file(tmp_path, "clip.wav")
    (tmp_path / "test.tsv").write_text(f"clip.wav\t{TEXT}\nclip.wav\t{TEXT} ü\n")
    result = regard("score", tone_run, "--on", tmp_path / "test.tsv")
    assert result.code == 0, result.err
    assert "1 tokens in 1 transcripts were never seen in training, such as 'ü'" in result.err
    assert "50.00 %  exact match  (1 of 2 transcripts; 95 % confidence 9.45 to 90.55)" in result.out
    assert "11.11 %  word error rate  (0 substitutions, 1 deletions, 0 insertions of 9 words; jiwer" in result.out
