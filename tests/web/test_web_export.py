"""`map.html`: one file that holds the page and its answers, opens from disk and asks nobody."""

import base64
import hashlib
import itertools
import json
import re
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from cli_checks import assert_refused
from explorer_page import VIEWS, ExplorerPage
from tiny_runs import EVERY_FAMILY, TEXT, TEXTS, given_to

import regard as package
from regard.web import export
from regard.web.endpoints import call
from regard.web.explorer import Explorer, ServedRun
from regard.web.export import build_page, canonical_json, export_page, request_key

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = "</script><script>alert(1)</script> <!-- \u202e dog"
PLAIN = {
    "index.html": '<!doctype html><html><head><meta charset="utf-8" /><link rel="stylesheet" href="style.css" />'
                  '<script type="module" src="app.js"></script></head><body></body></html>',
    "style.css": "body { color: red; }",
    "app.js": "const here = document;\n",
}  # fmt: skip


def held(page: str) -> dict:
    """The data of a page, as a browser reads it."""
    [text] = re.findall(r'<script type="application/json" id="embedded">(.*?)</script>', page, re.S)
    data = json.loads(zlib.decompress(base64.b64decode(json.loads(text))))
    shared = data.get("shared", [])
    assert len(set(shared)) == len(shared)  # each once
    return json.loads(json.dumps(data), object_hook=lambda found: shared[found["shared"]] if [*found] == ["shared"] else found)


@pytest.fixture(scope="module")
def exported(runs: dict[str, Path], inputs: dict[str, Path]) -> Callable[[str], tuple[Explorer, str]]:
    """Of a family the page for its input, and the explorer that has answered for it."""

    @cache
    def export_family(family: str) -> tuple[Explorer, str]:
        run = ServedRun.open(runs[family], device="cpu")
        explorer = Explorer([run])
        return explorer, export.to_page(explorer, run, given_to(family, inputs))

    return export_family


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_page_holds_the_answers_of_the_endpoints_for_every_layer_and_head(family: str, exported):
    explorer, page = exported(family)
    requests = held(page)["requests"]
    key, record = next(iter(requests.items()))
    assert key.startswith(f"POST /runs/{family}/inspect ")
    assert [one["name"] for one in requests["GET /runs"]["runs"]] == [family]
    for layer in record["layers"]:
        path = f"/records/{record['id']}/layers/{layer['index']}"
        rows, columns = (record["axes"][layer[side]]["size"] for side in ("queries", "keys"))
        for request in [
            f"{path}/thumbnails",
            *(
                f"{path}/weights?head={head}&top=0&left=0&rows={rows}&columns={columns}"
                for head in ("mean", *range(layer["heads"]))
            ),
        ]:
            assert requests[f"GET {request}"] == call(explorer, "GET", request)
    assert 'POST /lecture/steps {"positions":true}' in requests


def test_checkpoints_of_a_run_are_held_too(runs: dict[str, Path]):
    run = ServedRun.open(runs["learner"], device="cpu")
    requests = held(export.to_page(Explorer([run]), run, "I love you"))["requests"]
    for step in (0, 50, 100, 150):
        record = requests[f'POST /runs/learner/inspect {{"checkpoint":{step},"text":"I love you"}}']
        assert record["checkpoint"] == step
        assert f"GET /records/{record['id']}/layers/0/thumbnails" in requests


def test_an_input_too_large_for_the_budget_leaves_out_single_heads_and_says_so(runs: dict[str, Path], monkeypatch):
    monkeypatch.setattr(export, "BUDGET", 30_000)
    run = ServedRun.open(runs["transformer"], device="cpu")
    page = export.to_page(Explorer([run]), run, TEXT)
    data = held(page)
    record = next(iter(data["requests"].values()))
    assert any("leaves out" in note and "regard serve transformer" in note for note in data["notes"])
    assert record["notes"] == data["notes"]
    assert "GET /runs" in data["requests"]
    [packed] = re.findall(r'id="embedded">"(.*?)"<', page)
    assert len(packed) <= 36_000  # the budget, and the keys; all answers take several times as much


def test_a_slow_machine_writes_the_same_page(runs: dict[str, Path], monkeypatch):
    run = ServedRun.open(runs["gpt"], device="cpu")
    pages = []
    for seconds in (0.0, 0.5):  # of each look at the clock
        clock = itertools.count(0.0, seconds)
        monkeypatch.setattr(export, "time", SimpleNamespace(monotonic=lambda clock=clock: next(clock)))
        requests = held(export.to_page(Explorer([run]), run, TEXTS["gpt"]))["requests"]
        pages.append([re.sub(r"/records/[^/]+/", "/records/…/", key) for key in requests])
    assert pages[0] == pages[1]
    assert len(pages[0]) > 50  # more than the clock would have allowed in 20 seconds


def test_keys_are_those_that_the_page_computes():
    assert request_key("GET", "/runs") == "GET /runs"
    assert canonical_json({"b": [1, 2.0, 0.5], "a": {"d": None, "c": True}}) == '{"a":{"c":true},"b":[1,2,0.5]}'
    assert canonical_json({"text": 'é "\n\x07</'}) == '{"text":"é \\"\\n\\u0007</"}'


def test_only_the_page_s_own_script_may_run_and_nothing_may_be_fetched():
    page = build_page({"requests": {}}, PLAIN.__getitem__)
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    [script] = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}'" in policy
    assert "color: red" in page
    assert "src=" not in page.split("<body>")[0].replace("-src", "")


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("style.css", "@import 'other.css';", "nothing to load"),
        ("style.css", "body { background: url(picture.png); }", "nothing to load"),
        ("style.css", "</style>", "nothing to load"),
        ("index.html", PLAIN["index.html"].replace("<body>", '<body><img src="x.png">'), "asks for another file"),
        ("index.html", PLAIN["index.html"].replace("app.js", "other.js"), "wanted once"),
        ("index.html", PLAIN["index.html"] + PLAIN["index.html"], "2 times"),
        ("app.js", 'import { a } from "https://example.com/a.js";', "only import"),
    ],
)
def test_a_page_that_would_load_something_is_refused(name: str, text: str, error: str):
    with pytest.raises(ValueError, match=error):
        build_page({}, (PLAIN | {name: text}).__getitem__)


def test_hostile_text_cannot_end_the_tag_that_holds_it(runs: dict[str, Path]):
    run = ServedRun.open(runs["transformer"], device="cpu")
    page = export.to_page(Explorer([run]), run, HOSTILE)
    assert "alert(1)" not in page
    assert next(iter(held(page)["requests"].values()))["input"]["text"] == HOSTILE


def test_the_command_line_writes_a_page(runs: dict[str, Path], inputs: dict[str, Path], tmp_path: Path, regard):
    file = tmp_path / "map.html"
    result = regard("show", runs["transformer"], TEXT, "--out", file, "--beam", 1)
    assert (result.code, result.out) == (0, f"saved {file}, open it in a browser\n")
    assert f'POST /runs/transformer/inspect {{"beam":1,"text":"{TEXT}"}}' in held(file.read_text())["requests"]
    assert regard("show", runs["vit"], inputs["picture.png"], "--out", file).code == 0
    assert 'POST /runs/vit/inspect {"name":"picture.png"}' in held(file.read_text())["requests"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--out", "map.exe"), "cannot write map.exe; give a name that ends in .html, .png, .svg, .pdf or .json"),
        (("--out", "map.html", "--layer", "1"), "--layer with map.html, which shows all"),
        (("--out", "nowhere/map.html"), "no folder nowhere"),
    ],
)
def test_the_command_line_refuses_in_one_line(runs: dict[str, Path], tmp_path: Path, monkeypatch, regard, options, words):
    monkeypatch.chdir(tmp_path)
    assert_refused(regard("show", runs["transformer"], TEXT, *options), words)


def test_python_writes_a_page_of_a_folder_or_a_predictor(runs: dict[str, Path], tmp_path: Path):
    one = package.export_page(str(runs["gpt"]), "the dog", tmp_path / "one.html", device="cpu")
    two = export_page(package.load(runs["gpt"], "cpu"), "the dog", tmp_path / "two.html")
    assert list(held(one.read_text())["requests"])[:2] == list(held(two.read_text())["requests"])[:2]
    with pytest.raises(ValueError, match=r"cannot write map\.png; give a name that ends in \.html"):
        export_page(str(runs["gpt"]), "the dog", tmp_path / "map.png")
    with pytest.raises(ValueError, match=r"use regard.export_page\(run, input, 'map.html'\)"):
        package.show(str(runs["gpt"]), "the dog", device="cpu").save(tmp_path / "map.html")
    with pytest.raises(ValueError, match=r"no file nothing\.png"):
        export_page(str(runs["vit"]), "nothing.png", tmp_path / "map.html")


# ---- in a browser


def open_file(page: "Page", file: Path) -> ExplorerPage:
    page.context.set_offline(True)
    return ExplorerPage(page, file.as_uri())


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_page_opens_from_disk_without_a_network(family: str, exported, tmp_path: Path, new_page, log):
    file = tmp_path / "map.html"
    file.write_text(exported(family)[1], encoding="utf-8")
    explorer = open_file(new_page(), file)
    panels = explorer.page.locator("#panels")
    explorer.settled()
    record = next(iter(held(file.read_text())["requests"].values()))
    shown = panels.inner_text()
    for item in record["answer"]["items"]:
        assert item["text"].strip().removeprefix("+") in shown  # the words are shown whole
    for view in VIEWS:
        explorer.open(view)
        assert "does not hold that answer" not in panels.inner_text(), view
    assert [url for url in log.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_hostile_text_is_shown_as_text(runs: dict[str, Path], tmp_path: Path, new_page):
    file = export_page(str(runs["transformer"]), HOSTILE, tmp_path / "map.html", device="cpu")
    page = new_page()
    page.on("dialog", lambda dialog: pytest.fail("a script of the input ran"))
    open_file(page, file).settled()
    assert page.input_value("#input-text") == HOSTILE


def test_a_saved_page_holds_the_answer_without_each_head(runs: dict[str, Path]):
    run = ServedRun.open(runs["transformer"], device="cpu")
    requests = held(export.to_page(Explorer([run]), run, TEXT))["requests"]
    record = next(iter(requests.values()))
    for layer in record["layers"]:
        for head in range(layer["heads"]):
            body = f'{{"heads":[[{layer["index"]},{head}]],"layers":[],"words":[]}}'
            changed = requests[f"POST /records/{record['id']}/ablate {body}"]
            assert changed["base"]["logprob"] != changed["changed"]["logprob"]
    words = [word for word in record["axes"]["source"]["words"] if word["text"] != "</s>"]
    for word in words:
        body = f'{{"heads":[],"layers":[],"words":[[{word["start"]},{word["end"]}]]}}'
        assert f"POST /records/{record['id']}/ablate {body}" in requests
