"""What all tests share: a cache of their own, a small trained run, the command line as a function."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest
from small import SMALL

from regard.cli import main

hypothesis.settings.register_profile("regard", deadline=None, derandomize=True)
hypothesis.settings.load_profile("regard")


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing a test encodes or downloads touches the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("REGARD_MIRROR", raising=False)
        yield


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of this test alone; the one of `regard` lies inside it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "regard"


@pytest.fixture
def regard(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> Callable[..., Said]:
    """Run a verb in this process: `regard("translate", run, "a b")` → exit code, output, errors."""

    def run(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
        capfd.readouterr()
        try:
            code = main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Said(code, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder after ten steps: a real one, and as stupid as ten steps leave it."""
    from regard.config import load
    from regard.models import FAMILIES
    from regard.train.loop import fit

    folder = tmp_path_factory.mktemp("runs") / "small"
    fit(load("reverse", (*SMALL, "train.steps=10"), FAMILIES), folder)
    return folder
