"""Images of every kind are read upright and correctly scaled."""

import io
import struct
import zlib
from typing import NamedTuple

import numpy as np
import pytest
from photos import apart, noise, packed, smooth
from PIL import Image, ImageCms

from regard.data.image import io as image_io
from regard.data.image.config import ImageData
from regard.data.image.io import read_image, resize_square
from regard.data.image.store import to_square

# Kinds of images


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_lossless_formats_are_read_exactly(kind):
    image = noise()
    how = {"lossless": True} if kind == "WEBP" else {}
    assert np.array_equal(read_image(packed(image, kind, **how), 3), image)


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


def test_the_array_is_writable():
    image = read_image(packed(noise()), 3)
    image[0] = 0
    assert image.dtype == np.uint8


def test_black_and_white_is_black_and_white():
    dots = noise(channels=1) > 128
    assert np.array_equal(read_image(packed(Image.fromarray(dots[:, :, 0])), 1), dots * np.uint8(255))


def test_a_palette_is_looked_up():
    image = Image.fromarray(noise(4, 4)).quantize(16)
    assert np.array_equal(read_image(packed(image), 3), np.asarray(image.convert("RGB")))


def test_transparent_pixels_are_white():
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
    assert np.array_equal(image_io._to_8_bits(image), np.rint(dark / 257))


def test_16_bits_of_colour_are_scaled_too():
    rgb = np.linspace(0, 65_535, 8 * 8 * 3).astype(">u2").reshape(8, 8, 3)
    rows = b"".join(b"\0" + row.tobytes() for row in rgb)

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    assert apart(read_image(png, 3), rgb / 257) <= 1


@pytest.mark.parametrize(("top", "white"), [(1.0, 1.0), (0.4, 1.0), (200.0, 255.0), (3000.0, 65_535.0), (1e6, 1e6)])
def test_floats_are_scaled_by_the_likely_white_level(top, white):
    values = np.linspace(0, top, 64, dtype=np.float32).reshape(8, 8)
    assert apart(read_image(packed(values, "TIFF"), 1)[:, :, 0], values * 255 / white) <= 1


def test_nan_and_infinity_are_black():
    values = np.array([[np.nan, np.inf], [-3.0, 1.0]], dtype=np.float32)
    assert read_image(packed(values, "TIFF"), 1)[:, :, 0].tolist() == [[0, 0], [0, 255]]


@pytest.mark.parametrize(("top", "white"), [(255, 255), (4000, 65_535), (2_000_000, 2_000_000)])
def test_32_bits_are_scaled_by_the_likely_white_level(top, white):
    values = np.linspace(0, top, 64).astype(np.int32).reshape(8, 8)
    assert apart(read_image(packed(values, "TIFF"), 1)[:, :, 0], values * (255 / white)) <= 1


def test_a_cmyk_jpeg_has_the_colours_of_print():
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # magenta and yellow make red
    assert apart(read_image(packed(image, "JPEG", quality=95), 3), np.array([255, 0, 0])) <= 3
    plain = smooth(20, 30)
    ours = read_image(packed(Image.fromarray(plain).convert("CMYK"), "JPEG", quality=95), 3)
    assert apart(ours, plain) < 12


def test_lab_and_ycbcr_are_converted_to_rgb():
    pixels = smooth(8, 8)
    image = Image.fromarray(pixels)
    profiles = (ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"))
    lab = ImageCms.profileToProfile(image, *profiles, outputMode="LAB")
    assert apart(read_image(packed(lab, "TIFF"), 3), pixels) < 12
    assert apart(read_image(packed(image.convert("YCbCr"), "TIFF"), 3), pixels) < 4
    assert apart(read_image(packed(lab, "TIFF"), 1), np.asarray(image.convert("L"))[:, :, None]) < 12


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation_is_read(kind):
    frames = [Image.new("RGB", (9, 7), colour) for colour in ("red", "green", "blue")]
    how = {"lossless": True} if kind == "WEBP" else {}
    content = packed(frames[0], kind, save_all=True, append_images=frames[1:], **how)
    assert Image.open(io.BytesIO(content)).n_frames == 3
    assert (read_image(content, 3) == [255, 0, 0]).all()


def test_the_first_image_of_an_mpo_file_is_read():
    frames = [Image.fromarray(smooth(30, 40, seed)) for seed in (1, 2)]
    content = packed(frames[0], "MPO", save_all=True, append_images=frames[1:])
    assert Image.open(io.BytesIO(content)).format == "MPO"
    assert apart(read_image(content, 3), smooth(30, 40, 1)) < 20


# Upright


UPRIGHT = {  # EXIF orientation → the numpy operation that makes the image upright
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
def test_a_photo_with_exif_orientation_is_read_upright(number, kind):
    exif = Image.Exif()
    exif[0x0112] = number
    how = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(kind, {})
    stored = smooth(16, 24)
    as_stored = read_image(packed(stored, kind, **how), 3)
    ours = read_image(packed(stored, kind, exif=exif, **how), 3)
    assert np.array_equal(ours, UPRIGHT[number](as_stored))


@pytest.mark.parametrize("number", [0, 9, 65_535])
def test_an_unknown_exif_orientation_is_ignored(number):
    exif = Image.Exif()
    exif[0x0112] = number
    assert np.array_equal(read_image(packed(noise(), exif=exif), 3), noise())


@pytest.mark.parametrize("notes", [
    b"Exif\0\0not notes at all", b"Exif\0\0II*\0\x08\0\0\0\xff\xff", b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0",
    b"Exif\0\0",
])  # fmt: skip
def test_a_photo_with_damaged_exif_is_read(notes):
    content = packed(smooth(16, 24), "JPEG")
    assert np.array_equal(read_image(packed(smooth(16, 24), "JPEG", exif=notes), 3), read_image(content, 3))


# Squares


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("y", "x", "side"), [(40, 60, 20), (60, 40, 20), (20, 36, 40), (33, 33, 16), (64, 32, 32)])
def test_a_square_is_the_centre_crop_of_the_scaled_image(y, x, side, channels):
    image = noise(y, x, channels)
    scaled = (x * side // min(y, x), y * side // min(y, x))
    whole = np.asarray(Image.fromarray(image.squeeze()).resize(scaled, Image.Resampling.BICUBIC))
    top, left = (whole.shape[0] - side) // 2, (whole.shape[1] - side) // 2
    wanted = whole.reshape(*whole.shape[:2], channels)[top : top + side, left : left + side]
    ours = resize_square(image, side)
    assert ours.shape == (side, side, channels)
    assert apart(ours, wanted) <= 1


def test_an_image_of_the_right_size_is_unchanged():
    assert np.array_equal(resize_square(noise(12, 12), 12), noise(12, 12))


@pytest.mark.parametrize(("y", "x"), [(1, 5000), (5000, 1), (1, 1), (2, 3)])
def test_the_thinnest_image_makes_a_square(y, x):
    assert (resize_square(np.full((y, x, 3), 99, dtype=np.uint8), 30) == 99).all()


def test_scaling_down_takes_the_mean_and_not_single_pixels():
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)[:, :, None]
    assert apart(resize_square(board, 8), np.array(127)) <= 2


# One image, given in several ways


class Model(NamedTuple):
    image: int = 32
    channels: int = 3


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("how", [{}, {"resize": 40}, {"fit": "squash"}], ids=["crop", "resize", "squash"])
@pytest.mark.parametrize("size", [(480, 640), (300, 401), (60, 75), (37, 37)])
def test_a_file_and_its_decoded_pixels_give_the_same_square(tmp_path, size, how, channels):
    data, model = ImageData(**how), Model(channels=channels)
    for kind, mode in (("JPEG", "RGB"), ("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "L")):
        file = tmp_path / f"photo-{mode}.{kind}"
        Image.fromarray(noise(*size, 4)).convert(mode).save(file)
        square = to_square(file, data, model)
        with Image.open(file) as lazy:
            assert np.array_equal(to_square(lazy, data, model), square)
        with Image.open(file) as opened:
            assert np.array_equal(to_square(opened.copy(), data, model), square)
            assert np.array_equal(to_square(np.asarray(opened), data, model), square)


def test_a_turned_photo_gives_the_same_square_as_a_file_and_as_an_image_of_pil(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "turned.jpg").write_bytes(packed(noise(200, 313), "JPEG", exif=exif))
    with Image.open(tmp_path / "turned.jpg") as image:
        assert np.array_equal(to_square(image, ImageData(), Model()), to_square(tmp_path / "turned.jpg", ImageData(), Model()))
