"""How the page behaves: keyboard, names, widths, colours, hostile text, bad input, a server that stops, long inputs."""

import itertools
import re
from pathlib import Path

import explicit
import pytest
import torch
from conftest import PATIENCE, serve
from explorer_page import VIEWS, ExplorerPage, forget_records, open_table, read_table
from page_checks import check, tab_stops
from playwright.sync_api import Locator, Page, Route, expect
from tiny_runs import LONG, TEXT, TEXTS

import regard
from regard.web.explorer import ServedRun
from regard.web.export import export_page
from regard.web.server import create_app

BAD_PAGE = """<style>@keyframes go { to { left: 9px } } b { animation: go 9s infinite } :focus { outline: none }</style>
<p style="color: #999; background: #fff">pale</p><div style="width: 2000px">wide</div><button></button><b>moves</b>"""
HOSTILE = (
    "<script>window.hacked = 1</script>", "<img src=x onerror=window.hacked=1>", "a \u202emirrored\u202c word",
    "bell\x07 esc\x1b[31m nul", "🙂 👩‍👩‍👧 é", "{{constructor}} ${1+1} &amp;",
)  # fmt: skip
CONTROLS = r"/[\u0000-\u0008\u000b-\u001f\u202a-\u202e\u2066-\u2069]/.test(document.querySelector('#panels').innerText)"
LONG_TASKS = """() => {
  window.long = [];
  const note = (list) => window.long.push(...list.getEntries().map((entry) => entry.duration));
  new PerformanceObserver(note).observe({ type: "longtask" });
}"""
SIX_TABS = """- tablist "Views":
  - tab "Answer" [selected]
  - tab "All heads"
  - tab "Step by step"
  - tab "What if"
  - tab "Decoding"
  - tab "Learning and cost"
"""


def answered(new_page, address: str, run: str, given: str | Path, **how: object) -> ExplorerPage:
    """A page with the answer to an input."""
    explorer = ExplorerPage(new_page(**how), address)
    explorer.choose(run)
    explorer.ask(given)
    return explorer


def problem(page: Page) -> str:
    """What the page says is wrong, where a screen reader says it at once."""
    alert = page.locator("[role=alert]:visible").filter(has_text=re.compile(r"\S")).first
    alert.wait_for()
    return alert.inner_text()


# -- what holds for every view


def test_the_checks_of_this_file_notice_a_bad_page(new_page):
    page = new_page()
    page.set_content(BAD_PAGE)
    assert [found for found in check(page, "lowContrast") if "pale" in found]
    assert [found for found in check(page, "tooWide") if "ends at 20" in found]
    assert check(page, "moving")
    assert check(page, "nameless") == ["<button></button>"]
    assert [stop["marked"] for stop in tab_stops(page)] == [False]


@pytest.mark.parametrize(
    ("run", "width", "scheme"),
    [("transformer", 360, "light"), ("transformer", 1280, "dark"), ("vit", 360, "dark"), ("conformer", 360, "light")],
)
def test_every_view_is_readable_fits_and_stands_still(new_page, address, inputs, run, width, scheme):
    given = {"vit": inputs["picture.png"], "conformer": inputs["sound.wav"]}.get(run, TEXT)
    explorer = answered(new_page, address, run, given, width=width, color_scheme=scheme)
    for view in VIEWS:
        panel = explorer.open(view)
        found = {what: check(explorer.page, what) for what in ("lowContrast", "tooWide", "nameless", "moving")}
        if view == "heads":
            panel.locator('[data-head="0-0"]').click()
            explorer.settled()
            found |= {f"opened {what}": check(explorer.page, what) for what in ("lowContrast", "tooWide", "nameless")}
        assert not any(found.values()), f"{view}: {found}"


def test_every_stop_of_the_tab_key_has_a_name_and_shows_that_it_has_the_focus(new_page, address):
    explorer = answered(new_page, address, "transformer", TEXT)
    for view in VIEWS:
        explorer.open(view)
        stops = tab_stops(explorer.page)
        assert len(stops) > 5, view
        assert not [stop for stop in stops if not (stop["marked"] and stop["seen"] and stop["name"])], view


def test_the_views_are_tabs_and_the_title_names_the_open_one(new_page, address):
    page = ExplorerPage(new_page(), address).page
    assert page.locator("#tabs").aria_snapshot().split() == SIX_TABS.split()
    for view in VIEWS:
        page.locator(f"#tab-{view}").click()
        name = page.locator(f"#tab-{view}").inner_text()
        expect(page.get_by_role("tab", selected=True)).to_have_text(name)
        expect(page.get_by_role("tabpanel")).to_have_accessible_name(name)
        expect(page.get_by_role("heading", level=2, name=name)).to_be_visible()
        expect(page).to_have_title(re.compile(re.escape(name)))
        assert page.url.endswith(f"#{view}")
    page.go_back()
    expect(page.get_by_role("tab", selected=True)).to_have_attribute("id", f"tab-{VIEWS[-2]}")


def test_the_focus_stays_where_it_is_in_what_if(new_page, address):
    def enlarge(route: Route) -> None:
        """A model whose heads would take long to measure: they are measured when it is asked for."""
        answer = route.fetch()
        runs = answer.json()
        for run in runs["runs"]:
            run["parameters"] = 10**11
        route.fulfill(response=answer, json=runs)

    page = new_page()
    page.route("**/api/v1/runs", enlarge)
    explorer = ExplorerPage(page, address)
    explorer.choose("transformer")
    explorer.ask(TEXT)
    panel = explorer.open("whatif")
    expect(panel.locator(".whatif-ranking")).to_contain_text("passes through the model")

    def press(control: Locator) -> str:
        control.focus()
        page.keyboard.press("Space")
        explorer.settled()
        return page.evaluate("document.activeElement.textContent")

    assert press(panel.get_by_role("button", name="Measure every head")).startswith("Which heads matter")
    assert press(panel.get_by_role("button", name="Show all")) == "Show fewer"
    assert press(panel.locator(".ranking-table").get_by_role("button", name="Layer", exact=True)) == "Layer"
    panel.get_by_label("layers", exact=True).focus()
    press(panel.get_by_label("layers", exact=True))
    expect(panel.get_by_label("layers", exact=True)).to_be_focused()
    assert press(panel.locator(".layer-switch").first) == panel.locator(".layer-switch").first.inner_text()
    assert press(panel.get_by_role("button", name="Reset")) == "Switch off"


@pytest.mark.parametrize("run", ["transformer", "gpt", "bahdanau", "vit"])
def test_what_if_opens_with_the_heads_that_matter_and_without_empty_columns(new_page, address, inputs, run):
    explorer = answered(new_page, address, run, {"vit": inputs["picture.png"]}.get(run, TEXTS.get(run)))
    panel = explorer.open("whatif")
    drops = panel.locator(".ranking-table tbody tr").evaluate_all("rows => rows.map(row => +row.dataset.drop)")
    assert drops == sorted(drops, reverse=True)
    assert any(drops)
    expect(panel.locator(".whatif-board .legend")).to_be_visible()
    assert panel.locator(".probability-table tbody td.number", has_text="–").count() == 0
    switch = panel.locator(".head-switch").first
    switch.click()
    panel.locator(".logprob-after").wait_for()
    expect(switch).to_have_attribute("aria-pressed", "true")
    switch.click()
    expect(switch).to_have_attribute("aria-pressed", "false")


def test_matrices_of_the_six_words_fit_a_phone_and_scrollers_fade_where_there_is_more(new_page, address):
    explorer = ExplorerPage(new_page(width=360), address)
    panel = explorer.open("steps")
    panel.locator('[data-matrix="weights"]').wait_for()
    over = "nodes => nodes.map(node => node.scrollWidth - node.clientWidth)"
    assert set(panel.locator(".table-scroll").evaluate_all(over)) == {0}
    assert set(panel.locator(".table-scroll").evaluate_all("nodes => nodes.map(node => node.dataset.fade)")) == {""}
    tabs = explorer.page.locator("#tabs")
    for place, sides in ((0, "right"), (0.5, "left right"), (1, "left")):
        tabs.evaluate("(node, place) => { node.scrollLeft = place * (node.scrollWidth - node.clientWidth); }", place)
        expect(tabs).to_have_attribute("data-fade", sides)
    explorer.ask(TEXT)
    panel = explorer.open("answer")
    open_table(panel)
    table = panel.get_by_role("group", name="Table of weights")
    table.evaluate("node => { node.firstElementChild.style.width = '900px'; }")  # as that of a long text
    for place, sides in ((0, "right"), (1, "left")):
        table.evaluate("(node, place) => { node.scrollLeft = place * (node.scrollWidth - node.clientWidth); }", place)
        expect(table).to_have_attribute("data-fade", sides)


def test_an_opened_head_is_described_and_says_who_looks(new_page, address):
    explorer = answered(new_page, address, "transformer", TEXT)
    panel = explorer.open("heads")
    subtitle = panel.locator("xpath=.//*[@class='panel-heading']/p")
    before = subtitle.inner_text()
    panel.locator('[data-head="3-1"]').click()
    assert subtitle.inner_text() != before
    assert panel.locator(".links-names").inner_text().split("\n") == ["query (looks)", "key (is looked at)"]
    expect(panel.locator(".detail-matrix .axis-name")).to_have_text(["key →", "query ↓"])  # drawn in a later frame
    expect(panel.get_by_role("button", name="Previous head")).to_have_text("← Head 1")
    expect(panel.get_by_role("button", name="Next head")).to_have_text("Head 3 →")
    panel.get_by_role("button", name="Back to all heads").click()
    assert subtitle.inner_text() == before


def test_what_is_switched_off_is_named(new_page, address):
    explorer = answered(new_page, address, "transformer", TEXT)
    panel = explorer.open("whatif")
    panel.locator('.head-switch[data-layer="3"][data-head="1"]').click()
    explorer.settled()
    names = panel.locator(".whatif-answers dt").all_inner_texts()
    assert names == ["Original answer", "Without decoder layer 1, cross-attention, head 2"]
    panel.get_by_role("button", name="Word old").click()
    explorer.settled()
    assert panel.locator(".whatif-answers dt").last.inner_text() == f"{names[1]}; “old”"


def test_an_opened_head_says_its_name_in_python_which_counts_from_0(new_page, address):
    explorer = answered(new_page, address, "transformer", TEXT)
    panel = explorer.open("heads")
    panel.locator('[data-head="3-1"]').click()
    expect(panel.locator(".detail-bar h3")).to_have_text("Decoder layer 1, cross-attention, head 2 of 3")
    expect(panel.locator(".detail-matrix")).to_contain_text("decoder.0.cross, head 1")


def test_a_sentence_is_one_stop_of_the_tab_key_and_opens_its_words_by_keys(new_page, address):
    explorer = answered(new_page, address, "transformer", TEXT)
    line = explorer.page.locator("#panel-answer .words-line").first
    stops = "node => [...node.querySelectorAll('button')].filter((button) => button.tabIndex === 0).length"
    assert line.evaluate(stops) == 1
    line.locator(".word").last.click()
    explorer.page.keyboard.press("ArrowLeft")
    assert line.evaluate(stops) == 1
    word = line.locator(".word-group:has(.word-split) .word").first
    word.focus()
    before = line.locator(".word").count()
    explorer.page.keyboard.press("+")
    assert line.locator(".word").count() > before
    explorer.page.keyboard.press("-")
    assert line.locator(".word").count() == before
    assert line.evaluate(stops) == 1
    expect(word).to_be_focused()


def test_everything_can_be_done_without_a_mouse(new_page, address, runs):
    explorer = ExplorerPage(new_page(), address)
    page, keys = explorer.page, explorer.page.keyboard
    explorer.choose("transformer")

    page.locator("textarea").focus()
    keys.type(TEXT)
    with page.expect_response(lambda response: "/inspect" in response.url):
        keys.press("Enter")
    explorer.settled()

    # words: one stop for the sentence, arrows inside it, Enter keeps a word, Escape lets it go
    line = page.locator(".answer-stage .words-line").nth(1)
    line.locator("[data-unit='0']").focus()
    keys.press("ArrowRight")
    expect(line.locator("[data-unit='1']")).to_be_focused()
    keys.press("Enter")
    expect(line.locator("[data-unit='1']")).to_have_attribute("aria-pressed", "true")
    keys.press("Escape")
    expect(line.locator("[data-unit='1']")).to_have_attribute("aria-pressed", "false")

    # tabs
    page.locator("#tab-answer").focus()
    keys.press("ArrowRight")
    expect(page.locator("#tab-heads")).to_be_focused()
    expect(page.locator("#panel-heads")).to_be_visible()
    explorer.settled()

    # a head opens, its cells are read with the arrow keys, and closes
    page.locator('#panel-heads [data-head="1-2"]').focus()
    keys.press("Enter")
    explorer.settled()
    page.locator("#panel-heads .heatmap-scroll").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        keys.press(key)
    readout = page.locator("#panel-heads .heatmap-readout")
    row, column = (int(readout.get_attribute(f"data-{name}")) for name in ("row", "column"))
    weights = explicit.attention("transformer", regard.load(runs["transformer"]), TEXT)["encoder.1.attn"][2]
    assert float(readout.get_attribute("data-weight")) == pytest.approx(float(weights[row, column]), abs=1e-4)
    keys.press("Escape")  # leaves the cell
    page.locator("#panel-heads [data-title]").focus()
    keys.press("ArrowRight")
    expect(page.locator("#panel-heads [data-title]")).to_contain_text(re.compile("head 1", re.IGNORECASE))
    keys.press("Escape")
    expect(page.locator('#panel-heads [data-head="2-0"]')).to_be_focused()


# -- input


@pytest.mark.parametrize("run", ["transformer", "gpt"])
def test_hostile_text_is_shown_as_text(new_page, address, log, run):
    explorer = ExplorerPage(new_page(), address)
    page = explorer.page
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
    log.expected.append("status of 4")  # a text may be refused, in words
    explorer.choose(run)
    for text in HOSTILE:
        explorer.send(text)
        for view in VIEWS[:4]:
            page.locator(f"#tab-{view}").click()
            page.locator(f"#panel-{view}").wait_for()
            assert not page.evaluate(CONTROLS), f"{view} holds control characters or marks of direction as they came"
        assert page.evaluate("window.hacked") is None
        assert page.locator("#panels script, #panels img[src=x]").count() == 0


def test_bad_input_is_answered_in_words(new_page, address, inputs, log):
    explorer = ExplorerPage(new_page(), address)
    page = explorer.page
    log.expected.append("status of 4")
    explorer.choose("transformer")
    page.locator("textarea").fill("   ")
    page.keyboard.press("Enter")
    assert "nothing to read" in problem(page)

    explorer.send("word " * 20_000)
    assert "100,000 characters" in problem(page) or "too long" in problem(page)

    explorer.choose("vit")
    page.locator("#input-file").set_input_files(inputs["notes.txt"])
    assert "notes.txt is not a picture" in problem(page)
    explorer.send(inputs["broken.png"])
    assert re.search(r"not readable|cannot be read|truncated|damaged|broken", problem(page)), problem(page)

    explorer.choose("conformer")
    page.locator("#input-file").set_input_files(inputs["picture.png"])
    assert "picture.png is not a recording" in problem(page)
    explorer.send(inputs["broken.wav"])
    assert re.search(r"not readable|cannot be read|truncated|damaged|broken", problem(page)), problem(page)

    explorer.ask(inputs["sound.wav"])  # and then it works
    assert page.locator("#panel-answer .words-line").count()


def test_a_picture_named_as_a_sound_is_refused_by_the_server_in_words(new_page, address, inputs, log, tmp_path):
    log.expected.append("status of 4")
    fake = tmp_path / "fake.wav"
    fake.write_bytes(inputs["picture.png"].read_bytes())
    explorer = ExplorerPage(new_page(), address)
    explorer.choose("conformer")
    explorer.send(fake)
    assert "got an image file" in problem(explorer.page)


# -- the server


def test_a_server_that_has_stopped_is_said_and_a_new_one_answers(new_page, runs, log):
    log.expected.append("ERR_CONNECTION_REFUSED")
    app = create_app([ServedRun.open(runs["transformer"])])
    server = serve(app)
    explorer = ExplorerPage(new_page(), next(server))
    server.close()
    explorer.page.locator("textarea").fill(TEXT)
    explorer.page.keyboard.press("Enter")
    assert "does not answer" in problem(explorer.page)
    expect(explorer.page.get_by_role("button", name="Try again")).to_be_visible()
    expect(explorer.page.locator("#status")).to_contain_text("does not answer")


def test_a_record_that_has_left_the_memory_is_made_again(new_page, app, address, runs, log):
    log.expected.append("status of 404")
    explorer = answered(new_page, address, "transformer", TEXT)
    forget_records(app)
    panel = explorer.open("heads")
    panel.locator('[data-head="0-0"]').click()
    wanted = explicit.attention("transformer", regard.load(runs["transformer"]), TEXT)["encoder.0.attn"][0]
    torch.testing.assert_close(read_table(open_table(panel.locator(".detail-matrix .heatmap"))), wanted, rtol=0, atol=1e-4)


def test_the_answer_appears_while_it_is_decoded(new_page, address):
    explorer = ExplorerPage(new_page(), address)
    explorer.choose("gpt")
    page = explorer.page
    page.evaluate("""() => {
      window.shown = new Set();
      new MutationObserver(() => {
        const text = document.querySelector(".stream-text")?.textContent;
        if (text) window.shown.add(text);
      }).observe(document.body, { subtree: true, childList: true, characterData: true });
    }""")
    page.locator("textarea").fill(TEXTS["gpt"])
    page.keyboard.press("Enter")
    page.locator("#panel-answer .words-line").first.wait_for()
    texts = sorted(page.evaluate("[...window.shown]"), key=len)
    assert len(texts) > 3
    assert all(longer.startswith(shorter.rstrip()) for shorter, longer in itertools.pairwise(texts))


# -- long inputs

HANG = 2_000  # milliseconds: nobody waits so long for a frame; a hang, not a slow machine


def test_512_tokens_in_12_layers_of_12_heads_do_not_hang(new_page, address):
    explorer = ExplorerPage(new_page(), address)
    page = explorer.page
    explorer.choose(LONG)
    record = explorer.ask("the old cat sits on the mat and the dog runs " * 10)
    [size] = {axis["size"] for name, axis in record["axes"].items() if name == "tokens"}
    assert size > 450
    assert (len(record["layers"]), record["layers"][0]["heads"]) == (12, 12)
    page.evaluate(LONG_TASKS)
    panel = explorer.open("heads")
    expect(panel.locator(".thumb")).to_have_count(12 * 13)
    panel.locator('[data-head="11-5"]').click()
    page.locator("#panel-heads .heatmap").wait_for()
    panel.get_by_label("Cell size").fill("16")
    explorer.settled()
    scroller = panel.locator(".heatmap-scroll")
    for part in range(1, 9):
        scroller.evaluate("(node, part) => { node.scrollTop = node.scrollLeft = node.scrollHeight * part / 8; }", part)
        explorer.settled()
    scroller.hover()
    for step in range(20):
        page.mouse.move(400 + 10 * step, 500 + 5 * step)
    explorer.settled()
    longest = max(page.evaluate("window.long"), default=0)
    assert longest < HANG
    assert len(panel.locator(".heatmap-labels text").all()) < 300  # only the visible ones


# -- the exported page


def test_the_exported_page_has_the_same_numbers_and_fits_a_mail(new_page, address, runs, tmp_path, log):
    sentence = " ".join([TEXT] * 4)  # 20 words
    file = export_page(runs["transformer"], sentence, tmp_path / "map.html", device="cpu")
    assert file.stat().st_size < 2_000_000
    explorer = answered(new_page, address, "transformer", sentence)
    tables = []
    page = new_page()
    page.context.set_offline(True)
    for each in (explorer, ExplorerPage(page, file.as_uri())):
        panel = each.open("heads")
        panel.locator('[data-head="3-1"]').click()
        tables.append(read_table(open_table(panel.locator(".detail-matrix .heatmap"))))
    torch.testing.assert_close(*tables, rtol=0, atol=0)
    assert not [url for url in log.requests if not url.startswith((address, "file:", "data:", "blob:"))]


def test_the_page_is_interactive_soon(new_page, address):
    page = ExplorerPage(new_page(), address).page
    [ready] = page.evaluate("performance.getEntriesByName('regard-ready').map((mark) => mark.startTime)")
    assert ready < PATIENCE  # a hang guard; benchmarks measure it
