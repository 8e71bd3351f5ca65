"""Own folders of images: one folder for each class, listed and read once, copies on one side of the split."""

import hashlib
import os
import shutil
import unicodedata
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from photos import fill, noise, packed, reading
from PIL import Image

from regard.data.image.config import ImageData, require_unchanged
from regard.data.image.folder_store import hold_out, store_folder
from regard.data.image.folders import ImageFolder, list_images
from regard.data.image.io import read_image, resize_square
from regard.data.image.store import ImageStore, prepare, read_split


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


def digests(listed):
    return [hashlib.sha256(file.read_bytes()).digest() for file, _ in listed.files]


def held(listed):
    return [listed.files[row] for row in sorted(hold_out(listed, digests(listed)))]


def test_a_tenth_of_each_class_is_for_validation_and_at_least_one_image(tmp_path):
    listed = list_images(fill(tmp_path, {"many": 40, "some": 14, "few": 2}))
    valid = held(listed)
    assert [sum(label == wanted for _, label in valid) for wanted in listed.labels] == [1, 4, 1]


def test_without_copies_the_validation_split_depends_only_on_file_names(tmp_path):
    counts = {"cats": 30, "dogs": 30}
    here, there = fill(tmp_path / "here", counts), fill(tmp_path / "somewhere" / "else", counts)
    listed, other = list_images(here), list_images(there)
    for number, (file, _) in enumerate(other.files):
        file.write_bytes(b"something else %d" % number)
    valid = names(held(listed), here)
    backwards = other._replace(files=other.files[::-1])
    assert sorted(names(held(backwards), there)) == valid
    by_hash = sorted((hashlib.sha256(n.encode()).hexdigest(), n, label) for n, label in names(listed.files, here))
    wanted = [pair for label in counts for pair in [(n, c) for _, n, c in by_hash if c == label][:3]]
    assert sorted(wanted) == valid


@given(st.lists(st.tuples(st.sampled_from(["cats", "dogs", "bees"]), st.integers(0, 60)), min_size=1, max_size=90))
def test_copies_of_an_image_are_all_for_training_or_all_for_validation(images):
    files = [(Path("photos", label, f"{number}.png"), label) for number, (label, _) in enumerate(images)]
    contents, labels = [bytes([content]) for _, content in images], sorted({label for label, _ in images})
    try:
        valid = hold_out(ImageFolder(Path("photos"), labels, files, Counter()), contents)
    except ValueError as error:
        assert "; add one for validation" in str(error)  # noqa: PT017
        return
    train = set(range(len(files))) - valid
    assert not {contents[row] for row in valid} & {contents[row] for row in train}
    assert {files[row][1] for row in valid} == {files[row][1] for row in train} == set(labels)


def test_copies_stay_together_and_are_reported(tmp_path):
    folder, reports = fill(tmp_path / "own", {"cats": 30, "dogs": 30}), []
    for number in range(30):  # the same pixels in another file
        with Image.open(folder / "cats" / f"{number}.png") as image:
            image.save(folder / "cats" / f"copy of {number}.bmp")
    shutil.copy(folder / "cats" / "0.png", folder / "dogs" / "cat.png")
    found = prepare(ImageData(train=str(folder)), Model(), reports.append, lambda what, done: None, labeled=True)
    squares = [{image.tobytes() for image in store.images} for store in (found.train, found.valid)]
    assert not squares[0] & squares[1]
    assert np.bincount(found.valid.labels).tolist() == [6, 3]
    line = f"{folder}: 31 images are copies of others; 1 image is in several classes, such as cats/0.png and "
    assert [report for report in reports if report.startswith(line)]


def test_how_a_system_spells_accents_does_not_matter(tmp_path):
    valid = []
    for form in ("NFC", "NFD"):
        folder = tmp_path / form
        for i in range(30):
            file = folder / unicodedata.normalize(form, "été") / unicodedata.normalize(form, f"é{i}.png")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"%d" % i)
        listed = ImageFolder(folder, ["summer"], [(file, "summer") for file in folder.rglob("*.png")], Counter())
        valid.append({unicodedata.normalize("NFC", file.name) for file, _ in held(listed)})
    assert valid[0] == valid[1]


def test_a_class_of_one_image_cannot_be_split(tmp_path):
    folder = fill(tmp_path, {"cats": 3, "dogs": 1})
    with pytest.raises(ValueError, match=r"dogs has one image; add one for validation, or give data.valid"):
        held(list_images(folder))
    shutil.copy(folder / "dogs" / "0.png", folder / "dogs" / "1.png")
    with pytest.raises(ValueError, match=r"dogs has 2 images, all copies of one; add one for validation, or give data.valid"):
        held(list_images(folder))


def store_own(folder, side=6, channels=3):
    listed = list_images(folder)
    stored = store_folder(listed, listed.labels, reading(channels, side), "x", side, channels, lambda done: None, split=False)
    return ImageStore(stored.cache, "all"), listed.files


def test_own_images_are_stored_in_order_with_their_classes(tmp_path):
    stored, found = store_own(fill(tmp_path, {"cats": 40, "dogs": 25}))
    assert stored.labels.tolist() == [0] * 40 + [1] * 25
    assert stored.files == [file.relative_to(tmp_path).as_posix() for file, _ in found]
    for (file, _), image in zip(found, stored.images, strict=True):
        assert np.array_equal(resize_square(read_image(file, 3), 6), image)


def test_a_changed_image_is_read_again(tmp_path):
    first, found = store_own(fill(tmp_path / "own", {"cats": 2, "dogs": 2}))
    found[1][0].write_bytes(packed(noise(15, 11, seed=99)))
    second, _ = store_own(tmp_path / "own")
    assert first.digest != second.digest
    assert np.array_equal(second.images[1], resize_square(noise(15, 11, seed=99), 6))


def damage(files):
    for file, _ in files:
        file.write_bytes(file.read_bytes()[:-30])


@pytest.mark.parametrize("read_before", [False, True])
def test_damaged_images_are_left_out_and_listed_together(tmp_path, read_before):
    folder, reports = fill(tmp_path / "own", {"cats": 40, "dogs": 40}), []
    bad = [list_images(folder).files[where] for where in range(0, 36, 3)]
    damage(bad)
    data, quiet = ImageData(train=str(folder)), lambda what, done: None
    if read_before:  # what was left out is reported again when the cache is found
        prepare(data, Model(), lambda text: None, quiet, labeled=True)
    found = prepare(data, Model(), reports.append, quiet, labeled=True)
    assert [len(found.train), len(found.valid)] == [68 - 7, 7]
    assert not {str(file.relative_to(folder)) for file, _ in bad} & {*found.train.files, *found.valid.files}
    start = reports.index(f"{folder}: 12 of 80 images cannot be read and are left out (data.strict=true refuses them):")
    for (file, _), line in zip(bad, reports[start + 1 : start + 11], strict=False):
        assert line.startswith(f"  {file} is damaged or cut short (")
    assert reports[start + 11] == "  and 2 more"
    assert sum(" is damaged" in line for line in reports) == 10


def test_a_strict_run_refuses_all_damaged_images_in_one_line(tmp_path):
    folder = fill(tmp_path / "own", {"cats": 4, "dogs": 4})
    bad = list_images(folder).files[2:5:2]
    damage(bad)
    message = rf"^{folder}: 2 of 8 images cannot be read \({bad[0][0]} is damaged .*; {bad[1][0]} is damaged .*\); replace"
    for strict in (True, False, True):  # whatever is in the cache
        with pytest.raises(ValueError, match=message) if strict else nullcontext():
            prepare(ImageData(train=str(folder), strict=strict), Model(), print, lambda what, done: None, labeled=True)


@pytest.mark.parametrize(("bad", "message"), [
    (slice(0, 7), r"^.*own: 7 of 10 images cannot be read \(.*\); that is most of them: replace them"),
    (slice(0, 3), r"^.*own: 3 of 10 images cannot be read \(.*\); no image is left of 'bees': replace them, or remove the"),
])  # fmt: skip
@pytest.mark.parametrize("own_valid", [False, True])
def test_a_folder_of_damaged_images_is_refused_in_one_line(tmp_path, cache, bad, message, own_valid):
    folder = fill(tmp_path / "own", {"bees": 3, "cats": 3, "dogs": 4})
    damage(list_images(folder).files[bad])
    data = ImageData(train=str(folder), valid=str(fill(tmp_path / "valid", {"cats": 2})) if own_valid else "")
    with pytest.raises(ValueError, match=message) as error:
        prepare(data, Model(), print, lambda what, done: None, labeled=True)
    assert len(str(error.value).splitlines()) == 1
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_damaged_images_of_a_folder_for_validation_are_left_out_and_listed(tmp_path):
    train, valid = (fill(tmp_path / name, {"cats": 4, "dogs": 4}) for name in ("train", "valid"))
    bad, reports = list_images(valid).files[1], []
    damage([bad])
    data = ImageData(train=str(train), valid=str(valid))
    found = prepare(data, Model(), reports.append, lambda what, done: None, labeled=True)
    assert found.valid.labels.tolist() == [0] * 3 + [1] * 4
    assert f"{valid}: 1 of 8 images cannot be read and are left out (data.strict=true refuses them):" in reports
    assert any(line.startswith(f"  {bad[0]} is damaged") for line in reports)


def test_a_repaired_image_is_read_again(tmp_path):
    folder = fill(tmp_path / "own", {"cats": 4, "dogs": 4})
    file = list_images(folder).files[0][0]
    whole = file.read_bytes()
    damage([(file, "cats")])
    assert len(store_own(folder)[0]) == 7
    file.write_bytes(whole)
    assert len(store_own(folder)[0]) == 8


def test_a_class_never_seen_in_training_is_refused(tmp_path):
    data = ImageData(train=str(fill(tmp_path, {"cats": 1, "cows": 1})))
    with pytest.raises(ValueError, match="is of class 'cows', never seen in training; known are cats, dogs: rename"):
        read_split(data, Model(), str(tmp_path), print, labels=["cats", "dogs"])


def test_class_ids_are_those_of_training(tmp_path):
    data = ImageData(train=str(fill(tmp_path, {"cats": 1, "dogs": 1})))
    labels = ["bees", "cats", "cows", "dogs"]
    assert read_split(data, Model(), str(tmp_path), print, labels=labels).labels.tolist() == [1, 3]


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
