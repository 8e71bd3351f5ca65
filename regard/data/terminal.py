"""Text of users, files and models on a terminal: control characters are shown, never sent.

A terminal obeys what it is sent: an escape sequence in a file name can retitle the window, move the cursor over earlier lines or
hide text, and a bidirectional control can make a line read otherwise than it is.
"""

import re

__all__ = ["UNSAFE", "printable"]

UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL and C1, among them ESC and the one-byte CSI
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional marks, embeddings, overrides and isolates
    "\u2028\u2029"  # line and paragraph separators
    "\ud800-\udfff]"  # surrogates: bytes of a file name that are not UTF-8
)


def printable(text: object, keep: str = "\n\t") -> str:
    r"""The text with control characters as escapes such as ``\x1b``; those in `keep` stay.

    Use ``keep=""`` for what must stay on one line.  A backslash in the text stays as it is: this is for reading, not for parsing.
    Printed with rich, give the result as `rich.text.Text`, or with ``markup=False``, so that brackets are no markup.
    """
    return UNSAFE.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), str(text))


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
