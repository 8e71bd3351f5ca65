"""The address of the page keeps the view, the run and the text, so an example can be kept as a bookmark."""

import json
from urllib.parse import parse_qs, urlencode

import pytest
from explorer_page import ExplorerPage
from playwright.sync_api import expect

PHRASE = "I love you & <b>very</b> much? #1"


@pytest.fixture
def explorer(new_page, address):
    return ExplorerPage(new_page(), address)


def in_address(explorer: ExplorerPage) -> tuple[str, dict[str, list[str]]]:
    """The view, and what the address says of the run and the text."""
    view, _, query = explorer.page.evaluate("location.hash").removeprefix("#").partition("?")
    return view, parse_qs(query)


def test_the_address_names_what_is_shown_and_a_reload_shows_it_again(explorer):
    assert explorer.page.evaluate("location.hash") == ""
    explorer.choose("transformer")
    answer = explorer.ask(PHRASE)["answer"]["text"]
    assert in_address(explorer) == ("answer", {"run": ["transformer"], "text": [PHRASE]})
    explorer.open("heads")
    assert in_address(explorer) == ("heads", {"run": ["transformer"], "text": [PHRASE]})
    explorer.page.reload()
    explorer.page.locator("html[data-ready=true]").wait_for()
    expect(explorer.page.locator("#panel-heads")).to_be_visible()
    expect(explorer.page.locator("#status")).to_have_text(f"Answer: {answer}" if answer else "Done.")
    assert explorer.page.locator("textarea").input_value() == PHRASE
    assert explorer.page.locator("#run select").input_value() == "transformer"


def test_a_bookmark_opens_in_the_page_that_is_open(explorer):
    explorer.choose("transformer")
    explorer.ask("one")
    with explorer.page.expect_response(lambda response: "/runs/learner/inspect" in response.url):
        explorer.page.evaluate("hash => { location.hash = hash }", "answer?" + urlencode({"run": "learner", "text": "two"}))
    explorer.settled()
    assert explorer.page.locator("textarea").input_value() == "two"
    assert in_address(explorer) == ("answer", {"run": ["learner"], "text": ["two"]})


def test_nothing_is_asked_without_a_text_in_the_address(new_page, address):
    page, asked = new_page(), []
    page.on("request", lambda request: asked.append(request.url) if "inspect" in request.url else None)
    explorer = ExplorerPage(page, address, "answer?run=learner")
    explorer.settled()
    assert page.locator("#run select").input_value() == "learner"
    assert not asked


@pytest.mark.parametrize("query", [
    {"run": "<img src=x onerror=alert(1)>", "text": "<script>alert(1)</script>"}, {"run": "../../etc", "text": "a" * 9000},
    {"run": "vit", "text": "no picture"},
])  # fmt: skip
def test_hostile_addresses_are_text(new_page, address, query):
    page = new_page()
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    asked = []
    page.on("request", lambda request: asked.append(request.url) if "inspect" in request.url else None)
    ExplorerPage(page, address, "answer?" + urlencode(query)).settled()
    assert not page.locator("main img, main script, #composer li img").count()
    assert not asked
    if query["run"] != "vit":
        expect(page.locator(".composer-notes")).to_contain_text("does not have it")


def test_a_text_too_long_for_an_address_is_left_out(explorer):
    explorer.choose("learner")
    line = json.dumps({"event": "record", "record": explorer.ask("one")}) + "\n"
    explorer.page.route("**/inspect/stream", lambda route: route.fulfill(body=line))  # no small model reads so long a text
    explorer.send("a" * 2000)
    assert in_address(explorer)[1]["text"] == ["a" * 2000]
    explorer.send("a" * 2001)
    assert in_address(explorer) == ("answer", {"run": ["learner"]})


def test_the_status_of_one_view_does_not_stay_in_another(explorer):
    explorer.choose("transformer")
    explorer.ask("one two")
    explorer.page.evaluate("document.getElementById('status').textContent = 'The answer becomes: x'")
    explorer.open("decoding")
    expect(explorer.page.locator("#status")).not_to_contain_text("becomes")


def test_a_server_with_other_runs_replaces_those_of_the_menu(explorer, log):
    log.expected.append("404")
    page = explorer.page
    explorer.choose("transformer")
    only = page.evaluate("fetch('/api/v1/runs').then(answer => answer.json())")
    only["runs"] = [run for run in only["runs"] if run["name"] == "gpt"]
    page.route("**/api/v1/runs", lambda route: route.fulfill(json=only))
    gone = {"error": "no run 'transformer'; served are gpt"}
    page.route("**/transformer/inspect/stream", lambda route: route.fulfill(status=404, json=gone))
    page.locator("textarea").fill("one two")
    page.keyboard.press("Enter")
    expect(page.locator(".composer-notes")).to_have_text("This server has no run transformer any more. Now chosen: gpt.")
    assert page.locator("#run option").all_inner_texts() == ["gpt"]
    assert page.locator("textarea").input_value() == "one two"


def test_an_input_that_is_refused_is_not_offered_again(explorer, log):
    log.expected.append("413")
    explorer.choose("transformer")
    explorer.send("a" * 30_000)
    placard = explorer.page.locator(".placard-error").first
    expect(placard).to_contain_text("20,000")
    assert not placard.get_by_role("button", name="Try again").count()
