"""A server on this machine that publishes generated files in the format of the official ones."""

import gzip
import io
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from regard.data.official.table import OFFICIAL


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(autouse=True)
def nothing_local(monkeypatch):
    for name in ("REGARD_DATA", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Put files of a set on a server, and make it the official address: `publish("mnist", {"name": content})` → its folder."""
    folder = tmp_path / "server"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    def start(name, files, **digests):
        for file, content in files.items():
            (folder / file).write_bytes(content)
        address = f"http://127.0.0.1:{server.server_port}/"
        moved = [file._replace(urls=(address + file.name,), digest=digests.get("digest", "")) for file in OFFICIAL[name].files]
        monkeypatch.setitem(OFFICIAL, name, OFFICIAL[name]._replace(files=tuple(moved)))
        return folder

    yield start
    server.shutdown()
    thread.join()
    server.server_close()


def as_zip(files, **options):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def as_tar(files, extra=()):
    """A .tar.gz archive of files, and of further members."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in extra:
            archive.addfile(member)
    return gzip.compress(packed.getvalue(), compresslevel=1, mtime=0)


@pytest.fixture
def pack_zip():
    return as_zip


@pytest.fixture
def pack_tar():
    return as_tar
