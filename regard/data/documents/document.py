"""What a document is to a translator: blocks of text, and a function that puts their translations in their place."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["MAX_BYTES", "SUFFIXES", "Document", "decode_document", "read_document"]

SUFFIXES = (".srt", ".html", ".htm", ".docx", ".txt")
MAX_BYTES = 1 << 26  # of a document, unpacked


class Document(NamedTuple):
    """The blocks of text of a document in their order, and how to write it with other texts in their place."""

    texts: list[str]
    render: Callable[[list[str]], bytes]


def read_document(file: Path) -> Document:
    """Read a document by its ending."""
    from regard.data.documents.docx import read_docx
    from regard.data.documents.html import read_html
    from regard.data.documents.srt import read_srt
    from regard.data.documents.txt import read_txt
    from regard.data.files import open_bytes

    readers = {".srt": read_srt, ".html": read_html, ".htm": read_html, ".docx": read_docx, ".txt": read_txt}
    with open_bytes(file) as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{file} has over {MAX_BYTES:,} bytes; split it into smaller documents")
    try:
        return readers[file.suffix.lower()](content)
    except ValueError as error:
        raise ValueError(f"{file} {error}") from None


def decode_document(content: bytes) -> tuple[str, str]:
    """The byte order mark, if there is one, and the text."""
    if b"\0" in content:
        raise ValueError("has a zero byte: it is binary, or UTF-16; save it as UTF-8")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start + 1} (0x{content[error.start]:02x}); save it as UTF-8") from None
    return ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
