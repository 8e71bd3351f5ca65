"""Colours of weights: the same for all panels, in the order of lightness, readable without telling red from green."""

import itertools

import numpy as np
import pytest

from regard.view.scale import (
    LESS_TO_MORE,
    NO_PREFERENCE,
    STOPS,
    colour,
    has_preference,
    levels,
    preference_note,
    ratio_colour,
    ratios,
)

# Linear RGB as people without red and without green cones see it: Viénot, Brettel and Mollon 1999.
PROTANOPE = [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]]
DEUTERANOPE = [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]
VISION = pytest.mark.parametrize("sees", [np.eye(3), PROTANOPE, DEUTERANOPE], ids=["all", "protanope", "deuteranope"])


def lab(rgb, sees) -> np.ndarray:
    """CIELAB of a colour as someone sees it."""
    c = np.array(rgb) / 255
    linear = np.clip(np.array(sees) @ np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4), 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ linear / (0.9505, 1.0, 1.089)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@VISION
def test_lightness_rises_with_the_weight_in_about_even_steps(sees):
    light = [lab(colour(n / 20), sees)[0] for n in range(21)]
    steps = [after - before for before, after in itertools.pairwise(light)]
    assert min(steps) > 0.4 * np.mean(steps)
    assert max(steps) < 2 * np.mean(steps)


@VISION
def test_less_and_more_than_uniform_are_told_apart_and_uniform_is_lightest(sees):
    colours = [lab(ratio_colour(2.0**n), sees) for n in range(-3, 4)]
    assert np.argmax([c[0] for c in colours]) == 3
    for less, more in zip(colours[:3], colours[:3:-1], strict=True):  # as far from uniform on both sides
        assert np.linalg.norm(less - more) > 25
    for before, after in itertools.pairwise(colours):
        assert np.linalg.norm(before - after) > 7


def test_the_scale_is_relative_to_uniform_attention_and_fixed():
    assert ratios([[0.25, 0.25], [0.25, 0.25]]) == pytest.approx(np.ones((2, 2)))
    assert ratios([[0.1, 0.1], [0.1, 0.1]]) == pytest.approx(np.ones((2, 2)))  # the rest is on the class token
    assert levels([0, 1 / 8, 0.5, 1, 2, 8, 1000]) == pytest.approx([-3, -3, -1, 0, 1, 3, 3])
    assert ratio_colour(1) == LESS_TO_MORE[2]
    assert ratio_colour(0) == LESS_TO_MORE[0]
    assert ratio_colour(99) == LESS_TO_MORE[-1]
    assert colour(1.0) == STOPS[-1]


def test_a_place_of_one_and_a_half_times_uniform_is_a_preference():
    for most, words in ((NO_PREFERENCE - 0.01, "no preference"), (1.51, "up to 1.5× uniform"), (16.2, "up to 16× uniform")):
        weights = np.full(64, (64 - most) / 63 / 64)
        weights[5] = most / 64
        assert preference_note(weights) == words
        assert has_preference(weights) == ("up" in words)


@pytest.mark.parametrize(
    ("least", "words"),
    [(0.7, "no preference"), (0.66, "down to 1/1.5× uniform"), (0.05, "down to 1/20× uniform"), (0, "down to 0× uniform")],
)
def test_a_place_of_much_less_than_uniform_is_a_preference_too(least, words):
    weights = np.full(64, (64 - least) / 63 / 64)
    weights[5] = least / 64
    assert preference_note(weights) == words
    assert has_preference(weights) == (words != "no preference")


def test_uniform_attention_may_differ_from_place_to_place():
    uniform = np.array([[0.4, 0.4], [0.1, 0.1]])
    assert ratios(uniform / 2, uniform) == pytest.approx(np.ones((2, 2)))
    assert preference_note(uniform, uniform) == "no preference"
    assert preference_note([[0.25, 0.25], [0.25, 0.25]], uniform) == "up to 2.5× uniform"
