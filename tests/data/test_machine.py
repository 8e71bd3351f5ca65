"""Memory, disk and processor of this machine."""

import shutil

from regard.data import machine
from regard.data.machine import existing_parent, free_disk, is_amd, read_memory


def test_memory_is_read_in_bytes_or_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    assert read_memory() is None
    (tmp_path / "meminfo").write_text("MemTotal:       2000 kB\nMemFree: 1 kB\nMemAvailable:    500 kB\n")
    assert read_memory() == (500 * 1024, 2000 * 1024)
    (tmp_path / "meminfo").write_text("MemTotal:       2000 kB\n")  # a kernel before 3.14
    assert read_memory() is None


def test_the_processor_is_told_by_its_vendor(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine.platform, "processor", lambda: "")
    assert not is_amd()
    for vendor in ("AuthenticAMD", "GenuineIntel"):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
        assert is_amd() == (vendor == "AuthenticAMD")
    (tmp_path / "cpuinfo").unlink()
    monkeypatch.setattr(machine.platform, "processor", lambda: "AMD64 Family 25 Model 33, AuthenticAMD")  # Windows
    assert is_amd()


def test_the_disk_of_a_folder_that_does_not_exist_is_that_of_its_parent(tmp_path):
    assert existing_parent(tmp_path / "a" / "b") == tmp_path
    assert abs(free_disk(tmp_path / "a") - shutil.disk_usage(tmp_path).free) < 1 << 30
