"""Images with captions: own TSV files, the named set, generated shapes, and batches."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from photos import noise, packed

from regard.config import build
from regard.data.image.captions import all_caption_batches, caption_batches, find_captions, normalize_caption, prepare_captions
from regard.data.image.config import CaptionData
from regard.data.image.shapes import COLORS, shape_image
from regard.data.position import DataPosition
from regard.models.captioner import CaptionerConfig

ENCODER = {"family": "resnet", "image": 16, "stem": "cifar", "dim": 4, "dims": [4, 6], "depths": [1, 1], "block": "basic"}
MODEL = CaptionerConfig(encoder=ENCODER)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Twelve images, the first with three captions, and a TSV file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "photos").mkdir()
    lines = []
    for number in range(12):
        (tmp_path / f"photos/{number}.png").write_bytes(packed(noise(20, 24, seed=number)))
        lines += [f"photos/{number}.png\tA photo, of number {number % 3}!" for _ in range(3 if number == 0 else 1)]
    (tmp_path / "my.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


def prepared(folder, **keys):
    data = CaptionData(train=str(folder / "my.tsv"), vocab=60, **keys)
    notes = []
    return data, prepare_captions(data, MODEL, folder / "tokenizer.json", notes.append, lambda what, done: None), notes


def test_captions_are_normalized_as_published_scores_use_them():
    assert normalize_caption('A man\'s dog , wet-nosed, runs "fast" .') == "a man's dog wet-nosed runs fast"


def test_an_own_file_becomes_images_and_captions_and_a_tenth_is_for_validation(folder):
    _, dataset, notes = prepared(folder)
    train, valid = dataset.train, dataset.valid
    assert (len(train), len(valid)) == (11, 1)
    assert len(train.starts) - 1 + len(valid.starts) - 1 == 14
    texts = {
        dataset.tokenizer.decode(store.caption(n).tolist()) for store in (train, valid) for n in range(len(store.starts) - 1)
    }
    assert texts == {f"a photo of number {number}" for number in range(3)}
    assert any("11 images" in note for note in notes)


def test_unreadable_images_are_left_out_with_their_captions_and_listed_together(folder):
    bad = [folder / f"photos/{number}.png" for number in (0, 7)]
    for file in bad:
        file.write_bytes(b"not an image")
    for _ in range(2):  # also when the cache is found
        _, dataset, notes = prepared(folder)
        assert (len(dataset.train), len(dataset.valid)) == (9, 1)
        assert len(dataset.train.starts) - 1 + len(dataset.valid.starts) - 1 == 10
        start = next(row for row, note in enumerate(notes) if ": 2 of 12 images cannot be read and are left out (" in note)
        assert [note.partition(" is not")[0] for note in notes[start + 1 : start + 3]] == [f"  {file}" for file in bad]
        assert sum("not a readable image" in note for note in notes) == 2
    with pytest.raises(ValueError, match=rf"2 of 12 images cannot be read \({bad[0]} is not .*; {bad[1]} is not .*; replace"):
        prepared(folder, strict=True)
    for number in range(6):
        (folder / f"photos/{number}.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"7 of 12 images cannot be read .*; that is most of them"):
        prepared(folder)


def test_a_batch_has_as_many_rows_for_each_image_and_padding_for_missing_captions(folder):
    data, dataset, _ = prepared(folder, valid=str(folder / "my.tsv"))
    (batch,) = list(all_caption_batches(dataset.valid, 16, 12, data, dataset.tokenizer))
    assert batch.image.shape == (12, 3, 16, 16)
    assert batch.target.shape[0] == 12 * 3
    rows = batch.target.view(12, 3, -1)
    special = dataset.tokenizer.special
    assert (rows[:, :, 0] == special.bos).all()
    assert (rows[0, :, 1] != special.pad).all()
    assert (rows[1:, 1:, 1:] == special.pad).all()  # one caption each
    assert batch.tokens == sum(int((row[1:] != special.pad).sum()) for row in batch.target)


def test_batches_resume_from_a_position_with_the_same_images_and_captions(folder):
    data, dataset, _ = prepared(folder, flip=True, captions=2)
    make = lambda position: caption_batches(dataset.train, 16, 4, 7, data, dataset.tokenizer, position)  # noqa: E731
    stream = make(DataPosition())
    made = [next(stream) for _ in range(7)]
    for index in range(6):
        batch, _ = next(make(made[index][1]))
        for got, wanted in zip(batch()[:2], made[index + 1][0]()[:2], strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_a_step_learns_at_most_the_captions_asked_for(folder):
    data, dataset, _ = prepared(folder, captions=2)
    sizes = {len(make().target) for make, _ in (next(caption_batches(dataset.train, 16, 11, s, data, dataset.tokenizer))
                                                for s in range(4))}  # fmt: skip
    assert sizes <= {11, 22}


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("photos/1.png\ta cat\nphotos/none.png\ta dog\n", r"my\.tsv line 2: no image .*none\.png; correct the path"),
        ("photos/1.png\ta cat\nphotos/2.png\t  \n", r"my\.tsv line 2: the caption of photos/2\.png is empty; write one"),
        ("photos/1.png\ta cat\nphotos/2.png\t...\n", r"line 2: the caption of photos/2\.png is empty"),
        ("photos/1.png a cat\n", r"my\.tsv line 1 has no tab; wanted the path of an image, a tab, its caption"),
        ("\n\n", r"my\.tsv is empty; give a file with image, tab, caption"),
        ("photos/1.png\ta cat\n", r"captions of one image only; give more, or data\.valid"),
    ],
)
def test_a_wrong_line_is_named(folder, lines, wanted):
    (folder / "my.tsv").write_text(lines)
    with pytest.raises(ValueError, match=wanted):
        prepared(folder)


def test_a_file_that_is_no_image_is_named_before_strict_training(folder):
    (folder / "photos/3.png").write_text("not an image")
    with pytest.raises(ValueError, match=r"3\.png"):
        prepared(folder, strict=True)


def test_captions_that_are_too_long_are_left_out_and_counted(folder):
    _, dataset, notes = prepared(folder, max_len=5, tokenizer="words", valid=str(folder / "my.tsv"))
    assert len(dataset.train.starts) - 1 == 14  # five words each
    with pytest.raises(ValueError, match=r"no caption of at most 2 tokens; raise data\.max_len"):
        prepared(folder, max_len=2, tokenizer="words")
    lines = (folder / "my.tsv").read_text() + "photos/1.png\tone two three four five six\n"
    (folder / "my.tsv").write_text(lines)
    _, dataset, notes = prepared(folder, max_len=5, tokenizer="words", valid=str(folder / "my.tsv"))
    assert any("left out: 1 of over 5 tokens" in note for note in notes)


def test_unknown_sources_and_splits_are_answered_in_one_line():
    with pytest.raises(ValueError, match=r"data\.source=mnist has no captions.*known are shapes, flickr8k"):
        find_captions(CaptionData(source="mnist"), MODEL, "train")
    with pytest.raises(ValueError, match=r"shapes has no split 'tset' \(did you mean 'test'\?\)"):
        find_captions(CaptionData(source="shapes"), MODEL, "tset")
    with pytest.raises(ValueError, match=r"no train data; give data\.train=FILE\.tsv"):
        find_captions(CaptionData(), MODEL, "train")
    with pytest.raises(ValueError, match=r"data\.captions is -1|captions is -1; use 0 or more"):
        build("data", CaptionData, {"captions": -1})


@pytest.mark.parametrize("index", range(20))
def test_the_place_of_each_shape_is_known(index):
    """Inside its box a shape has its colour; outside both boxes there is background only."""
    made = shape_image("train", index)
    words = made.caption.split()
    image = made.image.astype(int)
    outside = np.ones(image.shape[:2], dtype=bool)
    for box, form in zip(made.boxes, made.forms, strict=True):
        color = words[words.index(form) - 1] if form in words else None
        assert color in COLORS
        patch = image[box.top : box.bottom, box.left : box.right]
        assert (np.abs(patch - COLORS[words[words.index(form, words.index(color)) - 1]]).sum(-1) == 0).mean() > 0.3
        outside[box.top : box.bottom, box.left : box.right] = False
        words = words[words.index(form) + 1 :]
    background = image[outside]
    assert (np.ptp(background, axis=1) == 0).all()  # grey


def test_shapes_are_the_same_every_time_and_differ_between_splits():
    one, two = shape_image("train", 3), shape_image("train", 3)
    assert one.caption == two.caption
    assert (one.image == two.image).all()
    assert any(shape_image("train", n).caption != shape_image("test", n).caption for n in range(5))


@pytest.mark.skipif(
    not (Path(os.environ.get("REGARD_DATA", "nowhere")) / "flickr8k").is_dir(),
    reason="set REGARD_DATA to a folder that holds flickr8k/ to read its captions",
)
def test_flickr8k_has_its_official_splits():
    data = CaptionData(source="flickr8k")
    for split, count in (("valid", 1000), ("test", 1000)):
        found = find_captions(data, MODEL, split)
        assert len(found.captions) == count
        assert {len(captions) for captions in found.captions} == {5}
    assert next(found.images()).shape == (128, 128, 3)
