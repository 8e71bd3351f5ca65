"""Step by step, for every family: each stage of a head is what its formula gives, and each switch changes what it should.

What is wanted comes from the weights of the model and from hooks (explicit_stages.py); what is found is read from the page.
"""

from collections.abc import Sequence

import explicit
import pytest
import torch
from explicit_stages import Head, head_of
from explorer_page import ExplorerPage, read_table
from test_web_browser_truth import CLOSE, EACH
from tiny_runs import TEXT, given_to
from torch import Tensor

STAGES = {  # stage: its matrices
    "x": ("x", "memory"), "qkv": ("q", "k", "v"), "scores": ("scores",), "scaled": ("scaled",), "bias": ("bias", "sum"),
    "mask": ("masked",), "weights": ("weights",), "output": ("contributions", "output"),
}  # fmt: skip
MATRICES = [name for names in STAGES.values() for name in names]


def open_steps(explorer: ExplorerPage, layer: int, head: int, query: int):
    """The numbers of one query of a head of the input."""
    panel = explorer.open("steps")
    panel.locator("label", has_text="Your input").click()
    for label, value in (("Layer", layer), ("Head", head), ("Query", query)):
        explorer.settled()
        panel.get_by_label(label, exact=True).select_option(index=value)  # a value would also match a label
    explorer.settled()
    return panel


def read_stages(explorer: ExplorerPage, names: Sequence[str] = MATRICES) -> dict[str, Tensor]:
    """Matrices of the view, every column of them."""
    panel, found = explorer.page.locator("#panel-steps"), {}
    explorer.settled()
    for name in names:
        matrix = panel.locator(f'[data-matrix="{name}"]')
        if matrix.get_by_role("button", name="Show all").count():
            matrix.get_by_role("button", name="Show all").click()
            explorer.settled()
        if matrix.count():
            found[name] = read_table(matrix.locator("table"))
    return found


def assert_shown(explorer: ExplorerPage, head: Head, query: int, changed: str = "", **switches: float) -> dict[str, Tensor]:
    """The page shows the stages of a head and no other, at some of its queries and keys, and marks all from `changed` on."""
    found, wanted = read_stages(explorer), head.stages(**switches)
    assert found.keys() - {"contributions"} == wanted.keys()
    panel = explorer.page.locator("#panel-steps")
    shown = [panel.locator('[data-matrix="weights"]').get_attribute(f"data-{name}").split(",") for name in ("rows", "columns")]
    rows = [head.queries.index(int(position)) for position in shown[0]]
    columns = [head.keys.index(int(position)) for position in shown[1]]
    at = head.queries.index(query)
    assert at in rows
    assert (len(rows), len(columns)) == (min(8, len(head.queries)), min(10, len(head.keys)))
    weights = wanted["weights"][at]
    assert weights[columns].sum() >= weights.topk(len(columns)).values.sum() - 1e-4  # the keys with the most weight
    wanted["contributions"] = torch.cat(((weights[:, None] * head.v)[columns], wanted["output"][at : at + 1]))
    for name, values in found.items():
        part = wanted[name]
        if name == "contributions":
            part = part[:, : values.shape[1]]  # of wide values the first numbers
        elif name in ("x", "q", "output"):
            part = part[rows]
        else:
            part = part[columns] if name in ("memory", "k", "v") else part[rows][:, columns]
        torch.testing.assert_close(values, part, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")
    marks = panel.locator("[data-stage]").evaluate_all("all => all.map(({dataset}) => [dataset.stage, dataset.changed])")
    names = [name for name, _ in marks]
    assert [name for name, mark in marks if mark == "true"] == (names[names.index(changed) :] if changed else [])
    return found


# -- the formula


@pytest.mark.parametrize("head", [0, 2])
@pytest.mark.parametrize("layer", [0, 1])
def test_the_steps_are_those_of_the_formula(answered, predictors, layer, head):
    model, name = predictors["transformer"].model, f"encoder.{layer}.attn"
    read = explicit.translation_ids(predictors["transformer"], TEXT)
    explorer, _ = answered("transformer")
    open_steps(explorer, layer, head, query=3)
    found = assert_shown(explorer, head_of("transformer", model, name, head, read), query=3)
    torch.testing.assert_close(
        found["weights"], explicit.attention("transformer", predictors["transformer"], TEXT)[name][head], **CLOSE
    )


def test_the_six_words_need_no_input(new_page, address):
    explorer = ExplorerPage(new_page(), address, "steps")
    panel = explorer.page.locator("#panel-steps")
    panel.locator('[data-matrix="weights"]').wait_for()
    labels = panel.locator('[data-matrix="x"] tbody th').all_text_contents()
    assert labels == ["YOUR", "CAT", "IS", "A", "LOVELY", "CAT"]
    found = read_stages(explorer, ("x", "weights", "output"))
    wanted = (found["x"] @ found["x"].T / 512**0.5).softmax(-1)  # q, k and v are the input itself
    torch.testing.assert_close(found["weights"], wanted, **CLOSE)
    torch.testing.assert_close(found["output"], wanted @ found["x"], **CLOSE)
    panel.get_by_role("switch", name="Positions").click()
    panel.locator('[data-stage="x"][data-changed="true"]').wait_for()
    cat, other_cat = read_stages(explorer, ("weights",))["weights"][[1, 5]]
    torch.testing.assert_close(cat, other_cat, rtol=0, atol=0)  # without positions the two are one


@EACH
def test_the_steps_of_every_family_end_in_its_weights(answered, predictors, inputs, family):
    given = given_to(family, inputs)
    explorer, record = answered(family)
    wanted = list(explicit.attention(family, predictors[family], given, record["answer"]["text"]).values())
    for layer in {len(wanted) // 2, len(wanted) - 1}:
        head = len(wanted[layer]) - 1
        panel = open_steps(explorer, layer, head, query=4)
        matrix = panel.locator('[data-matrix="weights"]')
        rows, columns = ([int(one) for one in matrix.get_attribute(f"data-{name}").split(",")] for name in ("rows", "columns"))
        assert 4 in rows
        torch.testing.assert_close(read_table(matrix.locator("table")), wanted[layer][head][rows][:, columns], **CLOSE)


def test_the_words_beside_the_numbers_are_true_of_the_layer(answered):
    explorer, _ = answered("bahdanau")
    panel = open_steps(explorer, layer=0, head=0, query=0)
    words = panel.locator('[data-stage="x"] .stage-words').text_content()
    assert "a vector of 16 numbers in x and of 32 in the memory" in words
    explorer, _ = answered("swin")
    panel = open_steps(explorer, layer=1, head=0, query=63)
    panel.get_by_role("switch", name="Mask").click()
    words = panel.locator('[data-stage="mask"]', has_text="No mask").locator(".stage-words").text_content()
    assert panel.locator('[data-stage="mask"] figcaption').inner_text().startswith("scores, unchanged")
    assert "later tokens" not in words  # places of a picture have no order
    panel.get_by_role("button", name="Reset", exact=True).click()


# -- switches

TWO_WORDS = {"transformer": "old dog", "gpt": "the dog", "bert": "old dog [MASK]", "t5": "old dog", "bahdanau": "old dog"}
HEADS = {  # a head of a module, a query of it, and the switches that have a meaning there
    "encoder": ("transformer", "encoder.1.attn", 1, 2, "Scale Mask Positions Shuffle"),
    "decoder": ("transformer", "decoder.1.attn", 2, 1, "Scale Mask Positions Shuffle"),
    "cross": ("transformer", "decoder.0.cross", 0, 2, "Scale Positions Shuffle"),
    "bahdanau": ("bahdanau", "decoder.cross", 0, 3, "Shuffle"),
    "gpt": ("gpt", "blocks.1.attn", 1, 2, "Scale Mask Positions Shuffle"),
    "bert": ("bert", "blocks.1.attn", 1, 2, "Scale Mask Positions Shuffle"),
    "t5": ("t5", "encoder.1.attn", 1, 2, "Mask Positions Shuffle"),
    "t5-decoder": ("t5", "decoder.1.attn", 0, 1, "Mask Positions Shuffle"),
    "vit": ("vit", "blocks.1.attn", 2, 6, "Scale Positions"),
    "swin": ("swin", "stages.0.blocks.0.attn", 1, 13, "Scale Positions"),
    "swin-shifted": ("swin", "stages.0.blocks.1.attn", 0, 63, "Scale Mask Positions"),  # a window at all four corners
    "swin-inner": ("swin", "stages.0.blocks.1.attn", 1, 27, "Scale Positions"),  # a shifted window that no edge divides
    "captioner": ("captioner", "decoder.cross", 0, 2, ""),
    "conformer": ("conformer", "encoder.1.attn", 1, 5, "Scale Positions"),
}  # fmt: skip
CHANGES = {  # the first stage that a switch changes, and what the formula has to change for it
    "Scale": ("scaled", {"scaled": False}), "Mask": ("mask", {"flip_mask": True}), "Positions": ("x", {"positions": False}),
    "Shuffle": ("x", {"shuffled": True}),
}  # fmt: skip


@pytest.mark.parametrize("place", HEADS)
def test_each_switch_changes_what_it_should_and_nothing_else(answered, predictors, inputs, place):
    family, name, head, query, enabled = HEADS[place]
    predictor, given = predictors[family], TWO_WORDS.get(family) or given_to(family, inputs)
    explorer, record = answered(family, given)
    model, read = predictor.model, explicit.model_input(family, predictor, given, record["answer"]["text"])
    [layer] = [layer["index"] for layer in record["layers"] if layer["name"] == name]
    panel, meaningful = open_steps(explorer, layer, head, query), enabled.split()
    controls = {switch: panel.get_by_role("switch", name=switch) for switch in CHANGES}
    temperature, reset = panel.get_by_label("Temperature"), panel.get_by_role("button", name="Reset", exact=True)

    def assert_changed(first: str, positions: bool = True, shuffled: bool = False, **changes: float) -> None:
        """The page shows the numbers of a changed head, and they are others than before, from the stage `first` on."""
        changed = model if positions else explicit.without_position_table(model)
        found = head_of(family, changed, name, head, swap_words(record, read) if shuffled else read, query)
        assert (found.stages(**changes)["weights"] - own.stages()["weights"]).abs().max() > 1e-3
        assert_shown(explorer, found, query, first, **changes)
        assert reset.is_visible()

    # As the model has them: a switch without a meaning is disabled.
    own = head_of(family, model, name, head, read, query)
    before = assert_shown(explorer, own, query)
    assert [switch for switch, control in controls.items() if control.is_enabled()] == meaningful
    on = [switch for switch in meaningful if controls[switch].is_checked()]
    assert on == [switch for switch in meaningful if switch in ("Scale", "Positions") or (switch == "Mask" and own.masked)]
    assert not reset.is_visible()

    # One after the other, each switched back.
    for switch in meaningful:
        first, changes = CHANGES[switch]
        controls[switch].click()
        assert_changed(first, **changes)
        controls[switch].click()
    temperature.fill("0.5")
    assert_changed("weights", temperature=10**0.5)

    # All at once, and back.
    for switch in meaningful:
        controls[switch].click()
    together = {key: value for switch in meaningful for key, value in CHANGES[switch][1].items()}
    first = next(stage for stage in STAGES if stage in [CHANGES[switch][0] for switch in meaningful] + ["weights"])
    assert_changed(first, temperature=10**0.5, **together)
    reset.click()
    for matrix, values in assert_shown(explorer, own, query).items():
        torch.testing.assert_close(values, before[matrix], rtol=0, atol=0)
    assert [switch for switch in meaningful if controls[switch].is_checked()] == on
    assert not reset.is_visible()


def swap_words(record: dict, read: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What a model reads if the two words of its input change places; special tokens and the answer stay where they are."""
    axis = record["axes"]["source" if "source" in record["axes"] else "tokens"]
    first, second = [word for word in axis["words"] if word["start"] not in axis["special"]][:2]
    ids = read[0][0].tolist()
    prompt = len(ids) - len(record["answer"]["items"]) if record["answer"]["kind"] == "continuation" else len(ids)
    end = min(second["end"], prompt)  # what is generated may go on with the last word
    assert first["end"] == second["start"]
    swapped = [*ids[: first["start"]], *ids[second["start"] : end], *ids[first["start"] : first["end"]], *ids[end:]]
    return torch.tensor([swapped]), *read[1:]
