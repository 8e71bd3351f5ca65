"""SentencePiece model files (.spm, .model): the Protocol Buffers message `ModelProto`, read without a library for either.

A message is a sequence of fields, each a key (number · 8 + wire type) and a value: a varint, 4 or 8 bytes, or a length and bytes.
Every length is compared with what is left, and the file's size with a limit, before anything is kept.
"""

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

__all__ = ["Kind", "Piece", "SentencePieceModel", "read_sentencepiece"]

MAX_BYTES = 64 << 20  # the largest published ones, of 250,000 pieces, have 5 MB
MAX_PIECES = 2_000_000
MAX_PIECE = 1000  # characters
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
UNIGRAM, BPE = 1, 2
ALGORITHMS = {UNIGRAM: "unigram", BPE: "bpe", 3: "word", 4: "char"}


class Kind(IntEnum):
    """What a piece is."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3  # such as </s>: no text is split into it
    USER_DEFINED = 4  # is kept whole, and not normalized
    UNUSED = 5
    BYTE = 6  # <0x00> to <0xFF>


class Piece(NamedTuple):
    """An entry of the vocabulary."""

    text: str
    score: float
    kind: Kind


@dataclass(frozen=True)
class SentencePieceModel:
    """What decides how a text is split."""

    algorithm: str  # "unigram" or "bpe"
    pieces: tuple[Piece, ...]  # by id
    byte_fallback: bool  # an unknown character becomes its bytes
    charsmap: bytes  # the compiled rules of the normalization; empty: none
    add_dummy_prefix: bool  # a space before each text
    remove_extra_whitespaces: bool  # none at the ends, one in a row
    escape_whitespaces: bool  # ▁ for a space

    @property
    def unk(self) -> int:
        """The id of the unknown piece."""
        return next(n for n, piece in enumerate(self.pieces) if piece.kind is Kind.UNKNOWN)


def read_sentencepiece(file: Path) -> SentencePieceModel:
    """Read a model; one that is damaged, or that regard would split otherwise than SentencePiece, is a `ValueError`."""
    if not file.is_file():
        raise ValueError(f"{file.name} is not a regular file; download it again")
    with open(file, "rb") as handle:
        if (size := os.fstat(handle.fileno()).st_size) > MAX_BYTES:
            raise ValueError(f"{file.name} has {size:,} bytes, more than {MAX_BYTES:,}: it is not a SentencePiece model; "
                             f"download it again")  # fmt: skip
        content = handle.read(MAX_BYTES)
    try:
        return _parse_model(content)
    except _DamagedError as error:
        raise ValueError(f"{file.name} is not a SentencePiece model, or is damaged ({error}); download it again") from None
    except ValueError as error:
        raise ValueError(f"{file.name} {error}; use another checkpoint") from None


class _DamagedError(ValueError):
    """Bytes that are not a ModelProto."""


Value = int | float | bytes


def _fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of a message: numbers and values."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == BYTES:
            length, at = _varint(message, at)
        elif wire in (FIXED64, FIXED32):
            length = 8 if wire == FIXED64 else 4
        else:
            raise _DamagedError(f"byte {at:,} has wire type {wire}")
        if number == 0 or length > len(message) - at:
            raise _DamagedError(f"field {number} has {length:,} bytes, {len(message) - at:,} are left")
        part, at = message[at : at + length], at + length
        yield number, part if wire == BYTES else struct.unpack("<f" if wire == FIXED32 else "<d", part)[0]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number that starts at a place, and the place after it: 7 bits a byte, the lowest first."""
    value = 0
    for n, byte in enumerate(message[at : at + 10]):
        value |= (byte & 127) << 7 * n
        if byte < 128:
            return value, at + n + 1
    raise _DamagedError(f"a number at byte {at:,} does not end")


@dataclass
class _Trainer:
    """Fields of TrainerSpec."""

    algorithm: int = UNIGRAM
    byte_fallback: int = 0
    whitespace_as_suffix: int = 0


@dataclass
class _Normalizer:
    """Fields of NormalizerSpec."""

    charsmap: bytes = b""
    dummy: int = 1
    extra: int = 1
    escape: int = 1


@dataclass
class _Message:
    pieces: list[Piece] = field(default_factory=list)
    trainer: _Trainer = field(default_factory=_Trainer)
    normalizer: _Normalizer = field(default_factory=_Normalizer)
    denormalizer: _Normalizer = field(default_factory=_Normalizer)


def _parse_model(content: bytes) -> SentencePieceModel:
    read = _Message()
    for number, value in _fields(content):
        if number == 1:
            read.pieces.append(_parse_piece(_bytes(number, value)))
            if len(read.pieces) > MAX_PIECES:
                raise _DamagedError(f"it has more than {MAX_PIECES:,} pieces")
        elif number == 2:
            names = {3: "algorithm", 24: "whitespace_as_suffix", 35: "byte_fallback"}
            _read_numbers(read.trainer, names, _bytes(number, value))
        elif number in (3, 5):
            spec = read.normalizer if number == 3 else read.denormalizer
            _read_numbers(spec, {3: "dummy", 4: "extra", 5: "escape"}, _bytes(number, value))
            for inner, blob in _fields(_bytes(number, value)):
                if inner == 2:
                    spec.charsmap = _bytes(inner, blob)
    _check(read)
    return SentencePieceModel(
        ALGORITHMS[read.trainer.algorithm], tuple(read.pieces), bool(read.trainer.byte_fallback), read.normalizer.charsmap,
        bool(read.normalizer.dummy), bool(read.normalizer.extra), bool(read.normalizer.escape),
    )  # fmt: skip


def _check(read: _Message) -> None:
    """Refuse a damaged model, and one that SentencePiece would split otherwise than regard."""
    if not read.pieces:
        raise _DamagedError("it has no pieces")
    texts = [piece.text for piece in read.pieces]
    if len(set(texts)) < len(texts):
        raise _DamagedError("it has a piece twice")
    if (unknown := sum(piece.kind is Kind.UNKNOWN for piece in read.pieces)) != 1:
        raise _DamagedError(f"it has {unknown} unknown pieces instead of one")
    if not any(piece.kind is Kind.NORMAL for piece in read.pieces):
        raise _DamagedError("it has no normal pieces")
    if read.trainer.algorithm not in (UNIGRAM, BPE):
        name = ALGORITHMS.get(read.trainer.algorithm, read.trainer.algorithm)
        raise ValueError(f"has model_type = {name}; regard reads unigram and bpe")
    if read.trainer.algorithm == BPE and any(piece.kind is Kind.UNUSED for piece in read.pieces):
        raise ValueError("is a BPE model with unused pieces, through which SentencePiece merges; regard does not support them")
    if read.trainer.whitespace_as_suffix:
        raise ValueError("has treat_whitespace_as_suffix = true, which regard does not support")
    if read.denormalizer.charsmap:
        raise ValueError("has a denormalizer, which regard does not support")


def _bytes(number: int, value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise _DamagedError(f"field {number} is a number")
    return value


def _read_numbers(spec: _Trainer | _Normalizer, names: dict[int, str], message: bytes) -> None:
    """Set attributes from the numbers of a message, by the numbers of their fields."""
    for number, value in _fields(message):
        if number in names:
            if not isinstance(value, int):
                raise _DamagedError(f"{names[number]} is not a number")
            setattr(spec, names[number], value)


def _parse_piece(message: bytes) -> Piece:
    text, score, kind = "", 0.0, int(Kind.NORMAL)
    for number, value in _fields(message):
        if number == 1:
            try:
                text = _bytes(number, value).decode("utf-8")
            except UnicodeDecodeError:
                raise _DamagedError("a piece is not UTF-8") from None
        elif number == 2 and isinstance(value, float):
            score = value
        elif number == 3 and isinstance(value, int):
            kind = value
    if not 0 < len(text) <= MAX_PIECE:
        raise _DamagedError(f"a piece has {len(text):,} characters")
    if not math.isfinite(score):
        raise _DamagedError(f"the piece {text!r} has the score {score}")
    if kind not in [*Kind]:
        raise ValueError(f"has the piece {text!r} of the unknown type {kind}; regard reads types 1 to {max(Kind)}")
    return Piece(text, score, Kind(kind))
