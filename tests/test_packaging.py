"""What is installed: the wheel has all that regard needs, and works with no repository around."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from regard.interop.pretrained import export_pretrained
from regard.version import VERSION

ROOT = Path(__file__).parent.parent
BUILD = "import sys; from setuptools.build_meta import *; out = sys.argv[1]; build_wheel(out); build_sdist(out)"


@pytest.fixture(scope="module")
def dist(small_run, tmp_path_factory) -> Path:
    """A wheel and a source distribution of this tree, in which a small model called `tiny` ships."""
    pytest.importorskip("setuptools", minversion="77")
    home = tmp_path_factory.mktemp("package")
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "CITATION.cff", "constraints.txt"):
        shutil.copy(ROOT / name, home)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "regard", home / "regard", ignore=ignored)
    for shipped in (home / "regard" / "pretrained").iterdir():
        shutil.rmtree(shipped) if shipped.is_dir() else None
    export_pretrained(small_run, home / "regard" / "pretrained" / "tiny")
    done = subprocess.run([sys.executable, "-c", BUILD, str(home / "dist")], cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return home / "dist"


def test_the_wheel_has_every_file_of_the_package_and_the_shipped_models(dist):
    [wheel] = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
        metadata = content.read(f"regard-{VERSION}.dist-info/METADATA").decode()
    tracked = {f"regard/{path.relative_to(ROOT / 'regard')}" for path in (ROOT / "regard").rglob("*") if path.is_file()}
    wanted = {name for name in tracked if "__pycache__" not in name and not name.startswith("regard/pretrained/")}
    assert len(wanted) > 300
    assert wanted <= names
    tiny = {name for name in names if name.startswith("regard/pretrained/tiny/")}
    assert {Path(name).name for name in tiny} == {
        "config.json", "model.safetensors", "tokenizer.json", "run.toml", "README.md", "log.jsonl"
    }  # fmt: skip
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)
    assert f"Version: {VERSION}" in metadata


def test_the_source_distribution_has_the_models_and_the_pinned_versions(dist):
    [sdist] = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    assert {"regard/pretrained/tiny/model.safetensors", "regard/recipes/en-it.toml", "regard/web/page/index.html",
            "constraints.txt", "CITATION.cff", "LICENSE"} <= names  # fmt: skip


def test_the_installed_wheel_translates_with_no_repository_around(dist, tmp_path):
    """In an environment that has the dependencies of this one, but not regard."""
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    [wheel] = dist.glob("*.whl")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run(install, check=True, env=env, capture_output=True)
    [site] = {Path(path) for path in (tmp_path / "venv").rglob("site-packages")}
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    (tmp_path / "empty").mkdir()

    def regard(*words: str) -> str:
        done = subprocess.run(
            [python.with_name("regard"), *words], cwd=tmp_path / "empty", env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert regard("--version").strip() == VERSION
    assert re.match(r"tiny: translates\n", regard("models"))
    assert regard("translate", "a b c").count("\n") == 1
    where = subprocess.run([python, "-c", "import regard; print(regard.__file__)"], cwd=tmp_path / "empty", env=env,
                           capture_output=True, text=True, check=True)  # fmt: skip
    assert Path(where.stdout.strip()).is_relative_to(tmp_path)


def test_the_citation_names_the_version_of_the_package():
    assert f"version: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
