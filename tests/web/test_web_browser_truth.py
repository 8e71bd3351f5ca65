"""The numbers in the page are those of the model: each family, each view, in a real browser.

What is wanted comes from a direct forward pass inside `watch` (explicit.py); what is found is read from the page's tables.
"""

import dataclasses
import re
import shutil
from pathlib import Path

import explicit
import pytest
import torch
from explorer_page import ExplorerPage, open_table, read_table, tokens_table
from tiny_runs import EVERY_FAMILY, TEXT, TEXTS, given_to
from torch import Tensor

import regard
from regard.tasks.predictors import Predictor

CLOSE = {"rtol": 0, "atol": 1e-4}
EACH = pytest.mark.parametrize("family", EVERY_FAMILY)


def assert_distributions(weights: Tensor) -> None:
    """Each row sums to one."""
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights)), rtol=0, atol=len(weights[0]) * 1e-5)


# -- view 2: all heads


def open_heads(explorer: ExplorerPage):
    """The view as it is before a head is opened."""
    panel = explorer.open("heads")
    back = panel.get_by_role("button", name="All heads")
    if back.is_visible():
        back.click()
        explorer.settled()
    return panel


@EACH
def test_every_head_shows_the_weights_of_the_explicit_path(answered, predictors, inputs, family):
    given, predictor = given_to(family, inputs), predictors[family]
    explorer, record = answered(family)
    wanted = explicit.attention(family, predictor, given, record["answer"]["text"])
    assert [layer["name"] for layer in record["layers"]] == list(wanted)
    panel = open_heads(explorer)
    panel.locator('[data-head="0-0"]').click()
    for layer, weights in enumerate(wanted.values()):
        for head, matrix in enumerate(weights):
            table = read_table(open_table(panel.locator(".detail-matrix .heatmap")))
            torch.testing.assert_close(table, matrix, **CLOSE)
            assert_distributions(table)
            if (layer, head) != (len(wanted) - 1, len(weights) - 1):
                explorer.page.get_by_role("button", name="Next head").click()
    panel.get_by_role("button", name="All heads").click()
    if len(weights) > 1:
        panel.locator(f'[data-head="{layer}-mean"]').click()
        torch.testing.assert_close(read_table(open_table(panel.locator(".detail-matrix .heatmap"))), weights.mean(0), **CLOSE)


@pytest.mark.parametrize(
    ("family", "group", "stack"), [("transformer", 0, "encoder"), ("gpt", 0, ""), ("bert", 0, ""), ("vit", 0, "")]
)
def test_the_rollout_is_the_product_of_all_layers_with_their_residual_paths(answered, predictors, inputs, family, group, stack):
    given = given_to(family, inputs)
    explorer, record = answered(family)
    weights = explicit.attention(family, predictors[family], given, record["answer"]["text"])
    layers = [each for name, each in weights.items() if name.startswith(stack)]
    wanted = torch.eye(layers[0].shape[-1])
    for each in layers:
        mixed = 0.5 * each.mean(0) + 0.5 * torch.eye(len(wanted))
        wanted = mixed / mixed.sum(-1, keepdim=True) @ wanted
    panel = open_heads(explorer)
    panel.locator(".head-group").nth(group).get_by_role("button", name="Rollout").click()
    torch.testing.assert_close(read_table(open_table(panel.locator(".detail-matrix .heatmap"))), wanted, **CLOSE)


# -- view 1: answer and alignment


@EACH
def test_the_answer_is_the_models_and_its_table_holds_the_alignment(answered, predictors, inputs, family):
    given, predictor = given_to(family, inputs), predictors[family]
    explorer, record = answered(family)
    answer = record["answer"]["text"]
    assert answer == direct_answer(family, predictor, given, len(record["answer"]["items"]))
    weights = explicit.attention(family, predictor, given, answer)
    wanted = explicit.alignment(family, predictor, given, weights, answer)
    found = tokens_table(explorer.open("answer"))
    found = found if family in TEXTS else found.T  # a picture or sound has a row for each place
    torch.testing.assert_close(found, wanted, **CLOSE)
    assert_distributions(found)


def test_the_matrix_has_a_row_and_a_column_for_each_word_that_is_shown(answered, predictors):
    explorer, record = answered("transformer")
    answer, translator = record["answer"]["text"], predictors["transformer"]
    weights = explicit.attention("transformer", translator, TEXT)
    tokens = explicit.alignment("transformer", translator, TEXT, weights, answer)
    rows, columns = (record["axes"][record["alignment"][name]]["words"] for name in ("rows", "columns"))
    assert (len(rows), len(columns)) != tuple(tokens.shape)  # or nothing is joined
    wanted = torch.stack([torch.stack([tokens[row["start"] : row["end"], column["start"] : column["end"]].sum(1).mean()
                                       for column in columns]) for row in rows])  # fmt: skip
    panel = explorer.open("answer")
    torch.testing.assert_close(read_table(open_table(panel)), wanted, **CLOSE)

    # at rest: the strongest link of each word, and every other one of 20 % or more
    links = panel.locator(".answer-links path").evaluate_all("paths => paths.map(path => +path.dataset.weight)")
    strong = [share for row in wanted for share in row.tolist() if share >= 0.2 or share == row.max() >= 0.03]
    assert sorted(links) == pytest.approx(sorted(strong), abs=1e-4)
    assert len(strong) > len(rows)  # or the second rule shows nothing


def direct_answer(family: str, predictor: Predictor, given: str | Path, tokens: int) -> str:
    if family in ("transformer", "bahdanau", "t5"):
        return predictor.translate([given])[0].text
    if family == "gpt":
        return predictor.generate(given, temperature=0, tokens=tokens)
    if family == "bert":
        return predictor.fill(given).text
    if family == "captioner":
        return predictor.caption([given])[0].text
    if family == "conformer":
        return predictor.transcribe([given])[0].text
    return predictor.classify([given])[0][0].text


# -- view 4: what if


def open_whatif(explorer: ExplorerPage):
    """The view with nothing switched off."""
    panel = explorer.open("whatif")
    reset = panel.get_by_role("button", name="Reset", exact=True)
    if reset.is_visible():
        reset.click()
        explorer.settled()
    return panel


def assert_what_if(panel, translator: Predictor, changed: Predictor, source: Tensor, text: str) -> None:
    """The view's verdict on a change is what the changed model computes."""
    ids, (whole, target) = explicit.answered_ids(translator, TEXT), explicit.translation_ids(translator, TEXT)
    before = explicit.answer_logprobs(translator.model, whole, target, ids)
    after = explicit.answer_logprobs(changed.model, source, target, ids)
    assert abs(float(after.sum() - before.sum())) > 0.01  # else it would not be seen that nothing was switched off
    for name, wanted in (("before", before), ("after", after)):
        found = float(panel.locator(f".logprob-{name}").get_attribute("data-value"))
        assert found == pytest.approx(float(wanted.sum()), abs=1e-4)
    cells = panel.locator(".probability-table tbody td[data-value]")
    rows = cells.evaluate_all("cells => cells.map(cell => +cell.dataset.value)")
    torch.testing.assert_close(torch.tensor(rows).view(-1, 2), torch.stack((before, after), 1).exp(), **CLOSE)
    said = panel.locator(".answer-after").text_content().removesuffix("the same")
    assert said.strip() == changed.translate([text])[0].text.strip()


@pytest.mark.parametrize(
    ("layer", "name", "head"), [(0, "encoder.0.attn", 1), (3, "decoder.0.cross", 2), (4, "decoder.1.attn", 0)]
)
def test_a_switched_off_head_is_one_that_the_output_projection_ignores(answered, predictors, layer, name, head):
    translator = predictors["transformer"]
    explorer, _ = answered("transformer")
    panel = open_whatif(explorer)
    panel.locator(f'.head-switch[data-layer="{layer}"][data-head="{head}"]').click()
    panel.locator(".logprob-after").wait_for()
    changed = dataclasses.replace(translator, model=explicit.without_head(translator.model, name, head))
    assert_what_if(panel, translator, changed, explicit.translation_ids(translator, TEXT)[0], TEXT)


def test_a_switched_off_layer_is_one_without_any_of_its_heads(answered, predictors):
    translator = predictors["transformer"]
    explorer, _ = answered("transformer")
    panel = open_whatif(explorer)
    panel.locator('.layer-switch[data-layer="1"]').click()
    panel.locator(".logprob-after").wait_for()
    model = translator.model
    for head in range(3):
        model = explicit.without_head(model, "encoder.1.attn", head)
    changed = dataclasses.replace(translator, model=model)
    assert_what_if(panel, translator, changed, explicit.translation_ids(translator, TEXT)[0], TEXT)


def test_a_switched_off_word_is_one_that_the_model_does_not_read(answered, predictors):
    translator = predictors["transformer"]
    explorer, _ = answered("transformer")
    panel = open_whatif(explorer)
    panel.get_by_role("button", name="Word old").click()
    panel.locator(".logprob-after").wait_for()
    shorter = TEXT.replace("old ", "")
    source = explicit.translation_ids(translator, shorter)[0]
    assert source.shape[1] == explicit.translation_ids(translator, TEXT)[0].shape[1] - 1
    assert_what_if(panel, translator, translator, source, shorter)


def test_the_ranking_lists_every_head_with_what_the_answer_loses_without_it(answered, predictors):
    translator = predictors["transformer"]
    explorer, record = answered("transformer")
    panel = open_whatif(explorer)
    panel.get_by_role("button", name="Show all").click()  # it was measured when the view was opened
    rows = panel.locator(".ranking-table tbody tr").evaluate_all(
        "rows => rows.map(({dataset}) => [dataset.layer, dataset.head, dataset.drop].map(Number))"
    )
    assert [row[2] for row in rows] == sorted((row[2] for row in rows), reverse=True)
    ids, read = explicit.answered_ids(translator, TEXT), explicit.translation_ids(translator, TEXT)
    base = explicit.answer_logprobs(translator.model, *read, ids).sum()
    wanted = {
        (layer["index"], head): float(
            base - explicit.answer_logprobs(explicit.without_head(translator.model, layer["name"], head), *read, ids).sum()
        )
        for layer in record["layers"]
        for head in range(layer["heads"])
    }
    assert {(int(layer), int(head)): drop for layer, head, drop in rows} == pytest.approx(wanted, abs=1e-3)

    # the same losses colour the switches: what matters most is the darkest
    paint = "(nodes) => nodes.map(node => [+node.dataset.layer, +node.dataset.head, getComputedStyle(node).backgroundColor])"
    colours = {(layer, head): colour for layer, head, colour in panel.locator(".head-switch").evaluate_all(paint)}
    light = {place: sum(map(int, re.findall(r"\d+", colour)[:3])) for place, colour in colours.items()}
    assert min(light, key=light.__getitem__) == max(wanted, key=wanted.__getitem__)
    assert len(set(colours.values())) > 4


# -- checkpoints


@pytest.mark.parametrize("step", [50, 150])
def test_a_checkpoint_shows_its_own_weights(new_page, address, runs, predictors, tmp_path, step):
    learner, text = predictors["learner"], "I love you very much"
    explorer = ExplorerPage(new_page(), address)
    explorer.choose("learner")
    explorer.page.get_by_text("Options", exact=True).click()
    explorer.page.get_by_label("Checkpoint").select_option(label=f"step {step}{', the last' if step == 150 else ''}")
    assert explorer.ask(text)["checkpoint"] == step
    folder = Path(shutil.copytree(runs["learner"], tmp_path / "earlier"))
    shutil.copy(folder / "checkpoints" / f"step-{step:08}" / "model.safetensors", folder / "model.safetensors")
    wanted = explicit.attention("transformer", regard.load(folder), text)["encoder.0.attn"]
    panel = explorer.open("heads")
    panel.locator('[data-head="0-1"]').click()
    torch.testing.assert_close(read_table(open_table(panel.locator(".detail-matrix .heatmap"))), wanted[1], **CLOSE)
    if step != 150:
        assert (wanted - explicit.attention("transformer", learner, text)["encoder.0.attn"]).abs().max() > 0.01
