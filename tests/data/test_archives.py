"""Archives: files are read one by one, nothing outside is touched, links are refused, sizes are bounded."""

import gzip
import io
import tarfile
import zipfile

import pytest

from regard.data.archives import gunzip, tar_files, zip_files

MB = 1_000_000


def tar(tmp_path, *members):
    file = tmp_path / "a.tar.gz"
    with tarfile.open(file, "w:gz", compresslevel=1) as archive:
        for name, content, kind in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = "/etc/passwd" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file


def zipped(tmp_path, *members, kind=zipfile.ZIP_DEFLATED):
    file = tmp_path / "a.zip"
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file


def every(name):
    return True


def test_wanted_files_are_read_in_order(tmp_path):
    members = [("d/b.txt", b"1", tarfile.REGTYPE), ("d/no.bin", b"2", tarfile.REGTYPE), ("./d/a.txt", b"3", tarfile.REGTYPE)]
    assert list(tar_files(tar(tmp_path, *members), lambda name: name.endswith(".txt"), MB)) == [
        ("d/b.txt", b"1"),
        ("d/a.txt", b"3"),
    ]
    packed = zipped(tmp_path, ("d/b.txt", b"1"), ("d/", b""), ("d/no.bin", b"2"))
    assert list(zip_files(packed, lambda name: not name.endswith(".bin"), MB)) == [("d/b.txt", b"1")]


@pytest.mark.parametrize("name", ["../a", "d/../../a", "/etc/a", "..\\a", "d\\..\\..\\a", "C:\\a", "c:a"])
def test_paths_that_lead_outside_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="a path outside the archive; get the official file"):
        list(tar_files(tar(tmp_path, (name, b"x", tarfile.REGTYPE)), every, MB))
    with pytest.raises(ValueError, match="a path outside the archive; get the official file"):
        list(zip_files(zipped(tmp_path, (name, b"x")), every, MB))


def test_a_name_with_backslashes_is_read_as_a_path(tmp_path):
    assert list(zip_files(zipped(tmp_path, ("train\\ants\\1.jpg", b"1")), every, MB)) == [("train/ants/1.jpg", b"1")]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused_where_a_file_is_wanted(tmp_path, kind):
    file = tar(tmp_path, ("a.txt", b"", kind), ("b.txt", b"b", tarfile.REGTYPE))
    with pytest.raises(ValueError, match=r"a link or a device as a\.txt"):
        list(tar_files(file, every, MB))
    assert list(tar_files(file, lambda name: name == "b.txt", MB)) == [("b.txt", b"b")]


def test_an_archive_that_unpacks_to_more_than_its_limit_is_refused(tmp_path):
    bomb = tar(tmp_path, ("a", bytes(20 * MB), tarfile.REGTYPE))
    assert bomb.stat().st_size < MB
    for wanted in (every, lambda name: False):
        with pytest.raises(ValueError, match=r"it has over 1\.0 MB unpacked"):
            list(tar_files(bomb, wanted, MB))
    with pytest.raises(ValueError, match=r"what it holds has over 1\.0 MB unpacked"):
        list(zip_files(zipped(tmp_path, ("a", bytes(20 * MB))), every, MB))
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(bytes(20 * MB)))
    with pytest.raises(ValueError, match=r"it has over 1\.0 MB unpacked"):
        gunzip(packed, MB)


def test_a_long_tar_header_counts_too(tmp_path):
    file = tmp_path / "a.tar.gz"
    with tarfile.open(file, "w:gz", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x" * 4 * MB}) as archive:
        archive.addfile(tarfile.TarInfo("a"))
    with pytest.raises(ValueError, match=r"it has over 1\.0 MB unpacked"):
        list(tar_files(file, every, MB))


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>", b"PK\x03\x04", gzip.compress(b"no tar" * 200, mtime=0), gzip.compress(b"", mtime=0)[:-3], b"\x1f\x8b\x08"],
)
def test_another_kind_of_file_is_refused_in_one_line(tmp_path, content):
    file = tmp_path / "a.bin"
    file.write_bytes(content)
    for read in (tar_files, zip_files):
        with pytest.raises(ValueError, match=r"a\.bin is not a whole archive \(.*\); delete it, and get it again") as error:
            list(read(file, every, MB))
        assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_opened_is_not_called_damaged(tmp_path):
    for read in (tar_files, zip_files):
        with pytest.raises(ValueError, match=r"^cannot read .*a\.zip \(No such file or directory\); check the path") as error:
            list(read(tmp_path / "a.zip", every, MB))
        assert "delete it" not in str(error.value)
        with pytest.raises(ValueError, match=r"^cannot read .* \(Is a directory\); check the path and its permissions"):
            list(read(tmp_path, every, MB))


def test_a_truncated_archive_is_refused(tmp_path):
    file = tar(tmp_path, ("a", bytes(range(256)) * 4000, tarfile.REGTYPE))
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(ValueError, match="is not a whole archive"):
        list(tar_files(file, every, 10 * MB))


def test_a_damaged_file_in_a_zip_is_refused(tmp_path):
    file = zipped(tmp_path, ("a", b"some words " * 100), kind=zipfile.ZIP_STORED)
    file.write_bytes(file.read_bytes().replace(b"some words", b"some wards", 1))
    with pytest.raises(ValueError, match=r"is not a whole archive \(Bad CRC-32"):
        list(zip_files(file, every, MB))


def test_an_encrypted_zip_is_refused(tmp_path):
    file = zipped(tmp_path, ("a", b"some words"))
    content = bytearray(file.read_bytes())
    content[6] |= 1
    content[content.rindex(b"PK\x01\x02") + 8] |= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"is not a whole archive .*encrypted"):
        list(zip_files(file, every, MB))


def test_a_damaged_lzma_stream_in_a_zip_is_refused(tmp_path):
    file = zipped(tmp_path, ("a", bytes(range(256)) * 20), kind=zipfile.ZIP_LZMA)
    content = bytearray(file.read_bytes())
    content[35:39] = b"\xff" * 4  # the properties of its filter
    file.write_bytes(content)
    with pytest.raises(ValueError, match="is not a whole archive"):
        list(zip_files(file, every, MB))


def test_holes_of_a_sparse_file_count_too(tmp_path):
    file, member = tmp_path / "a.tar.gz", tarfile.TarInfo("a")
    member.pax_headers = {"GNU.sparse.size": str(20 * MB), "GNU.sparse.map": "0,0"}
    with tarfile.open(file, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    with pytest.raises(ValueError, match=r"it has over 1\.0 MB unpacked"):
        list(tar_files(file, every, MB))
