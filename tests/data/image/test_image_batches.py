"""Batches of images: every image once an epoch, in an order and with augmentation that can be resumed."""

from itertools import chain, islice

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from streams import built

from regard.config import build
from regard.data.image import batches
from regard.data.image.batches import ImageBatch, all_image_batches, stratified_fraction, to_model_input
from regard.data.image.config import ImageData
from regard.data.image.store import store_images
from regard.data.position import DataPosition
from regard.tasks.metrics import to_device

ALL = ImageData(crop=2, flip=True, augment=0.5, mixup=0.4, erase=0.5)
PLAIN = ImageData()
FEW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)


def image_batches(*how):
    return built(batches.image_batches(*how))


def store(count=23, side=8, channels=3, classes=4, identity="x"):
    """Images whose first pixel is their index."""
    shown = np.random.default_rng(count).integers(0, 256, (count, side, side, channels), dtype=np.uint8)
    shown[:, :, :, 0] = np.arange(count)[:, None, None]
    return store_images(lambda: iter(shown), np.arange(count) % classes, "some", identity, side, channels)


def epoch_of(images, image=8, batch=5, seed=1, how=PLAIN, epoch=0):
    found = []
    for one, after in image_batches(images, image, batch, seed, how, DataPosition(epoch)):
        found.append(one)
        if after.epoch > epoch:
            return found


def which(batch):
    """The indices of the images of a batch without augmentation."""
    return (batch.image[:, 0, 0, 0] * 127.5 + 127.5).round().long().tolist()


@pytest.mark.parametrize("how", [PLAIN, ALL], ids=["plain", "all"])
@pytest.mark.parametrize("count", [1, 4, 5, 6, 14])
def test_training_resumes_from_any_position(count, how):
    images = store()
    whole = list(islice(image_batches(images, 7, 5, 3, how), count + 10))
    again = list(islice(image_batches(images, 7, 5, 3, how, whole[count - 1][1]), 10))
    for (one, after), (other, other_after) in zip(whole[count:], again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        assert after == other_after


@FEW
@given(count=st.integers(1, 60), batch=st.integers(1, 30), seed=st.integers(0, 99), epoch=st.integers(0, 3))
def test_an_epoch_has_each_image_at_most_once_and_leaves_less_than_half_a_batch_out(count, batch, seed, epoch):
    found = epoch_of(store(count), batch=batch, seed=seed, epoch=epoch)
    read = [number for one in found for number in which(one)]
    assert len(read) == len(set(read))
    sizes = [len(one.label) for one in found]
    assert sizes[:-1] == [batch] * (len(sizes) - 1)
    rest = count % batch
    left_out = rest if count > batch and 2 * rest < batch else 0
    assert len(read) == count - left_out
    assert sizes[-1] == (batch if left_out or not rest else rest)


def test_labels_stay_with_their_images():
    images = store()
    for batch in (*epoch_of(images), *all_image_batches(images, 8, 5, PLAIN)):
        assert batch.label.tolist() == [number % 4 for number in which(batch)]
        assert torch.equal(batch.other, batch.label)
        assert torch.equal(batch.part, torch.ones(len(batch.label)))


def test_epochs_and_seeds_differ():
    images = store()
    first, second, other = (
        [which(one) for one in epoch_of(images, seed=seed, epoch=epoch)] for seed, epoch in ((1, 0), (1, 1), (2, 0))
    )
    assert first != second
    assert first != other
    assert sorted(chain(*first)) == sorted(chain(*second))


@pytest.mark.parametrize("how", [
    ImageData(crop=2), ImageData(flip=True), ImageData(augment=0.9), ImageData(mixup=1.0), ImageData(erase=1.0),
])  # fmt: skip
def test_every_augmentation_is_applied_and_differs_between_epochs(how):
    images = store(1)
    read = torch.stack([epoch_of(images, how=how, epoch=epoch)[0].image[0] for epoch in range(12)])
    plain = to_model_input(images.images[:1], 8, how)[0]
    if how.mixup:  # a single image is mixed with itself
        torch.testing.assert_close(read, plain.expand_as(read))
    else:
        assert len(read.unique(dim=0)) > (1 if how.flip else 5)


def test_every_batch_of_an_epoch_is_augmented_differently():
    same = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    images = store_images(lambda: iter([same] * 40), [0] * 40, "some", "same", 8, 3)
    first, second = epoch_of(images, batch=20, how=ImageData(crop=4))
    assert not torch.equal(first.image, second.image)


def test_without_augmentation_training_and_evaluation_read_the_same_images():
    images = store()
    read = {number: image for one in epoch_of(images) for number, image in zip(which(one), one.image, strict=True)}
    for one in all_image_batches(images, 8, 5, PLAIN):
        for number, image in zip(which(one), one.image, strict=True):
            assert torch.equal(image, read[number])


def test_larger_stored_images_are_cropped_at_random_in_training_and_in_the_centre_otherwise():
    images = store(1, side=9)
    whole = to_model_input(images.images, 9, PLAIN)[0]
    pieces = {(i, j): whole[:, i : i + 6, j : j + 6] for i in range(4) for j in range(4)}
    found = set()
    for epoch in range(150):
        read = epoch_of(images, image=6, epoch=epoch)[0].image[0]
        found |= {offset for offset, piece in pieces.items() if torch.equal(read, piece)}
    assert found == set(pieces)
    assert torch.equal(next(all_image_batches(images, 6, 1, ALL)).image[0], pieces[1, 1])


def test_evaluation_reads_every_image_once_in_order_without_augmentation():
    images = store(23)
    found = list(all_image_batches(images, 8, 5, ALL))
    assert [len(one.label) for one in found] == [5, 5, 5, 5, 3]
    assert list(chain(*map(which, found))) == list(range(23))
    assert torch.equal(torch.cat([one.image for one in found]), to_model_input(images.images, 8, PLAIN))


@pytest.mark.parametrize(("side", "image"), [(8, 8), (9, 6), (10, 5), (37, 32), (256, 224)])
def test_the_centre_crop_equals_a_plain_loop(side, image):
    shown = np.random.default_rng(0).integers(0, 256, (2, side, side, 3), dtype=np.uint8)
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
    ours = to_model_input(shown, image, ImageData(mean=mean, std=std))
    assert ours.shape == (2, 3, image, image)
    assert ours.dtype == torch.float32
    assert ours.is_contiguous()
    margin = (side - image) // 2
    for c, y, x in ((0, 0, 0), (1, image - 1, 2), (2, 3, image - 1)):
        wanted = (shown[1, margin + y, margin + x, c] / 255 - mean[c]) / std[c]
        assert abs(ours[1, c, y, x].item() - wanted) < 1e-5


def test_the_centre_crop_equals_that_of_pil():
    shown = np.random.default_rng(0).integers(0, 256, (1, 20, 20, 3), dtype=np.uint8)
    cut = np.asarray(Image.fromarray(shown[0]).crop((3, 3, 17, 17)))
    ours = to_model_input(shown, 14, PLAIN)[0]
    torch.testing.assert_close(ours, torch.from_numpy(cut.copy()).permute(2, 0, 1) / 127.5 - 1)


def test_grey_images_have_one_channel_from_minus_one_to_one():
    shown = np.array([[[[0]], [[255]]]], dtype=np.uint8).repeat(2, 2)
    assert to_model_input(shown, 2, PLAIN).tolist() == [[[[-1.0, -1.0], [1.0, 1.0]]]]


def test_read_only_images_are_accepted():
    shown = np.zeros((1, 4, 4, 3), dtype=np.uint8)
    shown.flags.writeable = False
    assert to_model_input(shown, 4, PLAIN).shape == (1, 3, 4, 4)


def test_mixup_keeps_both_labels():
    images = store(40, classes=40)
    plain = to_model_input(images.images, 8, PLAIN)
    (batch,) = epoch_of(images, batch=40, how=ImageData(mixup=0.7))
    assert sorted(batch.other.tolist()) == sorted(batch.label.tolist()) == list(range(40))
    assert (batch.other != batch.label).any()
    part = batch.part[:, None, None, None]
    torch.testing.assert_close(batch.image, part * plain[batch.label] + (1 - part) * plain[batch.other])


def test_a_batch_counts_its_images_and_moves_to_a_device():
    batch = next(all_image_batches(store(), 8, 5, PLAIN))
    assert batch.tokens == 5
    moved = to_device(batch, torch.device("meta"))
    assert isinstance(moved, ImageBatch)
    assert all(part.device.type == "meta" for part in moved)


# A fraction of the images


@FEW
@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.floats(0.001, 1), st.floats(0.001, 1))
def test_a_smaller_fraction_is_a_stratified_subset_of_a_larger_one(labels, one, other):
    table = np.array(labels)
    small, large = (stratified_fraction(table, fraction) for fraction in sorted((one, other)))
    assert set(small) <= set(large)
    assert (np.diff(small) > 0).all()
    for label in np.unique(table):
        count, taken = (table == label).sum(), (table[small] == label).sum()
        assert taken >= 1
        assert abs(taken - count * min(one, other)) <= 1


def test_a_fraction_of_1_is_all_images():
    assert stratified_fraction(np.array([2, 0, 1, 2]), 1.0).tolist() == [0, 1, 2, 3]


def test_a_fraction_is_a_random_subset_and_the_same_for_every_seed():
    images = store(200)
    how = ImageData(fraction=0.1)
    read = [sorted(n for one in epoch_of(images, seed=seed, how=how) for n in which(one)) for seed in (1, 2)]
    assert read[0] == read[1] == stratified_fraction(images.labels, 0.1).tolist()
    assert len(read[0]) == 20
    assert read[0] != list(range(20))


def test_evaluation_reads_all_images_whatever_the_fraction():
    assert sum(one.tokens for one in all_image_batches(store(), 8, 5, ImageData(fraction=0.1))) == 23


# Errors


def test_images_that_are_too_small_are_refused():
    with pytest.raises(ValueError, match="images of 8 pixels were stored, the model reads 16; store 16 or more"):
        next(image_batches(store(), 16, 5, 1, PLAIN))
    with pytest.raises(ValueError, match="images of 8 pixels were stored, the model reads 9"):
        next(all_image_batches(store(), 9, 5, PLAIN))


def test_a_crop_that_moves_images_out_of_sight_is_refused():
    next(image_batches(store(), 8, 5, 1, ImageData(crop=7)))
    with pytest.raises(ValueError, match=r"data\.crop=8 moves images of 8 pixels out of sight; use 7 or less"):
        next(image_batches(store(), 8, 5, 1, ImageData(crop=8)))


def test_means_for_another_number_of_channels_are_refused():
    with pytest.raises(ValueError, match=r"data\.mean is \[0\.5\]; an image here has 3 channels: give one number for each"):
        next(all_image_batches(store(), 8, 5, ImageData(mean=[0.5])))
    with pytest.raises(ValueError, match=r"data\.std is .*; an image here has 1 channels: give one number for each"):
        next(image_batches(store(channels=1), 8, 5, 1, ImageData(std=[0.5] * 3)))


@pytest.mark.parametrize(("key", "value", "message"), [
    ("crop", -1, "crop is -1; use 0 or more"), ("augment", 1.5, "augment is 1.5; use 1 or less"),
    ("augment", -0.1, "use 0 or more"), ("mixup", -1.0, "mixup is -1.0; use 0 or more"),
    ("mixup", float("inf"), "mixup is inf; use 100 or less"),
    ("erase", 2.0, "erase is 2.0; use 1 or less"), ("fraction", 0.0, "fraction is 0.0; use more than 0"),
    ("fraction", 1.1, "fraction is 1.1; use more than 0, and 1 or less"), ("fraction", float("nan"), "fraction is nan"),
    ("flip", "yes", "data.flip"),
    ("mean", [0.5, 1.5], "mean is 1.5; use 1 or less"), ("mean", [-1.0], "mean is -1.0; use 0 or more"),
    ("std", [0.0], "std is 0.0; use more than 0"), ("std", [float("nan")], "std is nan"), ("mean", "grey", "data.mean"),
])  # fmt: skip
def test_a_wrong_value_is_refused_by_its_name(key, value, message):
    with pytest.raises(ValueError, match=message) as error:
        build("data", ImageData, {key: value})
    assert len(str(error.value).splitlines()) == 1


def test_mean_and_std_have_the_same_number_of_channels():
    assert ImageData(mean=[0.5, 0, 1], std=[0.2, 0.3, 1]).mean == [0.5, 0.0, 1.0]
    with pytest.raises(ValueError, match="mean has 3 numbers and std 1; give one for every channel"):
        ImageData(mean=[0.5] * 3, std=[0.2])
