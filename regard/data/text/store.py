"""A corpus as token numbers on disk, so that memory does not grow with it.

Text is encoded once, in one stream, and checked on the way: a bad line is named before training starts.  Pairs are read
by blocks, in any order, from plain files: nothing of the corpus stays in memory but the pool being read.

    tokens.bin    source then target of each pair, without start or end, uint16 or uint32; or one plain text
    lengths.bin   two uint16 a pair: tokens of its source, of its target
    blocks.bin    one int64 a block: where its tokens start
    about.json    counts and the digest; written last, so a folder with it is whole

A labelled text is a pair whose target is one number, that of its class.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.files import cache_folder, flush, write_atomic
from regard.data.text.readers import Pair
from regard.data.text.tokenizer import Tokenizer

__all__ = ["BLOCK", "UNKNOWN", "Ints", "PairStore", "Pool", "Text", "cached", "encode", "encode_labels", "encode_text"]

FORMAT = 1  # of the files below
BLOCK = 4096  # pairs read together
CHUNK = 1 << 18  # characters of a plain text encoded together
DAY = 86_400  # seconds
UNKNOWN = "⁇"  # a word that a set has left out; read as the unknown token

Ints = npt.NDArray[np.int64]


class Pool(NamedTuple):
    """Some pairs in memory: one row of tokens, and where each pair's source and target lie in it."""

    tokens: npt.NDArray[np.unsignedinteger]
    starts: Ints
    sources: Ints  # length of each source
    targets: Ints  # length of each target


class PairStore:
    """An encoded corpus on disk."""

    def __init__(self, folder: Path):
        self.folder = folder
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        self.pairs: int = about["pairs"]
        self.too_long: int = about["too_long"]
        self.empty: int = about["empty"]
        self.digest: str = about["digest"]
        self.dtype = np.dtype(about["dtype"])
        self._starts: Ints = np.fromfile(folder / "blocks.bin", dtype=np.int64)

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return -(-self.pairs // BLOCK)

    def read(self, blocks: Iterable[int]) -> Pool:
        """Bring some blocks into memory."""
        tokens, lengths = [], []
        with open(self.folder / "tokens.bin", "rb") as t, open(self.folder / "lengths.bin", "rb") as n:
            for block in blocks:
                n.seek(block * BLOCK * 4)
                lengths.append(np.frombuffer(n.read(BLOCK * 4), dtype=np.uint16).reshape(-1, 2).astype(np.int64))
                t.seek(int(self._starts[block]) * self.dtype.itemsize)
                tokens.append(np.frombuffer(t.read(int(lengths[-1].sum()) * self.dtype.itemsize), dtype=self.dtype))
        both = np.concatenate(lengths)
        ends = np.cumsum(both.sum(1))
        return Pool(np.concatenate(tokens), np.concatenate(([0], ends[:-1])), both[:, 0], both[:, 1])


class Text:
    """An encoded plain text on disk."""

    def __init__(self, folder: Path):
        self.folder = folder
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        self.digest: str = about["digest"]
        self.tokens: npt.NDArray[np.unsignedinteger] = np.memmap(
            folder / "tokens.bin", dtype=np.dtype(about["dtype"]), mode="r"
        )

    def __len__(self) -> int:
        return len(self.tokens)


Encoded = tuple[list[int], list[int]]  # source and target of a pair


def encode(
    pairs: Callable[[], Iterator[Pair]],
    name: str,
    identity: object,
    tokenizer: Tokenizer,
    max_len: int,
    progress: Callable[[int], None] = lambda done: None,
) -> PairStore:
    """Encode a corpus into the cache folder, or find it there from an earlier time.

    `identity` is what the pairs depend on (files, their sizes and times, options): the cache is found by it and the
    tokenizer.  Pairs with an empty side or more than `longest` tokens on one side are left out and counted.
    """

    def write(folder: Path) -> None:
        def numbers(lines: list[Pair], _: int) -> Iterator[Encoded]:
            sources, targets = (tokenizer.encode(side) for side in zip(*lines, strict=True))
            return zip(sources, targets, strict=True)

        _write(folder, pairs(), name, _dtype(tokenizer), max_len, numbers, progress)

    return PairStore(cached([BLOCK, identity, tokenizer.digest, max_len], write))


def encode_labels(
    pairs: Callable[[], Iterator[Pair]],
    labels: Sequence[str],
    name: str,
    identity: object,
    tokenizer: Tokenizer,
    max_len: int,
    progress: Callable[[int], None] = lambda done: None,
) -> PairStore:
    """Encode labelled texts the same way; one of more than `longest` tokens is cut to them and counted as too long."""
    number_of = {label: number for number, label in enumerate(labels)}

    def write(folder: Path) -> None:
        def numbers(lines: list[Pair], seen: int) -> Iterator[Encoded]:
            for number, (text, label) in enumerate(lines, seen + 1):
                if label not in number_of:
                    raise ValueError(
                        f"{name}, example {number} ({text[:40]!r}) has class {label!r}, a label never seen in training; "
                        f"known are {', '.join(labels)}: mend it, or leave it out"
                    )
            texts = tokenizer.encode([text for text, _ in lines])
            return ((ids, [number_of[label]]) for ids, (_, label) in zip(texts, lines, strict=True))

        _write(folder, pairs(), name, _dtype(tokenizer), max_len, numbers, progress, cut=True)

    return PairStore(cached([BLOCK, identity, tokenizer.digest, max_len, "labels", list(labels)], write))


def _encoded(pieces: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Token numbers of each piece; a tokenizer that can spell anything is told what stands for a word left out."""
    rows = tokenizer.encode(pieces)
    holes = [n for n, piece in enumerate(pieces) if UNKNOWN in piece]
    if not holes or (unk := tokenizer.special.unk) in tokenizer.encode([UNKNOWN])[0]:
        return rows
    for n in holes:
        first, *others = tokenizer.encode(re.split(f" ?{UNKNOWN}", pieces[n]))
        rows[n] = [*first, *(number for part in others for number in (unk, *part))]
    return rows


def encode_text(
    pieces: Callable[[], Iterator[str]],
    name: str,
    identity: object,
    tokenizer: Tokenizer,
    progress: Callable[[int], None] = lambda done: None,
) -> Text:
    """Encode a plain text, line by line, into one row of tokens; `progress` hears how many there are.

    If the tokenizer knows no line ends, each line that is not empty ends with the end token instead.
    """

    def write(folder: Path) -> None:
        dtype, digest, total, inherit_from_init = _dtype(tokenizer), hashlib.sha256(), 0, False
        end = None if tokenizer.keeps_newlines else tokenizer.special.eos
        with open(folder / "tokens.bin", "wb") as file:
            for chunk in _chunks(pieces()):
                row: list[int] = []
                for piece, ids in zip(chunk, _encoded(chunk, tokenizer), strict=True):
                    row += ids
                    inherit_from_init = inherit_from_init or bool(ids)  # a long line comes in several pieces
                    if end is not None and inherit_from_init and piece.endswith("\n"):
                        row.append(end)
                        inherit_from_init = False
                flat = np.array(row, dtype=dtype)
                flat.tofile(file)
                digest.update(flat.tobytes())
                total += len(row)
                progress(total)
            if not total:
                raise ValueError(f"{name} holds no text to use; give a file with text in it")
            if end is not None and inherit_from_init:  # the last line may lack its end
                np.array([end], dtype=dtype).tofile(file)
                digest.update(np.array([end], dtype=dtype).tobytes())
        flush(folder / "tokens.bin")
        about = {"digest": digest.hexdigest(), "dtype": dtype.name}
        write_atomic(folder / "about.json", json.dumps(about).encode())

    return Text(cached(["text", identity, tokenizer.digest], write))


def _chunks(pieces: Iterator[str]) -> Iterator[list[str]]:
    """Pieces of a text, about `CHUNK` characters of them at a time."""
    held: list[str] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= CHUNK:
            yield held
            held, size = [], 0
    if held:
        yield held


def _dtype(tokenizer: Tokenizer) -> "np.dtype[np.unsignedinteger]":
    return np.dtype(np.uint16 if tokenizer.vocab <= 1 << 16 else np.uint32)


def cached(identity: Sequence[object], write: Callable[[Path], None]) -> Path:
    """The cache folder of what depends on nothing but `identity`; written if it is not there from an earlier time."""
    key = hashlib.sha256(json.dumps([FORMAT, *identity], default=str).encode()).hexdigest()[:24]
    home = cache_folder() / "tokens"
    home.mkdir(parents=True, exist_ok=True)
    for old in home.glob(".*"):  # left behind by a kill
        with suppress(FileNotFoundError):  # or just finished by another process
            if time.time() - old.stat().st_mtime > DAY:
                shutil.rmtree(old, ignore_errors=True)
    if not (home / key / "about.json").exists():
        part = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=home))
        try:
            write(part)
            try:
                os.replace(part, home / key)
            except OSError:
                if not (home / key / "about.json").exists():  # else another process was quicker, with the same store
                    shutil.rmtree(home / key, ignore_errors=True)
                    os.replace(part, home / key)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return home / key


def _write(folder: Path, pairs: Iterator[Pair], name: str, dtype: "np.dtype[np.unsignedinteger]", max_len: int,
           numbers: Callable[[list[Pair], int], Iterator[Encoded]], progress: Callable[[int], None],
           cut: bool = False) -> None:  # fmt: skip
    """Stream pairs to a folder; `numbers` encodes some, told how many came before; too long a source is cut or left out."""
    digest, kept, seen, too_long, empty, offset = hashlib.sha256(), 0, 0, 0, 0, 0
    with (
        open(folder / "tokens.bin", "wb") as t,
        open(folder / "lengths.bin", "wb") as n,
        open(folder / "blocks.bin", "wb") as b,
    ):
        while lines := list(islice(pairs, BLOCK)):
            row: list[int] = []
            lengths: list[int] = []
            for source, target in numbers(lines, seen):
                over = max(len(source), len(target)) > max_len
                if not source or not target:
                    empty += 1
                    continue
                too_long += over
                if cut or not over:
                    if kept % BLOCK == 0:
                        np.array([offset + len(row)], dtype=np.int64).tofile(b)
                    kept += 1
                    row += source[:max_len]
                    row += target
                    lengths += (min(len(source), max_len), len(target))
            flat = np.array(row, dtype=dtype)
            flat.tofile(t)
            both = np.array(lengths, dtype=np.uint16)
            both.tofile(n)
            digest.update(flat.tobytes() + both.tobytes())
            offset += len(row)
            seen += len(lines)
            progress(seen)
    if not kept:
        what, sides = ("labelled text", "text and class") if cut else ("sentence pair", "source and target")
        why = f": {empty} pairs have an empty side, {too_long} more than {max_len} tokens" if seen else ""
        raise ValueError(f"{name} holds no {what} to use{why}; give a file with {sides} on each line")
    for name_ in ("tokens.bin", "lengths.bin", "blocks.bin"):
        flush(folder / name_)
    about = {"pairs": kept, "too_long": too_long, "empty": empty, "digest": digest.hexdigest(), "dtype": dtype.name}
    write_atomic(folder / "about.json", json.dumps(about).encode())
