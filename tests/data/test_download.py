"""Downloads: announced, bounded, checked; what goes wrong leaves nothing and is one line."""

import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from regard.data import download as downloads
from regard.data.download import download, file_digest, read_url

CONTENT = bytes(range(256)) * 20_000


class Server(BaseHTTPRequestHandler):
    """Addresses that behave well or badly."""

    asked: ClassVar[list[str]] = []

    def do_GET(self):
        self.asked.append(self.path)
        if self.path.endswith(("/away", "/here")):
            self.send_response(302)
            here = f"http://127.0.0.1:{self.server.server_address[1]}/file"
            self.send_header("Location", here if self.path.endswith("/here") else "http://example.org/file")
            self.end_headers()
            return
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        length = {"/cut": len(CONTENT) + 1000, "/huge": 10**15, "/lies": -5}.get(self.path, len(CONTENT))
        if self.path != "/endless":
            self.send_header("Content-Length", str(length))
        self.end_headers()
        try:
            for _ in range(100 if self.path == "/endless" else 1):
                self.wfile.write(CONTENT)
        except OSError:  # the reader has gone
            pass

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    running = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=running.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    thread.join()
    running.server_close()


def test_a_file_is_kept_with_its_date_and_its_checksum(server, tmp_path):
    target = tmp_path / "new" / "file.bin"
    download([f"{server}/file"], target, limit=len(CONTENT), digest=f"md5:{hashlib.md5(CONTENT).hexdigest()}")
    assert target.read_bytes() == CONTENT
    assert target.stat().st_mtime == 1_445_412_480
    assert target.with_name("file.bin.sha256").read_text() == f"{hashlib.sha256(CONTENT).hexdigest()}  file.bin\n"
    assert sorted(path.name for path in target.parent.iterdir()) == ["file.bin", "file.bin.sha256"]
    assert file_digest(target, "sha256") == f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


def test_the_next_address_is_asked_if_one_fails(server, tmp_path):
    download([f"{server}/missing", f"{server}/cut", f"{server}/file"], tmp_path / "file", limit=1 << 30)
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize(("path", "limit", "digest", "message"), [
    ("missing", 1 << 30, "", r"cannot download .*/missing \(HTTP Error 404.*\); put it there"),
    ("cut", 1 << 30, "", r"cannot download .*/cut \(.*\); put it there"),
    ("huge", 1 << 30, "", r"it has 1,000\.0 TB, more than the 1\.1 GB that were expected"),
    ("file", 1000, "", r"more than the 1\.0 kB that were expected"),
    ("endless", 6_000_000, "", r"it has more than the 6\.0 MB that were expected"),
    ("away", 1 << 30, "", r"redirected to http://example\.org/file, which is not an https address\); put it there"),
    ("file", 1 << 30, "sha256:" + "0" * 64, "it was changed or damaged on the way; put it there"),
])  # fmt: skip
def test_a_download_that_fails_leaves_nothing_and_is_one_line(server, tmp_path, path, limit, digest, message):
    with pytest.raises(ValueError, match=message) as error:
        download([f"{server}/{path}"], tmp_path / "new" / "file", limit=limit, digest=digest, advice="put it there")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_download_leaves_nothing(server, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(downloads, "file_digest", interrupt)
    with pytest.raises(KeyboardInterrupt):
        download([f"{server}/file"], tmp_path / "new" / "file", limit=1 << 30, digest="md5:0")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["file:///etc/hostname", "http://example.org/a", "ftp://example.org/a", "data:,a", "example.org/a"]
)
def test_only_https_is_read(tmp_path, monkeypatch, url):
    monkeypatch.setattr("regard.data.download._open", lambda *_, **__: pytest.fail("it was asked"))
    with pytest.raises(ValueError, match="is not an https address"):
        download([url], tmp_path / "file", limit=1 << 30)


def test_a_redirect_away_from_https_is_refused_before_it_is_asked(server, monkeypatch):
    monkeypatch.setenv("http_proxy", server)  # gets what is asked of other machines
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(OSError, match=r"redirected to http://example\.org/file, which is not an https address"):
        read_url(f"{server}/away")
    assert Server.asked[-1] == "/away"


def test_only_a_server_of_this_machine_may_redirect_to_this_machine(server, monkeypatch):
    assert read_url(f"{server}/here") == CONTENT
    monkeypatch.setenv("http_proxy", server)  # answers for example.org
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(OSError, match=r"redirected to http://127\.0\.0\.1:\d+/file, which is not an https address"):
        read_url("http://example.org/here")
    assert Server.asked[-1] == "http://example.org/here"


def test_a_terminal_shows_a_bar_with_throughput_and_time_left(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    download([f"{server}/file"], tmp_path / "file", limit=1 << 30)
    err = capsys.readouterr().err
    assert "MB" in err
    assert "file: 5.1 MB in" in err


def test_a_leftover_of_a_killed_download_is_replaced(server, tmp_path):
    leftover, old, growing = (tmp_path / f".file.{pid}.part" for pid in (os.getpid(), 998, 999))
    for part in (leftover, old, growing):
        part.write_bytes(b"half")
    os.utime(old, (1000, 1000))
    download([f"{server}/file"], tmp_path / "file", limit=1 << 30)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [part.exists() for part in (leftover, old, growing)] == [False, False, True]
