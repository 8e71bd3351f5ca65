"""Images are stored as squares, once, and found again."""

import numpy as np
import pytest
from photos import noise

from regard.data.image.io import resize_square
from regard.data.image.store import default_resize, store_images


def test_squares_are_an_eighth_larger_than_the_model_input_unless_the_set_has_that_size():
    assert [default_resize(224, None), default_resize(32, None), default_resize(96, 28), default_resize(84, 96)] == [
        256,
        37,
        110,
        96,
    ]
    assert [default_resize(32, 32), default_resize(28, 28), default_resize(96, 96)] == [32, 28, 96]


# On disk


def put(images, labels=None, side=6, channels=3, identity="x", **how):
    labels = np.arange(len(images)) if labels is None else labels
    return store_images(lambda: iter(images), labels, "the set", identity, side, channels, **how)


def test_stored_images_equal_the_given_ones():
    given_ = [noise(6, 6, seed=seed) for seed in range(5)]
    stored = put(given_, [3, 1, 2, 0, 1])
    assert np.array_equal(stored.images, np.stack(given_))
    assert stored.labels.tolist() == [3, 1, 2, 0, 1]
    assert stored.labels.dtype == np.int64
    assert len(stored) == 5
    assert (stored.side, stored.channels) == (6, 3)


def test_images_of_any_size_are_made_square():
    given_ = [noise(9, 20), noise(6, 6), noise(3, 2)]
    assert np.array_equal(put(given_).images, np.stack([resize_square(one, 6) for one in given_]))


def test_stored_images_are_found_again_without_reading():
    first = put([noise(6, 6)])

    def read():
        pytest.fail("it was read again")

    again = store_images(read, [0], "the set", "x", 6, 3)
    assert again.folder == first.folder
    assert again.digest == first.digest


def test_another_size_other_channels_other_labels_or_another_source_is_stored_anew():
    images, grey = [noise(6, 6), noise(6, 6, seed=1)], [noise(6, 6, 1), noise(6, 6, 1, seed=1)]
    stores = [put(images), put(images, side=5), put(grey, channels=1), put(images, [1, 0]), put(images, identity="y")]
    assert len({store.folder for store in stores}) == 5
    assert len({store.digest for store in stores}) == 4  # the last holds what the first does
    assert stores[0].digest == stores[4].digest


def test_a_pixel_changes_the_digest():
    other = noise(6, 6)
    other[2, 3, 1] ^= 1
    assert put([noise(6, 6)]).digest != put([other], identity="y").digest


def test_an_empty_set_is_refused(cache):
    with pytest.raises(ValueError, match="the set holds no images; give a folder"):
        put([])
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_progress_is_reported_until_the_end():
    reported = []
    put([noise(6, 6)] * 120, progress=reported.append)
    assert reported == [50, 100, 120]
