"""The decoding view in a real browser: its numbers are those of the model, its controls ask again, keys do what a mouse does."""

import re

import pytest
import torch
from explorer_page import ExplorerPage
from page_checks import check, tab_stops
from tiny_runs import TEXT, TEXTS

import regard
from regard.tasks.translation import Sampling
from regard.view.trace import trace_decoding

BARS = "items => items.map(item => [item.dataset.token, +item.dataset.probability, item.dataset.sampling])"


def shown(tokens: list[str], before: str = "<s>") -> list[str]:
    """Tokens as the page has them, each after the same one: without the ▁ of a space, with a + where they continue a word."""
    inside = before[-1].isalnum()
    return [token[1:] or "␣" if token[0] == "▁" else f"+{token}" if inside and token[0].isalnum() else token for token in tokens]


def in_order(tokens: list[str]) -> list[str]:
    """The same for tokens that follow each other."""
    return [shown([token], before)[0] for before, token in zip(["<s>", *tokens], tokens, strict=False)]


def opened(new_page, address: str, run: str, given, **how):
    """The decoding view of an answered input."""
    explorer = ExplorerPage(new_page(**how), address)
    explorer.choose(run)
    explorer.ask(given)
    panel = explorer.open("decoding")
    panel.locator(".search-card").first.wait_for()
    return explorer, panel


def slide(explorer: ExplorerPage, label: str, value: float) -> None:
    """Move a slider, and wait for the answer."""
    with explorer.page.expect_response(lambda response: "/decoding" in response.url):
        explorer.page.locator("#panel-decoding").get_by_label(label).fill(str(value))
    explorer.page.locator(".view-decoding > .waiting").wait_for(state="detached")


def test_each_step_shows_the_row_of_the_softmax_that_the_model_computes(new_page, address, runs):
    _, panel = opened(new_page, address, "transformer", TEXT)
    predictor = regard.load(runs["transformer"])
    trace = trace_decoding(predictor, TEXT, beam=1, top=8)
    [answer] = predictor.translate([TEXT], beam=1)
    ids = [predictor.answer_tokenizer.special.bos, *answer.ids]
    source = torch.tensor([[*predictor.encode([TEXT])[0], predictor.tokenizer.special.eos]])
    with torch.no_grad():  # all steps at once, without a cache
        rows = predictor.model.output(predictor.model.features(source, torch.tensor([ids]))).softmax(-1)[0]
    assert panel.locator(".player-step").inner_text() == f"Time step 1 of {len(trace.steps)}"
    for number, step in enumerate(trace.steps):
        scene = panel.locator(f'.decode-scene[data-step="{number + 1}"]')
        scene.wait_for()
        chips = scene.locator(".decode-inputs .token-chip").all_inner_texts()
        read = predictor.answer_tokenizer.display(ids[: number + 1])
        assert chips == in_order(read)
        bars = scene.locator(".top-word").evaluate_all(BARS)
        best, tokens = rows[number].topk(8)
        assert [bar[0] for bar in bars] == shown(predictor.answer_tokenizer.display(tokens.tolist()), read[-1])
        assert [bar[1] for bar in bars] == pytest.approx(best.tolist(), abs=1e-5)
        row = scene.locator(".softmax-table tr[data-read=true] td[data-probability]")
        cells = row.evaluate_all("cells => cells.map(cell => +cell.dataset.probability)")
        assert cells == pytest.approx(best.tolist()[: len(cells)], abs=1e-5)
        assert scene.locator(".softmax-table tr[data-read]").count() == min(number + 1, 7)
        assert scene.locator("[data-encoder]").get_attribute("data-encoder") == ("reused" if number else "runs")
        assert scene.locator("[data-taken]").all_inner_texts() == shown([step.branches[0].token], read[-1])
        if number < len(trace.steps) - 1:
            panel.get_by_role("button", name="Step on").click()
    assert panel.get_by_role("button", name="Step on").is_disabled()


@pytest.mark.parametrize("run", ["transformer", "gpt"])
def test_the_tree_has_every_candidate_with_its_score_and_fate(new_page, address, runs, run):
    _, panel = opened(new_page, address, run, TEXTS[run])
    length = int(panel.locator(".player-step").inner_text().split()[-1])  # of the greedy answer: what was asked for
    trace = trace_decoding(regard.load(runs[run]), TEXTS[run], beam=2, top=8, tokens=length if run == "gpt" else None)
    nodes = panel.locator(".tree-node[data-branch]").evaluate_all(
        "nodes => nodes.map(node => [+node.dataset.step, node.dataset.fate, +node.dataset.score, +node.dataset.probability])"
    )
    wanted = [
        [step.number, branch.fate, pytest.approx(branch.score, abs=1e-4), pytest.approx(branch.probability, abs=1e-5)]
        for step in trace.steps for branch in step.branches
    ]  # fmt: skip
    assert nodes == wanted
    score = panel.locator('[data-search="beam"] .search-score').get_attribute("data-score")
    assert float(score) == pytest.approx(trace.score, abs=1e-4)
    finished = panel.locator(".tree-node.tree-finished.on-answer")
    assert float(finished.get_attribute("data-score")) == pytest.approx(trace.score, abs=1e-4)


def test_the_controls_change_their_search_and_nothing_else(new_page, address, runs):
    explorer, panel = opened(new_page, address, "transformer", TEXT)
    predictor = regard.load(runs["transformer"])

    def texts() -> dict[str, str]:
        read = "cards => cards.map(card => [card.dataset.search, card.querySelector('bdi').textContent])"
        return dict(panel.locator(".search-card").evaluate_all(read))

    def traced(**how) -> str:
        return trace_decoding(predictor, TEXT, **how).text

    wanted = {"greedy": traced(beam=1), "beam": traced(beam=2), "sample": traced(sampling=Sampling())}
    assert texts() == wanted
    slide(explorer, "Beam width", 6)
    wanted["beam"] = traced(beam=6)
    assert texts() == wanted
    slide(explorer, "Sampling seed", 3)
    slide(explorer, "Sampling temperature", 1.7)
    slide(explorer, "Sampling top-k", 5)
    wanted["sample"] = traced(sampling=Sampling(1.7, 5, 1.0, 3))
    assert texts() == wanted
    panel.locator('[data-search="sample"] input').check(force=True)
    bars = panel.locator(".top-word").evaluate_all(BARS)
    first = trace_decoding(predictor, TEXT, sampling=Sampling(1.7, 5, 1.0, 3), top=8).steps[0].beams[0].top
    assert [float(bar[2]) for bar in bars[:8]] == pytest.approx([word.sampling for word in first], abs=1e-5)
    assert [float(bar[2]) for bar in bars[5:]] == [0, 0, 0]  # top-k leaves five


def test_a_drawn_token_that_is_not_among_the_likeliest_is_shown_with_its_probability(new_page, address, runs):
    explorer, panel = opened(new_page, address, "transformer", TEXT)
    slide(explorer, "Sampling temperature", 2)
    panel.locator('[data-search="sample"] input').check(force=True)
    trace = trace_decoding(regard.load(runs["transformer"]), TEXT, top=8, sampling=Sampling(temperature=2.0))
    rare = 0
    for number, step in enumerate(trace.steps, 1):
        panel.locator(f'.decode-scene[data-step="{number}"]').wait_for()
        [branch], tokens = step.branches, [word.token for word in step.beams[0].top]
        [bar] = panel.locator(".top-word.taken").evaluate_all(BARS)
        assert bar[0] == shown([branch.token], step.beams[0].inputs[-1])[0]
        assert [bar[1], float(bar[2])] == pytest.approx([branch.probability, branch.sampling], abs=1e-5)
        rare += branch.token not in tokens
        if number < len(trace.steps):
            panel.get_by_role("button", name="Step on").click()
    assert rare  # or the test shows nothing


def test_tokens_that_differ_from_greedy_search_are_marked(new_page, address, runs):
    explorer, panel = opened(new_page, address, "transformer", TEXT)
    slide(explorer, "Sampling seed", 5)
    predictor = regard.load(runs["transformer"])
    greedy, sample = trace_decoding(predictor, TEXT, beam=1), trace_decoding(predictor, TEXT, sampling=Sampling(seed=5))
    assert greedy.answer != sample.answer
    common = [[0] * (len(greedy.answer) + 1) for _ in range(len(sample.answer) + 1)]  # of the first tokens of both
    for i, a in enumerate(sample.answer):
        for j, b in enumerate(greedy.answer):
            common[i + 1][j + 1] = common[i][j] + 1 if a == b else max(common[i][j + 1], common[i + 1][j])
    marked = panel.locator('[data-search="sample"] mark').count()
    assert marked == len(sample.answer) - common[-1][-1]


@pytest.mark.parametrize("width", [360, 1280, 1440])
def test_the_tree_fits_its_card_or_scrolls_and_its_numbers_fit_their_boxes(new_page, address, width):
    _, panel = opened(new_page, address, "transformer", TEXT, width=width)
    over = """nodes => nodes.map((node) => {
      const ends = [...node.querySelectorAll("text")].map((text) => text.getBBox()).map((box) => box.x + box.width);
      return Math.max(...ends) - node.querySelector("rect").getBBox().width;
    })"""  # of each text beyond its box
    assert max(panel.locator(".tree-node[data-branch]").evaluate_all(over)) <= 0
    scroller = panel.locator(".tree-scroll")
    inside, whole = scroller.evaluate("node => [node.clientWidth, node.scrollWidth]")
    steps = panel.locator(".tree-step").count()
    if steps <= 8 and width >= 1280:
        assert whole <= inside
    last = panel.locator(f'.tree-node[data-step="{steps}"] rect').first
    scroller.evaluate("node => { node.scrollLeft = node.scrollWidth; }")
    right = last.evaluate("node => node.getBoundingClientRect().right")
    assert right <= scroller.evaluate("node => node.getBoundingClientRect().left + node.clientWidth")


@pytest.mark.parametrize("width", [360, 1280])
def test_the_tree_opens_at_its_answer_and_follows_the_player(new_page, address, runs, width):
    _, panel = opened(new_page, address, "transformer", TEXT, width=width)
    trace = trace_decoding(regard.load(runs["transformer"]), TEXT, beam=2, top=8)
    inside = """node => {
      const [box, frame] = [node.getBoundingClientRect(), node.closest(".tree-scroll").getBoundingClientRect()];
      return box.left >= frame.left && box.right <= frame.right;
    }"""
    readout, answer = panel.locator(".tree-readout"), panel.locator(".tree-node.on-answer.tree-finished")
    assert answer.evaluate(inside)
    said = readout.inner_text().split(" · ")
    assert said[0] == f"Step {answer.get_attribute('data-step')}"
    assert said[1].replace(" ", "") == trace.text.replace(" ", "")
    finished = [branch for step in trace.steps for branch in step.branches if branch.fate == "finished"]
    ended = max(finished, key=lambda branch: branch.score).token == "</s>"
    assert said[2] == ("finished" if ended else "cut at the length limit")
    assert panel.locator(".tree-step.strong").count() == 0
    panel.get_by_role("button", name="Step on").click()
    assert readout.inner_text().startswith("Step 2 · ")
    assert panel.locator(".tree-step.strong").inner_html() == "step 2"
    assert panel.locator(".tree-node.chosen").evaluate(inside)


def test_a_click_on_a_candidate_of_the_first_step_marks_that_step(new_page, address):
    _, panel = opened(new_page, address, "transformer", TEXT)
    assert panel.locator(".tree-band").get_attribute("visibility") == "hidden"
    panel.locator('.tree-node[data-step="1"]').first.click()
    assert panel.locator(".tree-band").get_attribute("visibility") == "visible"
    assert panel.locator(".tree-step.strong").inner_html() == "step 1"


def test_the_player_and_the_tree_are_used_without_a_mouse(new_page, address):
    explorer, panel = opened(new_page, address, "transformer", TEXT)
    page, step = explorer.page, panel.locator(".player-step")
    panel.get_by_label("Time step").last.focus()
    page.keyboard.press("End")
    last = step.inner_text()
    assert re.fullmatch(r"Time step (\d+) of \1", last)
    page.keyboard.press("ArrowLeft")
    assert step.inner_text() != last
    page.keyboard.press("Home")
    assert step.inner_text().startswith("Time step 1 of")
    page.keyboard.press(" ")
    panel.locator('.player[data-playing=true][data-step="1"]').wait_for()  # it plays
    page.keyboard.press(" ")
    panel.locator(".player[data-playing=false]").wait_for()
    panel.locator('.tree-node[tabindex="0"]').focus()
    readout = panel.locator(".tree-readout")
    before = readout.inner_text()
    page.keyboard.press("ArrowLeft")  # to the output it extends
    assert int(readout.get_attribute("data-step")) == int(re.match(r"Step (\d+)", before)[1]) - 1
    page.keyboard.press("ArrowDown")
    assert readout.get_attribute("data-branch") != "0"


def test_a_run_without_steps_says_why(new_page, address):
    explorer = ExplorerPage(new_page(), address)
    explorer.choose("bert")
    explorer.ask(TEXTS["bert"])
    assert "answers in one pass" in explorer.open("decoding").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_view_is_readable_narrow_and_named(new_page, address, scheme):
    explorer, panel = opened(new_page, address, "transformer", TEXT, width=360, color_scheme=scheme)
    panel.get_by_role("button", name="Step on").click()
    for what in ("lowContrast", "tooWide", "moving", "nameless"):
        assert check(explorer.page, what) == [], what
    assert [stop for stop in tab_stops(explorer.page) if not stop["marked"]] == []
