"""The documentation site builds without a warning, leads nowhere that is not there, and fetches nothing from elsewhere."""

import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from build_site import stage
from page_blocks import DOCS, ROOT, expand, source
from page_reference import keys, public_name, verb
from site_links import problems

import regard

PAGES = sorted(DOCS.rglob("*.md"))


def names(kind: str, page: str) -> set[str]:
    """What the `:::` lines of a page name."""
    return set(re.findall(rf"^::: {kind} (.+)$", (DOCS / page).read_text(encoding="utf-8"), flags=re.M))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    if importlib.util.find_spec("zensical") is None and "REGARD_CI" not in os.environ:
        pytest.skip("no zensical, which builds the site; `make test` installs it")
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run([sys.executable, ROOT / "docs/build_site.py", "--to", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(folder / "index.html") in done.stdout
    return folder


def test_the_site_has_every_page_and_no_link_that_leads_nowhere(site):
    assert problems(site) == []
    for page in PAGES:
        assert (site / page.relative_to(DOCS).with_suffix(".html")).exists(), page


def test_the_site_opens_from_disk_and_fetches_nothing(site, tmp_path):
    """In Chromium: pages and their search work from file://, and no request goes elsewhere."""
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = next((path for path in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(path).exists()), None)
    if chromium is None and "REGARD_CI" not in os.environ:
        pytest.skip("no Chromium")
    with sync_api.sync_playwright() as play:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = play.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page()
        asked, errors = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((site / "guide" / "positions.html").as_uri())
        page.locator(".md-search__button").click()
        page.locator("input[aria-label=Search]").fill("back-translation")
        page.locator("a[role=option][href*='cookbook/back-translation.html']").first.wait_for()
        browser.close()
    assert asked
    assert all(url.startswith(("file://", "data:", "blob:", "about:")) for url in asked), asked
    assert errors == []


def test_every_page_is_in_the_navigation_once():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    parts = [part for section in nav for part in section.values()]
    listed = [name for part in parts for entry in ([{"": part}] if isinstance(part, str) else part) for name in entry.values()]
    assert sorted(listed) == [str(page.relative_to(DOCS)) for page in PAGES]


def test_the_lines_that_a_page_includes_exist(tmp_path):
    stage(tmp_path)
    for page in (tmp_path / "docs").rglob("*.md"):
        assert not re.search("^::: ", page.read_text(encoding="utf-8"), flags=re.M), page


def test_included_lines_are_those_of_the_file():
    lines = source("regard/layers/masks.py", "causal_mask").splitlines()
    assert lines[0] == "# regard/layers/masks.py"
    assert lines[1].startswith("def causal_mask(")
    assert "\n".join(lines[1:]) in (ROOT / "regard/layers/masks.py").read_text(encoding="utf-8")
    part = source("regard/layers/attention.py", "Attention.forward", "dropout = ", "return")
    assert part.splitlines()[1].startswith("dropout = ")
    assert part.splitlines()[-1].startswith("return ")


@pytest.mark.parametrize("line", [
    "source regard/layers/masks.py nothing", "source regard/nothing.py attend", "api regard.nothing", "verb nothing", "nothing",
    'source regard/layers/masks.py causal_mask "nothing of this"',
])  # fmt: skip
def test_a_line_that_names_nothing_is_an_error(line):
    with pytest.raises(ValueError, match="nothing"):
        expand(f"::: {line}\n", DOCS)


def test_links_that_leave_the_site_become_text():
    text = "[a](../regard/config.py) [b](../docs/usage.md#python) [c](https://example.org) [d](#python)"
    assert expand(text, DOCS) == "a [b](../docs/usage.md#python) [c](https://example.org) [d](#python)\n"


def test_the_reference_has_every_public_name_once():
    listed = [line.split()[0] for line in names("api", "reference.md")]
    assert sorted(listed) == sorted(f"regard.{name}" for name in regard.__all__ if name != "__version__")


def test_the_reference_shows_the_signature_and_the_docstring():
    text = public_name("regard.Translator", "translate")
    assert "beam: int | None = None," in text
    assert "Translate texts" in text
    assert "Translator.encode" not in text


def test_the_commands_page_has_every_verb():
    from regard.cli import app

    verbs = typer.main.get_command(app).commands
    assert names("verb", "commands.md") == set(verbs)
    for name, command in verbs.items():
        shown = verb(name)
        assert all(option.opts[0] in shown for option in command.params if option.param_type_name == "option")


def test_the_keys_page_has_every_key_of_every_model_and_task():
    from regard.models import FAMILIES
    from regard.tasks import TASKS

    text = "\n".join(keys(ROOT / file, name, table) for line in names("keys", "keys.md") for file, name, table in [line.split()])
    wanted = {f"`model.{key.name}`" for family in FAMILIES.values() for key in dataclasses.fields(family.config)}
    wanted |= {f"`data.{key.name}`" for task in TASKS.values() for key in dataclasses.fields(task.data)}
    wanted |= {"`train.steps`", "`decode.beam_size`"}
    assert wanted - set(re.findall(r"`\w+\.\w+`", text)) == set()
    shown = {line.split()[1] for line in names("keys", "keys.md")}
    assert {family.config.__name__ for family in FAMILIES.values()} | {task.data.__name__ for task in TASKS.values()} <= shown


@pytest.mark.parametrize(("html", "problem"), [
    ('<script src="https://cdn.example.org/x.js"></script>', "fetches"), ('<img src="//example.org/x.png">', "fetches"),
    ('<link rel="stylesheet" href="http://example.org/x.css">', "fetches"), ('<a href="nowhere.html">x</a>', "leads to no file"),
    ('<a href="#nowhere">x</a>', "leads to no anchor"), ("<p>\n::: api regard.load</p>", "not replaced"),
])  # fmt: skip
def test_what_is_wrong_with_a_site_is_found(tmp_path, html, problem):
    (tmp_path / "index.html").write_text(f'<h1 id="here">x</h1>{html}<a href="#here">x</a><a href="https://example.org">x</a>')
    [found] = problems(tmp_path)
    assert problem in found


def test_a_style_sheet_that_fetches_is_found(tmp_path):
    (tmp_path / "a.css").write_text("@import 'https://example.org/a.css'; b { background: url(x.png) }")
    assert len(problems(tmp_path)) == 1
