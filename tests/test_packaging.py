"""What is installed: the wheel has all that regard needs, and works with no repository around."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from regard.version import VERSION

ROOT = Path(__file__).parent.parent
BUILD = "import sys; from setuptools.build_meta import *; out = sys.argv[1]; build_wheel(out); build_sdist(out)"


FILES = ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "CITATION.cff", "constraints.txt", "Makefile", "mkdocs.yml",
         "tsconfig.json", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")  # fmt: skip
FOLDERS = ("regard", "docs", "tests", "examples", "benchmarks")
MAX_WHEEL = 25_000_000  # bytes


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """A wheel and a source distribution of this tree."""
    pytest.importorskip("setuptools", minversion="77")
    home = tmp_path_factory.mktemp("package")
    for name in FILES:
        shutil.copy(ROOT / name, home)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, home / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    (home / "tests" / "__pycache__").mkdir()
    (home / "tests" / "__pycache__" / "test_packaging.pyc").write_bytes(b"of this machine")
    done = subprocess.run([sys.executable, "-c", BUILD, str(home / "dist")], cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return home / "dist"


def test_the_wheel_has_every_file_of_the_package_and_the_shipped_models(dist):
    [wheel] = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
        metadata = content.read(f"regard-{VERSION}.dist-info/METADATA").decode()
    tracked = {f"regard/{path.relative_to(ROOT / 'regard')}" for path in (ROOT / "regard").rglob("*") if path.is_file()}
    wanted = {name for name in tracked if "__pycache__" not in name and "/." not in name}
    assert len(wanted) > 300
    assert wanted <= names
    model = {name for name in names if name.startswith("regard/pretrained/en-it/")}
    assert {Path(name).name for name in model} == {
        "config.json", "model.safetensors", "tokenizer.json", "run.toml", "README.md", "log.jsonl"
    }  # fmt: skip
    assert not any(name.startswith(("tests/", "benchmarks/", "docs/", "examples/")) for name in names)
    assert f"Version: {VERSION}" in metadata


def test_the_wheel_is_small_enough_to_carry_the_shipped_models(dist):
    [wheel] = dist.glob("*.whl")
    assert wheel.stat().st_size < MAX_WHEEL


def test_the_source_distribution_has_the_models_and_all_that_its_makefile_uses(dist):
    [sdist] = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    assert {"regard/pretrained/en-it/model.safetensors", "regard/recipes/en-it.toml", "regard/web/page/index.html",
            "tests/test_packaging.py", "tests/web/tsc.py", "docs/build_site.py", "benchmarks/training.py",
            "examples/self_attention.py", *FILES} <= names  # fmt: skip
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in names)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_takes_torch_from_pips_usual_index_or_from_another(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    env = {key: value for key, value in os.environ.items() if key not in ("TORCH_INDEX", "MAKEFLAGS", "MAKELEVEL")}
    index = "https://download.pytorch.org/whl/cpu"
    found = {}
    for given in ("", f"TORCH_INDEX={index}"):
        command = ["make", "--dry-run", "demo", *filter(None, [given])]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        found[given] = [line.split("constraints.txt ")[1].strip() for line in done.stdout.splitlines() if "pip install" in line]
    plain, cpu = found.values()
    assert plain[0] == "torch"
    assert cpu[0] == f"torch --no-deps --index-url {index}"
    assert plain[1:] == cpu[1:]


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
    assert "en-it: translates from en to it\n" in regard("models")
    assert regard("translate", "I love you very much") == "Ti amo molto.\n"
    where = subprocess.run([python, "-c", "import regard; print(regard.__file__)"], cwd=tmp_path / "empty", env=env,
                           capture_output=True, text=True, check=True)  # fmt: skip
    assert Path(where.stdout.strip()).is_relative_to(tmp_path)


def test_the_citation_names_the_version_of_the_package():
    assert f"version: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
