"""Step by step, for every family: each stage of a head is what its formula gives, and each switch changes what it should.

What is wanted comes from the weights of the model and from hooks (explicit_stages.py); what is found is read from the page.
"""

from dataclasses import dataclass

import explicit
import pytest
import torch
from explicit_stages import Head, head_of
from explorer_page import READ_CELLS, ExplorerPage, read_table, to_numbers
from test_web_browser_truth import CLOSE, EACH
from tiny_runs import TEXT, given_to
from torch import Tensor

STAGES = ("x", "qkv", "scores", "scaled", "bias", "mask", "weights", "output")
READ_STAGES = f"""panel => {{
  const all = [...panel.querySelectorAll("[data-matrix]")];
  const weights = all.find(matrix => matrix.dataset.matrix === "weights");
  return {{
    matrices: all.map(matrix => [matrix.dataset.matrix, {READ_CELLS}(matrix)]),
    rows: weights.dataset.rows.split(",").map(Number),
    columns: weights.dataset.columns.split(",").map(Number),
    stages: [...panel.querySelectorAll("[data-stage]")].map(({{dataset}}) => [dataset.stage, dataset.changed === "true"]),
  }};
}}"""


@dataclass
class Shown:
    """What the view shows: its matrices, of which queries and keys, and which stages are marked as changed."""

    matrices: dict[str, Tensor]
    rows: list[int]
    columns: list[int]
    stages: list[tuple[str, bool]]


def open_steps(explorer: ExplorerPage, layer: int, head: int, query: int):
    """The numbers of one query of a head of the input."""
    panel = explorer.open("steps")
    if not panel.get_by_label("Your input").is_checked():
        panel.locator("label", has_text="Your input").click()
    for label, value in (("Layer", layer), ("Head", head), ("Query", query)):
        explorer.settled()
        choice = panel.get_by_label(label, exact=True)
        if choice.evaluate("one => one.selectedIndex") != value:
            choice.select_option(index=value)  # a value would also match a label
    explorer.settled()
    return panel


def read_stages(explorer: ExplorerPage) -> Shown:
    """All that the view shows, every column of it."""
    panel = explorer.page.locator("#panel-steps")
    explorer.settled()
    more = panel.locator(".stage-more", has_text="Show all")
    for _ in range(more.count()):
        more.first.click()
        explorer.settled()
    found = panel.evaluate(READ_STAGES)
    matrices = {name: to_numbers(cells) for name, cells in found["matrices"]}
    assert len(matrices) == len(found["matrices"])
    return Shown(matrices, found["rows"], found["columns"], found["stages"])


def assert_shown(explorer: ExplorerPage, head: Head, query: int, changed: str = "", **switches: float) -> dict[str, Tensor]:
    """The page shows the stages of a head and no other, at some of its queries and keys, and marks all from `changed` on."""
    shown, wanted = read_stages(explorer), head.stages(**switches)
    assert shown.matrices.keys() - {"contributions"} == wanted.keys()
    rows = [head.queries.index(position) for position in shown.rows]
    columns = [head.keys.index(position) for position in shown.columns]
    at = head.queries.index(query)
    assert at in rows
    assert (len(rows), len(columns)) == (min(8, len(head.queries)), min(10, len(head.keys)))
    weights = wanted["weights"][at]
    assert weights[columns].sum() >= weights.topk(len(columns)).values.sum() - 1e-4  # the keys with the most weight
    wanted["contributions"] = torch.cat(((weights[:, None] * head.v)[columns], wanted["output"][at : at + 1]))
    for name, values in shown.matrices.items():
        part = wanted[name]
        if name == "contributions":
            part = part[:, : values.shape[1]]  # of wide values the first numbers
        elif name in ("x", "q", "output"):
            part = part[rows]
        else:
            part = part[columns] if name in ("memory", "k", "v") else part[rows][:, columns]
        torch.testing.assert_close(values, part, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")
    names = [name for name, _ in shown.stages]
    assert [name for name, marked in shown.stages if marked] == (names[names.index(changed) :] if changed else [])
    return shown.matrices


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
    found = read_stages(explorer).matrices
    wanted = (found["x"] @ found["x"].T / 512**0.5).softmax(-1)  # q, k and v are the input itself
    torch.testing.assert_close(found["weights"], wanted, **CLOSE)
    torch.testing.assert_close(found["output"], wanted @ found["x"], **CLOSE)
    panel.get_by_role("switch", name="Positions").click()
    panel.locator('[data-stage="x"][data-changed="true"]').wait_for()
    cat, other_cat = read_stages(explorer).matrices["weights"][[1, 5]]
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
CHANGES = {  # the first stage that a switch changes, from the last one on, and what the formula has to change for it
    "Mask": ("mask", {"flip_mask": True}), "Scale": ("scaled", {"scaled": False}), "Shuffle": ("x", {"shuffled": True}),
    "Positions": ("x", {"positions": False}),  # the last: without positions some heads do not see the order
}  # fmt: skip
STATES = "all => all.map(one => [one.labels[0].textContent, one.disabled, one.checked])"


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

    def changed_head(positions: bool = True, shuffled: bool = False, **changes: float) -> tuple[Head, dict[str, float]]:
        """The head with these changes of what it reads, and the changes that are of its formula."""
        changed = model if positions else explicit.without_position_table(model)
        return head_of(family, changed, name, head, swap_words(record, read) if shuffled else read, query), changes

    def assert_changed(first: str, changes: dict[str, float], before: dict[str, float]) -> None:
        """The page shows the numbers of a changed head, from the stage `first` on, and they are others than before."""
        (now, formula), (was, old) = changed_head(**changes), changed_head(**before)
        assert (now.stages(**formula)["weights"] - was.stages(**old)["weights"]).abs().max() > 1e-3
        assert_shown(explorer, now, query, first, **formula)
        assert reset.is_visible()

    # As the model has them: a switch without a meaning is disabled.
    own = head_of(family, model, name, head, read, query)
    before = assert_shown(explorer, own, query)
    states = panel.get_by_role("switch").evaluate_all(STATES)
    found = {switch: state for text, *state in states for switch in CHANGES if text.startswith(switch)}
    assert [switch for switch, (disabled, _) in found.items() if not disabled] == meaningful
    on = [switch for switch in meaningful if found[switch][1]]
    assert on == [switch for switch in meaningful if switch in ("Scale", "Positions") or (switch == "Mask" and own.masked)]
    assert not reset.is_visible()

    # One after the other, from the end of the formula to its start: each changes what is shown from a stage on that no one had.
    together = {"temperature": 10**0.5}
    temperature.fill("0.5")
    assert_changed("weights", together, {})
    for switch in [switch for switch in CHANGES if switch in meaningful]:
        first, changes = CHANGES[switch]
        controls[switch].click()
        assert_changed(first, together | changes, together)
        together |= changes

    # Some by hand and the others at once back to what they were.
    back, left = meaningful[::2], {**together}
    for switch in back:
        controls[switch].click()
        for change in CHANGES[switch][1]:
            del left[change]
    if back:
        first = min((CHANGES[switch][0] for switch in meaningful[1::2]), key=STAGES.index, default="weights")
        assert_changed(first, left, together)
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
