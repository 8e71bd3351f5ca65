"""What the page shows belongs to what is chosen: answers that come late, other runs, and what is left behind."""

import re

import explicit
import pytest
import torch
from explorer_page import ExplorerPage, forget_records, open_table, read_table
from playwright.sync_api import Page, Route, expect
from tiny_runs import TEXT

import regard

OTHER = "a cat"


def opened(new_page, address: str, run: str = "transformer", text: str = TEXT, **how: object) -> ExplorerPage:
    """A page with the answer to a text."""
    explorer = ExplorerPage(new_page(**how), address)
    explorer.choose(run)
    explorer.ask(text)
    return explorer


def hold(page: Page, pattern: str | re.Pattern[str]) -> list[Route]:
    """Requests that match from now on wait until the test lets them go on."""
    waiting: list[Route] = []
    page.route(pattern, lambda route: waiting.append(route))
    return waiting


def let_go(explorer: ExplorerPage, waiting: list[Route]) -> None:
    """Send them, and wait for the answers."""
    for route in waiting:
        route.continue_()
    explorer.settled()


def test_a_record_made_again_late_does_not_replace_a_newer_one(new_page, app, address, runs, log):
    log.expected.append("status of 404")
    explorer = opened(new_page, address)
    page = explorer.page
    forget_records(app)
    waiting = hold(page, "**/runs/transformer/inspect")
    with page.expect_request("**/runs/transformer/inspect"):
        page.locator("#tab-heads").click()
    page.locator("#tab-answer").click()
    explorer.send(OTHER)
    let_go(explorer, waiting)
    panel = explorer.open("heads")
    panel.locator('[data-head="0-0"]').click()
    wanted = explicit.attention("transformer", regard.load(runs["transformer"]), OTHER)["encoder.0.attn"][0]
    torch.testing.assert_close(read_table(open_table(panel.locator(".detail-matrix .heatmap"))), wanted, rtol=0, atol=1e-4)


def test_the_answer_shows_the_weights_of_the_head_chosen_last(new_page, address):
    explorer = opened(new_page, address)
    page, panel = explorer.page, explorer.page.locator("#panel-answer")
    panel.get_by_label("Attention shown").select_option(index=1)
    explorer.settled()
    waiting = hold(page, re.compile(r"/weights\?head=0&"))
    head = panel.get_by_label("Head", exact=True)  # by index: a value is also compared with labels, which count from 1
    head.select_option(index=1)
    with page.expect_response(re.compile(r"/weights\?head=1&")):
        head.select_option(index=2)
    let_go(explorer, waiting)
    after = read_table(open_table(panel.locator(".heatmap")))
    head.select_option(index=1)
    explorer.settled()
    first = read_table(open_table(panel.locator(".heatmap")))
    assert bool((first - after).abs().max() > 1e-3)  # else it would not be seen which head is shown
    head.select_option(index=2)
    explorer.settled()
    torch.testing.assert_close(after, read_table(open_table(panel.locator(".heatmap"))))


def test_steps_of_another_run_are_not_shown(new_page, address):
    explorer = opened(new_page, address)
    page, panel = explorer.page, explorer.open("steps")
    panel.locator("label", has_text="Your input").click()
    panel.locator('[data-matrix="x"]').wait_for()
    explorer.settled()
    hold(page, "**/inspect/stream")
    explorer.choose("bert")
    expect(panel.locator("[data-matrix]")).to_have_count(0)


def test_a_head_is_taken_along_to_step_by_step_and_what_if(new_page, address):
    explorer = opened(new_page, address)
    page, panel = explorer.page, explorer.open("heads")
    panel.locator('[data-head="1-1"]').click()
    page.get_by_role("button", name="See it step by step").click()
    steps = page.locator("#panel-steps")
    expect(steps.get_by_label("Your input")).to_be_checked()
    expect(steps.get_by_label("Layer")).to_have_value("1")
    expect(steps.get_by_label("Head", exact=True)).to_have_value("1")
    explorer.settled()
    explorer.open("heads")
    page.get_by_role("button", name="Switch this head off").click()
    expect(page.locator('#panel-whatif .board-rows button[aria-pressed="true"]')).to_have_attribute("data-head", "1")
    expect(page.locator(".logprob-after")).to_be_visible()


def test_steps_are_asked_for_only_while_they_are_seen(new_page, address):
    explorer = opened(new_page, address)
    page, panel = explorer.page, explorer.open("steps")
    panel.locator("label", has_text="Your input").click()
    explorer.settled()
    explorer.open("heads").locator('[data-head="0-0"]').click()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/steps") else None)
    for _ in range(3):
        page.get_by_role("button", name="Next head").click()
        explorer.settled()
    assert not asked
    explorer.open("steps")
    assert len(asked) == 1


def test_the_heads_while_learning_are_of_the_layer_chosen_last(new_page, address):
    explorer = opened(new_page, address)
    page, panel = explorer.page, explorer.open("learning")
    waiting = hold(page, "**/layers/1/thumbnails")
    layers = panel.get_by_label("Layer", exact=True)
    layers.select_option(value="1")
    layers.select_option(value="0")
    heads = panel.locator(".learned-heads canvas")
    heads.first.wait_for()
    picture = "nodes => nodes.map((node) => node.toDataURL())"
    before = heads.evaluate_all(picture)
    let_go(explorer, waiting)
    page.unroute("**/layers/1/thumbnails")
    assert heads.evaluate_all(picture) == before
    layers.select_option(value="1")
    explorer.settled()
    assert heads.evaluate_all(picture) != before


def test_another_run_ends_the_waiting(new_page, address):
    explorer = opened(new_page, address)
    hold(explorer.page, "**/inspect/stream")
    explorer.page.locator("textarea").fill(OTHER)
    explorer.page.keyboard.press("Enter")
    expect(explorer.page.locator("#composer")).to_have_attribute("aria-busy", "true")
    explorer.choose("vit")
    expect(explorer.page.locator("#composer")).to_have_attribute("aria-busy", "false")


def test_words_are_coloured_again_on_other_paper(new_page, address):
    explorer = opened(new_page, address, color_scheme="light")
    page, words = explorer.page, explorer.page.locator("#panel-answer .words").first.locator(".word[data-weight]")
    page.locator("#panel-answer .words").last.locator(".word").first.click()
    words.first.wait_for()
    colours = "nodes => nodes.map((node) => node.style.background)"
    light = words.evaluate_all(colours)
    page.emulate_media(color_scheme="dark")
    explorer.settled()
    dark = words.evaluate_all(colours)
    assert len(light) == len(dark)
    assert not [one for one, other in zip(light, dark, strict=True) if one and one == other]


@pytest.mark.parametrize(("run", "given"), [("transformer", TEXT), ("vit", "picture.png"), ("conformer", "sound.wav")])
def test_an_inspection_leaves_nothing_of_the_one_before(new_page, address, inputs, run, given):
    explorer = ExplorerPage(new_page(), address)
    explorer.choose(run)
    session = explorer.page.context.new_cdp_session(explorer.page)
    session.send("Performance.enable")

    def kept_after(times: int) -> dict[str, int]:
        for _ in range(times):
            explorer.open("answer")
            explorer.ask(inputs.get(given, given))
            explorer.open("heads")
            if not explorer.page.get_by_role("button", name="Next head").is_visible():
                explorer.page.locator('#panel-heads [data-head="0-0"]').click()
            explorer.settled()
            explorer.open("learning")
        for _ in range(2):
            session.send("HeapProfiler.collectGarbage")
        found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        return {name: found[name] for name in ("Nodes", "JSEventListeners")}

    first = kept_after(3)
    last = kept_after(6)
    assert last["JSEventListeners"] < 1.15 * first["JSEventListeners"], (first, last)
    assert last["Nodes"] < 1.15 * first["Nodes"], (first, last)
