"""SentencePiece's treatment of a text, where the parts of a tokenizer.json only come close to it.

A tokenizer.json marked by `MARK` holds a SentencePiece model with the ids of a separate vocabulary, as Marian has them:

- a text is normalized here: SentencePiece takes the longest rule at each place, the library's `Precompiled` the shortest;
- a token that no text is split into, such as one of the other language, has `ESCAPE` before it; but an unknown part of a text
  that is spelled as such a token is that token;
- pieces that split a text but are not in the vocabulary come after an entry that is `ESCAPE` alone: they are unknown tokens;
- a text may begin with the code of a language, such as >>fra<<.
"""

import base64
import json
import re
import struct
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import Regex, normalizers

__all__ = ["ESCAPE", "Normalization", "PieceEncoder", "find_pieces", "join_pieces", "require_charsmap"]

ESCAPE, REPLACED = "\U0010ffff", "\U0010fffe"  # noncharacters; the first becomes the second in a text
MARK = {"type": "Replace", "pattern": {"String": ESCAPE}, "content": REPLACED}
SPACE = "▁"
BYTE = re.compile("<0x[0-9A-F]{2}>")
REPEATED = re.compile(r"(.{1,8}?)\1\1", re.DOTALL)
UNK_PENALTY = 10.0  # below the least likely piece
MAX_CHARSMAP = 8 << 20  # bytes; published ones have 0.3 MB
MAX_STEPS = 100_000  # remembered of a charsmap
LABEL, HAS_VALUE, VALUE = 0x800000FF, 1 << 8, 0x7FFFFFFF  # bits of a unit of the double array


class Charsmap:
    """The rules of a normalization: strings and what replaces them, compiled to a trie in a double array (Darts)."""

    def __init__(self, blob: bytes):
        require_charsmap(blob)
        (size,) = struct.unpack_from("<I", blob)
        self._units = struct.unpack_from(f"<{size // 4}I", blob, 4)
        self._strings = blob[4 + size :]
        self._root = _child(self._units[0]) if self._units else 0
        self._steps: dict[tuple[int, str], tuple[int, str | None]] = {}

    def find(self, text: str, at: int) -> tuple[str, int]:
        """What the longest rule that applies at a place makes of it, and where it ends; without one a character is kept."""
        node, best, end = self._root, text[at], at + 1
        for place in range(at, len(text)):
            node, replacement = self._steps.get((node, text[place])) or self._step(node, text[place])
            if replacement is not None:
                best, end = replacement, place + 1
            if node < 0:
                break
        return best, end

    def _step(self, node: int, char: str) -> tuple[int, str | None]:
        """The node that a character leads to, -1 if none, and the replacement of the string up to there, if it is a rule."""
        if len(self._steps) > MAX_STEPS:
            self._steps.clear()
        units, at, value = self._units, node, None
        for byte in char.encode("utf-8", "surrogatepass"):
            at ^= byte
            if at >= len(units) or units[at] & LABEL != byte:
                at, value = -1, None
                break
            unit, at = units[at], at ^ _child(units[at])
            value = self._string(units[at] & VALUE) if unit & HAS_VALUE and at < len(units) else None
        return self._steps.setdefault((node, char), (at, value))

    def _string(self, start: int) -> str:
        """The string that starts at a place and ends with a zero."""
        return self._strings[start : self._strings.find(b"\0", start)].decode("utf-8", "replace")


def _child(unit: int) -> int:
    """Where the children of a unit are, as an exclusive or with its own place."""
    return (unit >> 10) << ((unit & 1 << 9) >> 6)


def require_charsmap(blob: bytes) -> None:
    """Refuse bytes that are no compiled normalization."""
    size = struct.unpack_from("<I", blob)[0] if 4 <= len(blob) <= MAX_CHARSMAP else -1
    if size < 0 or size % 4 or size > len(blob) - 4 or not blob.endswith(b"\0"):
        raise ValueError(f"its precompiled charsmap of {len(blob):,} bytes is damaged or too large; download it again")


class Normalization(NamedTuple):
    """How SentencePiece changes a text before it splits it."""

    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool

    def to_library(self) -> normalizers.Sequence:
        """The parts of the `tokenizers` library that come closest, with the mark at the end."""
        parts: list[Any] = [normalizers.Precompiled(self.charsmap)] if self.charsmap else []
        if self.remove_extra_whitespaces:
            parts += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
        parts += [normalizers.Prepend(" ")] if self.add_dummy_prefix else []
        parts += [normalizers.Replace(" ", SPACE)] if self.escape_whitespaces else []
        return normalizers.Sequence([*parts, normalizers.Replace(ESCAPE, REPLACED)])

    @classmethod
    def from_library(cls, normalizer: Any) -> "Normalization | None":
        """What `to_library` was made of; None if it is not of our making."""
        if not isinstance(normalizer, normalizers.Sequence):
            return None
        parts = json.loads(normalizer.__getstate__())["normalizers"]
        if not parts or parts[-1] != MARK:
            return None
        kinds = [part["type"] for part in parts[:-1]]
        charsmap = base64.b64decode(parts[0]["precompiled_charsmap"]) if kinds[:1] == ["Precompiled"] else b""
        return cls(charsmap, "Prepend" in kinds, "Strip" in kinds, kinds[-1:] == ["Replace"])


class Viterbi:
    """The likeliest pieces of a text by SentencePiece's own arithmetic, which keeps sums with 32 bits.

    The library keeps them with 64.  That matters where pieces in another order have the same sum: .... is ... . and . ... too.
    """

    def __init__(self, vocab: Sequence[tuple[str, float]], unk: int):
        self._pieces = {text: (index, score) for index, (text, score) in enumerate(vocab) if index != unk and text[0] != ESCAPE}
        self._unk, self._unk_score = unk, _to_float32(min(score for _, score in vocab) - UNK_PENALTY)
        self._longest: dict[str, int] = {}
        for text in self._pieces:
            self._longest[text[0]] = max(self._longest.get(text[0], 0), len(text))

    def split(self, line: str) -> list[tuple[int, tuple[int, int]]]:
        """The ids of the pieces and their spans; neighbouring unknown characters are one."""
        best: list[tuple[float, int, int] | None] = [(0.0, 0, 0), *[None] * len(line)]  # sum, start and id of the last piece
        for start in range(len(line)):
            here = best[start]
            assert here is not None  # a character is at least unknown
            single = False
            for end in range(start + 1, min(len(line), start + self._longest.get(line[start], 0)) + 1):
                if piece := self._pieces.get(line[start:end]):
                    single |= end == start + 1
                    total, before = _to_float32(here[0] + piece[1]), best[end]
                    if before is None or total > before[0]:
                        best[end] = (total, start, piece[0])
            total, before = _to_float32(here[0] + self._unk_score), best[start + 1]
            if not single and (before is None or total > before[0]):
                best[start + 1] = (total, start, self._unk)
        found, end = list[tuple[int, tuple[int, int]]](), len(line)
        while end:
            last = best[end]
            assert last is not None
            if last[2] == self._unk and found and found[-1][0] == self._unk:
                found[-1] = (self._unk, (last[1], found[-1][1][1]))
            else:
                found.append((last[2], (last[1], end)))
            end = last[1]
        return found[::-1]


def _to_float32(value: float) -> float:
    return float(np.float32(value))


class PieceEncoder:
    """Text → token ids of a SentencePiece model with the ids of another vocabulary."""

    def __init__(self, normalization: Normalization, inner: tokenizers.Tokenizer):
        parts = json.loads(inner.to_str())
        model, added = parts["model"], parts["added_tokens"]
        special = {token["content"]: token["id"] for token in added if token["special"]}
        unigram, unknown = model["type"] == "Unigram", model.get("unk_id", model.get("unk_token"))
        if model["type"] not in ("Unigram", "BPE") or unknown is None:
            raise ValueError(f"its normalizer is marked as SentencePiece's, but its model is a {model['type']} with the unknown "
                             f"token {unknown!r}; import the checkpoint again")  # fmt: skip
        tokens = [token for token, _ in model["vocab"]] if unigram else sorted(model["vocab"], key=model["vocab"].__getitem__)
        ids = {token: index if unigram else model["vocab"][token] for index, token in enumerate(tokens)}
        self.vocab = ids.get(ESCAPE, max(ids.values()) + 1)  # ids from here on are of pieces outside the vocabulary
        self._unk = unknown if unigram else ids[unknown]
        self._escaped = {token.removeprefix(ESCAPE): index for token, index in ids.items()
                         if token.startswith(ESCAPE) and token not in special and index < self.vocab}  # fmt: skip
        self._ids = {**ids, **self._escaped}
        self._normalization, self._charsmap = normalization, Charsmap(normalization.charsmap) if normalization.charsmap else None
        symbols = [token for token in added if not token["special"]]  # defined by a user: kept whole
        names = sorted((token["content"] for token in symbols), key=len, reverse=True)
        self._symbols = re.compile("|".join(map(re.escape, names))) if names else None

        # No text is split into a special token or a byte, and a unigram model scores symbols itself.
        names_of_bytes = [f"<0x{byte:02X}>" for byte in range(256)] if model.get("byte_fallback") else []
        self._bytes = [ids.get(name, self._unk) for name in names_of_bytes]
        model["byte_fallback"] = False
        hidden = {name: name if name.startswith(ESCAPE) or ids.get(name) == self._unk else ESCAPE + name
                  for name in (*special, *names_of_bytes)}  # fmt: skip
        parts |= {"normalizer": None, "post_processor": None, "added_tokens": [] if unigram else symbols}
        if unigram:
            model["vocab"] = [(hidden.get(token, token), score) for token, score in model["vocab"]]
        else:
            model["vocab"] = {hidden.get(token, token): index for token, index in model["vocab"].items()}
        self._segmenter = tokenizers.Tokenizer.from_str(json.dumps(parts))
        self._viterbi = Viterbi(model["vocab"], self._unk) if unigram else None

    def find_id(self, token: str) -> int | None:
        """The id of a token of the vocabulary."""
        index = self._ids.get(token)
        return None if index is None or index >= self.vocab else index

    def split_code(self, text: str) -> tuple[list[int], str]:
        """The code of a language at the start of a text, as a token if there is one, and the rest."""
        code, rest = _split_code(text)
        return self._code(code), rest

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text."""
        split = [_split_code(text) for text in texts]
        lines = [self._normalize(text)[0] for _, text in split]
        encoded = self._segmenter.encode_batch_fast(lines, add_special_tokens=False)
        found = (self._in_vocabulary(line, part.ids) for line, part in zip(lines, encoded, strict=True))
        return [self._code(code) + ids for (code, _), ids in zip(split, found, strict=True)]

    def offsets(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Where the tokens of `encode` are in each text."""
        found = []
        for code, text in map(_split_code, texts):
            line, places = self._normalize(text)
            spans = [span for _, span in self._resolve(line)]
            first = [(0, len(code))] if code else []
            found.append(first + [(places[a][0] + len(code), places[b - 1][1] + len(code)) for a, b in spans])
        return found

    def _code(self, code: str) -> list[int]:
        if not code:
            return []
        index = self.find_id(code)
        return [self._unk if index is None else index]

    def _in_vocabulary(self, line: str, ids: list[int]) -> list[int]:
        """The ids of a normalized text with those of the vocabulary."""
        if self._unk not in ids and max(ids, default=0) < self.vocab and not self._ties(line):
            return ids
        return [index for index, _ in self._resolve(line)]

    def _resolve(self, line: str) -> list[tuple[int, tuple[int, int]]]:
        """The ids of a normalized text, with their spans in it: an unknown part may be a token, or become bytes."""
        found = list[tuple[int, tuple[int, int]]]()
        if self._viterbi and self._ties(line):
            split = self._viterbi.split(line)
        else:
            encoded = self._segmenter.encode(line, add_special_tokens=False)
            split = list(zip(encoded.ids, encoded.offsets, strict=True))
        for index, (a, b) in split:
            ids = [index]
            if index == self._unk:
                bytewise = [self._bytes[byte] for byte in line[a:b].encode()] if self._bytes else []
                ids = bytewise or [self._escaped.get(line[a:b], self._unk)]
            found += [(each if each < self.vocab else self._unk, (a, b)) for each in ids]
        return found

    def _ties(self, line: str) -> bool:
        """Whether rounding may decide how a text is split."""
        return self._viterbi is not None and REPEATED.search(line) is not None

    def _normalize(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """The text that is split, and the span of the original that each character is made of."""
        how, at, chars, places = self._normalization, 0, list[str](), list[tuple[int, int]]()
        space = SPACE if how.escape_whitespaces else " "
        while how.remove_extra_whitespaces and at < len(text) and (step := self._rewrite(text, at))[0] == " ":
            at = step[1]
        if at == len(text):
            return "", []
        if how.add_dummy_prefix:
            chars, places = [space], [(at, at)]
        after_space = how.remove_extra_whitespaces
        while at < len(text):
            part, end = self._rewrite(text, at)
            part = part.lstrip(" ") if after_space else part
            for char in part:
                chars.append(space if char == " " else char)
                places.append((at, end))
            if part:
                after_space = how.remove_extra_whitespaces and part[-1] == " "
            at = end
        while how.remove_extra_whitespaces and chars and chars[-1] == space:
            chars.pop()
        return "".join(chars).replace(ESCAPE, REPLACED), places

    def _rewrite(self, text: str, at: int) -> tuple[str, int]:
        """What becomes of the characters at a place, and where they end."""
        if self._symbols and (symbol := self._symbols.match(text, at)):
            return symbol[0], symbol.end()
        return self._charsmap.find(text, at) if self._charsmap else (text[at], at + 1)


def _split_code(text: str) -> tuple[str, str]:
    """The code of a language at the start of a text, as >>fra<<, and the rest."""
    if not isinstance(text, str):
        raise TypeError(f"a text of type {type(text).__name__}")
    end = text.find("<<") + 2 if text.startswith(">>") else 0
    return (text[:end], text[end:]) if end > 1 else ("", text)


def find_pieces(inner: tokenizers.Tokenizer) -> PieceEncoder | None:
    """The encoder of a tokenizer that is marked as SentencePiece's; None for another."""
    normalization = Normalization.from_library(inner.normalizer)
    return PieceEncoder(normalization, inner) if normalization else None


def join_pieces(tokens: Sequence[str]) -> str:
    """The text of tokens, with ▁ for a space; tokens such as <0xE2> are bytes, invalid ones become U+FFFD."""
    text = ""
    for is_bytes, group in groupby(tokens, lambda token: BYTE.fullmatch(token) is not None):
        if is_bytes:
            decoded = bytes(int(token[3:5], 16) for token in group).decode("utf-8", "surrogateescape")
            text += re.sub("[\ud800-\udfff]", "\ufffd", decoded)
        else:
            text += "".join(group)
    return text.replace(SPACE, " ").strip()
