"""Reading lines of whatever a user sends, and writing whole files or none."""

import errno
import gzip
import io
import os
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import files
from regard.data.files import BadLine, cache_folder, read_lines, read_lines_checked, read_whole, write_atomic


def lines(folder: Path, content: bytes, name: str = "a.txt") -> list[str]:
    (folder / name).write_bytes(content)
    return list(read_lines(folder / name))


@pytest.mark.parametrize(("content", "wanted"), [
    (b"", []),
    (b"a\nb\n", ["a", "b"]),
    (b"a\nb", ["a", "b"]),
    (b"a\r\nb\r\n", ["a", "b"]),
    (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
    (b"\n\n", ["", ""]),
    (b" a \t b \n", [" a \t b "]),
    ("größer\u2028ʼ\x0b\x0c\x85\n".encode(), ["größer\u2028ʼ\x0b\x0c\x85"]),  # only a line feed ends a line
    ("क्या\n".encode(), ["क्या"]),
])  # fmt: skip
def test_lines_are_read_without_their_ends(tmp_path, content, wanted):
    assert lines(tmp_path, content) == wanted
    assert lines(tmp_path, gzip.compress(content), "a.txt.gz") == wanted


@given(st.lists(st.text(st.characters(exclude_characters="\n\r\0\ufeff", exclude_categories=["Cs"]))))
def test_any_text_is_read_as_it_was_written(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("any")
    assert lines(folder, "".join(f"{line}\n" for line in text).encode()) == text


def test_a_bom_inside_a_file_is_text(tmp_path):
    assert lines(tmp_path, b"a\n\xef\xbb\xbfb\n") == ["a", "\ufeffb"]


def test_standard_input_is_read_under_the_name_dash(monkeypatch, tmp_path):
    (tmp_path / "in").write_bytes(b"a\r\nb")
    with open(tmp_path / "in") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert list(read_lines(Path("-"))) == ["a", "b"]


def test_lines_are_streamed(tmp_path):
    stream = read_lines(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes(b"good\n\xff\n")
    assert next(stream) == "good"
    with pytest.raises(ValueError, match="line 2"):
        next(stream)


@pytest.mark.parametrize(("content", "message"), [
    (b"a\nbc\xffd\n", r"line 2 is not UTF-8 at byte 3 \(0xff\); save it as UTF-8"),
    ("a\nb\ngrö".encode("latin-1"), r"line 3 is not UTF-8 at byte 3 \(0xf6\); save it as UTF-8"),
    ("für\n".encode()[:2] + b"\n", r"line 1 is not UTF-8 at byte 2 \(0xc3\)"),
    (b"\xef\xbb\xbfab\xff\n", r"line 1 is not UTF-8 at byte 6 \(0xff\)"),
    (b"a\n\nbc\0d\n", r"line 3 has a zero byte, byte 3: it is binary; give a text file"),
    ("hello\n".encode("utf-16-le"), r"line 1 has a zero byte"),
])  # fmt: skip
@pytest.mark.parametrize("zipped", [False, True])
def test_bytes_that_are_not_text_are_named_by_line_and_byte(tmp_path, content, message, zipped):
    name = "a.txt.gz" if zipped else "a.txt"
    with pytest.raises(ValueError, match=message) as error:
        lines(tmp_path, gzip.compress(content) if zipped else content, name)
    assert str(tmp_path / name) in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no file .*nowhere\.txt; check the path"):
        list(read_lines(tmp_path / "nowhere.txt"))


@pytest.mark.parametrize("name", ["folder", "folder.gz"])
def test_a_folder_is_not_a_file(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=rf"{name} is a folder; give a file"):
        list(read_lines(tmp_path / name))


TEXT = gzip.compress(b"a line\n" * 5000, mtime=0)
DAMAGED = {
    "truncated": TEXT[:-10],
    "only a header": TEXT[:10],
    "plain text": b"not packed at all\n",
    "a wrong checksum": TEXT[:-8] + bytes(4) + TEXT[-4:],
    "garbage inside": TEXT[:10] + b"\xff" * 20 + TEXT[30:],
    "garbage behind": TEXT + b"garbage",
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_gzip_file_is_named(tmp_path, damage):
    with pytest.raises(ValueError, match=r"a\.gz is not a whole gzip file \(.*\); download or compress it again"):
        lines(tmp_path, DAMAGED[damage], "a.gz")


def test_a_file_is_written_whole_and_leaves_no_temporary_file(tmp_path):
    for content in (b"first", b"second, longer", b""):
        write_atomic(tmp_path / "a", content)
        assert (tmp_path / "a").read_bytes() == content
        assert os.listdir(tmp_path) == ["a"]


def test_a_link_with_the_name_of_the_temporary_file_is_not_followed(tmp_path):
    (tmp_path / "mine").write_bytes(b"precious")
    (tmp_path / f".a.{os.getpid()}.part").symlink_to(tmp_path / "mine")
    write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "mine").read_bytes() == b"precious"
    assert (tmp_path / "a").read_bytes() == b"new"
    assert not (tmp_path / "a").is_symlink()


def test_a_link_created_after_the_leftover_was_removed_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "mine").write_bytes(b"precious")
    part, unlink = tmp_path / f".a.{os.getpid()}.part", Path.unlink

    def replace_by_link(path, missing_ok=False):
        unlink(path, missing_ok=missing_ok)
        os.symlink(tmp_path / "mine", part)

    monkeypatch.setattr(Path, "unlink", replace_by_link)
    with pytest.raises(FileExistsError):
        write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "mine").read_bytes() == b"precious"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, call):
    write_atomic(tmp_path / "a", b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space"):
            write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["a"]


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    order = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, name=name, real=real: order.append(name) or real(*given))
    write_atomic(tmp_path / "a", b"new")
    assert order == ["fsync", "replace", "fsync"]  # the content, the name, the folder that holds the name


def test_the_cache_folder_follows_the_xdg_standard(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "regard"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "regard"


def test_reading_keeps_one_line_in_memory(tmp_path, monkeypatch):
    """A file is never read at once: the reader asks its stream for lines only."""

    class Stream(io.BytesIO):
        def read(self, *_):
            raise AssertionError("read at once")

    monkeypatch.setattr("regard.data.files._open", lambda file: Stream(b"a\nb\n"))
    assert list(read_lines(tmp_path / "x")) == ["a", "b"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_utf_16_with_a_byte_order_mark_is_read(tmp_path, encoding, name):
    text = "größer\tक्या 😀\r\n\u2028" * 20_000
    content = text.encode(encoding) if encoding == "utf-16" else f"\ufeff{text}".encode(encoding)
    wanted = [line.rstrip("\r") for line in text.split("\n")]
    assert lines(tmp_path, gzip.compress(content) if name.endswith(".gz") else content, name) == wanted


def test_broken_utf_16_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"a\.txt starts as UTF-16 and is not UTF-16 throughout; save it as UTF-8"):
        lines(tmp_path, "hello".encode("utf-16") + b"\x00\xd8x")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_fifo_and_a_device_are_refused_without_waiting(tmp_path, suffix):
    os.mkfifo(tmp_path / f"pipe{suffix}")
    with pytest.raises(ValueError, match=r"pipe.* is a FIFO, not a regular file; save the data to a file first"):
        list(read_lines(tmp_path / f"pipe{suffix}"))
    (tmp_path / f"zero{suffix}").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"zero.* is a device, not a regular file"):
        list(read_lines(tmp_path / f"zero{suffix}"))


@pytest.mark.parametrize("over", [0, 1])
def test_a_line_may_have_as_many_bytes_as_the_limit_and_no_more(tmp_path, monkeypatch, over):
    monkeypatch.setattr(files, "MAX_LINE", 10)
    (tmp_path / "a.txt").write_bytes(b"one\n" + b"x" * (10 - 1 + over) + b"\ntwo\n" + b"y" * (10 + over))
    found = list(read_lines_checked(tmp_path / "a.txt"))
    if not over:
        assert found == ["one", "x" * 9, "two", "y" * 10]
        return
    assert found[:3] == ["one", "x" * 10, "two"]  # the line end does not count
    assert isinstance(found[3], BadLine)
    assert found[3][:2] == (4, "has over 10 bytes")


def test_reading_goes_on_after_bad_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE", 10)
    (tmp_path / "a.txt").write_bytes(b"one\n" + b"x" * 1000 + b"\n\xff\ntwo")
    first, long, latin, last = read_lines_checked(tmp_path / "a.txt")
    assert (first, last) == ("one", "two")
    assert (long.number, latin.number) == (2, 3)
    with pytest.raises(ValueError, match="line 2 has over 10 bytes; break it into shorter lines, or leave it out"):
        list(read_lines(tmp_path / "a.txt"))


def test_a_gzip_bomb_of_one_line_is_refused_in_bounded_memory(tmp_path):
    with gzip.open(tmp_path / "bomb.gz", "wb", 1) as file:
        for _ in range(100):
            file.write(b"a" * (1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(
            ValueError, match=r"bomb\.gz line 1 has over 67,108,864 bytes; give a file with one text on each line"
        ):
            list(read_lines_checked(tmp_path / "bomb.gz"))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_short_text_is_read_whole_and_an_endless_one_refused(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\n")
    assert read_whole(tmp_path / "a.txt") == "one\ntwo"
    monkeypatch.setattr(files, "MAX_LINE", 100)
    (tmp_path / "a.txt").write_bytes(b"y\n" * 60)
    with pytest.raises(ValueError, match=r"a\.txt has over 100 characters; give a shorter text"):
        read_whole(tmp_path / "a.txt")


def test_a_file_without_a_line_of_utf8_is_refused_once_with_a_hint(tmp_path):
    file, line = tmp_path / "latin.txt", "größe\n".encode("latin-1")
    for count in (3, 99, 100, 5000):
        file.write_bytes(line * count)
        shown = min(count, 100)
        with pytest.raises(ValueError, match=rf"latin\.txt line 1 is not UTF-8 .*iconv.* \(none of its first {shown} lines is\)"):
            list(read_lines_checked(file))
    file.write_bytes(line * 2)
    assert [found.number for found in read_lines_checked(file)] == [1, 2]
    file.write_bytes(line * 50 + b"good\n" + line * 200)
    found = list(read_lines_checked(file))
    assert [index for index, entry in enumerate(found) if isinstance(entry, str)] == [50]
    assert len(found) == 251
