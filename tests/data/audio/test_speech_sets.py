"""The named sets of speech: their splits, speakers, transcripts and sounds."""

import lzma

import numpy as np
import pytest
import torch
from sounds import require_set

from regard.data.audio.batches import all_speech_batches, speech_batches
from regard.data.audio.config import AudioData
from regard.data.audio.store import prepare, read_split, rows_for_ctc
from regard.data.audio.utterances import find_utterances

AN4 = {"source": "an4-mfcc", "features": "mfcc"}


def prepared(data, folder):
    return prepare(data, folder / "tokenizer.json", lambda line: None, lambda what, done: None)


@pytest.mark.parametrize(("how", "counts"), [
    ({"source": "fsdd", "rate": 8000}, {"train": (2400, 6), "valid": (300, 6), "test": (300, 6)}),
    ({"source": "fsdd", "rate": 8000, "speaker": "theo"}, {"train": (2000, 5), "valid": (250, 5), "test": (500, 1)}),
    (AN4, {"train": (870, 68), "valid": (78, 6), "test": (130, 10)}),
    ({"source": "yesno", "rate": 8000}, {"train": (40, 1), "valid": (10, 1), "test": (10, 1)}),
])  # fmt: skip
def test_splits_have_their_utterances_and_speakers(how, counts):
    require_set(how["source"])
    found = {split: find_utterances(AudioData(**how), split).utterances for split in counts}
    assert {split: (len(rows), len({u.speaker for u in rows})) for split, rows in found.items()} == counts
    names = [u.name for rows in found.values() for u in rows]
    assert len(set(names)) == len(names)


def test_fsdd_has_the_samples_of_its_file(tmp_path):
    folder = require_set("fsdd")
    with lzma.open(folder / "valid_audio.npy.xz") as file:
        samples = np.load(file)
    data = AudioData(source="fsdd", rate=8000)
    dataset = prepared(data, tmp_path)
    assert np.array_equal(dataset.valid.sounds, samples)
    assert dataset.valid.utterances[0] == ("0_george_5", "george", "zero")
    assert dataset.tokenizer.vocab == 5 + len(set("zeroonetwothreefourfivesixseveneightnine"))
    theo = read_split(AudioData(source="fsdd", rate=8000, speaker="theo"), "test", dataset.tokenizer, lambda line: None)
    rows = {u.name: row for row, u in enumerate(dataset.valid.utterances)}
    both = [(row, rows[u.name]) for row, u in enumerate(theo.utterances) if u.name in rows]
    assert len(both) == 50
    assert all(torch.equal(theo.read(row), dataset.valid.read(other)) for row, other in both)
    doubled = read_split(AudioData(source="fsdd"), "valid", dataset.tokenizer, lambda line: None)
    assert (np.diff(doubled.offsets) == 2 * np.diff(dataset.valid.offsets)).all()


def test_an4_has_ready_frames_that_become_batches(tmp_path):
    folder = require_set("an4-mfcc")
    data = AudioData(**AN4, normalize="none", speed=[0.9, 1.0])
    dataset = prepared(data, tmp_path)
    feats = np.load(folder / "train.npz")["feats"]
    assert dataset.train.ready
    assert np.array_equal(dataset.train.sounds, feats)
    assert dataset.train.utterances[3].text == "U M N Y H SIX"
    for make, _ in (item for item, _ in zip(speech_batches(dataset.train, 4000, 1, data), range(3), strict=False)):
        batch = make()
        assert batch.frames.shape[2] == 13
        assert batch.frames.shape[0] * batch.frames.shape[1] <= 4000
    read = sum(int(one.lengths.sum()) for one in all_speech_batches(dataset.valid, 4000, data))
    assert read == 24_282
    one = next(all_speech_batches(dataset.valid, 4000, data))
    row = int(np.argmin(np.diff(dataset.valid.offsets)))
    torch.testing.assert_close(one.frames[0, : one.lengths[0]], dataset.valid.read(row))


def test_an4_has_frames_enough_for_ctc_after_subsampling_by_4(tmp_path):
    require_set("an4-mfcc")
    dataset, lines = prepared(AudioData(**AN4), tmp_path), []
    assert len(rows_for_ctc(dataset.train, "an4-mfcc", 4, lines.append, 1.1)) == 870
    assert not lines


def test_yesno_has_eight_words_in_each_utterance(tmp_path):
    require_set("yesno")
    dataset = prepared(AudioData(source="yesno", rate=8000), tmp_path)
    for store in (dataset.train, dataset.valid):
        assert all(len(u.text.split()) == 8 and set(u.text.split()) <= {"YES", "NO"} for u in store.utterances)
        assert [u.name for u in store.utterances] == [
            "_".join("01"[word == "YES"] for word in u.text.split()) for u in store.utterances
        ]


def test_a_speaker_cannot_be_left_out_of_a_set_of_one(tmp_path):
    require_set("yesno")
    with pytest.raises(
        ValueError, match=r"yesno train has no utterance of another speaker than data\.speaker=one; use data\.speaker="
    ):
        find_utterances(AudioData(source="yesno", speaker="one"), "train")
