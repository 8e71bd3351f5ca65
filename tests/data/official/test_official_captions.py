"""Flickr8k in its official files, served on this machine and read through the public API."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.image.captions import find_captions
from regard.data.image.config import CaptionData
from regard.data.sources import locate
from regard.models.vit import ViTConfig

DATA = os.environ.get("REGARD_DATA", "nowhere")  # before the fixtures take it away
LISTS = {"train": "Flickr_8k.trainImages.txt", "valid": "Flickr_8k.devImages.txt", "test": "Flickr_8k.testImages.txt"}
MODEL = ViTConfig(image=32, patch=8, dim=16, depth=1, heads=2, classes=2)


def photo(seed):
    """A photo of one colour, wider than high."""
    packed = io.BytesIO()
    Image.new("RGB", (40, 30), (20 * seed % 256, 255 - 20 * seed, 90)).save(packed, "JPEG", quality=95)
    return packed.getvalue()


def flickr_files(text_changes=None, left_out=()):
    names = {"train": ["b.jpg", "a.jpg", "c.jpg"], "valid": ["d.jpg"], "test": ["e.jpg"]}
    every = [name for part in names.values() for name in part] + ["unlisted.jpg"]
    tokens = [f"{name}#{number}\tA  dog {number} in {name[0]} .\n" for name in every for number in range(5)]
    texts = {LISTS[split]: "\n".join(part).encode() + b"\n" for split, part in names.items()}
    texts |= {"Flickr8k.token.txt": "".join(tokens[::-1]).encode(), "readme.txt": b"", "__MACOSX/._Flickr8k.token.txt": b"\xff"}
    photos = {f"Flicker8k_Dataset/{name}": photo(at) for at, name in enumerate(every) if name not in left_out}
    photos["__MACOSX/Flicker8k_Dataset/a.jpg"] = b"not a photo"
    return photos, {**texts, **(text_changes or {})}


def publish_flickr(publish, pack_zip, photos, texts):
    publish("flickr8k", {"Flickr8k_Dataset.zip": pack_zip(photos), "Flickr8k_text.zip": pack_zip(texts)})


def test_photos_and_captions_are_read_by_the_official_lists(publish, pack_zip):
    photos, texts = flickr_files()
    publish_flickr(publish, pack_zip, photos, texts)
    found = {split: find_captions(CaptionData(source="flickr8k", normalize=False), MODEL, split) for split in LISTS}
    assert {split: len(part.captions) for split, part in found.items()} == {"train": 3, "valid": 1, "test": 1}
    assert found["train"].captions[0] == [f"A dog {number} in a ." for number in range(5)]
    colours = [image.mean((0, 1)) for image in found["train"].images()]
    for name, colour in zip("abc", colours, strict=True):
        whole = np.asarray(Image.open(io.BytesIO(photos[f"Flicker8k_Dataset/{name}.jpg"])), dtype=float)
        np.testing.assert_allclose(colour, whole.mean((0, 1)), atol=4)
    (archive,) = locate("flickr8k", "test", "")
    with zipfile.ZipFile(archive) as files:
        assert files.namelist() == ["e.jpg"]
        assert Image.open(io.BytesIO(files.read("e.jpg"))).size == (128, 128)


@pytest.mark.parametrize(("changes", "left_out", "message"), [
    ({}, ("c.jpg",), r"lacks 1 photos, among them c\.jpg"),
    ({LISTS["test"]: b"d.jpg\n"}, (), "has a photo in two splits"),
    ({LISTS["test"]: b""}, (), "or none in one"),
    ({LISTS["test"]: b"f.jpg\n"}, (), r"has no caption of f\.jpg"),
    ({"Flickr8k.token.txt": b"a.jpg\tA dog\n"}, (), r"Flickr8k\.token\.txt line 1 in .* is not a photo"),
    ({"Flickr8k.token.txt": b"\xff\xfe"}, (), "is not UTF-8"),
    ({"../Flickr8k.token.txt": b""}, (), "a path outside the archive"),
])  # fmt: skip
def test_other_archives_than_those_of_flickr8k_are_refused(publish, pack_zip, cache, changes, left_out, message):
    publish_flickr(publish, pack_zip, *flickr_files(changes, left_out))
    with pytest.raises(ValueError, match=message):
        locate("flickr8k", "train", "")
    assert not list(cache.glob("stores/*"))


@pytest.mark.skipif(not (Path(DATA) / "flickr8k").is_dir(), reason="set REGARD_DATA to a folder that holds flickr8k/")
def test_the_prepared_captions_come_out_as_they_are(publish, pack_zip, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", DATA)
    prepared, photos, texts, tokens = {}, {}, {}, []
    for split, file in LISTS.items():
        with zipfile.ZipFile(locate("flickr8k", split, "")[0]) as archive:
            names = archive.namelist()[:20]
            photos |= {f"Flicker8k_Dataset/{name}": archive.read(name) for name in names}
        prepared[split] = find_captions(CaptionData(source="flickr8k", normalize=False), MODEL, split).captions[:20]
        tokens += [
            f"{name}#{at}\t{text}\n" for name, five in zip(names, prepared[split], strict=True) for at, text in enumerate(five)
        ]
        texts[file] = "\n".join(names[::-1]).encode()
    monkeypatch.delenv("REGARD_DATA")
    publish_flickr(publish, pack_zip, photos, {**texts, "Flickr8k.token.txt": "".join(tokens).encode()})
    for split, captions in prepared.items():
        assert find_captions(CaptionData(source="flickr8k", normalize=False), MODEL, split).captions == captions
