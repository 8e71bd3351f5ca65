"""The README is true: its commands and its Python example run as pasted."""

import ast
import os
import re
import shlex
import subprocess
from pathlib import Path

import pasted_commands
import pytest
from pasted_commands import Folder, Pasted, blocks

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DATA = Path(os.environ.get("REGARD_DATA", "nowhere"))


def test_the_readme_is_one_page():
    assert len(README.splitlines()) <= 135


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`?make ([a-z-]+)", README))))
def test_make_knows_the_targets_the_readme_names(target):
    subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def commands() -> list[Pasted]:
    """The commands of the README, with those in its comments ("your own text: regard train …")."""
    lines = [line for block in blocks(README) for line in block.splitlines() if line.startswith("regard ")]
    own = [found[1] for line in lines if (found := re.search(r"your own[a-z ]*: (regard .*[^.])$", line))]
    return [*pasted_commands.commands(README), *(Pasted(tuple(shlex.split(line, comments=True))) for line in own)]


@pytest.mark.skipif(
    not (DATA / "multi30k").is_dir(), reason="set REGARD_DATA to a folder that holds multi30k/ to run the README's commands"
)
def test_the_commands_run_as_pasted(regard, tmp_path, monkeypatch, minilm):
    """Run each command as written, in order, in an empty folder; trainings take three steps."""
    folder = Folder(tmp_path, minilm)
    folder.enter(monkeypatch)
    for command in commands():
        folder.run(command, regard)
    verbs = {command.words[1] for command in commands()}
    assert verbs == {"train", "translate", "show", "serve", "generate", "transcribe", "import", "export", "verify"}
    for image in ("map.html", "boot-attention.png"):
        assert (tmp_path / image).stat().st_size > 1000


def test_the_python_example_runs(tmp_path, monkeypatch):
    [block] = [b for b in blocks(README) if b.startswith("import regard")]
    names: dict[str, object] = {}
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), names)
    assert names["weights"].shape[:3] == (1, 4, 1)  # greedy, 4 heads, one token per step
    assert (tmp_path / "map.svg").stat().st_size > 1000


def test_the_commands_of_the_demo_run_without_training(regard, small_run, tmp_path, monkeypatch):
    from regard import shipped
    from regard.interop.pretrained import export_pretrained

    export_pretrained(small_run, tmp_path / "pretrained" / "en-it")
    monkeypatch.setattr(shipped, "PRETRAINED", tmp_path / "pretrained")
    monkeypatch.chdir(tmp_path)
    demo = (ROOT / "Makefile").read_text().partition("\ndemo:")[2].partition("\n\n")[0]
    lines = [
        line.partition("$(BIN)/regard ")[2] for line in demo.splitlines() if re.match(r"\t(\w+=\w+ )?\$\(BIN\)/regard", line)
    ]
    assert [line.split()[0] for line in lines] == ["models", "translate", "show", "show"]
    for line in lines:
        done = regard(*shlex.split(line))
        assert done.code == 0, f"{line}: {done.err}"
        assert done.out, line
    assert (tmp_path / "map.html").stat().st_size > 100_000


def test_public_names_are_the_same_at_run_time_and_for_type_checkers():
    import regard

    stub = ast.parse((ROOT / "regard" / "__init__.pyi").read_text())  # what type checkers read
    typed = {name.asname for line in stub.body if isinstance(line, ast.ImportFrom) for name in line.names}
    assert len(typed) > 30
    assert typed | {"__version__"} == set(regard.__all__)
    for name in regard.__all__:
        assert getattr(regard, name) is not None
