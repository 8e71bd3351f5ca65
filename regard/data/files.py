"""Reading text files, and atomic writing: a crash leaves the old file or the new one, never half of one."""

import codecs
import gzip
import io
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

__all__ = ["MAX_LINE", "MIN_NOT_UTF8", "BadLine", "cache_folder", "create_folder", "flush", "gzip_errors", "new_file_mode",
           "open_bytes", "read_lines", "read_lines_checked", "read_pieces", "read_whole", "sync_folder",
           "write_atomic"]  # fmt: skip

MAX_LINE = 1 << 20  # bytes of one line; longer ones are left out or refused
MIN_NOT_UTF8 = 3  # lines, none of them UTF-8, that are a file in another encoding
MAX_NOT_UTF8 = 100  # lines after which that is decided
MAX_SKIP = 1 << 26  # bytes of one line that are read to find its end


def cache_folder() -> Path:
    """The folder of downloads and stores: `$XDG_CACHE_HOME/regard`, else `~/.cache/regard`."""
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home, as in some containers
        home = Path(tempfile.gettempdir())
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "regard"


class BadLine(NamedTuple):
    """A line that is not text, or too long: why, and what to do."""

    number: int
    reason: str
    advice: str


def read_lines(file: Path) -> Iterator[str]:
    """Stream the lines of a text file, plain or .gz, without line ends; "-" is standard input; errors name the line."""
    for line in read_lines_checked(file):
        if isinstance(line, BadLine):
            raise ValueError(f"{_name(file)} line {line.number} {line.reason}; {line.advice}")
        yield line


def read_lines_checked(file: Path) -> Iterator[str | BadLine]:
    """The same, but a line that is not UTF-8 or has over `MAX_LINE` bytes comes as a `BadLine`: the caller may go on.

    A file without a line of UTF-8, or in which the first hundred are none, is refused: it is in another encoding.
    """
    number, waiting, readable = 0, list[BadLine](), False  # lines that are not UTF-8, until one is
    with gzip_errors(file), _open(file) as lines:
        while line := lines.readline(MAX_LINE + 1):
            number += 1
            if b"\0" in line:
                raise _binary(file, number, line.index(0) + 1)
            if len(line) > MAX_LINE and not line.endswith(b"\n"):
                _skip_line(lines, file, number)
                readable = True
                yield from waiting
                waiting.clear()
                yield BadLine(number, f"has over {MAX_LINE:,} bytes", "break it into shorter lines, or leave it out")
                continue
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                bad = BadLine(number, *_not_utf8(error.start + 1, line[error.start]))
                if readable:
                    yield bad
                elif len(waiting) + 1 >= MAX_NOT_UTF8:
                    raise _other_encoding(file, waiting[0], number) from None
                else:
                    waiting.append(bad)
                continue
            if not readable:
                readable = True
                yield from waiting
                waiting.clear()
            yield (text if number > 1 else text.removeprefix("\ufeff")).rstrip("\r\n")  # a byte order mark
        if not readable:
            if len(waiting) >= MIN_NOT_UTF8:
                raise _other_encoding(file, waiting[0], number)
            yield from waiting


def read_whole(file: Path) -> str:
    """All lines of a short text, such as a prompt, joined; refused if they have over `MAX_LINE` characters."""
    found, size = list[str](), 0
    for line in read_lines(file):
        found.append(line)
        size += len(line) + 1
        if size > MAX_LINE:
            raise ValueError(f"{_name(file)} has over {MAX_LINE:,} characters; give a shorter text")
    return "\n".join(found)


def read_pieces(file: Path, max_len: int) -> Iterator[str]:
    """Stream the lines with their ends; a line of over `max_len` bytes comes in several pieces, cut before a space."""
    number, before, line = 1, 0, b""  # `before`: bytes of this line already read
    with gzip_errors(file), _open(file) as lines:
        while True:
            more = lines.readline(max_len)
            line += more
            if not line:
                return
            whole = len(more) < max_len or line.endswith(b"\n")
            piece = line if whole else line[: _last_word(line)]
            if b"\0" in piece:
                raise _binary(file, number, before + piece.index(0) + 1)
            try:
                text = piece.decode("utf-8")
            except UnicodeDecodeError as error:
                reason, advice = _not_utf8(before + error.start + 1, piece[error.start])
                raise ValueError(f"{_name(file)} line {number} {reason}; {advice}") from None
            yield text if number > 1 or before else text.removeprefix("\ufeff")  # a byte order mark
            number, before = (number + 1, 0) if whole else (number, before + len(piece))
            line = b"" if whole else line[len(piece) :]


def open_bytes(file: Path) -> IO[bytes]:
    """Open a regular file, plain or .gz, for reading; a FIFO or a device, which may never end, is refused."""
    try:
        stream = open(file, "rb", opener=_open_regular)  # noqa: SIM115
    except FileNotFoundError:
        raise ValueError(f"no file {file}; check the path") from None
    except IsADirectoryError:
        raise ValueError(f"{file} is a folder; give a file") from None
    if file.suffix != ".gz":
        return stream
    stream.close()
    return gzip.open(file, "rb")  # type: ignore[return-value]


def _open_regular(path: str, flags: int) -> int:
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # opening a FIFO would wait for its writer
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return handle
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError
    kind = "a FIFO" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise ValueError(f"{path} is {kind}, not a regular file; save the data to a file first")


@contextmanager
def gzip_errors(file: Path) -> Iterator[None]:
    """Turn the errors of a damaged gzip file into one line that names it."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{file} is not a whole gzip file ({error}); download or compress it again") from None


def _name(file: Path) -> str:
    return "standard input" if str(file) == "-" else str(file)


def _binary(file: Path, number: int, at: int) -> ValueError:
    return ValueError(f"{_name(file)} line {number} has a zero byte, byte {at}: it is binary; give a text file")


def _not_utf8(at: int, byte: int) -> tuple[str, str]:
    return (
        f"is not UTF-8 at byte {at} (0x{byte:02x})",
        "save it as UTF-8 (in a spreadsheet: CSV UTF-8), or `iconv -f cp1252 -t utf-8`",
    )


def _other_encoding(file: Path, first: BadLine, count: int) -> ValueError:
    return ValueError(f"{_name(file)} line {first.number} {first.reason}; {first.advice} (none of its first {count:,} lines is)")


def _skip_line(lines: IO[bytes], file: Path, number: int) -> None:
    """Read to the end of a line that is too long; a much longer one is no line at all."""
    for _ in range(MAX_SKIP // MAX_LINE):
        rest = lines.readline(MAX_LINE)
        if b"\0" in rest:
            raise ValueError(f"{_name(file)} line {number} has a zero byte: it is binary; give a text file")
        if len(rest) < MAX_LINE or rest.endswith(b"\n"):
            return
    raise ValueError(f"{_name(file)} line {number} has over {MAX_SKIP:,} bytes; give a file with one text on each line")


def _last_word(line: bytes) -> int:
    """The index of the space before the last word, or of the last character if the line is one word."""
    space = line.rfind(b" ", 1)
    if space > 0:
        return space
    return next((at for at in range(len(line) - 1, 0, -1) if line[at] & 0xC0 != 0x80), len(line))


def _open(file: Path) -> IO[bytes]:
    """Open a text file or standard input; UTF-16 with a byte order mark, as Excel writes it, is read as UTF-8."""
    if str(file) == "-":
        return open(sys.stdin.fileno(), "rb", closefd=False)
    stream = open_bytes(file)
    try:
        with gzip_errors(file):
            mark = stream.read(2)
    except ValueError:
        stream.close()
        raise
    stream.seek(0)
    return io.BufferedReader(_UTF8(stream, file)) if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else stream


class _UTF8(io.RawIOBase):
    """A stream of UTF-16, read as UTF-8."""

    def __init__(self, stream: IO[bytes], file: Path):
        self._stream, self._file, self._ready = stream, file, b""
        self._decoder = codecs.getincrementaldecoder("utf-16")()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        while not self._ready:
            chunk = self._stream.read(1 << 16)
            try:
                self._ready = self._decoder.decode(chunk, final=not chunk).encode("utf-8")
            except UnicodeError:
                raise ValueError(f"{self._file} starts as UTF-16 and is not UTF-16 throughout; save it as UTF-8") from None
            if not chunk:
                break
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def close(self) -> None:
        self._stream.close()
        super().close()


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


@contextmanager
def create_folder(to: Path) -> Iterator[Path]:
    """Yield a hidden folder beside a new one, and rename it when everything is written."""
    if to.exists():
        raise ValueError(f"{to} already exists; give another folder, or remove it")
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f".{to.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        sync_folder(part)
        os.rename(part, to)
        sync_folder(to.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)
