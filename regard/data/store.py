"""A corpus as token numbers on disk, so that memory does not grow with it.

Pairs are encoded once, in one stream, and checked on the way: a bad line is named before training starts.  Reading is
by blocks of pairs, in any order, from plain files: nothing of the corpus stays in memory but the pool being read.

    tokens.bin    source then target of each pair, without start or end, uint16 or uint32
    lengths.bin   two uint16 a pair: tokens of its source, of its target
    blocks.bin    one int64 a block: where its tokens start
    about.json    counts and the digest; written last, so a folder with it is whole
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.files import cache_folder, flush, write_atomic
from regard.data.text import Pair
from regard.data.tokenizer import Tokenizer

__all__ = ["BLOCK", "Ints", "Pool", "Store", "encode"]

FORMAT = 1  # of the files below
BLOCK = 4096  # pairs read together
DAY = 86_400  # seconds

Ints = npt.NDArray[np.int64]


class Pool(NamedTuple):
    """Some pairs in memory: one row of tokens, and where each pair's source and target lie in it."""

    tokens: npt.NDArray[np.unsignedinteger]
    starts: Ints
    sources: Ints  # length of each source
    targets: Ints  # length of each target


class Store:
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


def encode(
    pairs: Callable[[], Iterator[Pair]],
    name: str,
    identity: object,
    tokenizer: Tokenizer,
    longest: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Store:
    """Encode a corpus into the cache folder, or find it there from an earlier time.

    `identity` is what the pairs depend on (files, their sizes and times, options): the cache is found by it and the
    tokenizer.  Pairs with an empty side or more than `longest` tokens on one side are left out and counted.
    """
    key = hashlib.sha256(
        json.dumps([FORMAT, BLOCK, identity, tokenizer.digest, longest], default=str).encode()
    ).hexdigest()[:24]
    home = cache_folder() / "tokens"
    home.mkdir(parents=True, exist_ok=True)
    for old in home.glob(".*"):  # left behind by a kill
        with suppress(FileNotFoundError):  # or just finished by another process
            if time.time() - old.stat().st_mtime > DAY:
                shutil.rmtree(old, ignore_errors=True)
    if not (home / key / "about.json").exists():
        part = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=home))
        try:
            _write(part, pairs(), name, tokenizer, longest, progress)
            try:
                os.replace(part, home / key)
            except OSError:
                if not (home / key / "about.json").exists():  # else another process was quicker, with the same store
                    shutil.rmtree(home / key, ignore_errors=True)
                    os.replace(part, home / key)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return Store(home / key)


def _write(folder: Path, pairs: Iterator[Pair], name: str, tokenizer: Tokenizer, longest: int,
           progress: Callable[[int], None]) -> None:  # fmt: skip
    dtype = np.dtype(np.uint16 if tokenizer.vocab <= 1 << 16 else np.uint32)
    digest, kept, seen, too_long, empty, offset = hashlib.sha256(), 0, 0, 0, 0, 0
    with (
        open(folder / "tokens.bin", "wb") as t,
        open(folder / "lengths.bin", "wb") as n,
        open(folder / "blocks.bin", "wb") as b,
    ):
        while lines := list(islice(pairs, BLOCK)):
            sources, targets = (tokenizer.encode(side) for side in zip(*lines, strict=True))
            row: list[int] = []
            lengths: list[int] = []
            for source, target in zip(sources, targets, strict=True):
                if not source or not target:
                    empty += 1
                elif len(source) > longest or len(target) > longest:
                    too_long += 1
                else:
                    if kept % BLOCK == 0:
                        np.array([offset + len(row)], dtype=np.int64).tofile(b)
                    kept += 1
                    row += source
                    row += target
                    lengths += (len(source), len(target))
            flat = np.array(row, dtype=dtype)
            flat.tofile(t)
            sides = np.array(lengths, dtype=np.uint16)
            sides.tofile(n)
            digest.update(flat.tobytes() + sides.tobytes())
            offset += len(row)
            seen += len(lines)
            progress(seen)
    if not kept:
        why = f": {empty} pairs have an empty side, {too_long} more than {longest} tokens" if seen else ""
        raise ValueError(f"{name} holds no sentence pair to use{why}; give a file with source and target on each line")
    for name_ in ("tokens.bin", "lengths.bin", "blocks.bin"):
        flush(folder / name_)
    about = {"pairs": kept, "too_long": too_long, "empty": empty, "digest": digest.hexdigest(), "dtype": dtype.name}
    write_atomic(folder / "about.json", json.dumps(about).encode())
