"""Downloading files: announced with their licence, bounded in size, checked, and kept whole or not at all."""

import hashlib
import http.client
import os
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.response import addinfourl

from regard.data.files import flush, sync_folder, write_atomic
from regard.data.terminal import printable
from regard.data.units import format_duration, format_size
from regard.version import VERSION

__all__ = ["FAILURES", "MAX_TEXT", "download", "file_digest", "note", "read_url", "require_secure"]

MAX_TEXT = 1 << 28  # bytes of a file that is checked in memory, and of the text in it
BLOCK = 1 << 18  # bytes read at once
TIMEOUT = 60  # seconds without an answer
STALE = 3600  # seconds after which a part that no longer grows was left by a killed process
HERE = ("127.0.0.1", "localhost")  # servers of this machine, which may speak plain http
FAILURES = (OSError, EOFError, http.client.HTTPException)


def note(text: str) -> None:
    """Print one line on standard error."""
    print(printable(text, keep=""), file=sys.stderr)


def require_secure(url: str, advice: str) -> None:
    """Refuse addresses other than https, and other than http of this machine."""
    if urllib.parse.urlsplit(url).scheme != "https" and not _is_here(url):
        raise ValueError(f"{url} is not an https address; {advice}")


def _is_here(url: str) -> bool:
    """Whether a plain http address is one of this machine."""
    at = urllib.parse.urlsplit(url)
    return at.scheme == "http" and at.hostname in HERE


def read_url(url: str, limit: int = MAX_TEXT) -> bytes:
    """The content of an address, with a progress bar; an `OSError` or `HTTPException` if it cannot be read to its end."""
    parts = list[bytes]()
    _receive(url, limit, parts.append)
    return b"".join(parts)


def download(urls: Sequence[str], target: Path, *, limit: int, digest: str = "", advice: str = "") -> None:
    """Download a file from the first address that has it, of at most `limit` bytes and, if known, with the `digest` "md5:…".

    Its sha256 and its date are written beside it.  What goes wrong leaves nothing and is one line that ends in `advice`.
    """
    failed = list[str]()
    for url in urls:
        require_secure(url, "only https is read")
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(target, part)
        try:
            with open(part, "xb") as file:  # a link of that name is not followed
                date = _receive(url, limit, file.write)
            if digest and (found := file_digest(part, digest.partition(":")[0])) != digest:
                failed.append(f"{url} has {found[:20]}…, wanted {digest[:20]}…: it was changed or damaged on the way")
                continue
            flush(part)
            sha256 = file_digest(part, "sha256").partition(":")[2]
            write_atomic(target.with_name(f"{target.name}.sha256"), f"{sha256}  {target.name}\n".encode())
            if date:
                os.utime(part, (date, date))
            os.replace(part, target)
            sync_folder(target.parent)
            return
        except FAILURES as error:
            failed.append(f"cannot download {url} ({error})")
        finally:
            part.unlink(missing_ok=True)
            with suppress(OSError):
                target.parent.rmdir()  # if it is empty: `regard doctor` takes a folder for a set that is here
    raise ValueError(f"{'; '.join(failed)}; {advice}")


def file_digest(file: Path, algorithm: str) -> str:
    """The checksum of a file, as "md5:…" or "sha256:…"."""
    with open(file, "rb") as stream:
        return f"{algorithm}:{hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()}"


def _remove_stale(target: Path, part: Path) -> None:
    """Remove what killed processes left behind; another process may be downloading the same file now."""
    for stale in target.parent.glob(f".{target.name}.*.part"):
        with suppress(FileNotFoundError):
            if stale == part or time.time() - stale.stat().st_mtime > STALE:
                stale.unlink()


def _receive(url: str, limit: int, write: Callable[[bytes], object]) -> float:
    """Pass on the content of an address block by block; the time of its last change, or 0."""
    began, count = time.monotonic(), 0
    with _open(url) as answer:
        length = answer.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else 0
        if total > limit:
            raise OSError(f"it has {format_size(total)}, more than the {format_size(limit)} that were expected")
        with _progress(url.rpartition("/")[2], total) as advance:
            while block := answer.read(BLOCK):
                count += len(block)
                if count > limit:
                    raise OSError(f"it has more than the {format_size(limit)} that were expected")
                write(block)
                advance(len(block))
        if total and count < total:
            raise OSError(f"the connection ended after {format_size(count)} of {format_size(total)}")
    if count >= 1 << 20:
        note(f"{url.rpartition('/')[2]}: {format_size(count)} in {format_duration(time.monotonic() - began)}")
    return _timestamp(answer.headers.get("Last-Modified", ""))


def _open(url: str) -> addinfourl:
    """The answer of a server; redirects are followed to https addresses, and from this machine to this machine."""
    opener = urllib.request.build_opener(_SecureRedirects)
    answer: addinfourl = opener.open(urllib.request.Request(url, headers={"User-Agent": f"regard/{VERSION}"}), timeout=TIMEOUT)
    return answer


class _SecureRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses a redirect to plain http before anything is asked there, unless it leads from this machine to this machine."""

    def redirect_request(self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage,
                         newurl: str) -> urllib.request.Request | None:  # fmt: skip
        if urllib.parse.urlsplit(newurl).scheme != "https" and not (_is_here(req.full_url) and _is_here(newurl)):
            fp.close()
            raise OSError(f"it was redirected to {newurl}, which is not an https address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _timestamp(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return 0.0


@contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[int], Any]]:
    """On a terminal a bar with throughput and time left; a function that moves it on."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(name, keep=""), total=total or None)
        yield lambda count: bar.advance(task, count)
