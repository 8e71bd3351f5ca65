"""A hostile current folder: nothing in it is imported, run or read as a setting, whatever the command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import regard

SCRIPT = ("-P", "-c", "from regard.cli import main; raise SystemExit(main())")  # what the console script does
MODULES = ("torch", "numpy", "matplotlib", "typer", "rich", "tokenizers", "evil")
HOME = Path(regard.__file__).parents[1]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder whose modules each leave a file `marker-NAME` when they are run."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(folder / f'marker-{name}')!r}, 'w').close()\n")
    return folder


def run(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with the package on its path as an installation has it."""
    env = {**os.environ, "PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def markers(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("marker-*"))


def test_the_folder_is_hostile(hostile):
    run(hostile, "-c", "import torch, evil")  # -c without -P
    assert markers(hostile) == ["marker-evil", "marker-torch"]


def test_the_int8_probe_does_not_import_from_the_current_folder(hostile, small_run):
    (hostile / "regard.py").write_text(f"open({str(hostile / 'marker-regard')!r}, 'w').close()\n")
    done = run(hostile, *SCRIPT, "translate", small_run, "a b c", "--precision", "int8")
    assert markers(hostile) == []
    assert (done.returncode, done.stderr) == (0, "")


def test_python_m_regard_does_not_import_from_the_current_folder(hostile, small_run):
    done = run(hostile, "-m", "regard", "translate", small_run, "a b c", "--precision", "int8")
    assert markers(hostile) == []
    assert (done.returncode, done.stderr) == (0, "")


def test_python_m_regard_runs_from_its_own_clone():
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    code = "import regard, sys; sys.stdout.write(regard.__file__)"
    where = subprocess.run([sys.executable, "-c", code], cwd=HOME, env=env, capture_output=True, text=True, check=True)
    assert Path(where.stdout) == HOME / "regard" / "__init__.py"
    subprocess.run([sys.executable, "-m", "regard", "--version"], cwd=HOME, env=env, check=True, capture_output=True)


@pytest.mark.parametrize("start", [SCRIPT, ("-m", "regard")], ids=["script", "module"])
def test_a_matplotlibrc_in_the_current_folder_changes_no_drawing(hostile, small_run, tmp_path, start):
    """It could name a backend, that is a module to import, or turn on LaTeX, that is a program to run."""
    assert run(tmp_path, *start, "show", small_run, "a b c", "--out", tmp_path / "clean.png").returncode == 0
    settings = ("backend: module://evil", "text.usetex: True", "text.latex.preamble: \\input{evil}", "font.size: 30",
                "axes.facecolor: red", "savefig.dpi: 20", "savefig.bbox: tight", "image.interpolation: bicubic")  # fmt: skip
    (hostile / "matplotlibrc").write_text("\n".join(settings))
    done = run(hostile, *start, "show", small_run, "a b c", "--out", tmp_path / "hostile.png")
    assert done.returncode == 0, done.stderr
    assert markers(hostile) == []
    assert (tmp_path / "hostile.png").read_bytes() == (tmp_path / "clean.png").read_bytes()


def test_training_does_not_import_from_the_current_folder(hostile):
    """TensorBoard and its plugins are imported too."""
    for name in ("tensorboard", "tensorflow", "google", "yaml", "dotenv", "huggingface_hub"):
        (hostile / f"{name}.py").write_text(f"open({str(hostile / f'marker-{name}')!r}, 'w').close()\n")
    from small import SMALL

    done = run(hostile, "-m", "regard", "train", "reverse", *SMALL, "train.steps=1", "--out", hostile / "run")
    assert done.returncode == 0, done.stderr
    assert markers(hostile) == []
