"""Pictures from files and arrays, as squares of bytes on disk, so that memory does not grow with their number.

Every picture is read once, upright, and stored as training wants it: one that cannot be read is named before training
starts.  What is stored is a little larger than what the model sees, so that training can cut elsewhere every time.

    pictures.bin  uint8, (N, S, S, C): red, green, blue, or grey
    labels.bin    one int64 a picture: the number of its class
    about.json    counts and the digest; written last, so a folder with it is whole

Shapes: N pictures, S side of what is stored, Y X rows and columns, C channels.
"""

import hashlib
import io
import json
import os
import threading
import unicodedata
import warnings
import zipfile
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from regard.data.files import flush, write_atomic
from regard.data.sources import SOURCES, locate, rows_of
from regard.data.store import Ints, cached

__all__ = [
    "ENDINGS",
    "Album",
    "Bytes",
    "Images",
    "encode_images",
    "fit_square",
    "folder_pictures",
    "hold_out",
    "left_out",
    "named_album",
    "own_album",
    "read_picture",
    "stored_side",
]

FORMAT = 1  # of the files above
MOST = 200_000_000  # pixels of a picture; PIL's own limit refuses the largest photos there are
HELD_OUT = 10  # of so many own pictures of a class, one is held out
AHEAD = 4  # pictures a thread may be ahead of the one that is written
OFTEN = 50  # pictures between two reports of progress
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
ENDINGS = frozenset((".jpg", ".jpeg", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm",
                     ".avif", ".jp2"))  # fmt: skip
SPLITS = frozenset(("train", "valid", "validation", "val", "test"))  # names of folders that are no classes

Bytes = npt.NDArray[np.uint8]

_OPENING = threading.Lock()


def read_picture(file: str | Path | bytes | BinaryIO, channels: int, side: int | None = None, name: str = "") -> Bytes:
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


def fit_square(picture: Bytes, side: int, seen: int = 0, fit: str = "crop", resample: str = "bicubic") -> Bytes:
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


def stored_side(image: int, own: int | None) -> int:
    """The side to store pictures with that a model sees `image` pixels of; `own` is that of a named set's.

    8/7 of it, as the 256 of which ImageNet's 224 are cut; but pictures of the very size are left as they are.
    """
    return image if own == image else round(image * 8 / 7)


class Images:
    """Labelled pictures on disk."""

    def __init__(self, folder: Path):
        self.folder = folder
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        self.digest: str = about["digest"]
        self.side: int = about["side"]
        self.channels: int = about["channels"]
        shape = (about["count"], self.side, self.side, self.channels)
        self.pictures: np.memmap[tuple[int, ...], np.dtype[np.uint8]] = np.memmap(
            folder / "pictures.bin", dtype=np.uint8, mode="r", shape=shape
        )
        self.labels: Ints = np.fromfile(folder / "labels.bin", dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)


def encode_images(
    pictures: Callable[[], Iterable[Bytes]],
    labels: Sequence[int] | Ints,
    name: str,
    identity: object,
    side: int,
    channels: int,
    progress: Callable[[int], None] = lambda done: None,
    fit: Callable[[Bytes, int], Bytes] = fit_square,
) -> Images:
    """Store pictures in the cache folder, or find them there from an earlier time.

    `identity` is what the pictures depend on (files, their sizes and times): the store is found by it.  The pictures are
    of any size, with the channels asked for; `fit` makes each of them a square of so many pixels.
    """
    numbers = np.asarray(labels, dtype=np.int64)

    def write(folder: Path) -> None:
        digest, done = hashlib.sha256(repr((side, channels)).encode()), 0
        with open(folder / "pictures.bin", "wb") as file:
            for done, picture in enumerate(pictures(), 1):
                content = fit(picture, side).tobytes()
                file.write(content)
                digest.update(content)
                if done % OFTEN == 0:
                    progress(done)
        if not done:
            raise ValueError(f"{name} holds no pictures; give some")
        assert done == len(numbers), f"{done} pictures, {len(numbers)} labels"
        progress(done)
        numbers.tofile(folder / "labels.bin")
        digest.update(numbers.tobytes())
        for name_ in ("pictures.bin", "labels.bin"):
            flush(folder / name_)
        about = {"count": done, "side": side, "channels": channels, "digest": digest.hexdigest()}
        write_atomic(folder / "about.json", json.dumps(about).encode())

    order = hashlib.sha256(numbers.tobytes()).hexdigest()
    return Images(cached(["pictures", FORMAT, identity, order, side, channels], write))


class Album(NamedTuple):
    """Some pictures and the numbers of their classes: how to read them again, and what they depend on."""

    name: str
    pictures: Callable[[], Iterator[Bytes]]
    labels: Ints
    identity: object


def named_album(name: str, split: str, channels: int) -> Album:
    """A split of a named set."""
    (file,) = locate(name, split, "")
    rows, classes = rows_of(name, split), len(SOURCES[name].labels)
    labels = _arrays(file, "labels")["labels"].astype(np.int64)
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(f"{file} has the class {labels.max()}; wanted 0 to {classes - 1}: get it again")

    def pictures() -> Iterator[Bytes]:
        held = _arrays(file)
        count = len(held["images"] if "images" in held else held["offsets"][1:])
        if count != len(labels):
            raise ValueError(f"{file} has {count:,} pictures and {len(labels):,} labels; get it again")
        numbers = range(*rows.indices(count))
        if "images" in held:
            mode = "L" if channels == 1 else "RGB"
            for number in numbers:
                yield np.array(Image.fromarray(held["images"][number]).convert(mode)).reshape(
                    *held["images"].shape[1:3], channels
                )
            return
        cuts, content = held["offsets"].tolist(), held["jpeg"].tobytes()
        for number in numbers:
            one = content[cuts[number] : cuts[number + 1]]
            yield read_picture(one, channels, name=f"picture {number:,} of {file}")

    stamp = file.stat()
    identity = [str(file.resolve()), stamp.st_size, stamp.st_mtime_ns, [rows.start, rows.stop]]
    return Album(f"{name} {split}", pictures, labels[rows], identity)


def _arrays(file: Path, *only: str) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of a named set: images, or jpeg and offsets; and labels."""
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as held:
            found = {key: held[key] for key in only or held.files}
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file} is not a whole .npz file ({error}); get it again") from None
    if not only and not ("images" in found or {"jpeg", "offsets"} <= set(found)):
        raise ValueError(f"{file} holds {', '.join(found)}; wanted images, or jpeg and offsets: get it again")
    return found


def folder_pictures(folder: Path, least: int = 2) -> tuple[list[str], list[tuple[Path, str]]]:
    """The classes of own pictures, a folder each, and all pictures in them with the name of their class, sorted."""
    if not folder.is_dir():
        what = f"{folder} is a file" if folder.exists() else f"no folder {folder}"
        raise ValueError(f"{what}; give a folder that holds a folder of pictures for each class")
    inside = sorted(path.name for path in folder.iterdir() if path.is_dir() and not _hidden(path.name))
    if not inside:
        raise ValueError(
            f"{folder} holds no folders; put the pictures of each class in a folder of their own, such as {folder}/cats"
        )
    if set(inside) <= SPLITS:
        raise ValueError(
            f"{folder} holds {', '.join(inside)}, which are no classes; give one of them, such as {folder / inside[0]}"
        )
    found: list[tuple[Path, str]] = []
    for label in inside:
        if label.splitlines() != [label] or not label.strip() or not _is_text(label):
            raise ValueError(f"{folder} holds the folder {label!r}; a class is one line of text, name it so")
        pictures = (file for file in _walk(folder / label) if file.suffix.lower() in ENDINGS)
        files = sorted(pictures, key=lambda file: _relative(file, folder))
        if not files:
            raise ValueError(
                f"{folder / label} holds no pictures (.jpg, .png, .webp, …); put some in, or remove the folder"
            )
        found += [(file, label) for file in files]
    if len(inside) < least:
        raise ValueError(f"{folder} has one class only, {inside[0]!r}; give pictures of two or more, to be told apart")
    return inside, found


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"  # what an archive of a Mac leaves beside the pictures


def _is_text(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)  # bytes that are not UTF-8


def left_out(folder: Path) -> Counter[str]:
    """The endings of files below a folder that are not taken for pictures, and how many have each."""
    every = (file.suffix.lower() or "without an ending" for file in _walk(folder))
    return Counter(ending for ending in every if ending not in ENDINGS)


def _walk(folder: Path) -> Iterator[Path]:
    """All files below a folder that are not hidden, links followed, though never in a circle."""
    seen = set[str]()
    for place, inside, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            inside.clear()
            continue
        seen.add(real)
        inside[:] = [name for name in inside if not _hidden(name)]
        for name in files:
            if not _hidden(name):
                yield Path(place, name)


def _relative(file: Path, folder: Path) -> str:
    """A file's name below a folder, spelt the same on every machine."""
    return unicodedata.normalize("NFC", file.relative_to(folder).as_posix())


def hold_out(folder: Path, files: Sequence[tuple[Path, str]]) -> tuple[list[tuple[Path, str]], list[tuple[Path, str]]]:
    """Own pictures → those to learn from, and a tenth of each class that is held out, at least one.

    Which ones depends on nothing but their names below the folder.
    """
    drawn: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for file, label in files:
        name = _relative(file, folder).encode("utf-8", "surrogateescape")
        drawn[label].append((hashlib.sha256(name).hexdigest(), file))
    held = set[Path]()
    for label, some in drawn.items():
        if len(some) < 2:
            raise ValueError(
                f"{folder / label} has one picture; wanted two or more, to hold one out: add some, or give data.valid"
            )
        held |= {file for _, file in sorted(some)[: max(1, round(len(some) / HELD_OUT))]}
    return [pair for pair in files if pair[0] not in held], [pair for pair in files if pair[0] in held]


def own_album(
    folder: Path,
    files: Sequence[tuple[Path, str]],
    labels: Sequence[str],
    channels: int,
    side: int,
    fit: Callable[[Bytes, int], Bytes] = fit_square,
) -> Album:
    """Own pictures, of the classes `labels`, by number; read by several threads."""
    number_of = {label: number for number, label in enumerate(labels)}
    for file, label in files:
        if label not in number_of:
            raise ValueError(
                f"{file} is of class {label!r}, never seen in training; known are {', '.join(labels)}: "
                f"rename its folder, or leave it out"
            )

    def read(file: Path) -> Bytes:
        return fit(read_picture(file, channels, side), side)

    stamps = [(_relative(file, folder), (s := file.stat()).st_size, s.st_mtime_ns) for file, _ in files]
    return Album(
        str(folder),
        lambda: _in_order(read, [file for file, _ in files]),
        np.array([number_of[label] for _, label in files], dtype=np.int64),
        [str(folder.resolve()), stamps],
    )


def _in_order(read: Callable[[Path], Bytes], files: Iterable[Path]) -> Iterator[Bytes]:
    """What several threads read, in the order of the files; only a few are held."""
    threads = os.cpu_count() or 1
    waiting: deque[Future[Bytes]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for file in files:
                waiting.append(pool.submit(read, file))
                if len(waiting) > AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for one in waiting:  # none, unless reading was given up
                one.cancel()
