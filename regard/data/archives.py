"""Files inside zip and tar archives, read one by one: nothing is extracted, no link is followed, and sizes are bounded."""

import gzip
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from regard.data.units import format_size

__all__ = ["GB", "gunzip", "tar_files", "zip_files"]

GB = 1 << 30
DRIVE = re.compile("[A-Za-z]:")  # of Windows
MAX_FILES = 100_000  # in one archive
MAX_FILE = 1 << 28  # bytes of one file in it
UNREADABLE = (FileNotFoundError, IsADirectoryError, PermissionError)
BROKEN = (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError)


def tar_files(file: Path, wanted: Callable[[str], bool], limit: int) -> Iterator[tuple[str, bytes]]:
    """The wanted files of a .tar.gz archive in its order: name and content.  Unpacked, it may have `limit` bytes."""
    size = 0
    with _whole(file), open(file, "rb") as packed, gzip.GzipFile(fileobj=packed) as stream:
        bounded = cast(BinaryIO, _Bounded(stream, file, limit))
        with tarfile.open(fileobj=bounded, mode="r|") as archive:
            for number, member in enumerate(archive, 1):
                name = _safe(member.name, file)
                if number > MAX_FILES:
                    raise ValueError(f"{file} has over {MAX_FILES:,} files; get the official file")
                if not wanted(name):
                    continue
                if not member.isreg():
                    raise ValueError(f"{file} has a link or a device as {name}; get the official file")
                _require_size(member.size, MAX_FILE, name, file)
                size += member.size  # of a sparse file more than the stream has
                _require_size(size, limit, "it", file)
                content = archive.extractfile(member)
                assert content  # a regular file has content
                yield name, content.read()


def zip_files(file: Path, wanted: Callable[[str], bool], limit: int) -> Iterator[tuple[str, bytes]]:
    """The wanted files of a zip archive in its order: name and content.  Unpacked, these may have `limit` bytes."""
    with _whole(file), zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if len(entries) > MAX_FILES:
            raise ValueError(f"{file} has over {MAX_FILES:,} files; get the official file")
        named = [(_safe(entry.filename, file), entry) for entry in entries]
        chosen = [(name, entry) for name, entry in named if wanted(name) and not entry.is_dir()]
        _require_size(sum(entry.file_size for _, entry in chosen), limit, "what it holds", file)
        for name, entry in chosen:
            _require_size(entry.file_size, MAX_FILE, name, file)
            with archive.open(entry) as stream:
                content = stream.read(entry.file_size + 1)  # a directory may claim less than the stream has
            if len(content) != entry.file_size:
                raise ValueError(f"{file} is damaged: {name} does not have the size that its directory states; get it again")
            yield name, content


def gunzip(file: Path, limit: int) -> bytes:
    """The content of a .gz file, of at most `limit` bytes."""
    with _whole(file), gzip.open(file, "rb") as stream:
        content = stream.read(limit + 1)
    _require_size(len(content), limit, "it", file)
    return content


@contextmanager
def _whole(file: Path) -> Iterator[None]:
    """Turn the errors of a file that is damaged, of another kind, or cannot be opened, into one line that names it."""
    try:
        yield
    except UNREADABLE as error:
        raise ValueError(f"cannot read {file} ({error.strerror}); check the path and its permissions") from None
    except BROKEN as error:
        raise ValueError(f"{file} is not a whole archive ({error}); delete it, and get it again") from None


def _safe(name: str, file: Path) -> str:
    """The name of a file in an archive; a path that leads outside is refused, although nothing is written there."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or "\0" in name or DRIVE.match(name):
        raise ValueError(f"{file} holds {name!r}, a path outside the archive; get the official file")
    return str(path)


def _require_size(size: int, limit: int, name: str, file: Path) -> None:
    if size > limit:
        raise ValueError(f"{file} is refused: {name} has over {format_size(limit)} unpacked; get the official file")


class _Bounded:
    """A stream that may have `limit` bytes: a small archive can unpack to more than a disk holds."""

    def __init__(self, stream: gzip.GzipFile, file: Path, limit: int):
        self._stream, self._file, self._limit, self._left = stream, file, limit, limit

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(size)
        self._left -= len(block)
        if self._left < 0:
            _require_size(self._limit + 1, self._limit, "it", self._file)
        return block
