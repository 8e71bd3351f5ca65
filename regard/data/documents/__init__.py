"""Documents whose text is translated and whose format is kept: subtitles, web pages, Word files, plain text."""

from regard.data.documents.document import SUFFIXES, Document, read_document

__all__ = ["SUFFIXES", "Document", "read_document"]
