"""The numbers of the formula are those of the model: they follow from each other, and from its weights."""

import copy
import math

import pytest
import torch
from tiny_runs import LABELS, PICTURES, TEXTS, _write, write_inputs, write_runs
from torch import Tensor

from regard.data.image.config import ImageData
from regard.layers.positions import SinusoidalPositions, sinusoid
from regard.layers.tap import tap_of
from regard.tasks.load import load
from regard.view import attention_steps as steps_module
from regard.view.attention_steps import LECTURE_WORDS, AttentionSteps, attention_steps, lecture_steps, shuffle_words
from regard.view.record import Axis, Word, record_attention
from regard.view.words import piece_labels

FAMILIES = (*TEXTS, *PICTURES, "swin v2", "lrnet", "mvit", "mvit v1")
IMAGES = {
    "swin v2": ("swin", {"patch": 2, "dim": 8, "depths": [2], "heads": [2], "window": 4, "version": "v2"}),
    "lrnet": ("lrnet", {"stem": "cifar", "dim": 8, "widths": [8], "dims": [16], "depths": [1], "kernel": 3,
                        "channels_per_head": 4}),
    "mvit": ("mvit", {"patch": 2, "kernel": 3, "dim": 8, "heads": 2, "depths": [1, 2], "mlp_ratio": 2}),
    "mvit v1": ("mvit", {"patch": 2, "kernel": 3, "dim": 8, "heads": 2, "depths": [1, 2], "mlp_ratio": 2, "positions": "added",
                         "pooling": "max", "residual": "none"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def inspected(tmp_path_factory):
    """A predictor and a record of each family."""
    home = tmp_path_factory.mktemp("steps")
    folders, inputs = write_runs(home), write_inputs(home)
    for name, (family, values) in IMAGES.items():
        (home / name).mkdir()
        image, data = {"image": 16, "channels": 3, "classes": 3}, ImageData(train="none", resize=16)
        folders[name] = _write(home / name, family, {**image, **values}, "image_classification", data, labels=LABELS)
    predictors = {name: load(folders[name], device="cpu") for name in FAMILIES}
    return {name: (p, record_attention(p, TEXTS.get(name) or inputs["picture.png"])) for name, p in predictors.items()}


def every_layer(inspected, family: str, query: int = 1):
    predictor, record = inspected[family]
    for index, layer in enumerate(record.layers):
        head = layer.heads - 1
        yield layer, head, attention_steps(predictor.model, record, index, head, min(query, layer.shape[0] - 1))


def softmax_by_hand(steps: AttentionSteps) -> Tensor:
    """Weights from the scores, in plain Python."""
    rows = []
    for i in range(len(steps.queries)):
        logits = [
            steps.scale * float(steps.scores[i, j]) + (0.0 if steps.bias is None else float(steps.bias[i, j]))
            for j in range(len(steps.keys))
        ]
        seen = [steps.mask is None or bool(steps.mask[i, j]) for j in range(len(steps.keys))]
        most = max((x for x, may in zip(logits, seen, strict=True) if may), default=0.0)
        powers = [math.exp(x - most) if may else 0.0 for x, may in zip(logits, seen, strict=True)]
        rows.append([power / (sum(powers) or 1.0) for power in powers])
    return torch.tensor(rows)


def score_by_hand(steps: AttentionSteps, i: int, j: int) -> float:
    q, k = steps.q[i].tolist(), steps.k[j].tolist()
    if steps.formula == "additive":
        return sum(w * math.tanh(a + b) for w, a, b in zip(steps.vector[0].tolist(), q, k, strict=True))
    if steps.formula == "squared":
        return -((q[0] - k[0]) ** 2)
    return sum(a * b for a, b in zip(q, k, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_stages_follow_from_each_other_and_end_in_the_recorded_weights(family, inspected):
    for layer, head, steps in every_layer(inspected, family):
        last = len(steps.keys) - 1
        for i, j in ((0, 0), (steps.chosen, last), (len(steps.queries) - 1, 0)):
            assert float(steps.scores[i, j]) == pytest.approx(score_by_hand(steps, i, j), rel=1e-4, abs=1e-4)
        torch.testing.assert_close(softmax_by_hand(steps), steps.weights, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(steps.weights @ steps.v, steps.output, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(steps.weights.sum(-1), torch.ones(len(steps.queries)))
        recorded = layer.dense(head)
        for row, query in enumerate(steps.query_positions):
            for column, key in enumerate(steps.key_positions):
                if query >= 0 and key >= 0:
                    assert float(steps.weights[row, column]) == pytest.approx(float(recorded[query, key]), abs=1e-5)


@pytest.mark.parametrize(("family", "formula"), [
    ("transformer", "dot"), ("t5", "dot"), ("bahdanau", "additive"), ("captioner", "additive"), ("swin", "dot"),
    ("swin v2", "cosine"), ("lrnet", "squared"), ("mvit", "dot"),
])  # fmt: skip
def test_each_family_has_its_formula(family, formula, inspected):
    assert {steps.formula for _, _, steps in every_layer(inspected, family)} == {formula}


def test_scales_are_those_of_the_papers(inspected):
    assert {steps.scale for _, _, steps in every_layer(inspected, "transformer")} == {4**-0.5}
    assert {steps.scale for _, _, steps in every_layer(inspected, "t5")} == {1.0}
    predictor, _ = inspected["swin v2"]
    for layer, head, steps in every_layer(inspected, "swin v2"):
        temperature = predictor.model.get_submodule(layer.name).prepare.temperature[head]
        assert steps.scale == pytest.approx(float(temperature.exp().clamp(max=100)), rel=1e-5)
        torch.testing.assert_close(steps.q.norm(dim=-1), torch.ones(len(steps.q)))
        assert steps.scores.abs().max() <= 1 + 1e-5  # cosines


def test_queries_keys_and_values_are_products_of_the_inputs_with_the_weights(inspected):
    predictor, record = inspected["transformer"]
    for index, layer in enumerate(record.layers):
        steps, attn, head, width = (
            attention_steps(predictor.model, record, index, 2),
            predictor.model.get_submodule(layer.name),
            2,
            4,
        )
        source = steps.x if steps.memory is None else steps.memory
        for part, (given, computed) in enumerate(((steps.x, steps.q), (source, steps.k), (source, steps.v))):
            rows = slice(part * 12 + head * width, part * 12 + (head + 1) * width)
            torch.testing.assert_close(given @ attn.qkv.weight[rows].T + attn.qkv.bias[rows], computed)
        assert (steps.memory is None) == (layer.kind != "cross")


def test_a_recurrent_decoder_compares_its_state_with_the_source(inspected):
    predictor, record = inspected["bahdanau"]
    steps, score = attention_steps(predictor.model, record, 0, 0), predictor.model.decoder.cross.score
    torch.testing.assert_close(steps.q, steps.x @ score.query.weight.T)
    torch.testing.assert_close(steps.k, steps.memory @ score.key.weight.T)
    torch.testing.assert_close(steps.v, steps.memory)
    assert steps.queries == piece_labels(record.axes["answer"])
    assert steps.keys == piece_labels(record.axes["source"])


@pytest.mark.parametrize("family", ["swin", "swin v2", "lrnet"])
def test_a_window_is_the_one_that_holds_the_query(family, inspected):
    predictor, record = inspected[family]
    for query in (0, 5, 9):
        steps = attention_steps(predictor.model, record, 0, 0, query)
        assert steps.query_positions[steps.chosen] == query
        assert query in steps.key_positions
    assert len(steps.keys) == (9 if family == "lrnet" else 16)


# What is changed


def test_without_positions_the_numbers_are_those_of_a_model_whose_positions_are_zero(inspected):
    predictor, record = inspected["transformer"]
    plain = attention_steps(predictor.model, record, 1, 0)
    got = attention_steps(predictor.model, record, 1, 0, positions=False)
    tables = [part for part in predictor.model.modules() if isinstance(part, SinusoidalPositions)]
    kept = [table.table for table in tables]
    try:
        for table in tables:
            table.table = torch.zeros_like(table.table)
        zero = attention_steps(predictor.model, record, 1, 0)
    finally:
        for table, values in zip(tables, kept, strict=True):
            table.table = values
    torch.testing.assert_close(got.weights, zero.weights)
    torch.testing.assert_close(got.x, zero.x)
    assert not torch.allclose(got.weights, plain.weights, atol=1e-3)
    again = attention_steps(predictor.model, record, 1, 0)
    assert torch.equal(again.weights, plain.weights)
    assert all(tap_of(part) is None for part in predictor.model.modules())


def test_shuffled_words_move_with_their_numbers_only_if_positions_are_off(inspected):
    predictor, record = inspected["transformer"]
    axis, count = record.axes["source"], len(record.rerun.source)
    order = [*shuffle_words(axis, count, 3), *range(count, axis.size)]
    assert order != list(range(axis.size))
    for positions in (False, True):
        straight = attention_steps(predictor.model, record, 0, 1, positions=positions)
        moved = attention_steps(predictor.model, record, 0, 1, positions=positions, shuffle=3)
        assert moved.queries == [piece_labels(axis)[i] for i in order]
        same = torch.allclose(moved.weights, straight.weights[order][:, order], rtol=1e-4, atol=1e-5)
        assert same is not positions


def test_the_other_side_keeps_its_words_when_the_source_is_shuffled(inspected):
    predictor, record = inspected["transformer"]
    cross = len(record.layers) - 1
    steps = attention_steps(predictor.model, record, cross, 0, shuffle=3)
    assert steps.queries == piece_labels(record.axes["answer"])
    assert sorted(steps.keys) == sorted(piece_labels(record.axes["source"]))
    assert steps.keys != piece_labels(record.axes["source"])


def test_words_stay_whole_and_special_tokens_in_place_when_shuffled():
    words = [Word("<s>", 0, 1), Word("un", 1, 2), Word("believable", 2, 5), Word("cats", 5, 7), Word("</s>", 7, 8)]
    axis = Axis("tokens", 8, list("sabcdefg"), words, special=[0, 7])
    orders = {tuple(shuffle_words(axis, 8, seed)) for seed in range(20)}
    assert len(orders) == 5  # all orders of three words but the first
    for order in orders:
        assert sorted(order) == list(range(8))
        assert order[0] == 0
        assert order[-1] == 7
        for word in words:
            start = order.index(word.start)
            assert order[start : start + word.end - word.start] == tuple(range(word.start, word.end))
    assert shuffle_words(Axis("tokens", 1, ["a"], [Word("a", 0, 1)]), 1, 0) == [0]


# Bounds


def test_large_layers_are_cut_around_the_query_and_say_so(inspected, monkeypatch):
    predictor, record = inspected["vit"]
    whole = attention_steps(predictor.model, record, 1, 0, 9)
    monkeypatch.setattr(steps_module, "MAX_QUERIES", 4)
    monkeypatch.setattr(steps_module, "MAX_KEYS", 5)
    part = attention_steps(predictor.model, record, 1, 0, 9)
    assert part.query_positions == [7, 8, 9, 10]
    assert part.chosen == 2
    best = whole.weights[9].topk(5).indices.sort().values.tolist()
    assert part.key_positions == best
    torch.testing.assert_close(part.weights, whole.weights[7:11][:, best])
    torch.testing.assert_close(part.output, whole.output[7:11])  # of all keys
    assert part.notes == [
        "4 of 17 queries are shown, around the chosen one",
        "5 of 17 keys are shown, those with the most weight",
    ]


@pytest.mark.parametrize(("given", "message"), [
    ({"layer": 9, "head": 0}, "no layer 9; this input has layers 0 to 5"),
    ({"layer": 0, "head": 3}, "no head 3; encoder layer 1, self-attention has heads 0 to 2"),
    ({"layer": 0, "head": 0, "query": 99}, "no query 99"),
])  # fmt: skip
def test_what_is_not_there_is_refused(given, message, inspected):
    predictor, record = inspected["transformer"]
    with pytest.raises(ValueError, match=message):
        attention_steps(predictor.model, record, **given)


def test_the_words_of_an_image_cannot_be_shuffled(inspected):
    predictor, record = inspected["vit"]
    with pytest.raises(ValueError, match="not text"):
        attention_steps(predictor.model, record, 0, 0, shuffle=1)


def test_pooled_patches_have_no_row_for_each_query(inspected):
    notes = [steps.notes for _, _, steps in every_layer(inspected, "mvit")]
    assert any("pooled" in line for lines in notes for line in lines)


# The lecture


def test_the_lecture_has_six_words_of_512_numbers_and_one_head():
    steps = lecture_steps()
    assert " ".join(steps.queries) == "YOUR CAT IS A LOVELY CAT"
    assert steps.q.shape == steps.k.shape == steps.v.shape == steps.output.shape == (6, 512)
    assert steps.weights.shape == (6, 6)
    assert steps.scale == 512**-0.5
    torch.testing.assert_close(softmax_by_hand(steps), steps.weights, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(steps.x, steps.q)  # "the matrices Q, K and V are just the input sentence"


def test_the_diagonal_of_the_lecture_is_highest_and_rows_sum_to_one():
    for positions in (True, False):
        weights = lecture_steps(positions=positions).weights
        assert torch.equal(weights.max(-1).values, weights.diagonal())
        torch.testing.assert_close(weights.sum(-1), torch.ones(6))


def test_both_cats_are_the_same_only_without_positions():
    with_positions, without = lecture_steps(), lecture_steps(positions=False)
    assert torch.equal(without.x[1], without.x[5])
    torch.testing.assert_close(without.weights[1], without.weights[5])
    assert not torch.allclose(with_positions.weights[1], with_positions.weights[5], atol=0.01)
    torch.testing.assert_close(with_positions.x - sinusoid(6, 512), without.x)


def test_the_lecture_is_permutation_equivariant_without_positions():
    straight, moved = lecture_steps(positions=False), lecture_steps(positions=False, shuffle=4)
    assert sorted(moved.queries) == sorted(LECTURE_WORDS)
    assert moved.queries != list(LECTURE_WORDS)
    order = [straight.queries.index(word) for word in moved.queries]  # either CAT: they are the same
    torch.testing.assert_close(moved.output, straight.output[order])
    with_positions = lecture_steps(shuffle=4)
    assert not torch.allclose(with_positions.output, lecture_steps().output[order], atol=0.01)


def test_the_lecture_is_the_same_each_time_and_unscaled_scores_saturate():
    assert torch.equal(lecture_steps().weights, lecture_steps().weights)
    assert lecture_steps().scores.softmax(-1).diagonal().min() > 0.999


def test_recording_leaves_the_model_as_it_was(inspected):
    predictor, record = inspected["bert"]
    before = copy.deepcopy(predictor.model.state_dict())
    plain = record.rerun.logprobs()
    attention_steps(predictor.model, record, 0, 0, positions=False, shuffle=1)
    assert torch.equal(record.rerun.logprobs(), plain)
    for name, tensor in predictor.model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_steps_say_whether_there_are_positions_to_remove_and_a_later_token_to_mask(inspected):
    said = {}
    for family, (predictor, record) in inspected.items():
        steps = attention_steps(predictor.model, record, 0, 0)
        said[family] = (steps.has_positions, steps.same_tokens)
    assert said["bahdanau"] == said["captioner"] == (False, False)
    assert said["transformer"] == said["t5"] == said["gpt"] == said["bert"] == (True, True)
    assert said["vit"] == said["swin"] == said["lrnet"] == (True, False)
