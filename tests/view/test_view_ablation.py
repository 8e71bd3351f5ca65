"""What if: the answer equals a direct computation, of a copy of the model without the head, of a sentence without the word."""

import copy
import dataclasses

import pytest
import torch
from tiny_runs import PICTURES, TEXTS, write_inputs, write_runs
from torch import Tensor

from regard.data.text.batches import pad
from regard.layers.tap import attention_modules
from regard.tasks.load import load
from regard.view.ablation import ablate_record, importance
from regard.view.record import record_attention


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("ablation")
    return write_runs(home), write_inputs(home)


@pytest.fixture(scope="module")
def inspected(folders):
    """A predictor and a record of each family."""
    runs, inputs = folders
    predictors = {name: load(runs[name], device="cpu") for name in (*TEXTS, *PICTURES)}
    return {name: (p, record_attention(p, TEXTS.get(name) or inputs["picture.png"])) for name, p in predictors.items()}


def without_columns(model: torch.nn.Module, name: str, heads: list[int]) -> None:
    """Change a model: the output projection of an attention does not read these heads."""
    part = attention_modules(model)[name]
    width = part.out.in_features // part.heads
    with torch.no_grad():
        for head in heads:
            part.out.weight[:, head * width : (head + 1) * width] = 0


def changed_copy(predictor, name: str, heads: list[int]):
    other = dataclasses.replace(predictor, model=copy.deepcopy(predictor.model))
    without_columns(other.model, name, heads)
    return other


@torch.inference_mode()
def direct_logprobs(translator, source: list[int], target: list[int]) -> Tensor:
    read = torch.tensor([[translator.tokenizer.special.bos, *target[:-1]]])
    logits = translator.model(pad([source], translator.tokenizer.special), read)[0]
    return torch.stack([logits[i].log_softmax(-1)[token] for i, token in enumerate(target)])


@pytest.mark.parametrize("family", ["transformer", "t5"])
@pytest.mark.parametrize("off", [[0], [0, 2]])
def test_a_head_off_is_a_model_that_does_not_read_it(family, off, inspected):
    predictor, record = inspected[family]
    for index, layer in enumerate(record.layers):
        found = ablate_record(predictor.model, record, heads=[(index, head) for head in off])
        other = changed_copy(predictor, layer.name, off)
        wanted = direct_logprobs(other, record.rerun.source, record.rerun.target)
        torch.testing.assert_close(torch.tensor(found.changed.probabilities), wanted.exp(), rtol=1e-4, atol=1e-6)
        assert found.changed.logprob == pytest.approx(float(wanted.sum()), rel=1e-4)
        assert found.answer.text == record_attention(other, TEXTS[family]).answer.text
        base = direct_logprobs(predictor, record.rerun.source, record.rerun.target)
        assert found.base.logprob == pytest.approx(float(base.sum()), rel=1e-4)
        assert found.base.probabilities == pytest.approx([item.probability for item in record.answer.items], rel=1e-3)


def test_a_layer_off_is_all_its_heads_off(inspected):
    predictor, record = inspected["gpt"]
    layer = ablate_record(predictor.model, record, layers=[1])
    heads = ablate_record(predictor.model, record, heads=[(1, 0), (1, 1), (1, 2)])
    both = ablate_record(predictor.model, record, heads=[(1, 0)], layers=[1])
    assert layer == heads == both
    assert layer.changed != layer.base


@pytest.mark.parametrize("family", [*TEXTS, *PICTURES])
def test_nothing_off_changes_nothing(family, inspected):
    predictor, record = inspected[family]
    found = ablate_record(predictor.model, record)
    assert found.changed == found.base
    assert found.answer.text == record.answer.text
    everything = ablate_record(predictor.model, record, layers=range(len(record.layers)))
    assert everything.changed.logprob != pytest.approx(found.base.logprob, abs=1e-3)
    assert ablate_record(predictor.model, record) == found


def test_a_word_off_is_the_sentence_without_it(inspected):
    translator, record = inspected["transformer"]
    word = record.axes["source"].words[1]
    found = ablate_record(translator.model, record, words=[(word.start, word.end)])
    shorter = [token for i, token in enumerate(record.rerun.source) if not word.start <= i < word.end]
    wanted = direct_logprobs(translator, shorter, record.rerun.target)
    torch.testing.assert_close(torch.tensor(found.changed.probabilities), wanted.exp(), rtol=1e-4, atol=1e-6)
    text = " ".join(part for part in TEXTS["transformer"].split() if part != word.text.strip())
    assert found.answer.text == record_attention(translator, text).answer.text


@pytest.mark.parametrize(("given", "message"), [
    ({"words": [(0, 99)]}, "no word from token 0 to 99"),
    ({"words": [(3, 3)]}, "no word from token 3 to 3"),
    ({"words": [(0, 7)]}, "no word of the input is left"),
    ({"layers": [9]}, "no layer 9; this input has layers 0 to 5"),
    ({"heads": [(0, 7)]}, "no head 7; encoder layer 1, self-attention has heads 0 to 2"),
])  # fmt: skip
def test_what_is_not_there_cannot_be_switched_off(given, message, inspected):
    predictor, record = inspected["transformer"]
    with pytest.raises(ValueError, match=message):
        ablate_record(predictor.model, record, **given)


def test_masks_and_other_special_tokens_are_no_words(inspected):
    predictor, record = inspected["bert"]
    with pytest.raises(ValueError, match=r"token 2 \(\[MASK\]\) is no word"):
        ablate_record(predictor.model, record, words=[(2, 3)])


def test_images_have_no_words(inspected):
    predictor, record = inspected["vit"]
    with pytest.raises(ValueError, match="not text"):
        ablate_record(predictor.model, record, words=[(0, 1)])


def test_of_classes_the_first_is_the_answer(inspected):
    predictor, record = inspected["vit"]
    found = ablate_record(predictor.model, record, heads=[(0, 1)])
    other = changed_copy(predictor, record.layers[0].name, [1])
    with torch.inference_mode():
        image = predictor.to_input(record_image(record))
        wanted = other.model(image)[0].softmax(-1)
    best = predictor.labels.index(record.answer.text)
    assert found.changed.probabilities[0] == pytest.approx(float(wanted[best]), rel=1e-4)
    assert found.changed.logprob == pytest.approx(float(wanted[best].log()), rel=1e-3)


def record_image(record) -> object:
    """The picture that was recorded, as it was read."""
    import io

    from PIL import Image

    return Image.open(io.BytesIO(record.picture))


# Importance


@pytest.mark.parametrize("family", ["transformer", "bert", "swin"])
def test_importance_is_the_loss_of_each_single_ablation_largest_first(family, inspected):
    predictor, record = inspected[family]
    found = importance(predictor.model, record, searches=2)
    assert len(found.heads) == sum(layer.heads for layer in record.layers)
    assert len(found.layers) == len(record.layers)
    assert found.total == len(found.heads) + len(found.layers)
    for losses in (found.heads, found.layers):
        assert [loss.drop for loss in losses] == sorted((loss.drop for loss in losses), reverse=True)
        assert len({(loss.layer, loss.head) for loss in losses}) == len(losses)
    for loss in (found.heads[0], found.heads[-1]):
        single = ablate_record(predictor.model, record, heads=[(loss.layer, loss.head)])
        assert loss.drop == pytest.approx(single.base.logprob - single.changed.logprob, abs=1e-5)
    assert found.heads[0].answer == ablate_record(
        predictor.model, record, heads=[(found.heads[0].layer, found.heads[0].head)]
    ).answer.text  # fmt: skip
    assert [loss.answer is None for loss in found.heads[:3]] == [False, False, True]
    layer = found.layers[0]
    single = ablate_record(predictor.model, record, layers=[layer.layer])
    assert layer.drop == pytest.approx(single.base.logprob - single.changed.logprob, abs=1e-5)


def test_a_layer_of_one_head_is_listed_once(inspected):
    predictor, record = inspected["bahdanau"]
    found = importance(predictor.model, record)
    assert not found.heads
    assert [loss.layer for loss in found.layers] == [0]


def test_importance_stops_when_time_is_up_and_says_how_much_was_left(inspected):
    predictor, record = inspected["transformer"]
    found = importance(predictor.model, record, seconds=0.0)
    assert len(found.heads) + len(found.layers) == 1
    assert found.total == 24
    assert found.layers[0].answer is None


def test_a_record_of_a_copy_of_the_model_does_not_change_the_first(inspected):
    predictor, record = inspected["transformer"]
    plain = record.rerun.logprobs()
    importance(predictor.model, record, searches=1)
    assert torch.equal(record.rerun.logprobs(), plain)
    assert dataclasses.asdict(record.rerun.answer())["text"] == record.answer.text
