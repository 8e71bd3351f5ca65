"""Own folders of images: one folder for each class, listed once, split by name, read in order."""

import hashlib
import os
import unicodedata
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from photos import fill, noise, packed, reading

from regard.data.image.config import ImageData, require_unchanged
from regard.data.image.folders import ImageFolder, folder_source, list_images, split_validation
from regard.data.image.io import read_image, resize_square
from regard.data.image.store import prepare, read_split, store_images


def names(found, folder):
    return [(file.relative_to(folder).as_posix(), label) for file, label in found]


def test_each_folder_is_a_class_and_its_images_are_found_anywhere_below(tmp_path):
    fill(tmp_path, {"dogs": 2, "cats/black": 1, "cats/white/small": 2, "Bees": 1})
    for other in ("dogs/notes.txt", "dogs/.hidden.png", "dogs/.trash/0.png", "readme.txt", "dogs/__MACOSX/1.png", "top.png"):
        (tmp_path / other).parent.mkdir(exist_ok=True)
        (tmp_path / other).write_bytes(b"")
    (tmp_path / ".git").mkdir()
    (tmp_path / "dogs" / "1.png").rename(tmp_path / "dogs" / "1.JPeG")
    _, labels, found, skipped = list_images(tmp_path)
    assert skipped == {".txt": 2}
    assert labels == ["Bees", "cats", "dogs"]
    assert names(found, tmp_path) == [
        ("Bees/0.png", "Bees"), ("cats/black/0.png", "cats"), ("cats/white/small/0.png", "cats"),
        ("cats/white/small/1.png", "cats"), ("dogs/0.png", "dogs"), ("dogs/1.JPeG", "dogs"),
    ]  # fmt: skip


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path):
    fill(tmp_path / "real", {"cats": 2, "dogs": 1})
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    assert [label for _, label in list_images(tmp_path / "linked").files] == ["cats", "cats", "dogs"]
    (tmp_path / "own").mkdir()
    for label in ("cats", "dogs"):
        (tmp_path / "own" / label).symlink_to(tmp_path / "real" / label)
    (tmp_path / "real" / "cats" / "again").symlink_to(tmp_path / "real" / "cats")
    assert [label for _, label in list_images(tmp_path / "own").files] == ["cats", "cats", "dogs"]
    (tmp_path / "real" / "dogs" / "more").symlink_to(fill(tmp_path / "else", {"puppies": 3}) / "puppies")
    assert [label for _, label in list_images(tmp_path / "own").files] == ["cats"] * 2 + ["dogs"] * 4


def empty_class(folder):
    (fill(folder, {"cats": 1, "dogs": 1}) / "birds").mkdir()


@pytest.mark.parametrize(("make", "message"), [
    (lambda f: None, "^no folder .*/own; give a folder that holds a folder of images for each class$"),
    (lambda f: f.write_bytes(b""), "own is a file; give a folder that holds"),
    (lambda f: f.mkdir(), "own holds no folders; put the images of each class in one, such as"),
    (empty_class, r"own/birds holds no images \(\.jpg, .*\); put some in, or remove it"),
    (lambda f: fill(f, {"cats": 3}), "own has one class only, 'cats'; give images of two or more classes"),
    (lambda f: fill(f, {"cats": 1, "two\nlines": 1}), r"holds the folder 'two\\nlines'; a class is one line of text"),
    (lambda f: fill(f, {"cats": 1, "\udcff": 1}), r"holds the folder '\\udcff'; a class is one line of text"),
    (lambda f: fill(f, {"train/cats": 1, "test/cats": 1}), "own holds test, train, which are splits; give one"),
])  # fmt: skip
def test_a_folder_without_classes_is_refused_in_one_line(tmp_path, make, message):
    make(tmp_path / "own")
    with pytest.raises(ValueError, match=message) as error:
        list_images(tmp_path / "own")
    assert len(str(error.value).splitlines()) == 1


def test_a_single_class_is_enough_to_be_scored(tmp_path):
    assert list_images(fill(tmp_path, {"cats": 2}), least=1).labels == ["cats"]


def test_a_tenth_of_each_class_is_for_validation_and_at_least_one_image(tmp_path):
    listed = list_images(fill(tmp_path, {"many": 40, "some": 14, "few": 2}))
    train, valid = (part.files for part in split_validation(listed))
    assert sorted(train + valid) == sorted(listed.files)
    assert not set(train) & set(valid)
    assert [sum(label == wanted for _, label in valid) for wanted in listed.labels] == [1, 4, 1]


def test_the_validation_split_depends_only_on_file_names(tmp_path):
    counts = {"cats": 30, "dogs": 30}
    here, there = fill(tmp_path / "here", counts), fill(tmp_path / "somewhere" / "else", counts)
    listed, other = list_images(here), list_images(there)
    for file, _ in other.files:
        file.write_bytes(b"something else")
    valid = names(split_validation(listed)[1].files, here)
    backwards = other._replace(files=other.files[::-1])
    assert sorted(names(split_validation(backwards)[1].files, there)) == valid
    by_hash = sorted((hashlib.sha256(n.encode()).hexdigest(), n, label) for n, label in names(listed.files, here))
    wanted = [pair for label in counts for pair in [(n, c) for _, n, c in by_hash if c == label][:3]]
    assert sorted(wanted) == valid


def test_how_a_system_spells_accents_does_not_matter(tmp_path):
    valid = []
    for form in ("NFC", "NFD"):
        folder = tmp_path / form
        for i in range(30):
            file = folder / unicodedata.normalize(form, "été") / unicodedata.normalize(form, f"é{i}.png")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"")
        listed = ImageFolder(folder, ["summer"], [(file, "summer") for file in folder.rglob("*.png")], Counter())
        valid.append({unicodedata.normalize("NFC", file.name) for file, _ in split_validation(listed)[1].files})
    assert valid[0] == valid[1]


def test_a_class_of_one_image_cannot_be_split(tmp_path):
    listed = list_images(fill(tmp_path, {"cats": 3, "dogs": 1}))
    with pytest.raises(ValueError, match=r"dogs has one image; add one for validation, or give data.valid"):
        split_validation(listed)


def store_own(folder, side=6, channels=3):
    listed = list_images(folder)
    source = folder_source(listed, listed.labels, reading(channels, side))
    return store_images(source.images, source.labels, source.name, source.identity, side, channels), listed.files


def test_own_images_are_stored_in_order_with_their_classes(tmp_path):
    stored, found = store_own(fill(tmp_path, {"cats": 40, "dogs": 25}))
    assert stored.labels.tolist() == [0] * 40 + [1] * 25
    for (file, _), image in zip(found, stored.images, strict=True):
        assert np.array_equal(resize_square(read_image(file, 3), 6), image)


def test_a_changed_image_is_read_again(tmp_path):
    first, found = store_own(fill(tmp_path / "own", {"cats": 2, "dogs": 2}))
    found[1][0].write_bytes(packed(noise(15, 11, seed=99)))
    second, _ = store_own(tmp_path / "own")
    assert first.digest != second.digest
    assert np.array_equal(second.images[1], resize_square(noise(15, 11, seed=99), 6))


@pytest.mark.parametrize("where", [0, 17, 79])
def test_a_damaged_image_is_named_before_training_and_nothing_is_kept(tmp_path, cache, where):
    fill(tmp_path / "own", {"cats": 40, "dogs": 40})
    bad = list_images(tmp_path / "own").files[where][0]
    bad.write_bytes(bad.read_bytes()[:-30])
    with pytest.raises(ValueError, match=f"^{bad} is damaged or cut short .*; replace it, or leave it out$"):
        store_own(tmp_path / "own")
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_class_never_seen_in_training_is_refused(tmp_path):
    listed = list_images(fill(tmp_path, {"cats": 1, "cows": 1}))
    with pytest.raises(ValueError, match="is of class 'cows', never seen in training; known are cats, dogs: rename"):
        folder_source(listed, ["cats", "dogs"], reading(3, 6))


def test_class_ids_are_those_of_training(tmp_path):
    listed = list_images(fill(tmp_path, {"cats": 1, "dogs": 1}))
    assert folder_source(listed, ["bees", "cats", "cows", "dogs"], reading(3, 6)).labels.tolist() == [1, 3]


class Model(NamedTuple):
    image: int = 6
    channels: int = 3


@pytest.mark.parametrize("own_valid", [False, True])
def test_training_walks_each_folder_of_images_once(tmp_path, monkeypatch, own_valid):
    folders = [fill(tmp_path / name, {"cats": 4, "dogs": 4}) for name in ("train", "valid")]
    walked = Counter()
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda folder, **how: walked.update([folder]) or walk(folder, **how))
    data = ImageData(train=str(folders[0]), valid=str(folders[1]) if own_valid else "")
    found = prepare(data, Model(), lambda text: None, lambda what, done: None, labeled=True)
    assert walked == {folder / label: 1 for folder in folders[: 1 + own_valid] for label in ("cats", "dogs")}
    assert [len(found.train), len(found.valid)] == ([8, 8] if own_valid else [6, 2])


def test_what_training_found_in_a_folder_is_reported(tmp_path):
    folder = fill(tmp_path / "own", {"cats": 4, "dogs": 3})
    (folder / "cats" / "notes.txt").write_text("")
    reports = []
    found = prepare(ImageData(train=str(folder)), Model(), reports.append, lambda what, done: None, labeled=False)
    assert reports == [
        f"{folder}: files that are not images regard reads are left out: 1 .txt",
        "classes: 'cats' 4, 'dogs' 3",
        f"{folder}: 5 images, stored as 6 × 6 pixels",
        f"{folder}, validation: 2 images, stored as 6 × 6 pixels",
    ]
    assert found.labels == ()
    other = read_split(ImageData(train=str(folder)), Model(), str(folder), reports.append, labels=["cats", "dogs"])
    assert (len(other), other.side) == (7, 7)


@pytest.mark.parametrize(("how", "message"), [
    ({"crop": 2}, "data.crop=2 is for classification"), ({"mean": [0.5]}, r"data.mean=\[0.5\] is for"),
    ({"resize": 9}, "data.resize=9"), ({"flip": True}, "data.flip=True is .* reads images unchanged"),
])  # fmt: skip
def test_image_generation_refuses_keys_that_change_images(how, message):
    require_unchanged(ImageData(source="mnist", fraction=0.5, fit="squash"))
    with pytest.raises(ValueError, match=message):
        require_unchanged(ImageData(**how))


@pytest.mark.parametrize(("data", "message"), [
    (ImageData(source="sst2"), "data.source=sst2 is not a set of images.*; known are cifar10"),
    (ImageData(source="cifar"), r"data.source=cifar is not known \(did you mean 'cifar10'\?\)"),
    (ImageData(), "no train data; give data.train=FOLDER with a folder for each class"),
    (ImageData(source="mnist", resize=5), "data.resize=5 is less than the model's 6 pixels; use 6 or more"),
])  # fmt: skip
def test_images_that_cannot_be_found_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        prepare(data, Model(), lambda text: None, lambda what, done: None, labeled=True)
