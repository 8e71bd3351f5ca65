"""Tokens as people read them: clean labels, and the words or characters that the pieces make together."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from regard.data.text.sentences import is_cjk
from regard.data.text.tokenizer import Tokenizer
from regard.view.record import Axis, Word

__all__ = ["group_words", "label_tokens", "piece_labels", "starts_word", "text_axis", "token_spans"]

ZWJ = "\u200d"  # joins emoji
JOINERS = frozenset("'’‘-‐‑·")  # between letters they are inside a word
DECIMALS = frozenset(".,:")  # between digits they are inside a number
SPACE, LINE_END = "␣", "⏎"

Span = tuple[int, int]  # the first character of a token in its text, and the one after its last


def text_axis(tokenizer: Tokenizer, ids: Sequence[int], text: str = "", known: int = 0, *, parse_special: bool = False) -> Axis:
    """The axis of tokens, of which the first `known` are those of `text`, read with `parse_special`, and special ones before it.

    The words of a known text are its own, also where a tokenizer writes them in lower case or not at all (an unknown word).
    """
    special = {n for n, token in enumerate(ids) if token in tokenizer.special_ids}
    spans = _spans_in(tokenizer, ids[:known], text, parse_special) if known else []
    if spans is None:  # the tokens are not simply those of the text
        text, spans, known = "", [], 0
    special -= {n for n, (start, end) in enumerate(spans) if ids[n] == tokenizer.special.unk and start < end}
    more, more_spans = token_spans(tokenizer, ids[known:])
    spans = spans + [(len(text) + start, len(text) + end) for start, end in more_spans]
    labels = label_tokens(tokenizer, ids)
    words = group_words(text + more, spans, {n: labels[n] for n in special})
    return Axis("tokens", len(ids), labels, words, special=sorted(special))


def label_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token without its space; the bytes of a part of a character in hexadecimal, special tokens by name."""
    named = zip(ids, tokenizer.ids_to_tokens(ids), tokenizer.surface(ids), strict=True)
    return [name if token in tokenizer.special_ids else _label(piece) for token, name, piece in named]


def _label(piece: bytes) -> str:
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return " ".join(f"0x{byte:02X}" for byte in piece.strip())
    return text.strip() or (LINE_END if "\n" in text else SPACE)


def piece_labels(axis: Axis) -> list[str]:
    """The labels of an axis for a page: a token that continues a word gets a +, as in "vogli", "+ono".

    Characters are not marked: nearly all of them continue a word.
    """
    if all(len(label) <= 1 or position in axis.special for position, label in enumerate(axis.labels)):
        return axis.labels
    starts = {word.start for word in axis.words}
    inside = {position for word in axis.words for position in range(word.start, word.end)} - starts - {*axis.special}
    return [f"+{label}" if position in inside else label for position, label in enumerate(axis.labels)]


def token_spans(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, list[Span]]:
    """The text that tokens write, and where each is in it; tokens that are parts of one character share it."""
    pieces = tokenizer.surface(ids)
    text = b"".join(pieces).decode("utf-8", "surrogateescape")  # a byte that is no text becomes one surrogate
    at_byte = list[int]()  # the character that each byte belongs to
    for n, character in enumerate(text):
        at_byte += [n] * (1 if "\udc80" <= character <= "\udcff" else len(character.encode()))
    spans, first = list[Span](), 0
    for piece in pieces:
        end = first + len(piece)
        here = at_byte[first] if first < len(at_byte) else len(text)
        spans.append((here, at_byte[end - 1] + 1) if piece else (here, here))
        first = end
    return re.sub("[\udc80-\udcff]", "\ufffd", text), spans


def _spans_in(tokenizer: Tokenizer, ids: Sequence[int], text: str, parse_special: bool) -> list[Span] | None:
    """Where tokens are in the text they were encoded from, special tokens before it at its start; None if they are others."""
    [found] = tokenizer.offsets([text], parse_special)
    before = len(ids) - len(found)
    if before < 0 or any(token not in tokenizer.special_ids for token in ids[:before]):
        return None
    return [(0, 0)] * before + found


@dataclass
class _Growing:
    """A word while its tokens are collected."""

    start: int  # its first token
    cut: int  # its first character, spaces included
    name: str = ""  # of a special token


def group_words(text: str, spans: Sequence[Span], special: dict[int, str]) -> list[Word]:
    """Words of the tokens at these spans of a text, without gap or overlap; `special` tokens are words of their own.

    A word begins at a token whose first character begins one; a token of several words is one.  Characters of the text that are
    in no token belong to the word before them.
    """
    growing, reach, begun = list[_Growing](), 0, -1
    for n, (start, end) in enumerate(spans):
        if n in special:
            growing.append(_Growing(n, max(reach, start), special[n]))
            reach, begun = max(reach, end), -1
            continue
        visible = _first_visible(text, start)
        alone = not growing or bool(growing[-1].name)
        begins = start >= reach and start < end and visible not in (begun, len(text)) and starts_word(text, visible)
        if alone or begins:
            growing.append(_Growing(n, reach if alone else start))
            begun = visible
        reach = max(reach, end)
    ends = [word.start for word in growing[1:]] + [len(spans)]
    cuts = [word.cut for word in growing[1:]] + [len(text)]
    return [
        Word(word.name or _word_text(text[word.cut : cut]), word.start, end)
        for word, end, cut in zip(growing, ends, cuts, strict=True)
    ]


def _word_text(text: str) -> str:
    return text.strip() or (LINE_END if "\n" in text else SPACE)


def _first_visible(text: str, start: int) -> int:
    """The first character from `start` that is no space; a line end is seen."""
    while start < len(text) and text[start].isspace() and text[start] != "\n":
        start += 1
    return start


def starts_word(text: str, at: int) -> bool:
    """Whether a word starts at a character that is no space.

    Letters, marks and digits make words, also around an apostrophe or a hyphen; a Chinese or Japanese character is a word, and so
    is a punctuation mark, a run of the same mark, and an emoji with all that changes it.
    """
    if at == 0 or text[at - 1].isspace():
        return True
    character, before = text[at], text[at - 1]
    if _extends(character) or before == ZWJ:
        return False
    base = next((text[n] for n in range(at - 1, -1, -1) if not _extends(text[n])), before)
    if _is_ideograph(character) or _is_ideograph(base):
        return True
    after = text[at + 1] if at + 1 < len(text) else " "
    if _is_letter(character):
        far = text[at - 2] if at > 1 else " "
        return not (_is_letter(base) or _joins(far, before, character))
    if _is_flag(character) and _is_flag(before):  # two letters make a flag
        run = len(text[:at]) - len(text[:at].rstrip("".join(map(chr, range(0x1F1E6, 0x1F200)))))
        return run % 2 == 0
    return not (character == before or _joins(base, character, after))


def _joins(left: str, middle: str, right: str) -> bool:
    if middle in DECIMALS:
        return left.isdigit() and right.isdigit()
    return middle in JOINERS and _is_letter(left) and _is_letter(right)


def _is_letter(character: str) -> bool:
    return unicodedata.category(character)[0] in "LN" or character == "_" or _extends(character)


def _extends(character: str) -> bool:
    """Whether a character belongs to the one before it: accents and vowel signs, joiners, and the skin tones of emoji."""
    return (unicodedata.category(character)[0] == "M" or character in (ZWJ, "\u200c") or "\U0001f3fb" <= character <= "\U0001f3ff"
            or "\U000e0020" <= character <= "\U000e007f")  # fmt: skip


def _is_ideograph(character: str) -> bool:
    return is_cjk(character) or "\U00020000" <= character <= "\U0003ffff"


def _is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
