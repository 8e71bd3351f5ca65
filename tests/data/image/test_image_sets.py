"""Named sets of images: the files, the splits, and the real data."""

import hashlib
import io
import os
from email.message import Message
from pathlib import Path
from urllib.response import addinfourl

import numpy as np
import pytest
from photos import apart, noise, packed, smooth
from PIL import Image

from regard.data.image.folders import named_source
from regard.data.image.io import resize_square
from regard.data.image.store import default_resize, store_images
from regard.data.sources import SHA256, SOURCES, locate

DATA = os.environ.get("REGARD_DATA", "")
SETS = [name for name, source in SOURCES.items() if source.kind == "images"]


@pytest.fixture
def local(tmp_path, monkeypatch):
    """A folder of named sets."""
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "sets"))
    return tmp_path / "sets"


def put_set(local, name, split, **arrays):
    (local / name).mkdir(parents=True, exist_ok=True)
    np.savez_compressed(local / name / f"{split}.npz", **arrays)
    return local / name / f"{split}.npz"


def as_jpegs(images):
    files = [packed(one, "JPEG", quality=95) for one in images]
    cuts = np.cumsum([0, *map(len, files)]).astype(np.int32)
    return {"jpeg": np.frombuffer(b"".join(files), dtype=np.uint8), "offsets": cuts}


def test_valid_is_a_part_of_train_if_a_set_has_no_other(local):
    valid = SOURCES["ants-bees"].valid_images
    count = valid + 5
    images = [smooth(8, 8, seed) for seed in range(count)]
    labels = (np.arange(count) % 3 == 0).astype(np.uint8)
    put_set(local, "ants-bees", "train", **as_jpegs(images), labels=labels)
    parts = [named_source("ants-bees", split, 3) for split in ("train", "valid")]
    assert [len(part.labels) for part in parts] == [5, valid]
    assert abs(parts[1].labels.mean() - labels.mean()) < 1 / valid
    left = list(range(count))
    for part in parts:
        for label, ours in zip(part.labels, part.images(), strict=True):
            [number] = [number for number in left if apart(ours, images[number]) < 25]
            assert label == labels[number]
            left.remove(number)
    assert not left
    assert parts[0].identity != parts[1].identity


def test_a_set_with_a_valid_file_uses_all_of_both(local):
    for split, count in (("train", 4), ("valid", 3)):
        arrays = as_jpegs([smooth(8, 8, seed) for seed in range(count)])
        put_set(local, "flowers5", split, **arrays, labels=np.arange(count, dtype=np.uint8))
    assert [len(named_source("flowers5", split, 3).labels) for split in ("train", "valid")] == [4, 3]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_set_of_grey_arrays_is_read_unchanged(local, channels):
    grey = noise(20, 28 * 28, 1).reshape(20, 28, 28)
    put_set(local, "mnist", "test", images=grey, labels=np.zeros(20, np.uint8))
    source = named_source("mnist", "test", channels)
    assert np.array_equal(np.stack(list(source.images())), grey[..., None].repeat(channels, 3))
    assert source.name == "mnist test"


@pytest.mark.parametrize(("content", "message"), [
    (b"", r"test\.npz is not a whole \.npz file \(.*\); get it again"),
    (b"something else", r"test\.npz is not a whole \.npz file"),
    (b"PK\x03\x04 cut short", r"test\.npz is not a whole \.npz file"),
])  # fmt: skip
def test_a_damaged_set_is_refused_by_name(local, content, message):
    (local / "mnist").mkdir(parents=True)
    (local / "mnist" / "test.npz").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        named_source("mnist", "test", 1)


@pytest.mark.parametrize(("arrays", "message"), [
    ({"images": np.zeros((2, 28, 28), np.uint8), "labels": np.array([0, 10])}, "has the class 10; wanted 0 to 9"),
    ({"images": np.zeros((2, 28, 28), np.uint8), "labels": np.zeros(3, int)}, "has 2 images and 3 labels"),
    ({"pixels": np.zeros((2, 28, 28), np.uint8), "labels": np.zeros(2, int)}, "holds pixels, labels; wanted images, or"),
    ({"images": np.zeros((2, 28, 28), np.uint8)}, "is not a whole .npz file"),
    ({"images": np.array([{}, {}], object), "labels": np.zeros(2, int)}, "is not a whole .npz file .*allow_pickle=False"),
])  # fmt: skip
def test_a_set_with_wrong_arrays_is_refused_by_name(local, arrays, message):
    file = put_set(local, "mnist", "test", **arrays)
    with pytest.raises(ValueError, match=message) as error:
        list(named_source("mnist", "test", 1).images())
    assert str(error.value).startswith(str(file))


def test_the_error_for_a_missing_set_says_where_to_put_it(local, cache):
    with pytest.raises(ValueError, match=r"cannot download .* put cifar-10-binary\.tar\.gz into .* yourself") as error:
        named_source("cifar10", "valid", 3)
    assert str(cache / "data" / "cifar10") in str(error.value)


def test_a_set_of_images_that_was_downloaded_is_kept_unchanged(monkeypatch, cache):
    content = b"the file, as it is"
    monkeypatch.delenv("REGARD_DATA", raising=False)
    monkeypatch.setenv("REGARD_MIRROR", "https://example.org")
    monkeypatch.setitem(SHA256, "mnist/test.npz", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr("regard.data.download._open", lambda url: addinfourl(io.BytesIO(content), Message(), url))
    (file,) = locate("mnist", "test", "")
    assert file == cache / "data" / "mnist" / "test.npz"
    assert file.read_bytes() == content
    monkeypatch.setitem(SHA256, "mnist/train.npz", hashlib.sha256(b"another").hexdigest())
    with pytest.raises(ValueError, match="it was changed"):
        locate("mnist", "train", "")


def test_every_set_of_images_has_its_files_checksums_classes_and_size():
    for name in SETS:
        source = SOURCES[name]
        has = {"train", "test"} if source.valid_images else {"train", "valid", "test"}
        assert {f"{name}/{split}.npz" for split in has} == {file for file in SHA256 if file.startswith(f"{name}/")}
        assert len(source.labels) > 1
        assert source.side in (28, 32, 96)


def real(name):
    if not DATA or not (Path(DATA) / name / "train.npz").exists():
        pytest.skip(f"no {name} here; set REGARD_DATA to a folder that holds {name}/")
    return Path(DATA) / name


COUNTS = {
    "cifar10": (45_000, 5000, 10_000), "fashion-mnist": (19_000, 1000, 5000), "mnist": (11_000, 1000, 3000),
    "flowers5": (2638, 293, 736), "ants-bees": (200, 43, 153),
}  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_a_real_set_has_its_checksums(name):
    folder = real(name)
    for file in (file for file in SHA256 if file.startswith(f"{name}/")):
        with open(folder.parent / file, "rb") as content:
            assert hashlib.file_digest(content, "sha256").hexdigest() == SHA256[file], file


@pytest.mark.parametrize("name", SETS)
def test_a_real_set_is_read_as_its_readme_says(name):
    folder, source = real(name), SOURCES[name]
    splits = [named_source(name, split, 3) for split in source.splits]
    assert tuple(len(split.labels) for split in splits) == COUNTS[name]
    assert all(np.bincount(split.labels, minlength=len(source.labels)).min() > 0 for split in splits)
    if (folder / "classes.txt").exists():
        assert tuple((folder / "classes.txt").read_text().split()) == source.labels
    arrays = np.load(folder / "test.npz", allow_pickle=False)
    assert np.array_equal(arrays["labels"], splits[2].labels)
    for number, ours in zip(range(20), splits[2].images(), strict=False):
        if "images" in arrays:
            theirs = arrays["images"][number][..., None].repeat(3, 2)
        else:
            cut = slice(*arrays["offsets"][number : number + 2])
            theirs = np.asarray(Image.open(io.BytesIO(arrays["jpeg"][cut].tobytes())))
        assert theirs.shape == (source.side, source.side, 3)
        assert np.array_equal(ours, theirs)


def test_of_a_real_set_as_many_images_of_each_class_are_for_validation():
    images = np.load(real("mnist") / "train.npz", allow_pickle=False)["images"]
    train, valid = (named_source("mnist", split, 1) for split in ("train", "valid"))
    assert np.bincount(valid.labels).tolist() == [100] * 10
    assert np.bincount(train.labels).tolist() == [1100] * 10
    both = sorted(image.tobytes() for source in (train, valid) for image in source.images())
    assert both == sorted(image.tobytes() for image in images)


def test_a_real_set_is_stored_and_found_again():
    real("ants-bees")
    source = named_source("ants-bees", "train", 3)
    side = default_resize(64, SOURCES["ants-bees"].side)
    stored = store_images(source.images, source.labels, source.name, source.identity, side, 3)
    assert stored.images.shape == (200, 73, 73, 3)
    assert np.array_equal(stored.labels, source.labels)
    assert np.array_equal(stored.images[7], resize_square(list(source.images())[7], 73))
