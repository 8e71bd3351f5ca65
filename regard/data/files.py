"""Reading text files, and atomic writing: a crash leaves the old file or the new one, never half of one."""

import gzip
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["cache_folder", "flush", "new_file_mode", "read_lines", "read_pieces", "sync_folder", "write_atomic"]


def cache_folder() -> Path:
    """The folder of downloads and stores: `$XDG_CACHE_HOME/regard`, else `~/.cache/regard`."""
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home, as in some containers
        home = Path(tempfile.gettempdir())
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "regard"


def read_lines(file: Path) -> Iterator[str]:
    """Stream the lines of a UTF-8 file, plain or .gz, without line ends; "-" is standard input; errors name the line."""
    return (line.rstrip("\r\n") for line in read_pieces(file, max_len=-1))


def read_pieces(file: Path, max_len: int) -> Iterator[str]:
    """Stream the lines with their ends; a line of over `max_len` bytes comes in several pieces, cut before a space."""
    name = "standard input" if str(file) == "-" else file
    number, before, line = 1, 0, b""  # `before`: bytes of this line already read
    try:
        with _open(file) as lines:
            while True:
                more = lines.readline(max_len)
                line += more
                if not line:
                    return
                whole = max_len < 0 or len(more) < max_len or line.endswith(b"\n")
                piece = line if whole else line[: _last_word(line)]
                if b"\0" in piece:
                    at = before + piece.index(0) + 1
                    raise ValueError(f"{name} line {number} has a zero byte, byte {at}: it is binary; give a text file")
                try:
                    text = piece.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise ValueError(
                        f"{name} line {number} is not UTF-8 at byte {before + error.start + 1} (0x{piece[error.start]:02x}); "
                        f"convert it, such as with `iconv -f latin1 -t utf-8`"
                    ) from None
                yield text if number > 1 or before else text.removeprefix("\ufeff")  # a byte order mark
                number, before = (number + 1, 0) if whole else (number, before + len(piece))
                line = b"" if whole else line[len(piece) :]
    except FileNotFoundError:
        raise ValueError(f"no file {file}; check the path") from None
    except IsADirectoryError:
        raise ValueError(f"{file} is a folder; give a file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{file} is not a whole gzip file ({error}); download or compress it again") from None


def _last_word(line: bytes) -> int:
    """The index of the space before the last word, or of the last character if the line is one word."""
    space = line.rfind(b" ", 1)
    if space > 0:
        return space
    return next((at for at in range(len(line) - 1, 0, -1) if line[at] & 0xC0 != 0x80), len(line))


def _open(file: Path) -> IO[bytes]:
    if str(file) == "-":
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return gzip.open(file, "rb") if file.suffix == ".gz" else open(file, "rb")  # type: ignore[return-value]


def write_atomic(file: Path, content: bytes) -> None:
    """Write a file atomically: to a temporary file, flushed to disk, then renamed over the old one."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)  # left by a killed process
        with open(part, "xb") as handle:  # O_CREAT | O_EXCL: a link of that name is not followed
            handle.write(content)
        flush(part)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(file.parent)


def new_file_mode(folder: Path) -> int:
    """The permissions that a new file gets in a folder, by the umask and the folder's defaults.

    Libraries that write through a temporary file leave theirs, which only the owner may read.
    """
    probe = folder / f".mode.{os.getpid()}.part"
    probe.unlink(missing_ok=True)  # left by a killed process
    handle = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        return stat.S_IMODE(os.fstat(handle).st_mode)
    finally:
        os.close(handle)
        probe.unlink()


def flush(file: Path) -> None:
    """Flush a file's content to disk."""
    with open(file, "rb+") as handle:
        os.fsync(handle.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the file names of a folder to disk."""
    if os.name == "posix":  # elsewhere a folder cannot be opened for that
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
