"""Large images are read in little memory; files that cannot be read are refused in one line that names them."""

import re
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from photos import apart, noise, packed, smooth, with_size
from PIL import Image

from regard.data.image.io import read_image, resize_square

# Large images


@pytest.mark.parametrize("how", [{"compress_level": 1}, {"kind": "TIFF", "compression": "packbits"}], ids=["PNG", "TIFF"])
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


def test_reading_restores_the_pixel_limit_and_warnings_of_pil(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 12)
    before = list(warnings.filters)
    read_image(packed(noise()), 3)
    with pytest.raises(ValueError, match="not a readable image"):
        read_image(b"no", 3)
    assert Image.MAX_IMAGE_PIXELS == 12
    assert warnings.filters == before


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_large_photo_is_decoded_smaller_for_a_small_square_that_looks_the_same(kind):
    photo = packed(smooth(900, 1500), kind)
    whole, less = read_image(photo, 3), read_image(photo, 3, side=50)
    assert whole.shape == (900, 1500, 3)
    assert 100 <= min(less.shape[:2]) < 250
    assert apart(resize_square(whole, 50), resize_square(less, 50)) < 8


def test_a_large_jpeg_is_never_decoded_whole_for_a_small_square(monkeypatch):
    monkeypatch.setattr(Image.Image, "reduce", lambda *_: pytest.fail("it was made smaller afterwards"))
    assert read_image(packed(smooth(900, 1500), "JPEG"), 3, side=50).shape == (113, 188, 3)  # an eighth


@pytest.mark.parametrize("side", [1, 5, 12, 13, 100])
def test_a_small_image_is_never_made_smaller_than_twice_the_side_wanted(side):
    ours = read_image(packed(smooth(40, 60), "JPEG"), 3, side=side)
    assert min(ours.shape[:2]) >= min(40, 2 * side)


# Unreadable files


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
    ("empty.jpg", "it is empty; get it again"),
    ("text.jpg", "not a readable image"), ("page.jpg", "it begins with '<!DOCTYPE html>"),
    ("cut.jpg", "is damaged or cut short"), ("short.jpg", "is damaged or cut short"), ("head.jpg", "cut short"),
    ("cut.png", "cut short"), ("garbled.png", "is damaged"), ("noise.jpg", "not a readable image"), ("cut.gif", "is damaged"),
    ("cut.tif", "is damaged"),
    ("cut.webp", "is damaged"), ("cut.bmp", "is damaged"),
    ("drawing.jpg", "not a readable image"), ("photo.heic", "save it as JPEG"),
])  # fmt: skip
@pytest.mark.parametrize("side", [None, 8])
def test_an_unreadable_image_is_named_in_one_line(tmp_path, name, why, side):
    (tmp_path / name).write_bytes(damaged(name))
    with pytest.raises(ValueError, match=re.escape(why)) as error:
        read_image(tmp_path / name, 3, side)
    assert str(error.value).startswith(f"{tmp_path / name} is ")
    assert len(str(error.value).splitlines()) == 1
    assert ";" in str(error.value)  # and says what to do


def test_a_path_that_is_not_a_file_is_named_in_one_line(tmp_path):
    with pytest.raises(ValueError, match=f"^no file {tmp_path}/lost.png; check the path$"):
        read_image(tmp_path / "lost.png", 3)
    with pytest.raises(ValueError, match=f"^{tmp_path} is a folder; give an image file$"):
        read_image(tmp_path, 3)
    with pytest.raises(ValueError, match=r"^cannot open .*; give a readable image"):
        read_image(tmp_path / ("a" * 300), 3)
    with pytest.raises(ValueError, match=r"^cannot open .*; give a readable image"):
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
    message = ""
    try:
        assert read_image(bytes(content[: cut or None]), 3, side=4, name="it").shape[2] == 3
    except ValueError as error:
        message = str(error)
    assert not message or (message.startswith("it ") and len(message.splitlines()) == 1)
