"""Maps of positions: the tables and biases are those of the model."""

import json
import math

import pytest
import torch
from PIL import Image

from regard.models import FAMILIES
from regard.view.positions import PositionMap, PositionPanel, load_for_positions, map_positions, to_file

SIZES = {
    "transformer": {"vocab": 20, "dim": 12, "depth": 1, "heads": 3},
    "gpt": {"vocab": 20, "dim": 12, "depth": 1, "heads": 3, "max_len": 10},
    "bert": {"vocab": 20, "dim": 12, "depth": 1, "heads": 3, "max_len": 10},
    "t5": {"vocab": 20, "dim": 12, "depth": 2, "heads": 3, "head_dim": 4, "mlp_dim": 16, "buckets": 8, "max_distance": 20},
    "vit": {"image": 12, "patch": 4, "dim": 12, "depth": 1, "heads": 3, "classes": 3},
    "swin": {"image": 16, "patch": 2, "dim": 8, "depths": [2, 2], "heads": [2, 4], "window": 4, "classes": 3},
    "mvit": {"image": 16, "patch": 2, "dim": 8, "depths": [1, 2], "stride": 2, "kernel": 3, "classes": 3},
    "lrnet": {"image": 13, "stem": "cifar", "dim": 6, "dims": [8, 8], "widths": [6, 6], "depths": [1, 1], "kernel": 3,
              "channels_per_head": 4, "classes": 3},
    "conformer": {"features": 8, "dim": 16, "depth": 1, "heads": 2, "kernel": 3, "subsample": 2, "vocab": 20},
}  # fmt: skip


def build(family: str, **changes):
    torch.manual_seed(0)
    return FAMILIES[family].build(FAMILIES[family].config(**{**SIZES[family], **changes}))


def test_sinusoids_are_those_of_the_paper_and_shown_once():
    table, similarity = map_positions(build("transformer"), "x", length=9).panels
    for position in range(9):
        for dim in range(12):
            angle = position / 10_000 ** (dim // 2 * 2 / 12)
            assert table.values[position][dim] == pytest.approx(math.cos(angle) if dim % 2 else math.sin(angle), abs=1e-5)
    dot = sum(a * b for a, b in zip(table.values[2], table.values[7], strict=True))
    assert similarity.values[2][7] == pytest.approx(dot / 6, abs=1e-5)  # each vector has length √6
    assert [row[n] for n, row in enumerate(similarity.values)] == pytest.approx([1.0] * 9)


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_learned_positions_end_with_the_context(family):
    model = build(family)
    table, similarity = map_positions(model, length=64).panels
    [learned] = [p for name, p in model.named_parameters() if p.shape == (10, 12) and "position" in name]
    assert torch.equal(torch.tensor(table.values), learned)
    assert len(similarity.values) == 10


def test_both_learned_tables_of_a_translator_are_shown():
    panels = map_positions(build("transformer", positions="learned", max_len=10)).panels
    assert [panel.title.split(":")[0] for panel in panels if panel.kind == "table"] == [
        "learned positions of the source", "learned positions of the target"]  # fmt: skip


def test_the_bias_of_a_t5_is_that_of_each_distance():
    model = build("t5")
    encoder, decoder = map_positions(model, length=6).panels
    positions = torch.arange(7)
    for panel, part in ((encoder, model.encoder_bias), (decoder, model.decoder_bias)):
        whole = part(positions, positions)[0].detach()  # (H, Q, K)
        for head in range(3):
            for query in range(7):
                for key in range(7 if part.bidirectional else query + 1):
                    distance = key - query
                    got = panel.values[head][distance - round(panel.first[0])]
                    assert got == pytest.approx(float(whole[head, query, key]))
    assert len(encoder.values[0]) == 13
    assert len(decoder.values[0]) == 7


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("layer", [1, 3])
def test_the_bias_of_a_swin_is_that_of_each_offset(version, layer):
    model = build("swin", version=version)
    block = [block for stage in model.stages for block in stage.blocks][layer - 1]
    found = map_positions(model, layer=layer)
    bias = block.bias(4)[0].detach().unflatten(1, (4, 4)).unflatten(3, (4, 4))  # (H, query row, column, key row, column)
    assert len(found.panels) == len(bias)
    for head, panel in enumerate(found.panels):
        for query in ((0, 0), (1, 3), (2, 2)):
            for key in ((0, 0), (3, 1), (2, 3)):
                got = panel.values[key[0] - query[0] + 3][key[1] - query[1] + 3]
                assert got == pytest.approx(float(bias[head, *query, *key]), abs=1e-6)
    assert found.title.endswith(f"layer {layer} of 4")
    assert found.panels[0].first == (-3, -3)


def test_the_small_maps_of_a_vit_are_the_similarities_of_its_patches():
    model = build("vit")
    table, similarity = map_positions(model).panels
    grid = torch.tensor(table.values)
    assert grid.shape == (9, 12)
    wanted = torch.nn.functional.cosine_similarity(grid[1 * 3 + 2], grid[2 * 3 + 0], dim=0)
    assert similarity.values[1 * 3 + 2][2 * 3 + 0] == pytest.approx(float(wanted), abs=1e-6)
    assert similarity.tile == 3


@pytest.mark.parametrize("family", SIZES)
def test_every_family_with_positions_is_drawn(family, tmp_path):
    found = map_positions(build(family), family, length=8)
    assert to_file(found, tmp_path / "map.png") == []
    with Image.open(tmp_path / "map.png") as drawn:
        assert drawn.width > 500
    assert repr(found) == f"PositionMap('{found.title}', {len(found.panels)} panels)"


def test_json_round_trips_and_a_notebook_shows_it(tmp_path):
    found = map_positions(build("t5"), "t5", length=8)
    found.save(tmp_path / "map.json")
    read = json.loads((tmp_path / "map.json").read_text())
    panels = [PositionPanel(**{**panel, "first": tuple(panel["first"])}) for panel in read["panels"]]
    assert PositionMap(read["title"], panels) == found
    assert found._repr_png_().startswith(b"\x89PNG")


def test_a_layer_or_a_length_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no layer 5; this model has layers 1 to 4"):
        map_positions(build("swin"), layer=5)
    with pytest.raises(ValueError, match="layer 1; all layers of this model share its positions"):
        map_positions(build("gpt"), layer=1)
    with pytest.raises(ValueError, match="length 1; use 2 to 2,048 positions"):
        map_positions(build("gpt"), length=1)


def test_a_model_without_positions_and_a_very_large_one_are_refused():
    name, model = load_for_positions("bahdanau-tiny")
    with pytest.raises(ValueError, match="bahdanau-tiny has no position embeddings or biases: recurrence or convolutions carry"):
        map_positions(model, name)
    with pytest.raises(ValueError, match=r"one layer of t5-11b has [\d,]+ parameters, and up to 150,000,000"):
        load_for_positions("t5-11b")


def test_the_verb_writes_a_file_and_never_overwrites_its_default(regard, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert regard("positions", "transformer-tiny").out.endswith("saved transformer-tiny-positions.png\n")
    assert regard("positions", "transformer-tiny", "--length", 8).out.endswith("saved transformer-tiny-positions-2.png\n")
    result = regard("positions", "transformer-tiny", "--out", "x.gif")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert regard("positions", "no-such").code == 2
