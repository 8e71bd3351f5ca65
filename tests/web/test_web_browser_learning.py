"""Learning and cost in a real browser: each step's answer is that of its weights, and the numbers are those of Python."""

import dataclasses
import json

import numpy as np
import pytest
from explorer_page import ExplorerPage, open_table, read_table
from page_checks import check, tab_stops

import regard
from regard.layers.positions import sinusoid
from regard.models import preset
from regard.tasks.load import load
from regard.view.cost import cost, image_cost

PHRASE = "I love you very much"


@pytest.fixture
def explorer(new_page, address):
    return ExplorerPage(new_page(), address)


def numbers(panel, selector: str) -> list[float]:
    return panel.locator(selector).evaluate_all("cells => cells.map(cell => +cell.dataset.value)")


def test_the_slider_shows_the_answer_of_each_checkpoint(explorer, runs):
    explorer.choose("learner")
    explorer.ask(PHRASE)
    panel = explorer.open("learning")
    steps = [0, 50, 100, 150]
    assert panel.locator(".player-step").inner_text() == "Final weights"
    found = {}
    for step in reversed(steps):
        panel.get_by_role("button", name="Step back").click()
        text = panel.locator(f'.learned-text[data-step="{step}"]')
        text.wait_for()
        found[step] = text.inner_text(), panel.locator(".learned-item").first.get_attribute("data-probability")
    assert "before training" in panel.locator(".player-step").inner_text()
    for step in steps:
        [answer] = load(runs["learner"], step=step).translate([PHRASE], details=True)
        assert found[step][0] == (answer.text or "(an empty answer)")
        if answer.probabilities:
            assert float(found[step][1]) == pytest.approx(answer.probabilities[0], abs=1e-4)
    assert len({text for text, _ in found.values()}) > 1  # it has learned something


def test_one_scale_of_colours_for_all_steps_and_cut_answers_say_so(explorer, runs):
    explorer.choose("learner")
    explorer.ask(PHRASE)
    panel = explorer.open("learning")
    scales = set()
    for step in ("final", "150", "100", "50", "0"):
        panel.locator(f'.learned-text[data-step="{step}"]').wait_for()
        explorer.settled()
        assert panel.locator(".learned-map .legend").inner_text().split()[-2:] == ["100", "%"]
        scales.add(panel.locator(".learned-heads + div .legend").inner_text())
        parts = len(
            load(runs["learner"], step=None if step == "final" else int(step)).translate([PHRASE], details=True)[0].tokens
        )
        more = panel.locator(".learned-more")
        if parts > 10:  # the end token may be one more
            assert more.inner_text() in (f"and {parts - 10} more", f"and {parts - 9} more")
        elif parts < 10:
            assert more.count() == 0
        if step != "0":
            panel.get_by_role("button", name="Step back").click()
    assert len(scales) == 1


def test_the_marker_of_the_step_does_not_look_like_a_line_of_the_chart(explorer):
    explorer.choose("learner")
    explorer.ask(PHRASE)
    panel = explorer.open("learning")
    stroke = "node => getComputedStyle(node).stroke"
    marker = panel.locator(".chart-current").evaluate(stroke)
    assert marker not in panel.locator("path.chart-line").evaluate_all(
        "nodes => nodes.map(node => getComputedStyle(node).stroke)"
    )


def test_the_loss_curve_is_that_of_the_log(explorer, runs):
    explorer.choose("learner")
    panel = explorer.open("learning")
    panel.locator(".chart summary").click()
    table = panel.locator(".chart table")
    table.wait_for()
    lines = [json.loads(line) for line in (runs["learner"] / "log.jsonl").read_text().splitlines()]
    for column, key in ((0, "loss"), (1, "valid_loss")):
        cells = table.locator("tbody tr").evaluate_all(
            f"rows => rows.map(row => [+row.dataset.x, row.querySelectorAll('td')[{column}].dataset.y]).filter(pair => pair[1])"
        )
        assert [(x, float(y)) for x, y in cells] == [(line["step"], line[key]) for line in lines if key in line]
    assert "Nothing inspected yet" in panel.inner_text()
    assert "This run kept its weights every 50 steps." in panel.inner_text()


def test_the_curve_is_read_by_keyboard_and_picks_a_checkpoint(explorer, runs):
    explorer.choose("learner")
    explorer.ask(PHRASE)
    panel = explorer.open("learning")
    panel.locator(".chart-stage").first.focus()
    for _ in range(5):
        explorer.page.keyboard.press("ArrowRight")
    readout = panel.locator(".chart-readout").first
    lines = [json.loads(line) for line in (runs["learner"] / "log.jsonl").read_text().splitlines()]
    at = next(line for line in lines if line.get("step") == 50 and "loss" in line)
    assert readout.get_attribute("data-x") == "50"
    assert float(readout.locator("[data-line=training]").get_attribute("data-y")) == at["loss"]
    explorer.page.keyboard.press("Enter")
    panel.locator('.learned-text[data-step="50"]').wait_for()


def test_a_run_without_a_log_says_so(explorer):
    explorer.choose("transformer")
    text = explorer.open("learning").inner_text()
    assert "has no checkpoints" in text
    assert "has no training log" in text


def test_a_run_without_checkpoints_announces_no_steps(explorer):
    explorer.choose("transformer")
    explorer.ask(PHRASE)
    panel = explorer.open("learning")
    heading = panel.get_by_role("heading", name="This input, after training")
    assert "has no checkpoints" in heading.locator("xpath=following-sibling::*[1]").inner_text()
    words = panel.inner_text()
    assert not [said for said in ("at this step", "every step", "each checkpoint", "earlier checkpoints") if said in words]
    explorer.choose("learner")
    explorer.settled()
    assert "at earlier checkpoints" in panel.inner_text()
    assert panel.get_by_role("heading", name="The same input at each checkpoint").is_visible()


def topic(explorer, name: str):
    panel = explorer.open("learning")
    panel.locator(f'input[value="{name}"]').check(force=True)
    explorer.settled()
    return panel


def test_the_sinusoid_the_counter_and_the_run_s_own_positions(explorer, runs):
    explorer.choose("gpt")
    panel = topic(explorer, "positions")
    maps = panel.locator(".heatmap")
    np.testing.assert_allclose(read_table(open_table(maps.nth(0))), sinusoid(32, 48).numpy(), atol=1e-4)
    bits = [[n >> bit & 1 for bit in range(5)] for n in range(32)]
    assert read_table(open_table(maps.nth(1))).int().tolist() == bits
    table = regard.load(runs["gpt"]).model.embed.positions.table.detach().numpy()
    shown = read_table(open_table(maps.nth(2))).numpy()
    np.testing.assert_allclose(shown, table[:64][: len(shown), : shown.shape[1]], atol=1e-4)
    explorer.page.get_by_label("Width", exact=True).fill("20")
    explorer.page.get_by_label("Position", exact=True).fill("3")
    np.testing.assert_allclose(numbers(panel, ".matrix td[data-value]"), sinusoid(4, 20)[3, :16], atol=1e-6)


@pytest.mark.parametrize(("name", "source"), [
    ("transformer-base", 128), ("gpt-small", 128), ("bert-base", 128), ("vit-base", 1), ("swin-tiny", 1),
])  # fmt: skip
def test_the_costs_of_the_presets_are_those_of_python(explorer, name, source):
    panel = topic(explorer, "cost")
    panel.locator(f'input[value="{name}"]').check(force=True)
    family, config = preset(name)
    parts = cost(family, config, source, source)
    rows = panel.locator(".cost-table").first.locator("tbody tr")
    cells = "[...row.querySelectorAll('td')].map(cell => +cell.dataset.value)"
    found = rows.evaluate_all(f"rows => rows.map(row => [row.dataset.part, ...{cells}])")
    assert found == [[part.name, part.parameters, part.flops, part.bytes, part.score_bytes] for part in parts]


def test_sliders_change_the_costs_at_once(explorer):
    panel = topic(explorer, "cost")
    sizes = explorer.page
    sizes.get_by_label("Length n, tokens").fill("9")
    sizes.get_by_label("Depth, layers").fill("3")
    family, config = preset("transformer-base")
    whole = cost(family, dataclasses.replace(config, depth=3), 512, 512)[-1]
    assert numbers(panel, ".facts dd") == [whole.parameters, whole.flops, whole.score_bytes]
    sizes.get_by_label("Window r, tokens").fill("4")
    assert numbers(panel, ".facts dd")[1] == whole.flops - 3 * 2 * 4 * 512 * 512 * (512 - 16)  # encoder and decoder, not across
    sizes.get_by_label("Length n", exact=True).fill("5")
    sizes.get_by_label("Width d").fill("6")
    assert numbers(panel, "[data-part=Recurrent] [data-value]") == [32 * 64 * 64]
    sizes.get_by_label("Image, pixels").last.fill("224")
    family, swin = preset("swin-tiny")
    assert image_cost(family, swin).entries in numbers(panel, "[data-part*=Swin] [data-value]")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["training", "positions", "cost"])
def test_each_topic_is_readable_narrow_and_named(new_page, address, scheme, name):
    explorer = ExplorerPage(new_page(width=360, color_scheme=scheme), address)
    explorer.choose("learner")
    explorer.ask(PHRASE)
    topic(explorer, name)
    for what in ("lowContrast", "tooWide", "moving", "nameless"):
        assert check(explorer.page, what) == [], what
    assert [stop for stop in tab_stops(explorer.page) if not stop["marked"]] == []
