"""One picture of any kind → upright squares of bytes.

Shapes: Y X rows and columns, S side of a square, C channels.
"""

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

__all__ = ["Bytes", "read_image", "resize_square"]

MOST = 200_000_000  # pixels of a picture; PIL's own limit refuses the largest photos there are
STRIP = 32  # times as long as wide: of a longer picture only the middle is scaled, else it might fill all memory
ORIENTATION = 0x0112  # the number of this note in EXIF
TURNS = {  # what a camera notes of how it was held → what makes the picture upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Only formats that are nothing but pictures: for others PIL starts programs.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")

Bytes = npt.NDArray[np.uint8]

_OPENING = threading.Lock()


def read_image(file: str | Path | bytes | BinaryIO, channels: int, side: int | None = None, name: str = "") -> Bytes:
    """A picture of any kind, upright: (Y, X, C), grey (C = 1) or red, green and blue (C = 3).

    What is transparent becomes white; of an animation the first picture is taken.  If it will be scaled to a shorter
    `side`, a much larger one may come smaller, though not below twice that.  `name` is what errors call it.
    """
    if channels not in (1, 3):
        raise ValueError(f"a picture of {channels} channels was asked for; use 1 (grey) or 3 (red, green, blue)")
    name = name or (str(file) if isinstance(file, str | Path) else "the picture")
    with _stream(file, name) as stream:
        image = _opened(stream, name)
        if image.width * image.height > MOST:
            raise ValueError(
                f"{name} has {image.width:,} × {image.height:,} pixels; {MOST:,} at most are read: make it smaller"
            )
        try:
            if side:
                image.draft(None, (2 * side, 2 * side))  # a JPEG can be decoded at a half, a quarter or an eighth
            with _quiet() if image.format == "TIFF" else nullcontext():  # PIL looks at its limit again, as late as here
                image.load()
            turn, plain = _turn(image), _plain(image)
        except Exception as error:  # readers of damaged files raise all kinds
            raise ValueError(_damaged(name, error)) from None
    if side and min(plain.size) >= 4 * side:
        plain = plain.reduce(min(plain.size) // (2 * side))
    if plain.mode == "RGBA":
        plain = Image.alpha_composite(Image.new("RGBA", plain.size, "white"), plain)
    mode = "L" if channels == 1 else "RGB"
    plain = plain if plain.mode == mode else plain.convert(mode)
    upright = plain if turn is None else plain.transpose(turn)
    return np.array(upright).reshape(upright.height, upright.width, channels)


def _damaged(name: str, error: Exception) -> str:
    why = " ".join(str(error).split()) or type(error).__name__
    return f"{name} is damaged or cut short ({why}); replace it, or leave it out"


def _stream(file: str | Path | bytes | BinaryIO, name: str) -> BinaryIO:
    """The bytes of a picture, which one can go back and forth in."""
    if not isinstance(file, str | Path):
        return io.BytesIO(file if isinstance(file, bytes) else file.read())
    try:
        return open(file, "rb")
    except FileNotFoundError:
        raise ValueError(f"no file {file}; check the path") from None
    except IsADirectoryError:
        raise ValueError(f"{file} is a folder; give a picture") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot open {name} ({error}); give a picture that can be read") from None


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)  # an old PIL has not all


@contextmanager
def _quiet() -> Iterator[None]:
    """Without PIL's warnings of large pictures and odd notes, and its limit; both are of the process, so one at a time."""
    with _OPENING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _opened(stream: BinaryIO, name: str) -> Image.Image:
    """A picture of which only the beginning was read."""
    try:
        with _quiet():
            return Image.open(stream, formats=_formats())
    except UnidentifiedImageError:
        raise ValueError(f"{name} is no picture that can be read: {_what(stream)}") from None
    except Exception as error:
        raise ValueError(_damaged(name, error)) from None


def _turn(image: Image.Image) -> Image.Transpose | None:
    """What makes a picture upright, if it is not."""
    with _quiet():
        try:
            return TURNS.get(image.getexif().get(ORIENTATION, 1))
        except Exception:  # a picture whose notes are damaged is a picture still
            return None


def _plain(image: Image.Image) -> Image.Image:
    """The same picture as one of three kinds: L, RGB or RGBA."""
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_scaled(image))
    if image.has_transparency_data:
        return image.convert("RGBA")
    if image.mode in ("L", "RGB"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def _scaled(image: Image.Image) -> Bytes:
    """Brightness of more than 8 bits → 8 bits.

    16 bits are scaled as such.  Of numbers that could be anything (32 bits, fractions) white is the first of 1 (of
    fractions only), 255 and 65,535 that none is above, or else the largest.
    """
    values = np.nan_to_num(np.asarray(image, dtype=np.float32), nan=0, posinf=0, neginf=0)
    white, most = 65_535.0, float(values.max())
    if image.mode in ("I", "F") and image.format not in ("PNG", "PPM"):
        usual = (1.0, 255.0, 65_535.0) if image.mode == "F" else (255.0, 65_535.0)
        white = next((one for one in usual if most <= one), most)
    return np.rint(np.clip(values, 0, white) * (255 / white)).astype(np.uint8)


def _what(stream: BinaryIO) -> str:
    """What a file is that is no picture, and what to do."""
    stream.seek(0)
    head = stream.read(256)
    if not head:
        return "it is empty; get it again"
    if head[4:8] == b"ftyp":
        return "it is a film, or a photo as iPhones store it (HEIC); save it as JPEG"
    if b"\0" not in head and head.decode("utf-8", "ignore").isprintable():
        return f"it begins with {head[:20].decode('utf-8', 'ignore')!r}; give a JPEG, PNG, WebP, GIF, BMP or TIFF file"
    return "it is damaged, or of another kind; give a JPEG, PNG, WebP, GIF, BMP or TIFF file"


def resize_square(picture: Bytes, side: int, seen: int = 0, fit: str = "crop", resample: str = "bicubic") -> Bytes:
    """A picture of any shape as a square, of which the model will see the middle: (Y, X, C) → (S, S, C).

    To `crop` is to scale its shorter side and to cut the longer one, to `squash` to scale both: each to `side` pixels, of which
    `seen` are seen, or all.
    """
    channels, short, seen = picture.shape[2], min(picture.shape[:2]), seen or side
    if picture.shape[:2] == (side, side):
        return picture
    over, beside = (max(0, edge - STRIP * short) // 2 for edge in picture.shape[:2])
    picture = picture[over : len(picture) - over, beside : picture.shape[1] - beside]
    rows, columns = (side if fit == "squash" else side * edge // short for edge in picture.shape[:2])
    whole = Image.fromarray(picture[:, :, 0] if channels == 1 else picture)
    scaled = np.array(whole.resize((columns, rows), Image.Resampling[resample.upper()]))
    scaled = scaled.reshape(rows, columns, channels)
    # What is seen is the middle of the whole: cut in two steps, it would be rounded twice.
    top, left = ((edge - seen) // 2 - (side - seen) // 2 for edge in (rows, columns))
    return scaled[top : top + side, left : left + side]
