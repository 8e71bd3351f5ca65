"""Named data sets: found in a local folder, then in the cache, then downloaded, and checked by sha256."""

import gzip
import hashlib
import os
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from regard.data import sources
from regard.data.official.table import OFFICIAL
from regard.data.sources import SHA256, SOURCES, locate, prefix_of

DATA = os.environ.get("REGARD_DATA", "")
NAME, FILE = "tatoeba-en-it", "valid.tsv.gz"


@pytest.fixture(autouse=True)
def nothing_local(monkeypatch):
    monkeypatch.delenv("REGARD_DATA", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def known(monkeypatch):
    """A text that has the checksum of the Italian validation set."""
    text = b"A dog.\tUn cane.\n"
    monkeypatch.setitem(sources.SHA256, f"{NAME}/{FILE}", hashlib.sha256(text).hexdigest())
    return text


def put(folder: Path, content: bytes, name: str = NAME, file: str = FILE) -> Path:
    file_path = folder / name / file
    file_path.parent.mkdir(parents=True, exist_ok=True)
    file_path.write_bytes(content)
    return file_path


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Breaks(BaseHTTPRequestHandler):
    """Promises more bytes than it sends."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"the beginning")

    def log_message(self, *_):
        pass


@pytest.fixture
def serve(monkeypatch):
    """Start a mirror on this machine."""
    running = []

    def start(handler) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        running.append((server, thread))
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("REGARD_MIRROR", address)
        return address

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def mirror(serve, tmp_path):
    """A mirror's folder."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    serve(partial(Quiet, directory=str(folder)))
    return folder


def left_in(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def test_the_local_folder_comes_before_the_cache_and_the_cache_before_the_mirror(tmp_path, monkeypatch, cache, mirror, known):
    put(mirror, gzip.compress(known))
    downloaded = locate(NAME, "valid", "")
    assert downloaded == [cache / "data" / NAME / FILE]
    cached = put(cache / "data", b"in the cache")
    assert locate(NAME, "valid", "") == [cached]
    assert cached.read_bytes() == b"in the cache"
    local = put(tmp_path / "local", b"local")
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "local"))
    assert locate(NAME, "valid", "") == [local]


def test_files_missing_in_the_local_folder_are_found_in_the_cache(tmp_path, monkeypatch, cache):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "elsewhere"))
    cached = put(cache / "data", b"")
    assert locate(NAME, "valid", "") == [cached]


def test_a_download_with_the_right_checksum_is_kept(cache, mirror, known):
    put(mirror, gzip.compress(known))
    (file_path,) = locate(NAME, "valid", "")
    assert gzip.decompress(file_path.read_bytes()) == known
    assert left_in(cache) == [file_path]
    (mirror / NAME / FILE).unlink()
    assert locate(NAME, "valid", "") == [file_path]  # without asking again


def test_how_the_mirror_compressed_a_text_does_not_matter(mirror, known):
    put(mirror, gzip.compress(known, compresslevel=1, mtime=12345))
    (file_path,) = locate(NAME, "valid", "")
    assert gzip.decompress(file_path.read_bytes()) == known


def test_a_mirror_may_end_in_a_slash(monkeypatch, mirror, known):
    put(mirror, gzip.compress(known))
    monkeypatch.setenv("REGARD_MIRROR", os.environ["REGARD_MIRROR"] + "/")
    assert locate(NAME, "valid", "")


def test_a_download_with_another_checksum_is_refused_and_leaves_nothing(cache, mirror):
    put(mirror, gzip.compress(b"A cat.\tUn gatto.\n"))
    with pytest.raises(ValueError, match=r"valid\.tsv\.gz has sha256 .*…, wanted de93022512d39325…: it was changed; get"):
        locate(NAME, "valid", "")
    assert not left_in(cache)


def damaged() -> dict[str, bytes]:
    packed = gzip.compress(b"A dog.\tUn cane.\n" * 100, mtime=0)
    return {"cut": packed[:-9], "garbled": packed[:10] + b"\xff" * 8 + packed[18:], "not gzip": b"<html>", "empty": b""}


@pytest.mark.parametrize("damage", damaged())
def test_a_damaged_download_is_a_clear_error_and_leaves_nothing(cache, mirror, damage):
    put(mirror, damaged()[damage])
    with pytest.raises(ValueError, match=r"valid\.tsv\.gz"):
        locate(NAME, "valid", "")
    assert not left_in(cache)


def test_a_connection_that_breaks_is_a_clear_error_and_leaves_nothing(cache, serve):
    serve(Breaks)
    with pytest.raises(ValueError, match="cannot download http://127"):
        locate(NAME, "valid", "")
    assert not left_in(cache)


def test_a_file_the_mirror_lacks_is_a_clear_error(cache, mirror):
    with pytest.raises(ValueError, match=r"valid\.tsv\.gz \(HTTP Error 404.*\); put the file in .*, or set REGARD_DATA"):
        locate(NAME, "valid", "")
    assert not left_in(cache)


def test_an_unreachable_server_is_a_clear_error(monkeypatch, cache):
    monkeypatch.setenv("REGARD_MIRROR", "http://127.0.0.1:1")
    with pytest.raises(ValueError, match=r"cannot download http://127\.0\.0\.1:1/.* \(.*refused.*\); put the file in"):
        locate(NAME, "valid", "")
    assert not left_in(cache)


@pytest.mark.parametrize("address", ["http://example.org", "ftp://example.org", "file:///etc", "example.org", "http://localhost.example.org",
                                     "http://127.0.0.1.example.org"])  # fmt: skip
def test_only_an_https_mirror_is_asked(monkeypatch, address):
    monkeypatch.setenv("REGARD_MIRROR", address)
    monkeypatch.setattr("regard.data.download._open", lambda *_, **__: pytest.fail("it was asked"))
    with pytest.raises(ValueError, match="is not an https address; set REGARD_MIRROR to one"):
        locate(NAME, "valid", "")


def test_a_set_without_a_public_address_says_where_to_put_it(monkeypatch, cache):
    monkeypatch.delitem(OFFICIAL, NAME)
    with pytest.raises(ValueError, match="is not on this machine and has no public address; put it in") as error:
        locate(NAME, "valid", "")
    assert str(cache / "data" / NAME) in str(error.value)
    assert "REGARD_DATA" in str(error.value)
    assert "REGARD_MIRROR" in str(error.value)


def test_a_set_with_a_public_address_is_asked_there(monkeypatch):
    asked = []

    def answer(url):
        asked.append(url)
        raise OSError("no net in tests")

    monkeypatch.setattr("regard.data.download._open", answer)
    for text in ("raw", "tok"):
        with pytest.raises(ValueError, match="cannot download"):
            locate("multi30k", "val", "en-de", text)
    assert asked == [
        "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/val.en.gz",
        "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/tok/val.lc.norm.tok.en",
    ]


def test_a_pair_names_two_files_source_first(cache):
    for language in ("de", "fr"):
        put(cache / "data", b"", "multi30k", f"val.{language}.gz")
    assert [path.name for path in locate("multi30k", "val", "fr-de")] == ["val.fr.gz", "val.de.gz"]


@pytest.mark.parametrize(("given", "message"), [
    (("multi30k", "test_2016_flicker", "en-de"), r"multi30k has no split .* \(did you mean 'test_2016_flickr'\?\)"),
    (("multi30k", "val", "en-da"), r"no pair 'en-da' \(did you mean 'en-de'\?\); it has en-de, en-fr"),
    (("multi30k", "val", "en-de", "tokk"), r"no text 'tokk' \(did you mean 'tok'\?\); it has raw, tok"),
    (("sst2", "valid", "en-de"), "sst2 has no pair 'en-de'; it has none"),
    (("tatoeba-en-it", "vaild", ""), r"no split 'vaild' \(did you mean 'valid'\?\); it has train, valid, test"),
])  # fmt: skip
def test_an_unknown_name_is_refused_with_the_nearest(given, message):
    with pytest.raises(ValueError, match=message):
        locate(*given)


@pytest.mark.parametrize(("name", "pair", "prefix"), [
    ("multi30k", "", "translate English to German: "),
    ("multi30k", "fr-en", "translate French to English: "),
    ("tatoeba-en-it", "", "translate English to Italian: "),
    ("tatoeba-en-hi", "en-hi", "translate English to Hindi: "),
    ("sst2", "", "sst2 sentence: "),
    ("agnews-small", "", "topic: "),
])  # fmt: skip
def test_a_set_has_its_t5_task_prefix(name, pair, prefix):
    assert prefix_of(name, pair) == prefix


def test_every_language_has_a_name():
    assert all(prefix_of(name, pair) for name, source in SOURCES.items() for pair in source.pairs)


def test_sets_are_of_their_kind():
    kinds = {name: source.kind for name, source in SOURCES.items() if source.kind != "pairs"}
    pictures = dict.fromkeys(("cifar10", "fashion-mnist", "mnist", "flowers5", "ants-bees"), "images")
    texts = {"tinyshakespeare": "text", "wikitext-2": "text", "sst2": "labels", "agnews-small": "labels",
             "wordsim": "ratings"}  # fmt: skip
    speech = dict.fromkeys(("fsdd", "an4-mfcc", "yesno"), "speech")
    assert kinds == texts | pictures | speech | {"flickr8k": "captions"}
    assert all(bool(source.labels) == (source.kind in ("labels", "images")) for source in SOURCES.values())
    assert all(bool(source.pairs) == (source.kind == "pairs") for source in SOURCES.values())


def test_a_set_of_one_file_has_it_for_every_split(cache):
    file_path = put(cache / "data", b"", "tinyshakespeare", "input.txt.gz")
    assert all(locate("tinyshakespeare", split, "") == [file_path] for split in ("train", "valid", "test"))


def test_parts_of_a_file_are_all_of_it_and_do_not_overlap():
    for source in SOURCES.values():
        if source.parts:
            percents = sorted(percent for first, last in source.parts.values() for percent in range(first, last))
            assert percents == list(range(100))
            assert set(source.parts) == set(source.splits)


def test_every_file_of_every_set_has_a_checksum():
    wanted = set()
    for name, source in SOURCES.items():
        languages = {language for pair in source.pairs for language in pair.split("-")} or {""}
        for pattern in source.files.values():
            splits = [s for s in source.splits if not (s == "valid" and source.valid_images)]
            wanted |= {f"{name}/{pattern.format(split=s, lang=lang)}" for s in splits for lang in languages}
    assert wanted == set(SHA256)


@pytest.mark.parametrize("name", SOURCES)
def test_the_data_sets_have_their_checksums(name):
    files = [file for file in SHA256 if file.startswith(f"{name}/") and DATA and (Path(DATA) / file).exists()]
    if not files:
        pytest.skip(f"no {name} here; set REGARD_DATA to a folder that holds {name}/")
    for file in files:
        with (gzip.open if file.endswith(".gz") else open)(Path(DATA) / file, "rb") as text:
            assert hashlib.file_digest(text, "sha256").hexdigest() == SHA256[file], file
