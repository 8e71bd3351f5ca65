"""XML inside zip files (.xlsx, .docx): refuse document types and entities, which a parser might expand without bound."""

import codecs
import re
from typing import IO

__all__ = ["declares_entities"]

CHUNK = 1 << 16  # bytes read at once
_PLAIN = frozenset(("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin1", "windows-1252"))  # "<" is one byte, 0x3c
_ENCODING = re.compile(rb"""^\s*<\?xml[^>]*?encoding\s*=\s*["']([^"']*)["']""")
_DECLARATION = re.compile("<!(?:DOCTYPE|ENTITY)", re.IGNORECASE)
_LONGEST = len("<!DOCTYPE")


def declares_entities(part: IO[bytes]) -> bool:
    """Whether an XML file declares a document type or entities anywhere, or is in an encoding that could hide them."""
    chunk = part.read(CHUNK)
    if chunk.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return True
    if chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decoder: codecs.IncrementalDecoder = codecs.getincrementaldecoder("utf-16")("replace")
    else:
        head = chunk.removeprefix(codecs.BOM_UTF8)
        found = _ENCODING.match(head[:1000])
        if (
            not head.lstrip().startswith(b"<")
            or b"\0" in head[:4]
            or (found and found[1].decode("latin-1").lower() not in _PLAIN)
        ):
            return bool(head.strip())  # an empty file declares nothing
        decoder = codecs.getincrementaldecoder("latin-1")()
    end = ""  # of the chunk before: a declaration may begin there
    while chunk:
        text = end + decoder.decode(chunk)
        if _DECLARATION.search(text):
            return True
        end, chunk = text[-_LONGEST:], part.read(CHUNK)
    return False
