"""The views that answer to a hand, for every family: hovered words, chosen heads, "what if" and decoding.

One page for each family, which all tests of it use.  What is wanted is computed from the weights of the model (explicit.py).
"""

import dataclasses

import explicit
import pytest
import torch
from explorer_page import tokens_table
from test_web_browser_truth import CLOSE, EACH, assert_distributions, direct_answer
from tiny_runs import TEXTS, given_to

NUMBERS = "nodes => nodes.map(node => Number(node.dataset.weight))"
SWITCHED = {  # a head in the middle of each model: layer, its name, head
    "transformer": (3, "decoder.0.cross", 2), "t5": (2, "decoder.0.attn", 1), "gpt": (0, "blocks.0.attn", 1),
    "bert": (1, "blocks.1.attn", 0), "vit": (0, "blocks.0.attn", 2), "swin": (1, "stages.0.blocks.1.attn", 1),
    "conformer": (0, "encoder.0.attn", 1), "bahdanau": (0, "decoder.cross", 0), "captioner": (0, "decoder.cross", 0),
}  # fmt: skip


# -- view 1: answer


@EACH
def test_a_hovered_word_shows_its_own_weights(answered, predictors, inputs, family):
    given, predictor = given_to(family, inputs), predictors[family]
    explorer, record = answered(family)
    answer, axes, [rows, columns] = (
        record["answer"]["text"],
        record["axes"],
        [record["alignment"][k] for k in ("rows", "columns")],
    )
    wanted = explicit.alignment(family, predictor, given, explicit.attention(family, predictor, given, answer), answer)
    panel = explorer.open("answer")
    lines = panel.locator(".answer-stage .words-line")
    for number, word in enumerate(axes[rows]["words"]):
        if record["answer"]["kind"] != "class":  # which has one row, and shows it at rest
            lines.last.locator(f'[data-unit="{number}"]').hover()
        panel.locator(f'.answer-readout[data-row="{word["start"]}"]').wait_for()
        row = wanted[word["start"] : word["end"]].mean(0)
        said = panel.locator(".answer-readout b").evaluate_all(NUMBERS)
        if family in TEXTS:
            row = torch.stack([row[part["start"] : part["end"]].sum() for part in axes[columns]["words"]])
            found = lines.first.locator("[data-unit]").evaluate_all(NUMBERS)
            torch.testing.assert_close(torch.tensor(found), row, **CLOSE)
            best = [share for share in row.topk(min(3, len(row))).values.tolist() if share >= 0.03]
            assert said == pytest.approx(best, abs=1e-4)
        else:  # drawn over the picture or the sound; the largest is written
            assert said == pytest.approx([float(row.max())], abs=1e-4)
            drawn = panel.locator(".answer-stage canvas").get_attribute("data-weights")
            row = row[1:] if family == "vit" else row  # the class token has no place
            torch.testing.assert_close(torch.tensor([float(weight) for weight in drawn.split()]), row, **CLOSE)
    explorer.page.mouse.move(0, 0)


@EACH
def test_a_chosen_head_replaces_the_weights_of_the_answer(answered, predictors, inputs, family):
    given, predictor = given_to(family, inputs), predictors[family]
    explorer, record = answered(family)
    panel, answer = explorer.open("answer"), record["answer"]["text"]
    chooser = panel.get_by_label("Attention shown", exact=True)
    offered = [value for value in chooser.locator("option").evaluate_all("all => all.map(one => one.value)") if value]
    if family == "conformer":
        assert not offered  # its layers have a row for each frame, not for each letter
        return
    weights = explicit.attention(family, predictor, given, answer)
    same_grid = [str(layer["index"]) for layer in record["layers"] if layer["keys"] == record["alignment"]["columns"]]
    assert offered
    assert set(offered) <= set(same_grid)
    layer = int(offered[-1])
    name, heads = record["layers"][layer]["name"], record["layers"][layer]["heads"]
    chooser.select_option(value=offered[-1])
    if heads > 1:
        panel.get_by_label("Head", exact=True).select_option(index=2)  # after the mean; a value would also match a label
    explorer.settled()
    wanted = explicit.alignment(family, predictor, given, {name: weights[name][1:2] if heads > 1 else weights[name]}, answer)
    found = tokens_table(panel)
    found = found if family in TEXTS else found.T
    torch.testing.assert_close(found, wanted, **CLOSE)
    assert_distributions(found)
    chooser.select_option(value="")


# -- view 4: what if


@EACH
def test_a_switched_off_head_is_one_that_the_rest_of_the_model_does_not_get(answered, predictors, inputs, family):
    given, predictor, (layer, name, head) = given_to(family, inputs), predictors[family], SWITCHED[family]
    explorer, record = answered(family, given)
    panel, answer = explorer.open("whatif"), record["answer"]
    assert record["layers"][layer]["name"] == name
    alone = record["layers"][layer]["heads"] == 1
    switch = f'.layer-switch[data-layer="{layer}"]' if alone else f'.head-switch[data-layer="{layer}"][data-head="{head}"]'
    panel.locator(switch).click()
    panel.locator(".logprob-after").wait_for()
    changed = explicit.without_head(predictor.model, name, head)
    before, after = (
        explicit.scored(family, predictor, model, given, answer["text"], len(answer["items"]))
        for model in (predictor.model, changed)
    )
    assert (after - before).abs().max() > 1e-3  # else it would not be seen that nothing was switched off
    for part, wanted in (("before", before), ("after", after)):
        found = float(panel.locator(f".logprob-{part}").get_attribute("data-value"))
        assert found == pytest.approx(float(wanted[0] if answer["kind"] == "class" else wanted.sum()), abs=1e-4)
    cells = panel.locator(".probability-table tbody td[data-value]")
    rows = cells.evaluate_all("cells => cells.map(cell => +cell.dataset.value)")
    torch.testing.assert_close(torch.tensor(rows).view(-1, 2), torch.stack((before, after), 1).exp()[: len(rows) // 2], **CLOSE)
    assert len(rows) == 2 * len(before)
    says = direct_answer(family, dataclasses.replace(predictor, model=changed), given, len(answer["items"]))
    assert panel.locator(".answer-after").text_content().removesuffix("the same").split() == says.split()
    panel.get_by_role("button", name="Reset", exact=True).click()


# -- view 5: decoding


@pytest.mark.parametrize("family", ["transformer", "bahdanau", "t5", "gpt", "captioner"])
def test_greedy_steps_are_the_softmax_of_the_logits_without_a_cache(answered, predictors, inputs, family):
    given, predictor = given_to(family, inputs), predictors[family]
    explorer, _ = answered(family, given)
    panel = explorer.open("decoding")
    panel.locator(".search-card").first.wait_for()
    model, special = predictor.model, predictor.tokenizer.special
    if family == "gpt":
        ids, logits = explicit.generated_ids(predictor, given, ""), lambda ids: model(torch.tensor([ids]))
    else:
        source = predictor.to_input(given) if family == "captioner" else explicit.translation_ids(predictor, given)[0]
        ids, logits = [special.bos], lambda ids: model(source, torch.tensor([ids]))
    steps = int(panel.locator(".player-step").inner_text().split()[-1])
    assert steps > 2
    for number in range(1, steps + 1):
        panel.locator(f'.decode-scene[data-step="{number}"]').wait_for()
        with torch.inference_mode():
            best = logits(ids)[0, -1].softmax(-1).topk(8)
        bars = panel.locator(".top-word").evaluate_all("items => items.map(item => +item.dataset.probability)")
        assert bars[:8] == pytest.approx(best.values.tolist(), abs=1e-4)
        ids.append(int(best.indices[0]))
        if number < steps:
            panel.get_by_role("button", name="Step on").click()
    assert ids[-1] == special.eos or panel.get_by_role("button", name="Step on").is_disabled()


@pytest.mark.parametrize("family", ["transformer", "bahdanau", "gpt"])
def test_kept_beams_have_the_summed_log_probabilities_of_their_tokens(answered, predictors, inputs, family):
    given, predictor, width = given_to(family, inputs), predictors[family], 2
    explorer, _ = answered(family, given)
    panel = explorer.open("decoding")
    panel.locator(".tree-node[data-branch]").first.wait_for()
    nodes = panel.locator('.tree-node[data-branch][data-fate="kept"]').evaluate_all(
        "nodes => nodes.map(node => [+node.dataset.step, +node.dataset.score])"
    )
    model, eos = predictor.model, predictor.tokenizer.special.eos
    source = () if family == "gpt" else explicit.translation_ids(predictor, given)[:1]
    start = explicit.generated_ids(predictor, given, "") if family == "gpt" else [predictor.tokenizer.special.bos]
    beams, steps = [(0.0, start)], max(step for step, _ in nodes)
    assert steps > 2
    for number in range(1, steps + 1):
        extended = []
        for score, ids in beams:
            with torch.inference_mode():
                row = model(*source, torch.tensor([ids]))[0, -1].log_softmax(-1).tolist()
            extended += [(score + value, [*ids, token]) for token, value in enumerate(row) if token != eos]
        beams = sorted(extended, key=lambda beam: -beam[0])[:width]
        found = sorted((score for step, score in nodes if step == number), reverse=True)
        assert found == pytest.approx([score for score, _ in beams][: len(found)], abs=1e-4)
        assert len(found) == width or number == steps
