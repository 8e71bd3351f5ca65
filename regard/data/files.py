"""Reading what users send, and writing so that a crash leaves the old file or the new one, never half of one."""

import gzip
import os
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["cache_folder", "flush", "read_lines", "read_pieces", "sync_folder", "write_atomic"]


def cache_folder() -> Path:
    """Where downloads and encoded corpora live: `$XDG_CACHE_HOME/regard`, else `~/.cache/regard`."""
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home, as in some containers
        home = Path(tempfile.gettempdir())
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "regard"


def read_lines(file: Path) -> Iterator[str]:
    """Stream the lines of a UTF-8 file, plain or .gz, without their line ends; say which line is not text.

    The file "-" is standard input.
    """
    return (line.rstrip("\r\n") for line in read_pieces(file, max_len=-1))


def read_pieces(file: Path, max_len: int) -> Iterator[str]:
    """Stream the same lines with their ends; one of over `max_len` bytes comes in several pieces, cut before a space."""
    name = "standard input" if str(file) == "-" else file
    number, before, line = 1, 0, b""  # `before`: bytes of this line that have gone
    try:
        with _open(file) as lines:
            while True:
                more = lines.readline(max_len)
                line += more
                if not line:
                    return
                whole = max_len < 0 or len(more) < max_len or line.endswith(b"\n")
                piece = line if whole else line[: _cut(line)]
                if b"\0" in piece:
                    at = before + piece.index(0) + 1
                    raise ValueError(
                        f"{name} line {number} holds a zero byte, byte {at}: it is binary; give a text file"
                    )
                try:
                    text = piece.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise ValueError(
                        f"{name} line {number} is not UTF-8 at byte {before + error.start + 1} (0x{piece[error.start]:02x}); "
                        f"convert it, such as with `iconv -f latin1 -t utf-8`"
                    ) from None
                first = number == 1 and not before
                yield text.removeprefix("\ufeff") if first else text  # some editors mark UTF-8 so
                number, before = (number + 1, 0) if whole else (number, before + len(piece))
                line = b"" if whole else line[len(piece) :]
    except FileNotFoundError:
        raise ValueError(f"no file {file}; check the path") from None
    except IsADirectoryError:
        raise ValueError(f"{file} is a folder; give a file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{file} is not a whole gzip file ({error}); download or compress it again") from None


def _cut(line: bytes) -> int:
    """Where the last word of a line begins, its space first; or its last character, if it is all one word."""
    space = line.rfind(b" ", 1)
    if space > 0:
        return space
    return next((at for at in range(len(line) - 1, 0, -1) if line[at] & 0xC0 != 0x80), len(line))


def _open(file: Path) -> IO[bytes]:
    if str(file) == "-":
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return gzip.open(file, "rb") if file.suffix == ".gz" else open(file, "rb")  # type: ignore[return-value]


def write_atomic(file: Path, content: bytes) -> None:
    """Write a file whole or not at all: to a neighbour first, flushed to the disk, then renamed over the old one."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(file.parent)


def flush(file: Path) -> None:
    """Make a file's content survive a power cut."""
    with open(file, "rb+") as handle:
        os.fsync(handle.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names inside a folder survive a power cut."""
    if os.name == "posix":  # elsewhere a folder cannot be opened for that
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
