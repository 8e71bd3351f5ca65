"""Attention maps of translations as plain data."""

import json

import pytest
import torch
from torch import nn

from regard.config import DecodeConfig, Run
from regard.data.text.batches import pad
from regard.data.text.config import TextData
from regard.data.text.tokenizer import BOS, EOS, train_bpe
from regard.decode.fast import decoder
from regard.layers.tap import tap_of, watch
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks.translation import Translator
from regard.view.maps import AttentionMap, map_attention, self_attention

LINES = ["the dog runs in the park", "a cat sits on the mat", "der hund rennt im park", "eine katze sitzt da"]
DEPTH, HEADS = 2, 3


@pytest.fixture(scope="module")
def translator() -> Translator:
    """An untrained model with large weights, so that all maps differ, which does not predict the end at once."""
    torch.manual_seed(0)
    tokenizer = train_bpe(LINES, 80)
    config = TransformerConfig(vocab=tokenizer.vocab, dim=12, depth=DEPTH, heads=HEADS, mlp_ratio=2, tied=False)
    model = Transformer(config)
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    with torch.no_grad():
        model.output.bias[EOS] = -100.0
    return Translator(
        model.eval(), tokenizer, Run("tiny", "transformer", config, data=TextData(), decode=DecodeConfig(beam_size=1))
    )


TEXT = "the cat runs"


def test_rows_are_output_tokens_and_columns_source_tokens(translator):
    attention = map_attention(translator, TEXT)
    answer = translator.translate([TEXT])[0]
    [source] = translator.tokenizer.encode([TEXT])
    cut = len(answer.tokens) == translator.max_answer(len(source))  # then it has no end token
    assert attention.rows == (answer.tokens if cut else [*answer.tokens, "</s>"])
    assert attention.columns == [*translator.tokenizer.ids_to_tokens(source), "</s>"]
    assert len(attention.weights) == len(attention.rows)
    assert all(len(row) == len(attention.columns) for row in attention.weights)


@pytest.mark.parametrize("layer", [None, 1, 2])
@pytest.mark.parametrize("head", [None, 1, 3])
def test_rows_sum_to_one(translator, layer, head):
    attention = map_attention(translator, TEXT, layer=layer, head=head)
    assert [sum(row) for row in attention.weights] == pytest.approx([1.0] * len(attention.rows), abs=1e-5)
    assert min(map(min, attention.weights)) >= 0


@pytest.mark.parametrize("layer", [None, 1, 2])
@pytest.mark.parametrize("head", [None, 1, 2, 3])
def test_the_map_is_the_mean_over_all_layers_or_heads_unless_one_is_given(translator, layer, head):
    tokenizer, model = translator.tokenizer, translator.model
    target = translator.translate([TEXT])[0].ids
    assert tokenizer.ids_to_tokens(target) == translator.translate([TEXT])[0].tokens
    with watch(model) as recorded, torch.inference_mode():
        model(pad(tokenizer.encode([TEXT]), tokenizer.special), torch.tensor([[BOS, *target]]))
    cross = torch.stack([recorded[f"decoder.{i}.cross"][0][0] for i in range(DEPTH)])  # (depth, H, Q, K)
    layers = range(DEPTH) if layer is None else [layer - 1]
    heads = range(HEADS) if head is None else [head - 1]
    wanted = sum(cross[i, j] for i in layers for j in heads) / (len(layers) * len(heads))
    got = map_attention(translator, TEXT, layer=layer, head=head)
    torch.testing.assert_close(torch.tensor(got.weights), wanted[: len(got.rows)])
    assert (f"layer {layer}" if layer else "mean of 2 layers") in got.title
    assert (f"head {head}" if head else "mean of 3 heads") in got.title


def test_a_row_is_the_attention_of_the_step_that_predicted_its_token(translator):
    tokenizer, model = translator.tokenizer, translator.model
    attention = map_attention(translator, TEXT, layer=1, head=1)
    with watch(model) as first, torch.inference_mode():
        steps = decoder(model)
        steps.step(torch.tensor([BOS]), steps.start(pad(tokenizer.encode([TEXT]), tokenizer.special)))
    torch.testing.assert_close(torch.tensor(attention.weights[0]), first["decoder.0.cross"][0][0, 0, 0])


@pytest.mark.parametrize(
    ("which", "message"),
    [({"layer": 0}, "no layer 0; this model has layers 1 to 2"), ({"layer": 3}, "no layer 3"),
     ({"head": 0}, "no head 0; this model has heads 1 to 3"), ({"head": 4}, "no head 4"), ({"layer": -1}, "layer -1")],
)  # fmt: skip
def test_a_layer_or_head_out_of_range_is_refused(translator, which, message):
    with pytest.raises(ValueError, match=message):
        map_attention(translator, TEXT, **which)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("layer", [None, 2])
def test_the_self_attention_of_each_side_is_that_of_the_model(translator, side, layer):
    tokenizer, model = translator.tokenizer, translator.model
    [answer], [source] = translator.translate([TEXT]), tokenizer.encode([TEXT])
    with watch(model) as recorded, torch.inference_mode():
        model(pad([source], tokenizer.special), torch.tensor([[BOS, *answer.ids]]))
    layers = range(DEPTH) if layer is None else [layer - 1]
    wanted = torch.stack([recorded[f"{side}.{n}.attn"][0][0].mean(0) for n in layers]).mean(0)
    attention = map_attention(translator, TEXT, which=side, layer=layer)
    torch.testing.assert_close(torch.tensor(attention.weights), wanted)
    tokens = ["<s>", *answer.tokens] if side == "decoder" else [*tokenizer.ids_to_tokens(source), "</s>"]
    assert attention.rows == attention.columns == tokens
    assert f"self-attention of the {side}" in attention.title


def test_the_decoders_mask_is_where_later_tokens_have_no_weight(translator):
    attention = map_attention(translator, TEXT, which="decoder", head=1)
    size = len(attention.rows)
    assert attention.mask == [[column <= row for column in range(size)] for row in range(size)]
    assert all(
        weight == 0 for y, row in enumerate(attention.weights) for x, weight in enumerate(row) if not attention.allows(y, x)
    )
    assert map_attention(translator, TEXT).mask is None
    assert map_attention(translator, TEXT, which="encoder").mask is None


def test_later_tokens_of_the_answer_change_no_earlier_row_of_the_decoder(translator):
    [answer], [source] = translator.translate([TEXT]), translator.tokenizer.encode([TEXT])
    whole = self_attention(translator, source, answer.ids, "decoder")
    part = self_attention(translator, source, answer.ids[:3], "decoder")
    torch.testing.assert_close(whole[:, :, :4, :4], part)


def test_answers_with_a_vocabulary_of_their_own_are_shown_in_it(translator):
    class TwoVocabularies(Translator):
        @property
        def answer_tokenizer(self):
            return train_bpe(["a quick brown fox jumps over lazy dogs", "hello there, general words"], 80)

    two = TwoVocabularies(translator.model, translator.tokenizer, translator.run)
    assert two.answer_tokenizer.vocab >= translator.tokenizer.vocab  # it has a name for every id
    [answer] = two.translate(two.encode([TEXT]))
    ids = answer.ids
    assert map_attention(two, TEXT).rows[: len(ids)] == two.answer_tokenizer.display(ids)
    assert map_attention(two, TEXT, which="decoder").rows[1:] == two.answer_tokenizer.display(ids)
    assert map_attention(two, TEXT).columns == map_attention(translator, TEXT).columns


def test_cross_is_the_default_and_other_names_are_refused(translator):
    assert map_attention(translator, TEXT, which="cross") == map_attention(translator, TEXT)
    with pytest.raises(ValueError, match="which 'both'; use encoder, decoder or cross"):
        map_attention(translator, TEXT, which="both")
    with pytest.raises(ValueError, match="beam 2 is for the answer"):
        map_attention(translator, TEXT, which="encoder", beam=2)


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_sentence_is_refused(translator, text):
    with pytest.raises(ValueError, match="an empty sentence has no attention to show"):
        map_attention(translator, text)


def test_mapping_attention_leaves_the_model_unchanged(translator):
    before = translator.translate([TEXT], beam=2)
    map_attention(translator, TEXT)
    assert translator.translate([TEXT], beam=2) == before
    assert all(tap_of(part) is None for part in translator.model.modules())


def test_json_round_trips():
    attention = AttentionMap("cross-attention", ["▁größe", "</s>"], ["▁size"], [[1.0], [0.25]])
    assert "größe" in attention.to_json()
    assert AttentionMap(**json.loads(attention.to_json())) == attention


def test_a_predictor_without_a_map_is_refused_with_its_verbs():
    class Captioner:
        VERBS = ("caption", "describe")

    with pytest.raises(ValueError, match=r"^no attention of a Captioner can be shown; use regard caption or describe$"):
        map_attention(Captioner(), TEXT)
