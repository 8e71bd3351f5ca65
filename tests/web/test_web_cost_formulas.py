"""The page's cost formulas are what torch counts: the same presets and other sizes, number by number."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from page_node import node_evaluates

import regard
from regard.models import preset
from regard.view.cost import cost, image_cost

PAGE = Path(regard.__file__).parent / "web" / "page"
TEXT = ("vocab", "dim", "depth", "heads", "mlp_ratio", "max_len")
IMAGE = ("image", "patch", "channels", "dim", "depth", "heads", "mlp_ratio", "classes")
SWIN = ("image", "patch", "channels", "dim", "depths", "heads", "window", "mlp_ratio", "classes")
KEYS = {"transformer": TEXT, "gpt": TEXT, "bert": TEXT, "vit": IMAGE, "swin": SWIN}
GIB, MIB, KIB = 2**30, 2**20, 2**10


@pytest.fixture(scope="module")
def evaluate() -> Iterator[Callable[[str], object]]:
    """The value of an expression of the modules cost.js and numbers.js, which have no other file to read."""
    with node_evaluates({"cost": PAGE / "cost.js", "numbers": PAGE / "parts" / "numbers.js"}) as ask:
        yield ask


def sizes(config: object, family: str) -> dict[str, object]:
    return {key: getattr(config, key) for key in KEYS[family]}


def test_the_presets_are_those_of_regard(evaluate):
    found = evaluate("cost.COST_PRESETS")
    assert set(found) == {"transformer-base", "gpt-small", "bert-base", "vit-base", "swin-tiny"}
    for name, values in found.items():
        family, config = preset(name)
        assert values == sizes(config, family), name


TEXTS = [
    ("transformer-base", {}, 25, 30),
    ("transformer-base", {"dim": 128, "depth": 4, "heads": 4, "mlp_ratio": 2, "vocab": 90}, 7, 1),
    ("gpt-small", {}, 100, 1), ("gpt-small", {"dim": 64, "depth": 3, "heads": 2, "max_len": 77}, 76, 1),
    ("bert-base", {}, 512, 1), ("bert-base", {"dim": 96, "depth": 2, "heads": 3, "vocab": 1000}, 33, 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "source", "target"), TEXTS)
def test_text_models_cost_what_torch_counts(evaluate, name, changes, source, target):
    family, config = preset(name)
    config = dataclasses.replace(config, **changes)
    lengths = f"{source}, {target}" if family == "transformer" else source
    found = evaluate(f"cost.{family}Cost({json.dumps(sizes(config, family))}, {lengths})")
    assert found == [part._asdict() for part in cost(family, config, source, target)]


IMAGES = [
    ("vit-base", {}), ("vit-base", {"image": 96, "patch": 8, "dim": 60, "depth": 2, "heads": 3, "classes": 10}),
    ("swin-tiny", {}), ("swin-tiny", {"image": 60, "patch": 2, "dim": 24, "depths": [2, 1], "heads": [2, 4], "window": 4}),
    ("swin-tiny", {"image": 36, "patch": 4, "dim": 24, "depths": [1, 2, 1], "heads": [2, 4, 4], "window": 7, "classes": 10}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), IMAGES)
def test_image_models_cost_what_torch_counts(evaluate, name, changes):
    family, config = preset(name)
    config = dataclasses.replace(config, **changes)
    found = evaluate(f"cost.{family}Cost({json.dumps(sizes(config, family))})")
    assert found == [part._asdict() for part in cost(family, config, 1, 1)]


def test_a_window_as_long_as_the_text_is_no_restriction(evaluate):
    base = "cost.COST_PRESETS['transformer-base']"
    full, wide, narrow = evaluate(f"[{base}].flatMap(c => [Infinity, 40, 8].map(w => cost.transformerCost(c, 40, 30, w)))")
    assert wide == full
    both = 4 * 6 * 8 * (40 * 8 + 30 * 8 + 30 * 40)  # encoder, decoder; cross-attention reads the whole source
    assert narrow[-1]["score_bytes"] == both
    assert full[-1]["flops"] - narrow[-1]["flops"] == 6 * 4 * 512 * (40 * 32 + 30 * 22)


@pytest.mark.parametrize(("image", "patch", "depth", "heads", "head", "everything"), [
    (128, 1, 48, 16, 1 * GIB, 768 * GIB),  # the notes' Transformer on pixels
    (224, 16, 48, 16, 150.0625 * KIB, 112.546875 * MIB), (256, 16, 48, 16, 256 * KIB, 192 * MIB),  # and on patches
])  # fmt: skip
def test_scores_of_images_are_those_of_the_notes(evaluate, image, patch, depth, heads, head, everything):
    given = json.dumps({"image": image, "patch": patch, "depth": depth, "heads": heads})
    found = evaluate(f"cost.globalScores({given})")
    assert (found["head_bytes"], found["all_bytes"]) == (head, everything)
    if patch > 1:
        family, config = preset("vit-base")
        counted = image_cost(family, dataclasses.replace(config, image=image, patch=patch, pool="mean"))
        assert (found["tokens"], found["entries"]) == (counted.tokens, counted.entries)


def test_windows_have_a_64th_of_the_scores(evaluate):
    full = evaluate("cost.globalScores({image: 224, patch: 4, depth: 1, heads: 1}).entries")
    windows = evaluate("cost.windowScores({image: 224, patch: 4, window: 7, depth: 1, heads: 1}).entries")
    family, config = preset("swin-tiny")
    assert (full, windows) == (56**4, 153_664)
    assert windows == image_cost(family, config).entries
    assert full == 64 * windows


def test_the_table_of_layers_is_that_of_the_notes(evaluate):
    n, d, k, r = 50, 512, 3, 7
    rows = evaluate(f"cost.layerComplexities({{length: {n}, width: {d}, kernel: {k}, window: {r}}})")
    assert [row["operations"] for row in rows] == [n * n * d, n * d * d, k * n * d * d, r * n * d]
    assert [row["formula"] for row in rows] == ["n² · d", "n · d²", "k · n · d²", "r · n · d"]


@pytest.mark.parametrize(("call", "text"), [
    ("numbers.compactCount(63084544)", "63.1 M"), ("numbers.compactCount(999)", "999"), ("numbers.compactCount(9999)", "9,999"),
    ("numbers.compactCount(37000)", "37.0 k"), ("numbers.compactCount(3.587e9)", "3.59 G"),
    ("numbers.compactCount(999499)", "999 k"), ("numbers.compactCount(999700)", "1.00 M"),
    ("cost.bytesText(112.546875 * 2 ** 20)", "112.5 MiB"), ("cost.bytesText(12)", "12 bytes"),
])  # fmt: skip
def test_numbers_are_readable(evaluate, call, text):
    assert str(evaluate(call)).replace("\N{NO-BREAK SPACE}", " ") == text
