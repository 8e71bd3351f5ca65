"""Speech on disk: the same sound as in the files, stored once, with what was left out reported."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sounds import noise, small, write, write_list

from regard.data.audio.batches import read_frames
from regard.data.audio.config import AudioData
from regard.data.audio.features import log_mel
from regard.data.audio.io import read_audio
from regard.data.audio.store import ctc_frames_needed, prepare, read_split, rows_for_ctc
from regard.data.text.tokenizer import Tokenizer


def prepared(data, folder, lines=None, done=None):
    lines, done = [] if lines is None else lines, [] if done is None else done
    return prepare(data, folder / "tokenizer.json", lines.append, lambda what, count: done.append((what, count)))


def own(folder, count=12, **how):
    file = write_list(folder, count)
    return AudioData(train=str(file), valid=str(file), **{"rate": 8000, "mels": 8, **how})


@pytest.mark.parametrize("rate", [8000, 16_000])
def test_a_store_has_the_sound_of_the_files_as_16_bits(tmp_path, rate):
    store = prepared(own(tmp_path, rate=rate), tmp_path).train
    assert len(store) == 12
    for row, utterance in enumerate(store.utterances):
        torch.testing.assert_close(store.read(row), read_audio(tmp_path / utterance.name, rate), rtol=0, atol=0.51 / 32_768)
        assert store.frame_count([row]) == len(log_mel(store.read(row), rate, 8))
        assert store.tokenizer.decode(store.tokens[row]) == utterance.text


def test_sound_is_read_once_and_again_if_it_changes(tmp_path):
    data, done = own(tmp_path), []
    first = prepared(data, tmp_path, done=done)
    assert done[-1] == (f"reading {data.train}", 12)
    assert prepared(data, tmp_path, done=(again := [])).train.digest == first.train.digest
    assert not again
    write(tmp_path / "3.wav", noise(2222, 99), 8000)
    assert prepared(data, tmp_path, done=again).train.digest != first.train.digest
    assert again


def test_the_digest_depends_on_the_front_end_and_the_transcripts(tmp_path):
    data = own(tmp_path)
    digests = {prepared(data, tmp_path).train.digest, prepared(own(tmp_path, mels=9), tmp_path).train.digest}
    text = (tmp_path / "list.tsv").read_text()
    (tmp_path / "list.tsv").write_text(text.replace("three", "there"))
    digests.add(prepared(data, tmp_path).train.digest)
    assert len(digests) == 3


def test_what_is_stored_is_reported(tmp_path):
    lines = []
    prepared(own(tmp_path, max_seconds=0.5), tmp_path, lines)
    kept = [n for n in range(12) if 2000 + 317 * n <= 4000]
    seconds = sum(2000 + 317 * n for n in kept) / 8000
    wanted = f"{len(kept)} utterances, {seconds:.1f} seconds, 3 speakers; left out: {12 - len(kept)} of over 0.5 seconds"
    assert lines[0] == f"{tmp_path / 'list.tsv'}: {wanted}"


def test_a_list_of_long_utterances_alone_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no utterance of 0\.1 seconds or less; raise data\.max_seconds"):
        prepared(own(tmp_path, max_seconds=0.1), tmp_path)


def test_characters_never_seen_in_training_are_counted(tmp_path):
    data = own(tmp_path)
    tokenizer = prepared(data, tmp_path).tokenizer
    (tmp_path / "new.tsv").write_text("0.wav\tone zebra\n1.wav\tqq\n2.wav\ttwo\n")
    lines = []
    store = read_split(data, str(tmp_path / "new.tsv"), tokenizer, lines.append)
    told = "5 tokens in 2 transcripts were never seen in training, such as 'q', 'z', 'b', 'a'; they are read as the unknown token"
    assert lines[1:] == [f"{tmp_path / 'new.tsv'}: {told}"]
    assert store.tokens[1] == [tokenizer.special.unk] * 2


def test_an_existing_tokenizer_is_kept_and_pad_is_the_blank(tmp_path):
    data = own(tmp_path)
    first = prepared(data, tmp_path)
    assert first.tokenizer.special.pad == 0
    (tmp_path / "new.tsv").write_text("0.wav\tXYZ\n1.wav\tZZ\n")
    other = AudioData(train=str(tmp_path / "new.tsv"), valid=str(tmp_path / "new.tsv"), rate=8000)
    assert prepared(other, tmp_path).tokenizer.digest == first.tokenizer.digest


@pytest.mark.parametrize("kind", ["bpe", "words", "wordpiece", "bytes"])
def test_transcripts_may_be_other_tokens(tmp_path, kind):
    store = prepared(own(tmp_path, tokenizer=kind, vocab=400), tmp_path).train
    assert [store.tokenizer.decode(ids) for ids in store.tokens] == [u.text for u in store.utterances]


def test_transcripts_in_lower_case(tmp_path):
    write(tmp_path / "a.wav", noise(3000))
    (tmp_path / "own.tsv").write_text("a.wav\tABC Def\na.wav\tabc\n")
    data = AudioData(train=str(tmp_path / "own.tsv"), valid=str(tmp_path / "own.tsv"), lowercase=True)
    assert prepared(data, tmp_path).train.tokenizer.decode(prepared(data, tmp_path).train.tokens[0]) == "abc def"


def test_frames_normalised_by_speaker_have_mean_0_and_deviation_1_over_all_of_that_speaker(tmp_path):
    data, store = small(tmp_path, normalize="speaker")
    for speaker in range(3):
        rows = np.flatnonzero(store.speaker_ids == speaker)
        frames, lengths = read_frames(store, [[row] for row in rows], data)
        every = torch.cat([row[:length] for row, length in zip(frames, lengths, strict=True)])
        torch.testing.assert_close(every.mean(0), torch.zeros(8), rtol=0, atol=1e-4)
        torch.testing.assert_close(every.std(0, correction=0), torch.ones(8), rtol=0, atol=1e-4)
        assert frames[0, : lengths[0]].mean(0).abs().max() > 1e-3  # not by utterance


def test_normalising_by_speaker_needs_speakers(tmp_path):
    file = write_list(tmp_path, 4, speakers=False)
    data = AudioData(train=str(file), valid=str(file), normalize="speaker")
    with pytest.raises(
        ValueError, match=r"data\.normalize=speaker, but .*list\.tsv names no speakers; write them in a third column"
    ):
        prepared(data, tmp_path)


def test_a_tokenizer_without_padding_is_refused(tmp_path):
    data = own(tmp_path)
    prepared(data, tmp_path)
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace('"<pad>"', '"<blank>"'))
    assert Tokenizer.load(tmp_path / "tokenizer.json").special.pad != 0
    with pytest.raises(ValueError, match=r"tokenizer\.json has no <pad>, the blank of CTC"):
        prepared(data, tmp_path)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=8), st.integers(1, 16))
def test_ctc_has_a_path_if_there_are_as_many_frames_as_needed(ids, frames):
    logits = torch.zeros(frames, 1, 4).log_softmax(2)
    loss = torch.nn.functional.ctc_loss(logits, torch.tensor([ids]), torch.tensor([frames]), torch.tensor([len(ids)]))
    assert bool(loss.isfinite()) == (frames >= ctc_frames_needed(ids))


def test_utterances_too_short_for_ctc_are_left_out_and_the_first_is_named(tmp_path):
    write(tmp_path / "short.wav", noise(800), 8000)  # 11 frames
    write(tmp_path / "long.wav", noise(8000), 8000)  # 101 frames
    (tmp_path / "own.tsv").write_text("long.wav\thello\nshort.wav\thell\nshort.wav\tabc\nshort.wav\tabcdef\n")
    data = AudioData(train=str(tmp_path / "own.tsv"), valid=str(tmp_path / "own.tsv"), rate=8000)
    store, lines = prepared(data, tmp_path).train, []
    assert rows_for_ctc(store, "own", 1, lines.append).tolist() == [0, 1, 2, 3]
    assert not lines
    assert rows_for_ctc(store, "own", 4, lines.append).tolist() == [0, 2]  # 3 frames: "abc" fits, "hell" needs 5
    assert lines == [
        "own: 2 utterances have fewer frames than CTC needs and are left out; the first is short.wav: 3 frames, 5 needed"
    ]
    assert rows_for_ctc(store, "own", 4, lines.append, fastest=1.5).tolist() == [0]  # ⌈8 / 4⌉ = 2 frames
    with pytest.raises(ValueError, match=r"own holds no utterance with enough frames for CTC; use a smaller model\.subsample"):
        rows_for_ctc(store, "own", 64, lines.append)
