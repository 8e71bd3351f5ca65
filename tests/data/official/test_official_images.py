"""Image sets in their official formats, served on this machine and read through the public API."""

import gzip
import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from regard.data.image.folders import named_source
from regard.data.official.table import OFFICIAL
from regard.data.sources import is_local, locate

NAMES = {"train": "train", "test": "t10k"}
# Checksums that were published for one of our files, and are those of other files.
OTHERS = {"30301975fd8c5cac4040c261c0852f57cfa8adbbad2ce78e77e4986957445f27"}  # TEDLIUM_release1.tar.gz, for yesno
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def as_idx(array):
    header = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(header + array.tobytes(), 1)


def idx_files(per_class, seed=0):
    """Images whose first pixels are their row number, and shuffled labels."""
    arrays, files = {}, {}
    for split, stem in NAMES.items():
        labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(10, dtype=np.uint8), per_class[split]))
        images = np.zeros((len(labels), 28, 28), np.uint8)
        images[:, 0, 0], images[:, 0, 1] = np.arange(len(labels)) // 256, np.arange(len(labels)) % 256
        arrays[split] = images, labels
        files |= {f"{stem}-images-idx3-ubyte.gz": as_idx(images), f"{stem}-labels-idx1-ubyte.gz": as_idx(labels)}
    return arrays, files


def shorter(packed):
    return gzip.compress(gzip.decompress(packed)[:-1], 1)


def rows_of(source):
    return [256 * int(image[0, 0, 0]) + int(image[0, 1, 0]) for image in source.images()]


@pytest.mark.parametrize(("name", "test_count"), [("mnist", 300), ("fashion-mnist", 500)])
def test_idx_files_become_the_class_balanced_part_in_the_order_of_md5(publish, name, test_count):
    arrays, files = idx_files({"train": 2100, "test": 520})
    publish(name, files)
    test = named_source(name, "test", 1)
    labels = arrays["test"][1]
    rows = rows_of(test)
    assert test.labels.tolist() == labels[rows].tolist()
    assert np.bincount(test.labels).tolist() == [test_count] * 10

    def path(row):
        label, before = labels[row], int((labels[:row] == labels[row]).sum())
        return f"test/{label}/{60_000 + row}.png" if name == "mnist" else f"fashion_mnist_images/test/{label}/{before:04d}.png"

    hashes = {row: hashlib.md5(path(row).encode()).hexdigest() for row in range(len(labels))}
    assert [hashes[row] for row in rows] == sorted(hashes[row] for row in rows)
    for label in range(10):
        last = max(hashes[row] for row in rows if labels[row] == label)
        assert sum(hashes[row] <= last for row in hashes if labels[row] == label) == test_count
    train, valid = (named_source(name, split, 1) for split in ("train", "valid"))
    assert len(valid.labels) == 1000
    assert not set(rows_of(train)) & set(rows_of(valid))


@pytest.mark.parametrize(("damage", "message"), [
    (lambda files: {**files, "t10k-labels-idx1-ubyte.gz": files["t10k-images-idx3-ubyte.gz"]}, "labels.* is not an IDX file"),
    (lambda files: {**files, "train-images-idx3-ubyte.gz": files["train-images-idx3-ubyte.gz"][:-40]}, "is not a whole archive"),
    (lambda files: {**files, "train-images-idx3-ubyte.gz": shorter(files["train-images-idx3-ubyte.gz"])},
     r"bytes for an array of the shape \(12000, 28, 28\); get it again"),
    (lambda files: {**files, "t10k-images-idx3-ubyte.gz": b"<html>not found</html>"}, "is not a whole archive"),
    (lambda files: {**files, "t10k-labels-idx1-ubyte.gz": as_idx(np.full(3000, 12, np.uint8))}, "13 classes"),
    (lambda files: {**files, "t10k-labels-idx1-ubyte.gz": as_idx(np.zeros(2999, np.uint8))}, "2,999 labels for images"),
    (lambda files: {**files, "t10k-labels-idx1-ubyte.gz": as_idx(np.zeros(3000, np.uint8))}, "the smallest of 0 images"),
])  # fmt: skip
def test_damaged_idx_files_are_refused_by_name(publish, cache, damage, message):
    _, files = idx_files({"train": 1200, "test": 300})
    publish("mnist", damage(files))
    with pytest.raises(ValueError, match=message):
        named_source("mnist", "test", 1)
    assert not list(cache.glob("stores/*/*.npz")), "nothing half is kept"


def cifar_batches(per_batch):
    rng = np.random.default_rng(1)
    records = np.zeros((6, per_batch, 3073), np.uint8)
    records[:, :, 0] = rng.integers(0, 10, (6, per_batch))
    records[:, :, 1::256] = rng.integers(0, 256, (6, per_batch, 12))
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    return dict(zip(names, records, strict=True))


def test_cifar_batches_become_colour_images_with_their_classes(publish, pack_tar):
    batches = cifar_batches(1100)
    packed = {f"cifar-10-batches-bin/{name}": records.tobytes() for name, records in batches.items()}
    publish("cifar10", {"cifar-10-binary.tar.gz": pack_tar({**packed, "cifar-10-batches-bin/readme.html": b"<html>"})})
    test = named_source("cifar10", "test", 3)
    records = batches["test_batch.bin"]
    wanted = {row[1:].reshape(3, 32, 32).transpose(1, 2, 0).tobytes(): int(row[0]) for row in records}
    assert [wanted[image.tobytes()] for image in test.images()] == test.labels.tolist()
    assert len(test.labels) == 1100

    seen, paths = [0] * 10, {}
    for row in records:
        paths[row[1:].tobytes()] = f"test/{CIFAR[row[0]]}/{seen[row[0]]:04d}.jpg"
        seen[row[0]] += 1
    order = [hashlib.md5(paths[image.transpose(2, 0, 1).tobytes()].encode()).hexdigest() for image in test.images()]
    assert order == sorted(order)
    train, valid = (named_source("cifar10", split, 3) for split in ("train", "valid"))
    assert (len(train.labels), len(valid.labels)) == (500, 5000)


@pytest.mark.parametrize(("change", "message"), [
    (lambda files: {k: v for k, v in files.items() if "batch_3" not in k}, "has no data_batch_3.bin; get the binary version"),
    (lambda files: {**files, "a/test_batch.bin": files["a/test_batch.bin"][:-1]}, "not a multiple of 3,073"),
    (lambda files: {**files, "a/test_batch.bin": b"\x0a" + files["a/test_batch.bin"][1:]}, "the class 10 in test"),
])  # fmt: skip
def test_damaged_cifar_batches_are_refused_by_name(publish, pack_tar, change, message):
    files = {f"a/{name}": records.tobytes() for name, records in cifar_batches(10).items()}
    publish("cifar10", {"cifar-10-binary.tar.gz": pack_tar(change(files))})
    with pytest.raises(ValueError, match=message):
        locate("cifar10", "test", "")


def photo(seed, rows=120, columns=150):
    packed = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((columns, rows)).save(packed, "JPEG", quality=95)
    return packed.getvalue()


def test_flower_photos_are_split_as_scikit_learn_splits_them(publish, pack_tar):
    from sklearn.model_selection import train_test_split

    classes = ("daisy", "dandelion", "roses", "sunflowers", "tulips")
    names = {label: [f"{100 * number + at}_x.jpg" for at in range(11 + number)] for number, label in enumerate(classes)}
    files = {f"flower_photos/{label}/{name}": photo(1000 * number + at)
             for number, label in enumerate(classes) for at, name in enumerate(names[label])}  # fmt: skip
    publish("flowers5", {"flower_photos.tgz": pack_tar({**files, "flower_photos/LICENSE.txt": b"CC BY 2.0"})})
    sets = {split: named_source("flowers5", split, 3) for split in ("train", "valid", "test")}
    held_out = [len(train_test_split(sorted(names[label]), test_size=0.2, random_state=42)[1]) for label in classes]
    assert np.bincount(sets["test"].labels).tolist() == held_out
    assert len(sets["valid"].labels) == round(0.1 * (len(files) - sum(held_out)))
    assert sum(len(part.labels) for part in sets.values()) == len(files)
    means = {number: [] for number in range(5)}
    for number, label in enumerate(classes):
        for name in train_test_split(sorted(names[label]), test_size=0.2, random_state=42)[1]:
            whole = np.asarray(Image.open(io.BytesIO(files[f"flower_photos/{label}/{name}"])), dtype=float)
            means[number].append(whole[:, 15:135].mean((0, 1)))  # of the middle square
    for image, label in zip(sets["test"].images(), sets["test"].labels, strict=True):
        assert image.shape == (96, 96, 3)
        assert min(np.abs(image.mean((0, 1)) - mean).max() for mean in means[label]) < 3


def test_ants_and_bees_keep_the_official_folders_without_copies(publish, pack_zip):
    folders = {("train", "ants"): 30, ("train", "bees"): 31, ("val", "ants"): 4, ("val", "bees"): 5}
    paths = [f"hymenoptera_data/{split}/{label}/{at}.jpg" for (split, label), count in folders.items() for at in range(count)]
    files = {path: photo(seed) for seed, path in enumerate(paths)}
    first = "hymenoptera_data/train/bees/0.jpg"
    copies = {"hymenoptera_data/train/bees/copy.jpg": files[first]}
    others = {"hymenoptera_data/train/ants/imageNotFound.gif": b"GIF89a", "__MACOSX/hymenoptera_data/train/ants/._1.jpg": b"x"}
    publish("ants-bees", {"hymenoptera_data.zip": pack_zip({**files, **copies, **others})})
    sizes = {split: np.bincount(named_source("ants-bees", split, 3).labels).tolist() for split in ("train", "valid", "test")}
    assert [a + b for a, b in zip(sizes["train"], sizes["valid"], strict=True)] == [30, 31]
    assert sum(sizes["valid"]) == 43
    assert sizes["test"] == [4, 5]


def test_a_flower_in_train_and_test_stays_in_test(publish, pack_tar):
    classes = ("daisy", "dandelion", "roses", "sunflowers", "tulips")
    files = {f"flower_photos/{label}/{at:02}_x.jpg": photo(1000 * number + at)
             for number, label in enumerate(classes) for at in range(12)}  # fmt: skip
    rows = np.random.RandomState(42).permutation(12)  # the first three are test
    files[f"flower_photos/roses/{rows[5]:02}_x.jpg"] = files[f"flower_photos/roses/{rows[0]:02}_x.jpg"]
    publish("flowers5", {"flower_photos.tgz": pack_tar(files)})
    sets = {split: named_source("flowers5", split, 3) for split in ("train", "valid", "test")}
    assert np.bincount(sets["test"].labels).tolist() == [3] * 5
    assert len(sets["train"].labels) + len(sets["valid"].labels) == 5 * 9 - 1


def test_a_photo_that_cannot_be_read_is_named(publish, pack_zip):
    files = {f"hymenoptera_data/{split}/{label}/1.jpg": photo(1) for split in ("train", "val") for label in ("ants", "bees")}
    files["hymenoptera_data/val/bees/2.jpg"] = photo(2)[:300]
    publish("ants-bees", {"hymenoptera_data.zip": pack_zip(files)})
    with pytest.raises(ValueError, match=r"hymenoptera_data/val/bees/2\.jpg of .*hymenoptera_data\.zip"):
        locate("ants-bees", "test", "")


@pytest.mark.parametrize(("files", "message"), [
    ({"hymenoptera_data/train/ants/1.jpg": b""}, "no photos in a folder bees"),
    ({f"hymenoptera_data/train/{label}/1.jpg": b"" for label in ("ants", "bees")}, "no photos in its folders train and val"),
])  # fmt: skip
def test_an_archive_without_a_class_or_a_split_is_refused(publish, pack_zip, files, message):
    publish("ants-bees", {"hymenoptera_data.zip": pack_zip({name: photo(at) for at, name in enumerate(files)})})
    with pytest.raises(ValueError, match=message):
        locate("ants-bees", "test", "")


def test_official_files_put_into_the_local_folder_by_hand_are_read_without_a_download(tmp_path, monkeypatch, pack_zip):
    folder = tmp_path / "local" / "ants-bees"
    folder.mkdir(parents=True)
    files = {f"hymenoptera_data/{split}/{label}/{at}.jpg": photo(at) for split in ("train", "val") for label in ("ants", "bees")
             for at in range(60)}  # fmt: skip
    (folder / "hymenoptera_data.zip").write_bytes(pack_zip(files))
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "local"))
    monkeypatch.setattr("regard.data.download._open", lambda *_, **__: pytest.fail("it was asked"))
    assert is_local("ants-bees", "train", "")
    (first,) = locate("ants-bees", "train", "")
    assert locate("ants-bees", "train", "") == [first]
    prepared = folder / "train.npz"
    prepared.write_bytes(b"prepared")
    assert locate("ants-bees", "train", "") == [prepared], "the prepared file has priority"


def test_a_file_by_hand_with_another_checksum_is_read_and_said(tmp_path, monkeypatch, capsys):
    _, files = idx_files({"train": 1200, "test": 300})
    folder = tmp_path / "local" / "mnist"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "local"))
    assert locate("mnist", "test", "")
    assert "the official file md5:9fb629c4189551a2…; only its structure is checked" in capsys.readouterr().err


def test_a_download_with_another_checksum_is_refused_and_leaves_nothing(publish, cache):
    _, files = idx_files({"train": 1200, "test": 300})
    publish("mnist", files, digest="md5:" + "0" * 32)
    with pytest.raises(
        ValueError, match=r"has md5:.*…, wanted md5:0000.*…: it was changed or damaged on the way; put train-images"
    ):
        locate("mnist", "test", "")
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_every_official_checksum_has_a_known_form():
    for official in OFFICIAL.values():
        for file in official.files:
            kind, _, digest = file.digest.partition(":")
            assert (kind, len(digest)) in (("md5", 32), ("sha256", 64), ("", 0))
            assert all(url.startswith("https://") for url in file.urls)
            assert file.size > 0


def test_no_two_official_files_have_the_same_checksum():
    digests = [file.digest for official in OFFICIAL.values() for file in official.files if file.digest]
    assert len(set(digests)) == len(digests)
    assert not {digest.partition(":")[2] for digest in digests} & OTHERS
