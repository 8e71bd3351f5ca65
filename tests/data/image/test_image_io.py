"""Pictures of every kind are read upright and rightly scaled, or refused in one line that names them."""

import hashlib
import io
import os
import re
import struct
import unicodedata
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from regard.data.checksums import SHA256
from regard.data.image import io as photo
from regard.data.image.folders import folder_source, list_images, named_source, split_validation
from regard.data.image.io import read_image, resize_square
from regard.data.image.store import default_resize, store_images
from regard.data.sources import SOURCES, locate

DATA = os.environ.get("REGARD_DATA", "")
SETS = [name for name, source in SOURCES.items() if source.kind == "images"]


def noise(y=12, x=18, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (y, x, channels), dtype=np.uint8)


def reading(channels, side):
    return lambda file: resize_square(read_image(file, channels, side), side)


def smooth(y, x, seed=0):
    """A picture without fine detail or loud colours, so that JPEG keeps it."""
    small = Image.fromarray(noise(3, 3, seed=seed) // 4 + 96)
    return np.asarray(small.resize((x, y), Image.Resampling.BILINEAR))


def packed(image, kind="PNG", **how):
    """A picture as the bytes of a file."""
    image = Image.fromarray(image.squeeze()) if isinstance(image, np.ndarray) else image
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def with_size(png, width, height):
    """A PNG that says it is of another size."""
    head = b"IHDR" + struct.pack(">II", width, height) + png[24:29]
    return png[:12] + head + struct.pack(">I", zlib.crc32(head)) + png[33:]


def apart(ours, theirs):
    return np.abs(ours.astype(int) - theirs.astype(int)).max()


# Kinds of pictures


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_a_picture_without_loss_is_read_as_it_was(kind):
    picture = noise()
    how = {"lossless": True} if kind == "WEBP" else {}
    assert np.array_equal(read_image(packed(picture, kind, **how), 3), picture)


def test_a_file_a_path_bytes_and_a_stream_are_the_same(tmp_path):
    content, file = packed(noise()), tmp_path / "a.png"
    file.write_bytes(content)
    for given_ in (file, str(file), content, io.BytesIO(content)):
        assert np.array_equal(read_image(given_, 3), noise())


def test_grey_is_one_channel_and_colour_three_equal_ones():
    grey = noise(channels=1)
    assert np.array_equal(read_image(packed(grey), 1), grey)
    assert np.array_equal(read_image(packed(grey), 3), grey.repeat(3, 2))
    colour = noise()
    bright = colour @ np.array([0.299, 0.587, 0.114])
    assert apart(read_image(packed(colour), 1)[:, :, 0], np.rint(bright)) <= 1


def test_what_is_read_can_be_written_to():
    picture = read_image(packed(noise()), 3)
    picture[0] = 0
    assert picture.dtype == np.uint8


def test_black_and_white_is_black_and_white():
    dots = noise(channels=1) > 128
    assert np.array_equal(read_image(packed(Image.fromarray(dots[:, :, 0])), 1), dots * np.uint8(255))


def test_a_palette_is_looked_up():
    image = Image.fromarray(noise(4, 4)).quantize(16)
    assert np.array_equal(read_image(packed(image), 3), np.asarray(image.convert("RGB")))


def test_what_is_transparent_is_white():
    colour, alpha = noise(), noise(channels=1, seed=1)
    alpha[:4], alpha[4:8] = 0, 255
    wanted = 255 + (colour.astype(int) - 255) * (alpha / 255)
    ours = read_image(packed(np.concatenate([colour, alpha], 2)), 3)
    assert apart(ours, wanted) <= 1
    assert (ours[:4] == 255).all()
    assert np.array_equal(ours[4:8], colour[4:8])


def test_grey_with_transparency_is_white_there():
    grey, alpha = noise(channels=1), noise(channels=1, seed=1)
    image = Image.merge("LA", [Image.fromarray(grey[:, :, 0]), Image.fromarray(alpha[:, :, 0])])
    wanted = 255 + (grey.astype(int) - 255) * (alpha / 255)
    assert apart(read_image(packed(image), 1), wanted) <= 1


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_one_colour_of_a_palette_may_be_transparent(kind):
    image = Image.new("P", (6, 4), 1)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.paste(0, (0, 0, 3, 4))
    ours = read_image(packed(image, kind, transparency=0), 3)
    assert (ours[:, :3] == 255).all()
    assert (ours[:, 3:] == [200, 100, 50]).all()


@pytest.mark.parametrize(("mode", "see_through"), [("L", 7), ("RGB", (1, 2, 3)), ("1", 0)])
def test_one_colour_without_a_palette_may_be_transparent(mode, see_through):
    image = Image.new(mode, (2, 1), 255 if mode != "RGB" else (200, 100, 50))
    image.putpixel((0, 0), see_through)
    ours = read_image(packed(image, transparency=see_through), 3)
    assert ours[0, 0].tolist() == [255, 255, 255]
    assert ours[0, 1].tolist() == ([200, 100, 50] if mode == "RGB" else [255, 255, 255])


def test_16_bits_are_scaled_to_8_not_cut_off():
    deep = np.arange(65_536, dtype=np.uint16).reshape(256, 256)
    for kind in ("PNG", "TIFF"):
        ours = read_image(packed(deep, kind), 1)[:, :, 0]
        assert np.array_equal(ours, np.rint(deep / 257)), kind
        assert ours.min() == 0
        assert ours.max() == 255
    dark = deep // 1000  # nothing above 65: dark, not bright
    assert read_image(packed(dark, "PNG"), 1).max() == 0
    big_endian = b"P5 256 256 65535 " + deep.astype(">u2").tobytes()
    assert np.array_equal(read_image(big_endian, 1)[:, :, 0], np.rint(deep / 257))


def test_a_16_bit_png_is_right_if_pil_calls_it_32_bits(monkeypatch):
    """As older versions do."""
    dark = np.arange(256, dtype=np.int32).reshape(16, 16)
    image = Image.fromarray(dark)
    assert image.mode == "I"
    image.format = "PNG"
    assert np.array_equal(photo._scaled(image), np.rint(dark / 257))


def test_16_bits_of_colour_are_scaled_too():
    rgb = np.linspace(0, 65_535, 8 * 8 * 3).astype(">u2").reshape(8, 8, 3)
    rows = b"".join(b"\0" + row.tobytes() for row in rgb)

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    assert apart(read_image(png, 3), rgb / 257) <= 1


@pytest.mark.parametrize(("top", "white"), [(1.0, 1.0), (0.4, 1.0), (200.0, 255.0), (3000.0, 65_535.0), (1e6, 1e6)])
def test_fractions_are_scaled_by_what_white_must_be(top, white):
    values = np.linspace(0, top, 64, dtype=np.float32).reshape(8, 8)
    assert apart(read_image(packed(values, "TIFF"), 1)[:, :, 0], values * 255 / white) <= 1


def test_numbers_that_are_none_are_black():
    values = np.array([[np.nan, np.inf], [-3.0, 1.0]], dtype=np.float32)
    assert read_image(packed(values, "TIFF"), 1)[:, :, 0].tolist() == [[0, 0], [0, 255]]


@pytest.mark.parametrize(("top", "white"), [(255, 255), (4000, 65_535), (2_000_000, 2_000_000)])
def test_32_bits_are_scaled_by_what_white_must_be(top, white):
    values = np.linspace(0, top, 64).astype(np.int32).reshape(8, 8)
    assert apart(read_image(packed(values, "TIFF"), 1)[:, :, 0], values * (255 / white)) <= 1


def test_a_cmyk_jpeg_has_the_colours_of_print():
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # magenta and yellow make red
    assert apart(read_image(packed(image, "JPEG", quality=95), 3), np.array([255, 0, 0])) <= 3
    plain = smooth(20, 30)
    ours = read_image(packed(Image.fromarray(plain).convert("CMYK"), "JPEG", quality=95), 3)
    assert apart(ours, plain) < 12


def test_lab_and_ycbcr_are_turned_to_red_green_and_blue():
    picture = smooth(8, 8)
    image = Image.fromarray(picture)
    profiles = (ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"))
    lab = ImageCms.profileToProfile(image, *profiles, outputMode="LAB")
    assert apart(read_image(packed(lab, "TIFF"), 3), picture) < 12
    assert apart(read_image(packed(image.convert("YCbCr"), "TIFF"), 3), picture) < 4
    assert apart(read_image(packed(lab, "TIFF"), 1), np.asarray(image.convert("L"))[:, :, None]) < 12


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_an_animation_the_first_picture_is_read(kind):
    frames = [Image.new("RGB", (9, 7), colour) for colour in ("red", "green", "blue")]
    how = {"lossless": True} if kind == "WEBP" else {}
    content = packed(frames[0], kind, save_all=True, append_images=frames[1:], **how)
    assert Image.open(io.BytesIO(content)).n_frames == 3
    assert (read_image(content, 3) == [255, 0, 0]).all()


def test_of_a_phones_two_pictures_the_first_is_read():
    frames = [Image.fromarray(smooth(30, 40, seed)) for seed in (1, 2)]
    content = packed(frames[0], "MPO", save_all=True, append_images=frames[1:])
    assert Image.open(io.BytesIO(content)).format == "MPO"
    assert apart(read_image(content, 3), smooth(30, 40, 1)) < 20


# Upright


UPRIGHT = {  # the number a camera notes → what makes the picture upright, in words of numpy
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.swapaxes(0, 1),
    6: lambda p: p.swapaxes(0, 1)[:, ::-1],
    7: lambda p: p[::-1, ::-1].swapaxes(0, 1),
    8: lambda p: p.swapaxes(0, 1)[::-1],
}


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("number", UPRIGHT)
def test_a_photo_that_was_turned_equals_the_upright_one(number, kind):
    held = Image.Exif()
    held[0x0112] = number
    how = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(kind, {})
    stored = smooth(16, 24)
    as_stored = read_image(packed(stored, kind, **how), 3)
    ours = read_image(packed(stored, kind, exif=held, **how), 3)
    assert np.array_equal(ours, UPRIGHT[number](as_stored))


@pytest.mark.parametrize("number", [0, 9, 65_535])
def test_an_unknown_way_to_hold_a_camera_is_upright(number):
    held = Image.Exif()
    held[0x0112] = number
    assert np.array_equal(read_image(packed(noise(), exif=held), 3), noise())


@pytest.mark.parametrize("notes", [
    b"Exif\0\0not notes at all", b"Exif\0\0II*\0\x08\0\0\0\xff\xff", b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0",
    b"Exif\0\0",
])  # fmt: skip
def test_a_photo_with_damaged_notes_is_read(notes):
    content = packed(smooth(16, 24), "JPEG")
    assert np.array_equal(read_image(packed(smooth(16, 24), "JPEG", exif=notes), 3), read_image(content, 3))


# Large ones


@pytest.mark.parametrize(
    "how", [{"compress_level": 1}, {"kind": "TIFF", "compression": "packbits"}], ids=["PNG", "TIFF"]
)
def test_100_megapixels_are_read_without_a_warning(how):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = read_image(packed(Image.new("1", (12_500, 8000), 1), **how), 1, side=40)
    assert min(ours.shape[:2]) >= 80
    assert ours.size < 200_000
    assert (ours == 255).all()


@pytest.mark.parametrize("size", [(20_000, 10_001), (30_000, 30_000), (2_000_000_000, 2)])
def test_more_than_200_megapixels_are_refused_in_one_line(size):
    content = with_size(packed(Image.new("L", (4, 4))), *size)
    wanted = rf"^big.png has {size[0]:,} × {size[1]:,} pixels; 200,000,000 at most are read: make it smaller$"
    with pytest.raises(ValueError, match=wanted):
        read_image(content, 1, name="big.png")


def test_reading_leaves_the_limit_and_the_warnings_of_pil_as_they_were(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 12)
    before = list(warnings.filters)
    read_image(packed(noise()), 3)
    with pytest.raises(ValueError, match="no picture"):
        read_image(b"no", 3)
    assert Image.MAX_IMAGE_PIXELS == 12
    assert warnings.filters == before


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_large_photo_is_read_smaller_if_it_is_to_be_small_and_looks_the_same(kind):
    photo = packed(smooth(900, 1500), kind)
    whole, less = read_image(photo, 3), read_image(photo, 3, side=50)
    assert whole.shape == (900, 1500, 3)
    assert 100 <= min(less.shape[:2]) < 250
    assert apart(resize_square(whole, 50), resize_square(less, 50)) < 8


def test_a_large_jpeg_is_never_decoded_whole_if_it_is_to_be_small(monkeypatch):
    monkeypatch.setattr(Image.Image, "reduce", lambda *_: pytest.fail("it was made smaller afterwards"))
    assert read_image(packed(smooth(900, 1500), "JPEG"), 3, side=50).shape == (113, 188, 3)  # an eighth


@pytest.mark.parametrize("side", [1, 5, 12, 13, 100])
def test_a_small_picture_is_never_made_smaller_than_twice_the_side_wanted(side):
    ours = read_image(packed(smooth(40, 60), "JPEG"), 3, side=side)
    assert min(ours.shape[:2]) >= min(40, 2 * side)


# What is no picture


def damaged(name):
    photo, png = packed(smooth(64, 64), "JPEG"), packed(noise(64, 64))
    return {
        "empty.jpg": b"",
        "text.jpg": b"Dear all,\nhere are the photos.\n",
        "page.jpg": b"<!DOCTYPE html><html>404</html>",
        "cut.jpg": photo[: len(photo) // 2],
        "short.jpg": photo[:-40],
        "head.jpg": photo[:30],
        "cut.png": png[: len(png) // 2],
        "garbled.png": png[:200] + bytes(100) + png[300:],
        "noise.jpg": noise(10, 10, seed=5).tobytes(),
        "cut.gif": packed(Image.fromarray(noise(64, 64)), "GIF")[:300],
        "cut.tif": packed(noise(64, 64), "TIFF")[:5000],
        "cut.webp": packed(noise(64, 64), "WEBP")[:500],
        "cut.bmp": packed(noise(64, 64), "BMP")[:500],
        "drawing.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
        "photo.heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(50),
    }[name]


@pytest.mark.parametrize(("name", "why"), [
    ("empty.jpg", "it is empty; get it again"), ("text.jpg", "is no picture"), ("page.jpg", "it begins with '<!DOCTYPE html>"),
    ("cut.jpg", "is damaged or cut short"), ("short.jpg", "is damaged or cut short"), ("head.jpg", "cut short"),
    ("cut.png", "cut short"), ("garbled.png", "is damaged"), ("noise.jpg", "is no picture"), ("cut.gif", "is damaged"),
    ("cut.tif", "is damaged"),
    ("cut.webp", "is damaged"), ("cut.bmp", "is damaged"), ("drawing.jpg", "is no picture"), ("photo.heic", "save it as JPEG"),
])  # fmt: skip
@pytest.mark.parametrize("side", [None, 8])
def test_what_cannot_be_read_is_named_in_one_line(tmp_path, name, why, side):
    (tmp_path / name).write_bytes(damaged(name))
    with pytest.raises(ValueError, match=re.escape(why)) as error:
        read_image(tmp_path / name, 3, side)
    assert str(error.value).startswith(f"{tmp_path / name} is ")
    assert len(str(error.value).splitlines()) == 1
    assert ";" in str(error.value)  # and says what to do


def test_what_is_no_file_is_named_in_one_line(tmp_path):
    with pytest.raises(ValueError, match=f"^no file {tmp_path}/lost.png; check the path$"):
        read_image(tmp_path / "lost.png", 3)
    with pytest.raises(ValueError, match=f"^{tmp_path} is a folder; give a picture$"):
        read_image(tmp_path, 3)
    with pytest.raises(ValueError, match=r"^cannot open .*; give a picture"):
        read_image(tmp_path / ("a" * 300), 3)
    with pytest.raises(ValueError, match=r"^cannot open .*; give a picture"):
        read_image("a\0b", 3)


def test_other_numbers_of_channels_are_refused():
    with pytest.raises(ValueError, match=r"2 channels was asked for; use 1 \(grey\) or 3"):
        read_image(packed(noise()), 2)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM"]), st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(kind, data):
    content = bytearray(packed(smooth(9, 7), kind))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    said = ""
    try:
        assert read_image(bytes(content[: cut or None]), 3, side=4, name="it").shape[2] == 3
    except ValueError as error:
        said = str(error)
    assert not said or (said.startswith("it ") and len(said.splitlines()) == 1)


# Squares


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("y", "x", "side"), [(40, 60, 20), (60, 40, 20), (20, 36, 40), (33, 33, 16), (64, 32, 32)])
def test_a_square_is_the_scaled_picture_cut_at_both_ends(y, x, side, channels):
    picture = noise(y, x, channels)
    scaled = (x * side // min(y, x), y * side // min(y, x))
    whole = np.asarray(Image.fromarray(picture.squeeze()).resize(scaled, Image.Resampling.BICUBIC))
    top, left = (whole.shape[0] - side) // 2, (whole.shape[1] - side) // 2
    wanted = whole.reshape(*whole.shape[:2], channels)[top : top + side, left : left + side]
    ours = resize_square(picture, side)
    assert ours.shape == (side, side, channels)
    assert apart(ours, wanted) <= 1


def test_a_picture_of_the_right_size_is_left_as_it_is():
    assert np.array_equal(resize_square(noise(12, 12), 12), noise(12, 12))


@pytest.mark.parametrize(("y", "x"), [(1, 5000), (5000, 1), (1, 1), (2, 3)])
def test_the_thinnest_picture_makes_a_square(y, x):
    assert (resize_square(np.full((y, x, 3), 99, dtype=np.uint8), 30) == 99).all()


def test_scaling_down_takes_the_mean_and_not_single_pixels():
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)[:, :, None]
    assert apart(resize_square(board, 8), np.array(127)) <= 2


def test_what_is_stored_is_an_eighth_larger_than_what_is_seen_unless_a_set_is_of_that_size():
    assert [default_resize(224, None), default_resize(32, None), default_resize(96, 28), default_resize(84, 96)] == [
        256,
        37,
        110,
        96,
    ]
    assert [default_resize(32, 32), default_resize(28, 28), default_resize(96, 96)] == [32, 28, 96]


# On disk


def put(pictures, labels=None, side=6, channels=3, identity="x", **how):
    labels = np.arange(len(pictures)) if labels is None else labels
    return store_images(lambda: iter(pictures), labels, "the album", identity, side, channels, **how)


def test_what_is_stored_is_what_was_given():
    given_ = [noise(6, 6, seed=seed) for seed in range(5)]
    stored = put(given_, [3, 1, 2, 0, 1])
    assert np.array_equal(stored.pictures, np.stack(given_))
    assert stored.labels.tolist() == [3, 1, 2, 0, 1]
    assert stored.labels.dtype == np.int64
    assert len(stored) == 5
    assert (stored.side, stored.channels) == (6, 3)


def test_pictures_of_any_size_are_made_square():
    given_ = [noise(9, 20), noise(6, 6), noise(3, 2)]
    assert np.array_equal(put(given_).pictures, np.stack([resize_square(one, 6) for one in given_]))


def test_what_was_stored_is_found_again_and_not_read():
    first = put([noise(6, 6)])

    def read():
        pytest.fail("it was read again")

    again = store_images(read, [0], "the album", "x", 6, 3)
    assert again.folder == first.folder
    assert again.digest == first.digest


def test_another_size_other_channels_other_labels_or_another_source_is_stored_anew():
    pictures, grey = [noise(6, 6), noise(6, 6, seed=1)], [noise(6, 6, 1), noise(6, 6, 1, seed=1)]
    stores = [
        put(pictures),
        put(pictures, side=5),
        put(grey, channels=1),
        put(pictures, [1, 0]),
        put(pictures, identity="y"),
    ]
    assert len({store.folder for store in stores}) == 5
    assert len({store.digest for store in stores}) == 4  # the last holds what the first does
    assert stores[0].digest == stores[4].digest


def test_a_pixel_changes_the_digest():
    other = noise(6, 6)
    other[2, 3, 1] ^= 1
    assert put([noise(6, 6)]).digest != put([other], identity="y").digest


def test_no_pictures_are_refused(cache):
    with pytest.raises(ValueError, match="the album holds no pictures; give some"):
        put([])
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_progress_is_told_until_the_end():
    told = []
    put([noise(6, 6)] * 120, progress=told.append)
    assert told == [50, 100, 120]


# Folders of one's own


def fill(folder, counts, kind="png"):
    for number, (label, count) in enumerate(counts.items()):
        for i in range(count):
            file = folder / label / f"{i}.{kind}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(packed(noise(7, 9, seed=100 * number + i)))
    return folder


def names(found, folder):
    return [(file.relative_to(folder).as_posix(), label) for file, label in found]


def test_each_folder_is_a_class_and_its_pictures_are_found_anywhere_below(tmp_path):
    fill(tmp_path, {"dogs": 2, "cats/black": 1, "cats/white/small": 2, "Bees": 1})
    for other in (
        "dogs/notes.txt",
        "dogs/.hidden.png",
        "dogs/.trash/0.png",
        "readme.txt",
        "dogs/__MACOSX/1.png",
        "top.png",
    ):
        (tmp_path / other).parent.mkdir(exist_ok=True)
        (tmp_path / other).write_bytes(b"")
    (tmp_path / ".git").mkdir()
    (tmp_path / "dogs" / "1.png").rename(tmp_path / "dogs" / "1.JPeG")
    labels, found = list_images(tmp_path)
    assert labels == ["Bees", "cats", "dogs"]
    assert names(found, tmp_path) == [
        ("Bees/0.png", "Bees"), ("cats/black/0.png", "cats"), ("cats/white/small/0.png", "cats"),
        ("cats/white/small/1.png", "cats"), ("dogs/0.png", "dogs"), ("dogs/1.JPeG", "dogs"),
    ]  # fmt: skip


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path):
    fill(tmp_path / "real", {"cats": 2, "dogs": 1})
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    assert [label for _, label in list_images(tmp_path / "linked")[1]] == ["cats", "cats", "dogs"]
    (tmp_path / "own").mkdir()
    for label in ("cats", "dogs"):
        (tmp_path / "own" / label).symlink_to(tmp_path / "real" / label)
    (tmp_path / "real" / "cats" / "again").symlink_to(tmp_path / "real" / "cats")
    assert [label for _, label in list_images(tmp_path / "own")[1]] == ["cats", "cats", "dogs"]
    (tmp_path / "real" / "dogs" / "more").symlink_to(fill(tmp_path / "else", {"puppies": 3}) / "puppies")
    assert [label for _, label in list_images(tmp_path / "own")[1]] == ["cats"] * 2 + ["dogs"] * 4


def empty_class(folder):
    (fill(folder, {"cats": 1, "dogs": 1}) / "birds").mkdir()


@pytest.mark.parametrize(("make", "message"), [
    (lambda f: None, "^no folder .*/own; give a folder that holds a folder of pictures for each class$"),
    (lambda f: f.write_bytes(b""), "own is a file; give a folder that holds"),
    (lambda f: f.mkdir(), "own holds no folders; put the pictures of each class in a folder of their own"),
    (empty_class, r"own/birds holds no pictures \(\.jpg, .*\); put some in, or remove the folder"),
    (lambda f: fill(f, {"cats": 3}), "own has one class only, 'cats'; give pictures of two or more"),
    (lambda f: fill(f, {"cats": 1, "two\nlines": 1}), r"holds the folder 'two\\nlines'; a class is one line of text"),
    (lambda f: fill(f, {"cats": 1, "\udcff": 1}), r"holds the folder '\\udcff'; a class is one line of text"),
    (lambda f: fill(f, {"train/cats": 1, "test/cats": 1}), "own holds test, train, which are no classes; give one"),
])  # fmt: skip
def test_a_folder_that_is_none_of_classes_is_refused_in_one_line(tmp_path, make, message):
    make(tmp_path / "own")
    with pytest.raises(ValueError, match=message) as error:
        list_images(tmp_path / "own")
    assert len(str(error.value).splitlines()) == 1


def test_a_single_class_is_enough_to_be_scored(tmp_path):
    assert list_images(fill(tmp_path, {"cats": 2}), least=1)[0] == ["cats"]


def test_a_tenth_of_each_class_is_held_out_and_at_least_one(tmp_path):
    labels, found = list_images(fill(tmp_path, {"many": 40, "some": 14, "few": 2}))
    train, held = split_validation(tmp_path, found)
    assert sorted(train + held) == sorted(found)
    assert not set(train) & set(held)
    assert [sum(label == one for _, label in held) for one in labels] == [1, 4, 1]


def test_which_are_held_out_depends_on_nothing_but_their_names(tmp_path):
    counts = {"cats": 30, "dogs": 30}
    one, other = fill(tmp_path / "here", counts), fill(tmp_path / "somewhere" / "else", counts)
    found, there = list_images(one)[1], list_images(other)[1]
    for file, _ in there:
        file.write_bytes(b"something else")
    held = names(split_validation(one, found)[1], one)
    assert sorted(names(split_validation(other, there[::-1])[1], other)) == held
    by_hash = sorted((hashlib.sha256(name.encode()).hexdigest(), name, label) for name, label in names(found, one))
    wanted = [pair for label in counts for pair in [(n, c) for _, n, c in by_hash if c == label][:3]]
    assert sorted(wanted) == held


def test_how_a_system_spells_accents_does_not_matter(tmp_path):
    held = []
    for form in ("NFC", "NFD"):
        folder = tmp_path / form
        for i in range(30):
            file = folder / unicodedata.normalize(form, "été") / unicodedata.normalize(form, f"é{i}.png")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"")
        found = [(file, "summer") for file in folder.rglob("*.png")]
        held.append({unicodedata.normalize("NFC", file.name) for file, _ in split_validation(folder, found)[1]})
    assert held[0] == held[1]


def test_a_class_of_one_picture_cannot_be_held_out(tmp_path):
    found = list_images(fill(tmp_path, {"cats": 3, "dogs": 1}))[1]
    with pytest.raises(
        ValueError, match=r"dogs has one picture; wanted two or more, to hold one out: add some, or give"
    ):
        split_validation(tmp_path, found)


def store_own(folder, side=6, channels=3):
    labels, found = list_images(folder)
    album = folder_source(folder, found, labels, reading(channels, side))
    return store_images(album.pictures, album.labels, album.name, album.identity, side, channels), found


def test_own_pictures_are_stored_in_order_with_their_classes(tmp_path):
    stored, found = store_own(fill(tmp_path, {"cats": 40, "dogs": 25}))
    assert stored.labels.tolist() == [0] * 40 + [1] * 25
    for (file, _), picture in zip(found, stored.pictures, strict=True):
        assert np.array_equal(resize_square(read_image(file, 3), 6), picture)


def test_a_changed_picture_is_read_again(tmp_path):
    first, found = store_own(fill(tmp_path / "own", {"cats": 2, "dogs": 2}))
    found[1][0].write_bytes(packed(noise(15, 11, seed=99)))
    second, _ = store_own(tmp_path / "own")
    assert first.digest != second.digest
    assert np.array_equal(second.pictures[1], resize_square(noise(15, 11, seed=99), 6))


@pytest.mark.parametrize("where", [0, 17, 79])
def test_a_damaged_picture_is_named_before_training_and_nothing_is_kept(tmp_path, cache, where):
    fill(tmp_path / "own", {"cats": 40, "dogs": 40})
    bad = list_images(tmp_path / "own")[1][where][0]
    bad.write_bytes(bad.read_bytes()[:-30])
    with pytest.raises(ValueError, match=f"^{bad} is damaged or cut short .*; replace it, or leave it out$"):
        store_own(tmp_path / "own")
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_class_never_seen_in_training_is_refused(tmp_path):
    _, found = list_images(fill(tmp_path, {"cats": 1, "cows": 1}))
    with pytest.raises(ValueError, match="is of class 'cows', never seen in training; known are cats, dogs: rename"):
        folder_source(tmp_path, found, ["cats", "dogs"], reading(3, 6))


def test_numbers_of_classes_are_those_of_training(tmp_path):
    _, found = list_images(fill(tmp_path, {"cats": 1, "dogs": 1}))
    assert folder_source(tmp_path, found, ["bees", "cats", "cows", "dogs"], reading(3, 6)).labels.tolist() == [1, 3]


# Named sets


@pytest.fixture
def local(tmp_path, monkeypatch):
    """A folder of named sets."""
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "sets"))
    return tmp_path / "sets"


def put_set(local, name, split, **arrays):
    (local / name).mkdir(parents=True, exist_ok=True)
    np.savez_compressed(local / name / f"{split}.npz", **arrays)
    return local / name / f"{split}.npz"


def as_jpegs(pictures):
    files = [packed(one, "JPEG", quality=95) for one in pictures]
    cuts = np.cumsum([0, *map(len, files)]).astype(np.int32)
    return {"jpeg": np.frombuffer(b"".join(files), dtype=np.uint8), "offsets": cuts}


def test_valid_is_a_part_of_train_if_a_set_has_no_other(local):
    held = SOURCES["ants-bees"].held
    count = held + 5
    pictures = [smooth(8, 8, seed) for seed in range(count)]
    labels = (np.arange(count) % 3 == 0).astype(np.uint8)
    put_set(local, "ants-bees", "train", **as_jpegs(pictures), labels=labels)
    parts = [named_source("ants-bees", split, 3) for split in ("train", "valid")]
    assert [len(part.labels) for part in parts] == [5, held]
    assert abs(parts[1].labels.mean() - labels.mean()) < 1 / held
    left = list(range(count))
    for part in parts:
        for label, ours in zip(part.labels, part.pictures(), strict=True):
            [number] = [number for number in left if apart(ours, pictures[number]) < 25]
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
def test_a_set_of_grey_arrays_is_read_as_it_is(local, channels):
    grey = noise(20, 28 * 28, 1).reshape(20, 28, 28)
    put_set(local, "mnist", "test", images=grey, labels=np.zeros(20, np.uint8))
    album = named_source("mnist", "test", channels)
    assert np.array_equal(np.stack(list(album.pictures())), grey[..., None].repeat(channels, 3))
    assert album.name == "mnist test"


@pytest.mark.parametrize(("content", "message"), [
    (b"", r"test\.npz is not a whole \.npz file \(.*\); get it again"),
    (b"something else", r"test\.npz is not a whole \.npz file"),
    (b"PK\x03\x04 cut short", r"test\.npz is not a whole \.npz file"),
])  # fmt: skip
def test_a_damaged_set_is_named(local, content, message):
    (local / "mnist").mkdir(parents=True)
    (local / "mnist" / "test.npz").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        named_source("mnist", "test", 1)


@pytest.mark.parametrize(("arrays", "message"), [
    ({"images": np.zeros((2, 28, 28), np.uint8), "labels": np.array([0, 10])}, "has the class 10; wanted 0 to 9"),
    ({"images": np.zeros((2, 28, 28), np.uint8), "labels": np.zeros(3, int)}, "has 2 pictures and 3 labels"),
    ({"pixels": np.zeros((2, 28, 28), np.uint8), "labels": np.zeros(2, int)}, "holds pixels, labels; wanted images, or"),
    ({"images": np.zeros((2, 28, 28), np.uint8)}, "is not a whole .npz file"),
    ({"images": np.array([{}, {}], object), "labels": np.zeros(2, int)}, "is not a whole .npz file .*allow_pickle=False"),
])  # fmt: skip
def test_a_set_that_is_another_is_named(local, arrays, message):
    file = put_set(local, "mnist", "test", **arrays)
    with pytest.raises(ValueError, match=message) as error:
        list(named_source("mnist", "test", 1).pictures())
    assert str(error.value).startswith(str(file))


def test_a_set_that_is_not_there_says_where_to_put_it(local, cache):
    with pytest.raises(ValueError, match=r"cifar10/train\.npz is not on this machine .* put it in") as error:
        named_source("cifar10", "valid", 3)
    assert str(cache / "data" / "cifar10") in str(error.value)


def test_a_set_of_pictures_that_was_downloaded_is_kept_as_it_is(monkeypatch, cache):
    content = b"the file, as it is"
    monkeypatch.delenv("REGARD_DATA", raising=False)
    monkeypatch.setenv("REGARD_MIRROR", "https://example.org")
    monkeypatch.setitem(SHA256, "mnist/test.npz", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr("urllib.request.urlopen", lambda url, **_: io.BytesIO(content))
    (place,) = locate("mnist", "test", "")
    assert place == cache / "data" / "mnist" / "test.npz"
    assert place.read_bytes() == content
    monkeypatch.setitem(SHA256, "mnist/train.npz", hashlib.sha256(b"another").hexdigest())
    with pytest.raises(ValueError, match="it was changed"):
        locate("mnist", "train", "")


def test_every_set_of_pictures_has_its_files_checksums_classes_and_size():
    for name in SETS:
        source = SOURCES[name]
        has = {"train", "test"} if source.held else {"train", "valid", "test"}
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
    albums = [named_source(name, split, 3) for split in source.splits]
    assert tuple(len(album.labels) for album in albums) == COUNTS[name]
    assert all(np.bincount(album.labels, minlength=len(source.labels)).min() > 0 for album in albums)
    if (folder / "classes.txt").exists():
        assert tuple((folder / "classes.txt").read_text().split()) == source.labels
    held = np.load(folder / "test.npz", allow_pickle=False)
    assert np.array_equal(held["labels"], albums[2].labels)
    for number, ours in zip(range(20), albums[2].pictures(), strict=False):
        if "images" in held:
            theirs = held["images"][number][..., None].repeat(3, 2)
        else:
            cut = slice(*held["offsets"][number : number + 2])
            theirs = np.asarray(Image.open(io.BytesIO(held["jpeg"][cut].tobytes())))
        assert theirs.shape == (source.side, source.side, 3)
        assert np.array_equal(ours, theirs)


def test_of_a_real_set_as_many_pictures_of_each_class_are_held_out():
    images = np.load(real("mnist") / "train.npz", allow_pickle=False)["images"]
    train, valid = (named_source("mnist", split, 1) for split in ("train", "valid"))
    assert np.bincount(valid.labels).tolist() == [100] * 10
    assert np.bincount(train.labels).tolist() == [1100] * 10
    both = sorted(picture.tobytes() for album in (train, valid) for picture in album.pictures())
    assert both == sorted(picture.tobytes() for picture in images)


def test_a_real_set_is_stored_and_found_again():
    real("ants-bees")
    album = named_source("ants-bees", "train", 3)
    side = default_resize(64, SOURCES["ants-bees"].side)
    stored = store_images(album.pictures, album.labels, album.name, album.identity, side, 3)
    assert stored.pictures.shape == (200, 73, 73, 3)
    assert np.array_equal(stored.labels, album.labels)
    assert np.array_equal(stored.pictures[7], resize_square(list(album.pictures())[7], 73))
