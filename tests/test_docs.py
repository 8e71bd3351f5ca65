"""The documents are true: the file tree is complete, links resolve, commands parse, config keys exist."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer

from regard.cli import app
from regard.config import recipes, to_toml

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```[a-z]*\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def code_spans(page: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.findall(r"`([^`\n]+)`", prose)


def commands(page: Path) -> list[str]:
    """Commands of `regard` in code blocks, and complete ones in the text."""
    lines = [line for block in blocks(page) for line in block.splitlines()]
    spans = [span for span in code_spans(page) if re.match(r"regard [a-z]+ [^-\s]", span)]
    return [line for line in (*lines, *spans) if line.startswith("regard ")]


def tree_block() -> str:
    [block] = [block for block in blocks(ROOT / "ARCHITECTURE.md") if block.startswith("README.md")]
    return block


def tree_paths() -> list[str]:
    """Paths of the file tree: an indented name belongs to the folder above it."""
    folders: list[str] = []
    paths = []
    for line in tree_block().splitlines():
        indent, name = re.match(r"((?:│   |    )*(?:├── |└── )?)(\S+)", line).groups()
        depth = len(indent) // 4
        folders[depth:] = [name] if name.endswith("/") else []
        paths.append("".join(folders[:depth]) + name)
    return paths


def test_the_file_tree_lists_every_tracked_file_once():
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    tracked = [file for file in done.stdout.split("\n") if file and (ROOT / file).exists()]
    if not tracked:
        pytest.skip("not a git checkout; clone the repository to compare its files with the tree")
    wanted = {file for file in tracked if not file.startswith((".git", "tests/")) and not file.endswith("__init__.py")}
    wanted = {file for file in wanted if not re.match(r"regard/pretrained/[^/]+/", file)}  # run folders, all of the same files
    listed = [path for path in tree_paths() if not path.endswith("/")]
    assert len(listed) == len(set(listed))
    assert set(listed) == wanted


def test_the_folders_of_the_tree_exist_and_those_of_tests_are_in_it():
    folders = {path for path in tree_paths() if path.endswith("/")}
    assert all((ROOT / folder).is_dir() for folder in folders)
    below = [path for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith(("__", "."))]
    assert {f"tests/{path.name}/" for path in below} <= folders


def test_every_line_of_the_tree_describes_its_file():
    for line in tree_block().splitlines():
        assert re.search(r"\S\s{2,}\S", line.lstrip("│├└─ ")), f"no description: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_images_exist(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        linked = page.parent / file if file else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), flags=re.M)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page):
    for target in sorted(set(re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8")))):
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands_parse(page):
    """Verbs, arguments and options exist; so do the recipes and keys of `train`."""
    from regard.tasks import read_run

    verbs = typer.main.get_command(app).commands
    for command in commands(page):
        _, verb, *words = shlex.split(command, comments=True)
        assert verb in verbs, command
        values = verbs[verb].make_context(verb, list(words)).params
        invented = {"model=toy-tiny", "task=next_token", "data.source=my-text"} & set(words)  # examples of CONTRIBUTING.md
        if verb == "train" and not invented and not values["what"].startswith("runs/"):  # those of the reader
            other_runs = ("init=", "init_encoder=")
            read_run(values["what"], [change for change in values["changes"] or () if not change.startswith(other_runs)])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_config_keys_exist(page):
    from regard.tasks import read_run

    tables = [tomllib.loads(to_toml(read_run(name))) for name in recipes()]
    known = {f"{table}.{key}" for run in tables for table in run if isinstance(run[table], dict) for key in run[table]}
    for span in code_spans(page):
        for key in re.findall(r"(?:^|(?<=\s))(?:model|data|train|decode)\.[a-z_]+(?![\w./])", span):
            assert key in known or key == "model.safetensors", f"{span}: no key {key}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_python_files_named_in_the_text_exist(page):
    tops = ("regard", "tests", "benchmarks", "examples", "docs")
    files = [f"/{path.relative_to(ROOT)}" for top in tops for path in (ROOT / top).rglob("*.py")]
    examples = {"regard/models/toy.py", "regard/tasks/next_token.py"}  # of CONTRIBUTING.md
    for named in {name for span in code_spans(page) for name in re.findall(r"[\w/]+\.py\b", span)} - examples:
        assert any(file.endswith(f"/{named}") for file in files), f"no file {named}"


def test_the_python_code_of_contributing_parses():
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.M | re.S):
        entry = block.startswith('"') and not block.startswith('"""')  # a line of a table
        compile(f"{{{block}}}" if entry else block, "CONTRIBUTING.md", "exec")
