"""What a translation looked at, as plain data."""

import json

import pytest
import torch
from torch import nn

from regard.config import DecodeConfig, Run
from regard.data.text.batches import pad
from regard.data.text.tokenizer import BOS, EOS, train_bpe
from regard.decode.fast import decoder
from regard.decode.translator import Translator
from regard.layers.tap import watch
from regard.models.transformer import Transformer, TransformerConfig
from regard.view.maps import AttentionMap, look

LINES = ["the dog runs in the park", "a cat sits on the mat", "der hund rennt im park", "eine katze sitzt da"]
DEPTH, HEADS = 2, 3


@pytest.fixture(scope="module")
def translator() -> Translator:
    """An untrained one, with large weights so that no two looks are alike, that does not end at once."""
    torch.manual_seed(0)
    tokenizer = train_bpe(LINES, 80)
    config = TransformerConfig(vocab=tokenizer.vocab, dim=12, depth=DEPTH, heads=HEADS, mlp_ratio=2, tied=False)
    model = Transformer(config)
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    with torch.no_grad():
        model.output.bias[EOS] = -100.0
    return Translator(model.eval(), tokenizer, Run("tiny", "transformer", config, decode=DecodeConfig(beam_size=1)))


TEXT = "the cat runs"


def test_rows_are_tokens_said_and_columns_tokens_read(translator):
    seen = look(translator, TEXT)
    said = translator.translate([TEXT])[0]
    [source] = translator.tokenizer.encode([TEXT])
    cut = len(said.tokens) == translator.limit(len(source))  # then its end was never said
    assert seen.rows == (said.tokens if cut else [*said.tokens, "</s>"])
    assert seen.columns == [*translator.tokenizer.tokens(source), "</s>"]
    assert len(seen.weights) == len(seen.rows)
    assert all(len(row) == len(seen.columns) for row in seen.weights)


@pytest.mark.parametrize("layer", [None, 1, 2])
@pytest.mark.parametrize("head", [None, 1, 3])
def test_rows_sum_to_one(translator, layer, head):
    seen = look(translator, TEXT, layer=layer, head=head)
    assert [sum(row) for row in seen.weights] == pytest.approx([1.0] * len(seen.rows), abs=1e-5)
    assert min(map(min, seen.weights)) >= 0


@pytest.mark.parametrize("layer", [None, 1, 2])
@pytest.mark.parametrize("head", [None, 1, 2, 3])
def test_the_map_is_of_the_layer_and_head_asked_for_and_the_mean_of_those_not_asked_for(translator, layer, head):
    tokenizer, model = translator.tokenizer, translator.model
    target = tokenizer.ids(translator.translate([TEXT])[0].tokens)
    with watch(model) as seen, torch.inference_mode():
        model(pad(tokenizer.encode([TEXT]), tokenizer.special), torch.tensor([[BOS, *target]]))
    cross = torch.stack([seen[f"decoder.{i}.cross"][0][0] for i in range(DEPTH)])  # (depth, H, Q, K)
    layers = range(DEPTH) if layer is None else [layer - 1]
    heads = range(HEADS) if head is None else [head - 1]
    wanted = sum(cross[i, j] for i in layers for j in heads) / (len(layers) * len(heads))
    got = look(translator, TEXT, layer=layer, head=head)
    torch.testing.assert_close(torch.tensor(got.weights), wanted[: len(got.rows)])
    assert (f"layer {layer}" if layer else "mean of 2 layers") in got.title
    assert (f"head {head}" if head else "mean of 3 heads") in got.title


def test_a_row_is_the_look_that_chose_its_token(translator):
    tokenizer, model = translator.tokenizer, translator.model
    seen = look(translator, TEXT, layer=1, head=1)
    with watch(model) as first, torch.inference_mode():
        (steps := decoder(model)).step(
            torch.tensor([BOS]), steps.start(pad(tokenizer.encode([TEXT]), tokenizer.special))
        )
    torch.testing.assert_close(torch.tensor(seen.weights[0]), first["decoder.0.cross"][0][0, 0, 0])


@pytest.mark.parametrize(
    ("which", "message"),
    [({"layer": 0}, "no layer 0; this model has layers 1 to 2"), ({"layer": 3}, "no layer 3"),
     ({"head": 0}, "no head 0; this model has heads 1 to 3"), ({"head": 4}, "no head 4"), ({"layer": -1}, "layer -1")],
)  # fmt: skip
def test_a_layer_or_head_that_is_not_there_is_refused(translator, which, message):
    with pytest.raises(ValueError, match=message):
        look(translator, TEXT, **which)


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_sentence_is_refused(translator, text):
    with pytest.raises(ValueError, match="an empty sentence has nothing to look at"):
        look(translator, text)


def test_looking_leaves_the_model_as_it_was(translator):
    before = translator.translate([TEXT], beam=2)
    look(translator, TEXT)
    assert translator.translate([TEXT], beam=2) == before
    assert all(getattr(part, "tap", None) is None for part in translator.model.modules())


def test_json_gives_the_map_back():
    seen = AttentionMap("cross-attention", ["▁größe", "</s>"], ["▁size"], [[1.0], [0.25]])
    assert "größe" in seen.to_json()
    assert AttentionMap(**json.loads(seen.to_json())) == seen
