"""One image file of any kind → an upright array, or a square, of bytes.

Shapes: Y X rows and columns, S side of a square, C channels.
"""

import io
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError
from PIL.Image import Transpose

__all__ = ["Bytes", "ImageLike", "Ints", "crop_region", "image_size", "read_image", "require_several", "resize_square",
           "to_pixels"]  # fmt: skip

MAX_PIXELS = 200_000_000  # PIL's own limit refuses the largest photos
STRIP = 32  # largest aspect ratio: only the centre of a longer image is scaled, which bounds memory
ORIENTATION = 0x0112  # the EXIF tag
# EXIF orientation → the operation that makes the image upright
TURNS = {2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
         6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90}  # fmt: skip
# Only plain image formats: for others PIL starts external programs.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
ImageLike = str | Path | bytes | Bytes | Image.Image  # a file, its content, an array (Y, X) or (Y, X, C) of bytes, or PIL's

_OPENING = threading.Lock()


def read_image(file: str | Path | bytes | BinaryIO, channels: int, side: int | None = None, name: str = "", *,
               draft: bool = True) -> Bytes:  # fmt: skip
    """Read an image, upright: (Y, X, C), grey (C = 1) or red, green and blue (C = 3).

    Transparent pixels become white; of an animation the first frame is read.  If the caller will scale the image to
    `side`, a much larger one may be made smaller, but not below twice that: with `draft` a JPEG while it is decoded, which is
    faster, but gives other pixels than `to_pixels` of the decoded image.  Errors call the image `name`.
    """
    if channels not in (1, 3):
        raise ValueError(f"an image of {channels} channels was asked for; use 1 (grey) or 3 (red, green, blue)")
    name = name or (str(file) if isinstance(file, str | Path) else "the image")
    with _stream(file, name) as stream:
        image = _opened(stream, name)
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{name} has {image.width:,} × {image.height:,} pixels; {MAX_PIXELS:,} at most are read: make it "
                             "smaller")  # fmt: skip
        try:
            if side and draft:
                image.draft(None, (2 * side, 2 * side))  # a JPEG can be decoded at a half, a quarter or an eighth
            with _quiet() if image.format == "TIFF" else nullcontext():  # PIL checks its limit again here
                image.load()
            turn, plain = _turn(image), _standard_mode(image)
        except Exception as error:  # decoders of damaged files raise any exception
            raise ValueError(_damaged(name, error)) from None
    return _upright(plain, turn, channels, side)


def image_size(file: str | Path | bytes, name: str = "") -> tuple[int, int]:
    """Rows and columns of an image as it is stored, from its header."""
    name = name or (str(file) if isinstance(file, str | Path) else "the image")
    with _stream(file, name) as stream:
        image = _opened(stream, name)
        return image.height, image.width


def to_pixels(image: ImageLike, channels: int, side: int | None = None) -> Bytes:
    """An image file or its content, an array (Y, X), (Y, X, 1), (Y, X, 3) or (Y, X, 4) of bytes, or PIL's image: (Y, X, C)."""
    if isinstance(image, str | Path | bytes):
        return read_image(image, channels, side)
    if isinstance(image, Image.Image):
        try:
            return _upright(_standard_mode(image), _turn(image), channels, side)
        except (OSError, SyntaxError) as error:  # PIL decodes when the pixels are first needed
            raise ValueError(_damaged("the image", error)) from None
        except ValueError as error:
            if "closed" not in str(error):
                raise
            raise ValueError("PIL's image is closed; use it before it is closed, or give the file's name") from None
    if not (hasattr(image, "dtype") and hasattr(image, "shape")):
        raise ValueError(f"an image of type {type(image).__name__}; wanted a file's name, PIL's image or an array of bytes")
    kinds = ((), (1,), (3,), (4,))
    if image.dtype != np.uint8 or image.shape[2:] not in kinds or image.ndim < 2 or not image.size:
        raise ValueError(f"an array of {image.dtype}, {image.shape}; wanted bytes (uint8, 0 to 255), rows × columns, or "
                         f"rows × columns × 1, 3 or 4")  # fmt: skip
    if image.shape[2:] == (channels,) and not (side and _reduction(min(image.shape[:2]), side)):
        return image
    return _upright(Image.fromarray(image[:, :, 0] if image.shape[2:] == (1,) else image), None, channels, side)


def require_several(images: object) -> None:
    """Refuse one image where a list of images is wanted."""
    if isinstance(images, str | Path | Image.Image) or (isinstance(images, np.ndarray) and images.ndim < 4):
        raise ValueError("a list of images is wanted, not one; put it in brackets")
    if isinstance(images, bytes | Mapping) or not (hasattr(images, "__len__") and hasattr(images, "__getitem__")):
        raise ValueError(f"a list of images is wanted, and got {type(images).__name__}; give files, PIL's images or arrays")


def _reduction(short: int, side: int) -> int:
    """By how much a shorter side of `short` pixels is reduced before it is scaled to `side`; 0 if not."""
    return short // (2 * side) if short >= 4 * side else 0


def _upright(plain: Image.Image, turn: Transpose | None, channels: int, side: int | None = None) -> Bytes:
    """An image of mode L, RGB or RGBA as an array (Y, X, C), turned; transparent pixels become white.

    One much larger than `side` is made smaller first: files, arrays and PIL's images in the same way.
    """
    if side and (factor := _reduction(min(plain.size), side)):
        plain = plain.reduce(factor)
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
    """The bytes of an image as a seekable stream."""
    if not isinstance(file, str | Path):
        return io.BytesIO(file if isinstance(file, bytes) else file.read())
    try:
        return open(file, "rb")
    except FileNotFoundError:
        raise ValueError(f"no file {file}; check the path") from None
    except IsADirectoryError:
        raise ValueError(f"{file} is a folder; give an image file") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot open {name} ({error}); give a readable image file") from None


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)  # an old PIL lacks some


@contextmanager
def _quiet() -> Iterator[None]:
    """Suspend PIL's pixel limit and its warnings; both are global to the process, so one thread at a time."""
    with _OPENING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _opened(stream: BinaryIO, name: str) -> Image.Image:
    """An image whose header was read."""
    try:
        with _quiet():
            return Image.open(stream, formats=_formats())
    except UnidentifiedImageError:
        raise ValueError(f"{name} is not a readable image: {_describe(stream)}") from None
    except Exception as error:
        raise ValueError(_damaged(name, error)) from None


def _turn(image: Image.Image) -> Transpose | None:
    """The operation that makes an image upright, if any."""
    with _quiet():
        try:
            return TURNS.get(image.getexif().get(ORIENTATION, 1))
        except Exception:  # damaged EXIF does not make the image unreadable
            return None


def _standard_mode(image: Image.Image) -> Image.Image:
    """Convert to one of three modes: L, RGB or RGBA."""
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_to_8_bits(image))
    if image.has_transparency_data:
        return image.convert("RGBA")
    if image.mode in ("L", "RGB"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def _to_8_bits(image: Image.Image) -> Bytes:
    """Scale brightness of more than 8 bits to 8 bits.

    White is 65,535 for 16 bits.  For 32 bits and floats, whose range is unknown, it is the first of 1 (floats only),
    255 and 65,535 that no value exceeds, or else the largest value.
    """
    values = np.nan_to_num(np.asarray(image, dtype=np.float32), nan=0, posinf=0, neginf=0)
    white, most = 65_535.0, float(values.max())
    if image.mode in ("I", "F") and image.format not in ("PNG", "PPM"):
        usual = (1.0, 255.0, 65_535.0) if image.mode == "F" else (255.0, 65_535.0)
        white = next((level for level in usual if most <= level), most)
    return np.rint(np.clip(values, 0, white) * (255 / white)).astype(np.uint8)


def _describe(stream: BinaryIO) -> str:
    """Say what kind of file it is instead, and what to do."""
    stream.seek(0)
    head = stream.read(256)
    if not head:
        return "it is empty; get it again"
    if head[4:8] == b"ftyp":
        return "it is a film, or a photo as iPhones store it (HEIC); save it as JPEG"
    if b"\0" not in head and head.decode("utf-8", "ignore").isprintable():
        return f"it begins with {head[:20].decode('utf-8', 'ignore')!r}; give a JPEG, PNG, WebP, GIF, BMP or TIFF file"
    return "it is damaged, or of another kind; give a JPEG, PNG, WebP, GIF, BMP or TIFF file"


def resize_square(image: Bytes, side: int, center: int = 0, fit: str = "crop", resample: str = "bicubic") -> Bytes:
    """Scale an image of any shape to a square: (Y, X, C) → (S, S, C).

    `crop` scales its shorter side to `side` pixels and crops the longer one, `squash` scales both.  The model will read
    the middle `center` pixels of the square, or all.
    """
    channels, short, center = image.shape[2], min(image.shape[:2]), center or side
    if image.shape[:2] == (side, side):
        return image
    top, left = (max(0, edge - STRIP * short) // 2 for edge in image.shape[:2])
    image = image[top : len(image) - top, left : image.shape[1] - left]
    rows, columns = (side if fit == "squash" else side * edge // short for edge in image.shape[:2])
    whole = Image.fromarray(image[:, :, 0] if channels == 1 else image)
    scaled = np.array(whole.resize((columns, rows), Image.Resampling[resample.upper()]))
    scaled = scaled.reshape(rows, columns, channels)
    # The model's crop is the middle of the whole image: cropped in two steps, it would be rounded twice.
    top, left = ((edge - center) // 2 - (side - center) // 2 for edge in (rows, columns))
    return scaled[top : top + side, left : left + side]


def crop_region(rows: int, columns: int, side: int, center: int, fit: str = "crop") -> tuple[float, float, float, float]:
    """Top, left, bottom and right of what a model reads of an image, in pixels of that image.

    The model reads the middle `center` pixels of the square that `resize_square` makes.
    """
    short, ends = min(rows, columns), list[tuple[float, float]]()
    for edge in (rows, columns):
        cut = max(0, edge - STRIP * short) // 2
        scaled = side if fit == "squash" else side * (edge - 2 * cut) // short
        pixel = (edge - 2 * cut) / scaled
        first = (scaled - center) // 2
        ends.append((cut + first * pixel, cut + (first + center) * pixel))
    (top, bottom), (left, right) = ends
    return top, left, bottom, right
