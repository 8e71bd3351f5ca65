"""A corpus as token ids on disk, so that memory does not grow with its size.

Text is encoded once, in one stream, and checked on the way: a bad line is reported before training starts.  Pairs are
read by blocks, in any order: only the current pool is in memory.

    tokens.bin    source then target of each pair, without start or end, uint16 or uint32; or one plain text
    lengths.bin   two uint16 for each pair: tokens of its source, of its target
    blocks.bin    one int64 for each block: the offset of its tokens
    about.json    counts and the digest; written last, so a folder that has it is complete

A labelled text is a pair whose target is one number, the id of its class.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.cache import cached
from regard.data.files import flush, write_atomic
from regard.data.text.readers import Pair
from regard.data.text.tokenizer import Tokenizer

__all__ = [
    "BLOCK", "UNKNOWN", "Ints", "PairStore", "Pool", "TextStore", "Tokens", "encode_labeled", "encode_pairs", "encode_text",
]  # fmt: skip

BLOCK = 4096  # pairs read together
CHUNK = 1 << 18  # characters of a plain text encoded together
UNKNOWN = "⁇"  # a word that a data set has removed; encoded as the unknown token

Ints = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.unsignedinteger]
Encoded = tuple[list[int], list[int]]  # source and target ids of a pair


class Pool(NamedTuple):
    """Pairs in memory: one row of tokens, and the position of each pair in it."""

    tokens: Tokens
    starts: Ints  # position of each pair's source; its target follows
    sources: Ints  # length of each source
    targets: Ints  # length of each target

    def take(self, rows: Ints) -> "Pool":
        """Copy some pairs, in the order given: the copy does not keep the pool in memory."""
        sources, targets = self.sources[rows], self.targets[rows]
        lengths = sources + targets
        starts = np.cumsum(lengths) - lengths
        offsets = np.repeat(self.starts[rows] - starts, lengths)
        return Pool(self.tokens[offsets + np.arange(len(offsets))], starts, sources, targets)


class PairStore:
    """An encoded corpus of pairs on disk."""

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
        """Number of blocks."""
        return -(-self.pairs // BLOCK)

    def read(self, blocks: Iterable[int]) -> Pool:
        """Read blocks into memory."""
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


class TextStore:
    """One encoded plain text on disk."""

    def __init__(self, folder: Path):
        self.folder = folder
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        self.digest: str = about["digest"]
        self.tokens: Tokens = np.memmap(folder / "tokens.bin", dtype=np.dtype(about["dtype"]), mode="r")

    def __len__(self) -> int:
        return len(self.tokens)


def encode_pairs(
    pairs: Callable[[], Iterator[Pair]], name: str, identity: object, tokenizer: Tokenizer, max_len: int,
    progress: Callable[[int], None] = lambda done: None,
) -> PairStore:  # fmt: skip
    """Encode a corpus into the cache folder, or find it there.

    The cache key is `identity` (files, their sizes and times, options) and the tokenizer.  Pairs with an empty side or
    more than `max_len` tokens on one side are left out and counted.
    """

    def write(folder: Path) -> None:
        def encode(lines: list[Pair], _: int) -> Iterator[Encoded]:
            sources, targets = (tokenizer.encode(side) for side in zip(*lines, strict=True))
            return zip(sources, targets, strict=True)

        _write_pairs(folder, pairs(), name, _dtype(tokenizer), max_len, encode, progress)

    return PairStore(cached([BLOCK, identity, tokenizer.digest, max_len], write))


def encode_labeled(
    pairs: Callable[[], Iterator[Pair]], labels: Sequence[str], name: str, identity: object, tokenizer: Tokenizer,
    max_len: int, progress: Callable[[int], None] = lambda done: None,
) -> PairStore:  # fmt: skip
    """Encode labelled texts; a text of more than `max_len` tokens is cut to `max_len` and counted as too long."""
    label_ids = {label: index for index, label in enumerate(labels)}

    def write(folder: Path) -> None:
        def encode(lines: list[Pair], done: int) -> Iterator[Encoded]:
            for number, (text, label) in enumerate(lines, done + 1):
                if label not in label_ids:
                    raise ValueError(
                        f"{name}, example {number} ({text[:40]!r}) has class {label!r}, a label never seen in training; "
                        f"known are {', '.join(labels)}: fix it, or leave it out"
                    )
            texts = tokenizer.encode([text for text, _ in lines])
            return ((ids, [label_ids[label]]) for ids, (_, label) in zip(texts, lines, strict=True))

        _write_pairs(folder, pairs(), name, _dtype(tokenizer), max_len, encode, progress, cut=True)

    return PairStore(cached([BLOCK, identity, tokenizer.digest, max_len, "labels", list(labels)], write))


def _write_pairs(folder: Path, pairs: Iterator[Pair], name: str, dtype: "np.dtype[np.unsignedinteger]", max_len: int,
           encode: Callable[[list[Pair], int], Iterator[Encoded]], progress: Callable[[int], None],
           cut: bool = False) -> None:  # fmt: skip
    """Stream pairs to a folder; `encode` gets pairs and the count before them; long pairs are left out, or `cut`."""
    digest, kept, done, too_long, empty, offset = hashlib.sha256(), 0, 0, 0, 0, 0
    files = [folder / name for name in ("tokens.bin", "lengths.bin", "blocks.bin")]
    with open(files[0], "wb") as t, open(files[1], "wb") as n, open(files[2], "wb") as b:
        while lines := list(islice(pairs, BLOCK)):
            row: list[int] = []
            lengths: list[int] = []
            for source, target in encode(lines, done):
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
            done += len(lines)
            progress(done)
    if not kept:
        what, sides = ("labelled text", "text and class") if cut else ("sentence pair", "source and target")
        why = f": {empty} pairs have an empty side, {too_long} more than {max_len} tokens" if done else ""
        raise ValueError(f"{name} holds no {what} to use{why}; give a file with {sides} on each line")
    for file in files:
        flush(file)
    about = {"pairs": kept, "too_long": too_long, "empty": empty, "digest": digest.hexdigest(), "dtype": dtype.name}
    write_atomic(folder / "about.json", json.dumps(about).encode())


def encode_text(
    pieces: Callable[[], Iterator[str]], name: str, identity: object, tokenizer: Tokenizer,
    progress: Callable[[int], None] = lambda done: None,
) -> TextStore:  # fmt: skip
    """Encode a plain text, line by line, into one row of tokens; `progress` gets the number of tokens so far.

    If the tokenizer drops line ends, each non-empty line ends with the end token instead.
    """

    def write(folder: Path) -> None:
        dtype, digest, total, line_started = _dtype(tokenizer), hashlib.sha256(), 0, False
        end = None if tokenizer.keeps_newlines else tokenizer.special.eos
        with open(folder / "tokens.bin", "wb") as file:
            for chunk in _chunks(pieces()):
                row: list[int] = []
                for piece, ids in zip(chunk, _encode_pieces(chunk, tokenizer), strict=True):
                    row += ids
                    line_started = line_started or bool(ids)  # a long line comes in several pieces
                    if end is not None and line_started and piece.endswith("\n"):
                        row.append(end)
                        line_started = False
                flat = np.array(row, dtype=dtype)
                flat.tofile(file)
                digest.update(flat.tobytes())
                total += len(row)
                progress(total)
            if not total:
                raise ValueError(f"{name} holds no text to use; give a file with text in it")
            if end is not None and line_started:  # the last line may lack its line end
                last = np.array([end], dtype=dtype)
                last.tofile(file)
                digest.update(last.tobytes())
        flush(folder / "tokens.bin")
        about = {"digest": digest.hexdigest(), "dtype": dtype.name}
        write_atomic(folder / "about.json", json.dumps(about).encode())

    return TextStore(cached(["text", identity, tokenizer.digest], write))


def _encode_pieces(pieces: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Encode each piece; where the tokenizer can spell `UNKNOWN`, its unknown token is inserted instead."""
    rows = tokenizer.encode(pieces)
    removed = [index for index, piece in enumerate(pieces) if UNKNOWN in piece]
    if not removed or (unk := tokenizer.special.unk) in tokenizer.encode([UNKNOWN])[0]:
        return rows
    for index in removed:
        first, *others = tokenizer.encode(re.split(f" ?{UNKNOWN}", pieces[index]))
        rows[index] = [*first, *(token for part in others for token in (unk, *part))]
    return rows


def _chunks(pieces: Iterator[str]) -> Iterator[list[str]]:
    """Group the pieces of a text into chunks of about `CHUNK` characters."""
    chunk: list[str] = []
    size = 0
    for piece in pieces:
        chunk.append(piece)
        size += len(piece)
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _dtype(tokenizer: Tokenizer) -> "np.dtype[np.unsignedinteger]":
    return np.dtype(np.uint16 if tokenizer.vocab <= 1 << 16 else np.uint32)
