"""The pages of the documentation are true: their commands and their Python code run as pasted."""

import os
import re
from pathlib import Path

import pytest
from page_blocks import DOCS, expand
from pasted_commands import Folder, Pasted, commands, commands_in_text

DATA = Path(os.environ.get("REGARD_DATA", "nowhere"))
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = {str(page.relative_to(DOCS)): page.read_text(encoding="utf-8") for page in PAGES}
needs_data = pytest.mark.skipif(not (DATA / "multi30k").is_dir(), reason="set REGARD_DATA to a folder that holds multi30k/")
README = (DOCS.parent / "README.md").read_text(encoding="utf-8")


# The pages whose commands take longest: trainings on large data sets, a server of three runs, and usage.md, which has most.
HEAVY = {"guide/image-attention.md", "guide/mvit.md", "guide/swin.md", "explorer.md", "usage.md", "guide/t5.md", "guide/bert.md",
         "guide/seq2seq.md", "cookbook/distillation.md"}  # fmt: skip


def python_blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", expand(TEXTS[name], (DOCS / name).parent), flags=re.M | re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, minilm):
    """Where the commands of all pages run, so that a run is trained once."""
    path = tmp_path_factory.mktemp("pages")
    shared = Folder(path, minilm)
    shared.done |= {command.words for command in commands(README)}  # tests/test_readme.py runs them
    return shared


def run(found: list[Pasted], folder: Folder, regard, monkeypatch) -> None:
    folder.enter(monkeypatch)
    for command in found:
        folder.run(command, regard)


@needs_data
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in HEAVY else name
                                  for name in TEXTS if commands(TEXTS[name])])  # fmt: skip
def test_the_commands_of_a_page_run(name, folder, regard, monkeypatch):
    run(commands(TEXTS[name]), folder, regard, monkeypatch)


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("name", [name for name in TEXTS if commands_in_text(TEXTS[name])])
def test_the_commands_in_the_text_of_a_page_run(name, folder, regard, monkeypatch):
    run(commands_in_text(TEXTS[name]), folder, regard, monkeypatch)


@needs_data
@pytest.mark.parametrize("name", [name for name in TEXTS if any("regard.load(" in block for block in python_blocks(name))])
def test_the_python_code_of_a_page_runs(name, folder, regard, monkeypatch):
    import matplotlib

    folder.enter(monkeypatch)
    for block in python_blocks(name):
        if "regard.load(" in block:
            for run in re.findall(r"runs/([\w-]+)", block):
                folder.need(run, regard)
            with matplotlib.rc_context({"backend": "agg"}):
                exec(compile(block, name, "exec"), {})


@pytest.mark.parametrize("name", TEXTS)
def test_all_python_code_of_a_page_compiles(name):
    for block in python_blocks(name):
        signature = re.fullmatch(r"\s*[\w.]+\(.*\)( -> .*)?\s*", block, flags=re.S)  # of the reference
        if not signature:
            compile(_as_module(block), name, "exec")


def _as_module(block: str) -> str:
    """Lines from inside a function may return and yield."""
    return "async def page():\n" + "".join(f"    {line}\n" for line in block.splitlines())
