"""What a translation must contain as the source has it: tags, placeholders, URLs, e-mail addresses, emoji and numbers.

A number counts as kept if its digits are in the translation: 1,000 may become 1.000, and 12 be part of 2020-03-12.
"""

import re
import unicodedata
from collections import Counter
from typing import NamedTuple

__all__ = ["Protected", "drop_surplus", "find_lacking", "find_protected", "is_kept"]

_EMOJI = ("[\U0001f1e6-\U0001f1ff]{2}|[0-9#*]\ufe0f?\u20e3|"  # flags, keycaps
          "(?:[\u203c\u2049\u2139\u2194-\u21aa\u231a-\u23ff\u25aa-\u25fe\u2600-\u27bf\u2934\u2935\u2b05-\u2b55\u3030\u303d]"
          "|[\U0001f000-\U0001faff])[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*"
          "(?:\u200d(?:[\u2190-\u2bff]|[\U0001f000-\U0001faff])[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]*)*")  # fmt: skip

_PROTECTED = re.compile(
    r"(?P<url>(?:https?|ftp)://[^\s<>\"“”«»]+|\bwww\.[^\s<>\"“”«»]+)"
    r"|(?P<email>[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+)"
    r"|(?P<tag></?(?!extra_id_)[A-Za-z][\w:.-]*(?:\s[^<>=]{0,200}=[^<>]{0,2000}|\s[^<>]{0,2000}/|\s?|/)>|<!--.{0,2000}?-->|&(?:[A-Za-z]{2,10}|#\d{1,7}|#x[\dA-Fa-f]{1,6});)"
    r"|(?P<name>\{\{[^{}\n]{1,80}\}\}|\$?\{[\w.:!,\[\]-]{0,80}\}|%\(\w{1,80}\)[#0+-]?[\d.]*[diouxXeEfFgGcrsa]"
    r"|(?<![\d%])%(?:\d{1,2}\$)?[0+-]?\d{0,3}(?:\.\d{1,3})?(?:l|ll|h)?[diouxXeEfgGcsr](?![A-Za-z]))"
    rf"|(?P<emoji>{_EMOJI})"
    r"|(?P<number>(?<![\w.,])\d+(?:[.,:'’/-]\d+)*(?![\w]))"
)
_HINT = re.compile(r"[\d<{%@&]|://|www\.|[\u2000-\U0010ffff]")  # every protected span has one of these
_TRAILING = ".,;:!?)]}'’»…。，！？"  # of a sentence, not of the URL before it


class Protected(NamedTuple):
    """A span of a text that must not change: where it starts and ends, and what it is."""

    start: int
    end: int
    text: str
    kind: str  # url, email, tag, name, emoji, number


def find_protected(text: str) -> list[Protected]:
    """The protected spans of a text, in order, without overlaps."""
    if not _HINT.search(text):  # most sentences: an early answer
        return []
    spans = []
    for found in _PROTECTED.finditer(text):
        kind = found.lastgroup or ""
        span = found[0].rstrip(_TRAILING) if kind == "url" else found[0]
        if kind == "url" and span.count("(") > span.count(")") and found[0][len(span) :].startswith(")"):
            span += ")"
        spans.append(Protected(found.start(), found.start() + len(span), span, kind))
    if not any(character.isalpha() for character in text):  # sums and codes are the model's
        return [span for span in spans if span.kind != "number"]
    return spans


def find_lacking(spans: list[Protected], translation: str) -> list[Protected]:
    """The spans that a translation lacks, in their order; of a repeated one as many as are lacking."""
    left, digits = Counter(span.text for span in spans if span.kind != "number"), _digits(translation)
    for text in left:
        left[text] -= translation.count(text)
    missing = []
    for span in spans:
        if span.kind == "number":
            found = digits.find(_digits(span.text))
            if found < 0:
                missing.append(span)
            else:  # used up
                digits = digits[:found] + "·" + digits[found + len(_digits(span.text)) :]
        elif left[span.text] > 0:
            left[span.text] -= 1
            missing.append(span)
    return missing


def is_kept(spans: list[Protected], translation: str) -> bool:
    """Whether a translation has all spans, and no tag, placeholder or address more often than the source."""
    wanted = Counter(span.text for span in spans if span.kind != "number")
    surplus = any(translation.count(text) > count for text, count in wanted.items())
    return not surplus and not find_lacking(spans, translation)


def drop_surplus(text: str) -> str:
    """A text without tags, placeholders, addresses and emoji: a model made them up where its source had none."""
    spans = [span for span in find_protected(text) if span.kind != "number"]
    for span in reversed(spans):
        text = text[: span.start] + text[span.end :]
    return drop_surplus(text) if spans else text


def _digits(text: str) -> str:
    """The digits of a text in ASCII, a separator between two of them dropped: '1.000 und ५' → '1000  5'."""
    plain = "".join(str(unicodedata.digit(c)) if c.isdecimal() else c for c in text)
    joined = re.sub(r"(?<=\d)[.,'’\u00a0\u202f ](?=\d)", "", plain)
    return re.sub(r"\D+", " ", joined)
