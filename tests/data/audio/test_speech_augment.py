"""Speed perturbation and SpecAugment: how much they change, and what they never change."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sounds import noise, tone

from regard.data.audio.augment import change_speed, length_after, spec_augment
from regard.data.audio.io import resample

HOW = {"time_masks": 2, "time_mask": 0.25, "freq_masks": 2, "freq_mask": 3}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("x", [torch.from_numpy(noise(50)), torch.randn(50, 4)])
def test_a_speed_of_1_changes_nothing(x):
    assert torch.equal(change_speed(x, 1.0), x)


@given(st.integers(1, 400), st.sampled_from([0.5, 0.9, 0.95, 1.0, 1.1, 1.25, 2.0]))
def test_the_length_is_known_before_the_speed_is_changed(count, factor):
    assert (
        len(change_speed(torch.ones(count), factor))
        == length_after(count, factor, ready=False)
        == int(np.ceil(count / factor - 1e-9))
    )
    assert len(change_speed(torch.ones(count, 2), factor)) == length_after(count, factor, ready=True)


def test_sound_that_plays_faster_is_higher():
    made = change_speed(torch.from_numpy(tone(8000, 400, 8000)), 1.25).numpy()
    np.testing.assert_allclose(made[100:-100], tone(6400, 500, 8000)[100:-100], atol=1e-3)


def test_the_speed_of_sound_is_changed_by_resampling():
    x = torch.from_numpy(noise(1000))
    assert torch.equal(change_speed(x, 0.9), resample(x, 9, 10))


@pytest.mark.parametrize("factor", [0.8, 1.1])
def test_ready_frames_are_interpolated(factor):
    x = torch.randn(40, 3, dtype=torch.float64)
    made = change_speed(x, factor)
    assert len(made) == round(40 / factor)
    at = np.minimum(np.arange(len(made)) * factor, 39)
    for channel in range(3):
        np.testing.assert_allclose(made[:, channel], np.interp(at, np.arange(40), x[:, channel]), atol=1e-5)


def test_masks_set_whole_spans_of_frames_and_bands_of_channels_to_zero():
    lengths = torch.tensor([40, 24, 1])
    for seed in range(200):
        made = spec_augment(torch.ones(3, 40, 10), lengths, generator(seed), **HOW)
        frames, channels = (made == 0).all(2), (made == 0).all(1)  # (B, F), (B, C)
        assert torch.equal(made == 0, frames[:, :, None] | channels[:, None, :])
        for row, length in zip(frames, lengths.tolist(), strict=True):
            assert row.sum() <= 2 * int(0.25 * length)
            assert not row[length:].any()  # padding is not worth a mask
        assert (channels.sum(1) <= 6).all()


def test_every_size_of_a_mask_is_equally_likely():
    sizes = torch.stack([
        (spec_augment(torch.ones(1, 20, 4), torch.tensor([20]), generator(seed), time_masks=1, time_mask=0.25, freq_masks=0,
                      freq_mask=0) == 0).all(2).sum() for seed in range(3000)
    ])  # fmt: skip
    counts = sizes.bincount(minlength=6)
    assert len(counts) == 6  # 0 to 5 frames
    assert (counts - 500).abs().max() < 5 * (3000 * 1 / 6 * 5 / 6) ** 0.5  # five standard deviations


def test_no_masks_change_nothing_and_the_same_seed_masks_the_same():
    x, lengths = torch.randn(4, 30, 8), torch.tensor([30, 20, 10, 5])
    none = {**HOW, "time_masks": 0, "freq_masks": 0}
    assert torch.equal(spec_augment(x, lengths, generator(), **none), x)
    first, again, other = (spec_augment(x, lengths, generator(seed), **HOW) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
