"""Batches of speech: every utterance once an epoch, in an order and with augmentation that can be resumed."""

from itertools import chain, islice

import numpy as np
import pytest
import torch
from sounds import small
from streams import built

from regard.data.audio import batches
from regard.data.audio.augment import change_speed
from regard.data.audio.batches import SpeechBatch, all_speech_batches, join_utterances, make_batch, read_frames, to_model_input
from regard.data.audio.features import log_mel, normalize_frames
from regard.data.audio.store import ctc_frames_needed
from regard.data.position import DataPosition
from regard.tasks.metrics import to_device

ALL = {"speed": [0.9, 1.0, 1.1], "time_masks": 2, "time_mask": 0.3, "freq_masks": 1, "freq_mask": 3, "join": 3}


def speech_batches(*how, **more):
    return built(batches.speech_batches(*how, **more))


def epoch_of(store, data, frames=200, seed=1, epoch=0, **how):
    found = []
    for one, after in speech_batches(store, frames, seed, data, DataPosition(epoch), **how):
        found.append(one)
        if after.epoch > epoch:
            return found


def texts_of(store, batch):
    return [store.tokenizer.decode(row.tolist()) for row in batch.target]


@pytest.mark.parametrize("how", [{}, ALL], ids=["plain", "all"])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_training_resumes_from_any_position(tmp_path, count, how):
    data, store = small(tmp_path, **how)
    whole = list(islice(speech_batches(store, 200, 3, data), count + 6))
    again = list(islice(speech_batches(store, 200, 3, data, whole[count - 1][1]), 6))
    for (one, after), (other, other_after) in zip(whole[count:], again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[:3], other[:3], strict=True))
        assert after == other_after


@pytest.mark.parametrize("how", [{}, ALL], ids=["plain", "all"])
@pytest.mark.parametrize("frames", [1, 100, 250, 10_000])
def test_an_epoch_has_each_utterance_once_in_batches_of_at_most_so_many_frames(tmp_path, frames, how):
    data, store = small(tmp_path, 15, **how)
    words = sorted(" ".join(u.text for u in store.utterances).split())
    for epoch in range(3):
        found = epoch_of(store, data, frames, epoch=epoch)
        assert sorted(" ".join(chain(*(texts_of(store, one) for one in found))).split()) == words
        for one in found:
            rows, padded, channels = one.frames.shape
            assert channels == 8
            assert one.frames.dtype == torch.float32
            assert padded == one.lengths.max()
            assert rows * padded <= frames or rows == 1


def test_epochs_and_seeds_differ(tmp_path):
    data, store = small(tmp_path)
    first, second, other = (
        [texts_of(store, one) for one in epoch_of(store, data, 80, seed, epoch)] for seed, epoch in ((1, 0), (1, 1), (2, 0))
    )
    assert first != second
    assert first != other


def test_without_augmentation_training_and_evaluation_read_the_same_frames(tmp_path):
    data, store = small(tmp_path)
    trained = {int(length): row for one in epoch_of(store, data) for row, length in zip(one.frames, one.lengths, strict=True)}
    count = 0
    for one in all_speech_batches(store, 300, data):
        assert one.frames.shape[0] * one.frames.shape[1] <= 300
        for row, length in zip(one.frames, one.lengths.tolist(), strict=True):
            torch.testing.assert_close(row[:length], trained[length][:length], rtol=0, atol=1e-4)
            count += 1
    assert count == len(store)


@pytest.mark.parametrize("features", ["log-mel", "mfcc"])
@pytest.mark.parametrize("normalize", ["utterance", "speaker", "none"])
def test_an_utterance_does_not_depend_on_the_others_of_its_batch(tmp_path, features, normalize):
    data, store = small(tmp_path, normalize=normalize, features=features, ceps=5)
    groups = [[0], [11], [5], [2, 5]]
    together = make_batch(store, groups, data)
    for index, group in enumerate(groups):
        alone = make_batch(store, [group], data)
        length = int(together.lengths[index])
        assert alone.lengths.tolist() == [length]
        torch.testing.assert_close(together.frames[index, :length], alone.frames[0], rtol=0, atol=1e-4)
        assert not together.frames[index, length:].any()


@pytest.mark.parametrize("how", [{"speed": [0.9, 1.1]}, {"time_masks": 2, "time_mask": 0.5}, {"freq_masks": 1}, {"join": 4}])
def test_every_augmentation_is_applied_and_differs_between_epochs(tmp_path, how):
    data, store = small(tmp_path, 6, **how)
    sums = {float(sum(one.frames.abs().sum() for one in epoch_of(store, data, epoch=epoch))) for epoch in range(6)}
    assert len(sums) > 4


def test_the_masks_of_one_utterance_differ_between_epochs(tmp_path):
    data, store = small(tmp_path, 1, time_masks=2, time_mask=0.5)
    sums = {float(epoch_of(store, data, epoch=epoch)[0].frames.abs().sum()) for epoch in range(6)}
    assert len(sums) == 6


def test_frames_are_computed_from_sound_that_was_joined_then_changed_speed(tmp_path):
    data, store = small(tmp_path)
    frames, lengths = read_frames(store, [[4, 1]], data, [1.1])
    x = change_speed(torch.cat((store.read(4), store.read(1))), 1.1)
    wanted = log_mel(x[None], 8000, 8)
    assert lengths.tolist() == [wanted.shape[1]] == [store.frame_count([4, 1], 1.1)]
    torch.testing.assert_close(frames, normalize_frames(wanted, lengths))
    torch.testing.assert_close(to_model_input([x], data)[0], frames)


def test_only_utterances_of_one_speaker_are_joined(tmp_path):
    _, store = small(tmp_path, 30)
    sizes = set()
    for seed in range(10):
        groups = join_utterances(store, 4, np.random.default_rng(seed))
        assert sorted(chain(*groups)) == list(range(30))
        assert all(len({store.utterances[row].speaker for row in group}) == 1 for group in groups)
        sizes |= {len(group) for group in groups}
    assert sizes == {1, 2, 3, 4}


def test_joined_utterances_have_a_space_between_their_transcripts(tmp_path):
    data, store = small(tmp_path)
    special = store.tokenizer.special
    batch = make_batch(store, [[1, 2], [3]], data)
    assert texts_of(store, batch) == ["two three", "no"]
    both = [*store.tokens[1], *store.tokenizer.encode([" "])[0], *store.tokens[2]]
    assert batch.target[0].tolist() == [special.bos, *both, special.eos]
    assert batch.target[1].tolist() == [special.bos, *store.tokens[3], special.eos, *[special.pad] * (len(both) - 2)]
    assert batch.tokens == len(both) + 1 + 3
    assert batch.pad == 0


def test_joined_utterances_are_not_too_long_and_have_frames_enough_for_ctc(tmp_path):
    data, store = small(tmp_path, 30, **{**ALL, "join": 8, "max_seconds": 1.5})
    most = 0
    for one in epoch_of(store, data, 2000, subsample=4):
        assert one.lengths.max() <= 150 / 0.9 + 2
        most = max(most, int(one.lengths.max()))
        for row, length in zip(one.target.tolist(), one.lengths.tolist(), strict=True):
            ids = [index for index in row[1:] if index not in (store.tokenizer.special.eos, 0)]
            if " " in store.tokenizer.decode(ids)[4:]:
                assert -(-length // 4) >= ctc_frames_needed(ids)
    assert most > store.frame_count([29])  # some were joined


def test_utterances_that_ctc_could_not_read_together_are_not_joined(tmp_path):
    data, store = small(tmp_path, 30, **ALL)  # of fewer than 150 frames
    assert sum(len(one.lengths) for one in epoch_of(store, data, subsample=1)) < 30
    assert sum(len(one.lengths) for one in epoch_of(store, data, subsample=150)) == 30


def test_a_selection_of_rows_is_all_that_is_read(tmp_path):
    data, store = small(tmp_path, **ALL)
    rows = np.array([1, 4, 7])  # all of speaker1
    wanted = sorted(" ".join(store.utterances[row].text for row in rows).split())
    read = chain(*(texts_of(store, one) for one in epoch_of(store, data, rows=rows)))
    assert sorted(" ".join(read).split()) == wanted
    assert sum(len(one.lengths) for one in all_speech_batches(store, 100, data, rows)) == 3


def test_a_batch_moves_to_a_device_whole(tmp_path):
    data, store = small(tmp_path)
    batch = make_batch(store, [[0], [1]], data)
    moved = to_device(batch, torch.device("cpu"))
    assert isinstance(moved, SpeechBatch)
    assert all(torch.equal(a, b) for a, b in zip(moved[:3], batch[:3], strict=True))
    assert (moved.pad, moved.tokens) == (batch.pad, batch.tokens)
