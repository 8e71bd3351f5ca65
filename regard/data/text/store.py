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
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.cache import cached
from regard.data.text.readers import Pair
from regard.data.text.tokenizer import Tokenizer

__all__ = ["BLOCK", "UNKNOWN", "Ints", "PairStore", "Pool", "TextStore", "Tokens", "encode_labeled", "encode_pairs",
           "encode_text"]  # fmt: skip

BLOCK = 4096  # pairs read together
CHUNK = 1 << 18  # characters of a plain text encoded together
UNKNOWN = "⁇"  # a word that a data set has removed; encoded as the unknown token

Ints = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.unsignedinteger]
DoneCount = Callable[[int], None]
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
        self.blocks = -(-self.pairs // BLOCK)
        self._starts: Ints = np.fromfile(folder / "blocks.bin", dtype=np.int64)

    def pools(self, seed: int, epoch: int, size: int) -> list[Ints]:
        """The blocks of each pool of an epoch, `size` to a pool, in an order of its own."""
        order = np.random.default_rng([seed, epoch]).permutation(self.blocks)
        return [order[i : i + size] for i in range(0, len(order), size)]

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


def encode_pairs(pairs: Callable[[], Iterator[Pair]], name: str, identity: object, tokenizer: Tokenizer, max_len: int,
                 progress: DoneCount = lambda done: None) -> PairStore:  # fmt: skip
    """Encode a corpus into the cache folder, or find it there; pairs with an empty or too long side are counted and left out."""

    def encode(lines: list[Pair], _: int) -> Iterator[Encoded]:
        sources, targets = (tokenizer.encode(side) for side in zip(*lines, strict=True))
        return zip(sources, targets, strict=True)

    write = partial(_write_pairs, pairs, name, _dtype(tokenizer), max_len, encode, progress, False)
    return PairStore(cached([BLOCK, identity, tokenizer.digest, max_len], write))


def encode_labeled(pairs: Callable[[], Iterator[Pair]], labels: Sequence[str], name: str, identity: object, tokenizer: Tokenizer,
                   max_len: int, progress: DoneCount = lambda done: None) -> PairStore:  # fmt: skip
    """Encode labelled texts; a text of more than `max_len` tokens is cut to `max_len` and counted as too long."""
    label_ids = {label: index for index, label in enumerate(labels)}

    def encode(lines: list[Pair], done: int) -> Iterator[Encoded]:
        for number, (text, label) in enumerate(lines, done + 1):
            if label not in label_ids:
                raise ValueError(f"{name}, example {number} ({text[:40]!r}) has class {label!r}, a label never seen in "
                                 f"training; known are {', '.join(labels)}: fix it, or leave it out")  # fmt: skip
        texts = tokenizer.encode([text for text, _ in lines])
        return ((ids, [label_ids[label]]) for ids, (_, label) in zip(texts, lines, strict=True))

    write = partial(_write_pairs, pairs, name, _dtype(tokenizer), max_len, encode, progress, True)
    return PairStore(cached([BLOCK, identity, tokenizer.digest, max_len, "labels", list(labels)], write))


def _write_pairs(pairs: Callable[[], Iterator[Pair]], name: str, dtype: "np.dtype[np.unsignedinteger]", max_len: int,
                 encode: Callable[[list[Pair], int], Iterator[Encoded]], progress: DoneCount, cut: bool,
                 folder: Path) -> dict[str, object]:  # fmt: skip
    """Stream pairs to a folder; `encode` gets pairs and the count before them; long pairs are left out, or `cut`."""
    stream, digest, kept, done, too_long, empty, offset = pairs(), hashlib.sha256(), 0, 0, 0, 0, 0
    files = [folder / file for file in ("tokens.bin", "lengths.bin", "blocks.bin")]
    with open(files[0], "wb") as t, open(files[1], "wb") as n, open(files[2], "wb") as b:
        while lines := list(islice(stream, BLOCK)):
            row, lengths = list[int](), list[int]()
            for source, target in encode(lines, done):
                if not source or not target:
                    empty += 1
                    continue
                over = max(len(source), len(target)) > max_len
                too_long += over
                if cut or not over:
                    if kept % BLOCK == 0:
                        np.array([offset + len(row)], dtype=np.int64).tofile(b)
                    kept += 1
                    row += source[:max_len]
                    row += target
                    lengths += (min(len(source), max_len), len(target))
            _append(np.array(row, dtype=dtype), t, digest)
            _append(np.array(lengths, dtype=np.uint16), n, digest)
            offset += len(row)
            done += len(lines)
            progress(done)
    if not kept:
        what, sides = ("labelled text", "text and class") if cut else ("sentence pair", "source and target")
        why = f": {empty} pairs have an empty side, {too_long} more than {max_len} tokens" if done else ""
        raise ValueError(f"{name} holds no {what} to use{why}; give a file with {sides} on each line")
    return {"pairs": kept, "too_long": too_long, "empty": empty, "digest": digest.hexdigest(), "dtype": dtype.name}


def _append(values: Tokens, file: BinaryIO, digest: "hashlib._Hash") -> None:
    values.tofile(file)
    digest.update(values.tobytes())


def encode_text(pieces: Callable[[], Iterator[str]], name: str, identity: object, tokenizer: Tokenizer,
                progress: DoneCount = lambda done: None) -> TextStore:  # fmt: skip
    """Encode a plain text; non-empty lines end with the end token if the tokenizer drops line ends; `progress` gets tokens."""

    def write(folder: Path) -> dict[str, object]:
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
                _append(np.array(row, dtype=dtype), file, digest)
                total += len(row)
                progress(total)
            if not total:
                raise ValueError(f"{name} holds no text to use; give a file with text in it")
            if end is not None and line_started:  # the last line may lack its line end
                _append(np.array([end], dtype=dtype), file, digest)
        return {"digest": digest.hexdigest(), "dtype": dtype.name}

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
    chunk, size = list[str](), 0
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
