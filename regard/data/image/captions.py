"""Images with captions: a named set, generated shapes, or an own TSV file → stored squares and token ids → batches.

    photos/dog.jpg <tab> A dog runs on the beach.       paths are relative to the TSV file; an image may have several lines

Shapes: B images, W captions of each, R = B · W rows, T tokens, C channels, Y X rows and columns, N all images.
"""

import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.config import nearest
from regard.data.cache import cached
from regard.data.files import read_lines
from regard.data.image.batches import augmented_images, batch_order, require_crop, seeded_generator, to_model_input
from regard.data.image.config import CaptionData
from regard.data.image.folders import VALID_EVERY, read_ahead
from regard.data.image.io import Bytes, Ints, read_image
from regard.data.image.shapes import shape_image
from regard.data.image.store import ImageInput, ImageStore, read_square, resize_function, resize_side, store_images
from regard.data.image.unreadable import or_reason, refuse_unreadable, unreadable_lines
from regard.data.position import BatchStream, DataPosition
from regard.data.progress import Progress, Report
from regard.data.sources import SOURCES, locate
from regard.data.text.tokenizer import Tokenizer, train_tokenizer

__all__ = ["CaptionBatch", "CaptionDataset", "CaptionSource", "CaptionStore", "all_caption_batches", "caption_batches",
           "find_captions", "normalize_caption", "prepare_captions"]  # fmt: skip

SHAPES = "shapes"
SHAPES_COUNT = {"train": 4000, "valid": 500, "test": 500}
SHAPES_SIDE = 64  # pixels
SQUARES = 2  # version of the squares that are made of own files
SAMPLES = 3  # validation images captioned at every evaluation


class CaptionSource(NamedTuple):
    """The images of a split: how to read them, and the captions of each."""

    name: str
    images: Callable[[], Iterator[Bytes]]
    captions: list[list[str]]  # of each image
    identity: object
    notes: tuple[str, ...] = ()  # lines to report: images that are left out


class CaptionStore(NamedTuple):
    """Stored images and the token ids of their captions."""

    images: ImageStore
    tokens: Ints  # all captions one after another, without start and end
    starts: Ints  # where each caption starts in `tokens`, and the end
    first: Ints  # the first caption of each image, and their number
    digest: str

    def __len__(self) -> int:
        return len(self.images)

    def caption(self, number: int) -> Ints:
        """The tokens of one caption."""
        return self.tokens[self.starts[number] : self.starts[number + 1]]


class CaptionDataset(NamedTuple):
    """What training reads."""

    tokenizer: Tokenizer
    train: CaptionStore
    valid: CaptionStore
    samples: list[list[str]]  # captions of the first validation images
    labels: tuple[str, ...] = ()  # no classes


class CaptionBatch(NamedTuple):
    """Images and captions; an image with fewer captions than others has rows of padding."""

    image: Tensor  # (B, C, Y, X)
    target: Tensor  # (R, T): start, tokens, end, padding; the captions of an image follow each other
    pad: int

    @property
    def tokens(self) -> int:
        """Tokens to predict."""
        return int((self.target[:, 1:] != self.pad).sum())


def normalize_caption(text: str) -> str:
    """Lower case, without punctuation but apostrophes and hyphens inside words."""
    return " ".join(re.findall(r"\w+(?:['’-]\w+)*", text.lower()))


def find_captions(data: CaptionData, model: ImageInput, split: str) -> CaptionSource:
    """A split by name, or an own TSV file."""
    if data.source == SHAPES and split in SHAPES_COUNT:
        return _generated_shapes(split)
    if data.source and data.source != SHAPES:
        _require_captions(data.source)
        if split in SOURCES[data.source].splits:
            return _named_captions(data.source, split, model.channels, data.normalize)
    return _own_captions(data, model, split)


def _require_captions(name: str) -> None:
    known = [SHAPES, *(name for name, source in SOURCES.items() if source.kind == "captions")]
    if name not in known:
        what = "has no captions" if name in SOURCES else "is not known"
        raise ValueError(f"data.source={name} {what}{nearest(name, known)}; known are {', '.join(known)}; for own images set "
                         f"data.train to a TSV file: image, tab, caption")  # fmt: skip


def _generated_shapes(split: str) -> CaptionSource:
    made = [shape_image(split, index, SHAPES_SIDE) for index in range(SHAPES_COUNT[split])]
    identity = [SHAPES, split, hashlib.sha256(b"".join(m.image.tobytes() for m in made)).hexdigest()]
    return CaptionSource(f"{SHAPES} {split}", lambda: (m.image for m in made), [[m.caption] for m in made], identity)


def _named_captions(name: str, split: str, channels: int, normalize: bool) -> CaptionSource:
    (archive,), (file,) = locate(name, split, ""), locate(name, split, "", "captions")
    captions: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(file), 1):
        columns = line.split("\t")
        if len(columns) != 3:
            raise ValueError(f"{file} line {number} has {len(columns)} columns; wanted image, number, caption: get it again")
        captions.setdefault(columns[0], []).append(_prepared(columns[2], normalize))

    def images() -> Iterator[Bytes]:
        try:
            with zipfile.ZipFile(archive) as files:
                for image in captions:
                    yield read_image(files.read(image), channels, name=f"{image} of {archive}")
        except (OSError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{archive} is not a whole archive ({error}); get it again") from None

    stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in (archive, file)]
    return CaptionSource(f"{name} {split}", images, list(captions.values()), stamps)


def _prepared(caption: str, normalize: bool) -> str:
    return normalize_caption(caption) if normalize else " ".join(caption.split())


def _own_captions(data: CaptionData, model: ImageInput, split: str) -> CaptionSource:
    """Images of an own TSV file; a tenth of the training images is for validation if no other file is given."""
    path = {"train": data.train, "valid": data.valid or data.train}.get(split, split)
    if not path:
        raise ValueError(f"no {split} data; give data.{split}=FILE.tsv with image, tab, caption on each line, or "
                         f"data.source=NAME")  # fmt: skip
    file = Path(path).expanduser()
    if data.source and not file.exists():
        has = tuple(SHAPES_COUNT) if data.source == SHAPES else SOURCES[data.source].splits
        raise ValueError(f"{data.source} has no split {split!r}{nearest(split, has)}, and there is no such file; splits are "
                         f"{', '.join(has)}")  # fmt: skip
    captions = _read_tsv(file, data.normalize)
    read, name = partial(read_square, data, model, resize_side(data, model.image)), str(file)
    unreadable = _find_unreadable(data, model, file, list(captions), read)
    files, notes = [image for image in captions if image not in unreadable], list[str]()
    if split in ("train", "valid") and not data.valid and not data.source:
        if len(files) < 2:
            raise ValueError(f"{file} has captions of one image only; give more, or data.valid")
        ranked = sorted(files, key=lambda image: hashlib.sha256(image.name.encode("utf-8", "surrogateescape")).digest())
        valid = set(ranked[: max(1, round(len(files) / VALID_EVERY))])
        files = [image for image in files if (image in valid) == (split == "valid")]
        name += ", validation" if split == "valid" else ""
    if name == str(file):  # else reported with the training images
        notes = unreadable_lines(name, list(unreadable.values()), len(captions))
    identity = [SQUARES, str(file), _stamps(files)]
    return CaptionSource(name, lambda: read_ahead(read, files), [captions[image] for image in files], identity, tuple(notes))


def _stamps(files: Sequence[Path]) -> list[tuple[str, int, int, int]]:
    return [(str(file), (about := file.stat()).st_size, about.st_mtime_ns, about.st_mode) for file in files]


def _find_unreadable(data: CaptionData, model: ImageInput, file: Path, images: Sequence[Path], read: Callable[[Path], Bytes]
                     ) -> dict[Path, str]:  # fmt: skip
    """The images that cannot be read, and why: they must be known before the split and the tokenizer; found once."""

    def write(folder: Path) -> dict[str, object]:
        found = enumerate(read_ahead(partial(or_reason, read), images))
        reasons = {index: image for index, image in found if isinstance(image, str)}
        refuse_unreadable(str(file), list(reasons.values()), len(images))
        return {"unreadable": reasons}

    folder = cached(["unreadable images", SQUARES, _stamps(images), model.channels], write)
    reasons = json.loads((folder / "about.json").read_text(encoding="utf-8"))["unreadable"]
    refuse_unreadable(str(file), list(reasons.values()), len(images), strict=data.strict)
    return {images[int(index)]: reason for index, reason in reasons.items()}


def _read_tsv(file: Path, normalize: bool) -> dict[Path, list[str]]:
    """The captions of each image of an own file, in its order; says which line is wrong."""
    captions: dict[Path, list[str]] = {}
    for number, line in enumerate(read_lines(file), 1):
        if not line.strip():
            continue
        name, tab, rest = line.partition("\t")
        if not tab:
            raise ValueError(f"{file} line {number} has no tab; wanted the path of an image, a tab, its caption")
        image, caption = file.parent / Path(name.strip()).expanduser(), _prepared(rest.partition("\t")[0], normalize)
        if not caption:
            raise ValueError(f"{file} line {number}: the caption of {name} is empty; write one, or remove the line")
        if image not in captions and not image.is_file():
            raise ValueError(f"{file} line {number}: no image {image}; correct the path, relative to the TSV file, or remove "
                             f"the line")  # fmt: skip
        captions.setdefault(image, []).append(caption)
    if not captions:
        raise ValueError(f"{file} is empty; give a file with image, tab, caption on each line")
    return captions


def prepare_captions(data: CaptionData, model: ImageInput, tokenizer_file: Path, report: Report, progress: Progress
                     ) -> CaptionDataset:  # fmt: skip
    """Store the images and captions that training reads; train a tokenizer on the captions, if there is none yet."""
    train, valid = (find_captions(data, model, split) for split in ("train", "valid"))
    if not tokenizer_file.exists():
        lines = (caption for captions in train.captions for caption in captions)
        train_tokenizer(lines, data.tokenizer, data.vocab).save(tokenizer_file)
    tokenizer = Tokenizer.load(tokenizer_file)
    stores = [store_captions(data, model, source, tokenizer, report, progress) for source in (train, valid)]
    return CaptionDataset(tokenizer, stores[0], stores[1], valid.captions[:SAMPLES])


def store_captions(data: CaptionData, model: ImageInput, source: CaptionSource, tokenizer: Tokenizer, report: Report,
                   progress: Progress = lambda what, done: None) -> CaptionStore:  # fmt: skip
    """Store the images of a source as squares, and encode its captions; those that are too long are left out."""
    side = resize_side(data, model.image)
    if side < model.image:
        raise ValueError(f"data.resize={side} is less than the model's {model.image} pixels; use {model.image} or more")
    identity = [source.identity, model.image, data.fit, data.resample, data.resize]
    done, fit = partial(progress, f"reading {source.name}"), resize_function(data, model.image)
    numbers = np.arange(len(source.captions))
    images = store_images(source.images, numbers, source.name, identity, side, model.channels, done, fit)
    folder = cached(["captions", source.captions, tokenizer.digest, data.max_len],
                    partial(_write_captions, source, tokenizer, data.max_len))  # fmt: skip
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    tokens, starts, first = (np.fromfile(folder / f"{name}.bin", dtype=np.int64) for name in ("tokens", "starts", "first"))
    left_out = f"; left out: {about['left_out']:,} of over {data.max_len} tokens" if about["left_out"] else ""
    for line in (*source.notes, f"{source.name}: {len(images):,} images, {len(starts) - 1:,} captions{left_out}"):
        report(line)
    digest = hashlib.sha256(f"{images.digest} {about['digest']}".encode()).hexdigest()
    return CaptionStore(images, tokens, starts, first, digest)


def _write_captions(source: CaptionSource, tokenizer: Tokenizer, max_len: int, folder: Path) -> dict[str, object]:
    rows = [[ids for ids in tokenizer.encode(captions) if 0 < len(ids) <= max_len] for captions in source.captions]
    kept = [ids for captions in rows for ids in captions]
    if not kept:
        raise ValueError(f"{source.name} has no caption of at most {max_len} tokens; raise data.max_len")
    arrays = {"tokens": np.concatenate([np.array(ids, dtype=np.int64) for ids in kept]),
              "starts": np.cumsum([0, *map(len, kept)]), "first": np.cumsum([0, *map(len, rows)])}  # fmt: skip
    digest = hashlib.sha256()
    for name, values in arrays.items():
        values.astype(np.int64).tofile(folder / f"{name}.bin")
        digest.update(values.astype(np.int64).tobytes())
    return {"digest": digest.hexdigest(), "left_out": sum(map(len, source.captions)) - len(kept)}


def caption_batches(store: CaptionStore, image: int, batch: int, seed: int, data: CaptionData, tokenizer: Tokenizer,
                    position: DataPosition = DataPosition()) -> BatchStream[CaptionBatch]:  # fmt: skip
    """Endless batches of `batch` images, each with up to `data.captions` of its captions, from a position on."""
    require_crop(data, store.images.side)
    captioned = np.flatnonzero(np.diff(store.first))  # an image whose captions were all too long teaches nothing
    for rows, seeds, after in batch_order(captioned, batch, seed, position):
        yield partial(_augmented_batch, store, rows, image, data, tokenizer, seeds), after


def _augmented_batch(store: CaptionStore, rows: Ints, image: int, data: CaptionData, tokenizer: Tokenizer,
                     seeds: list[int]) -> CaptionBatch:  # fmt: skip
    x = augmented_images(store.images, rows, image, data, seeded_generator(seeds))
    rng, chosen = np.random.default_rng(seeds), list[list[int]]()
    for row in rows.tolist():
        captions = rng.permutation(np.arange(store.first[row], store.first[row + 1]))
        chosen.append(captions[: data.captions or None].tolist())
    return CaptionBatch(x, _targets(store, chosen, tokenizer), tokenizer.special.pad)


def all_caption_batches(store: CaptionStore, image: int, batch: int, data: CaptionData, tokenizer: Tokenizer
                        ) -> Iterator[CaptionBatch]:  # fmt: skip
    """The centre of every image once with all its captions, in order: for evaluation."""
    for first in range(0, len(store), batch):
        last = min(first + batch, len(store))
        x = to_model_input(store.images.images[first:last], image, data)
        captions = [list(range(store.first[row], store.first[row + 1])) for row in range(first, last)]
        yield CaptionBatch(x, _targets(store, captions, tokenizer), tokenizer.special.pad)


def _targets(store: CaptionStore, captions: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Tensor:
    """The captions of each image as rows (R, T), as many rows for each image."""
    special, width = tokenizer.special, max(1, *map(len, captions))
    longest = max((len(store.caption(number)) for numbers in captions for number in numbers), default=0)
    target = torch.full((len(captions), width, longest + 2), special.pad)
    target[:, :, 0] = special.bos  # also of rows of padding: a decoder needs a first token
    for row, numbers in enumerate(captions):
        for column, number in enumerate(numbers):
            ids = [*store.caption(number).tolist(), special.eos]
            target[row, column, 1 : len(ids) + 1] = torch.tensor(ids)
    return target.flatten(0, 1)
