"""Step functions against the layers they come from; `decoder` itself is tested in tests/laws."""

import pytest
import torch
from torch import Tensor, nn

from regard.decode.fast import CachedDecoder, column_major, decoder, step_function
from regard.layers.attention import QKVWithoutKeyBias
from regard.layers.biases import BucketedPositionBias
from regard.layers.embed import Embed, token_table
from regard.layers.linear import Linear, to_int8
from regard.layers.mlp import MLP, GatedMLP, gelu
from regard.layers.norm import PostNorm, PreNorm, ResPostNorm
from regard.layers.positions import LearnedPositions, SinusoidalPositions
from regard.models.bert import BERT, BERTConfig
from regard.models.image_gpt import ImageGPT, ImageGPTConfig
from regard.models.transformer import Transformer, TransformerConfig


@pytest.mark.parametrize(
    "make",
    [
        lambda: Linear(8, 5),
        lambda: Linear(8, 5, bias=False),
        lambda: to_int8(nn.Sequential(Linear(8, 5)))[0],
        lambda: nn.LayerNorm(8),
        lambda: nn.RMSNorm(8, eps=1e-6),
        nn.Identity,
        lambda: MLP(8, 12, gelu),
        lambda: GatedMLP(8, 12),
    ],
    ids=["linear", "no-bias", "int8", "layer-norm", "rms-norm", "identity", "mlp", "gated"],
)
def test_a_step_function_equals_its_layer(make):
    torch.manual_seed(0)
    layer, x = make(), torch.randn(3, 8)
    for p in layer.parameters():
        nn.init.normal_(p)
    with torch.no_grad():
        assert torch.equal(step_function(layer)(x), layer(x))


@pytest.mark.parametrize("int8", [False, True])
def test_a_step_function_computes_only_the_wanted_outputs_of_a_linear_layer(int8):
    torch.manual_seed(0)
    layer, x = Linear(8, 12), torch.randn(3, 8)
    layer = to_int8(nn.Sequential(layer))[0] if int8 else layer
    with torch.no_grad():
        assert torch.equal(step_function(layer, 4, 9)(x), layer.rows(x, 4, 9))


@pytest.mark.parametrize("kind", [PreNorm, PostNorm, ResPostNorm])
def test_the_step_function_of_a_residual_equals_the_module_in_eval_mode(kind):
    torch.manual_seed(0)
    residual, x, f = kind(8, 0.5), torch.randn(2, 3, 8), nn.Linear(8, 8)
    function = step_function(residual)  # before the weights are set: they are bound, not copied
    nn.init.normal_(residual.norm.weight)
    nn.init.normal_(residual.norm.bias)
    assert torch.equal(function(x, f), residual.eval()(x, f))


@pytest.mark.parametrize("positions", [SinusoidalPositions(8, 4), LearnedPositions(8, 12)], ids=["sinusoid", "learned"])
def test_the_step_function_of_an_embedding_puts_all_tokens_at_one_position(positions):
    embed = Embed(token_table(9, 8), positions, dropout=0.5)
    function, ids = step_function(embed.train()), torch.randint(9, (10,))  # no dropout, not even in training mode
    for position in range(10):  # also beyond the initial table
        got = function(ids, position)
        torch.testing.assert_close(got, embed.eval()(ids[:, None], start=position)[:, 0])
        embed.train()


def test_an_embedding_without_positions_is_looked_up_and_a_position_bias_stays_itself():
    table, ids = nn.Embedding(9, 4), torch.tensor([3, 0, 3])
    assert torch.equal(step_function(table)(ids, 7), table(ids))
    bias, positions = BucketedPositionBias(2, bidirectional=False), torch.arange(5)
    assert torch.equal(step_function(bias)(positions[-1:], positions), bias(positions[-1:], positions))


def test_a_layer_without_a_step_function_is_an_error_that_names_it():
    with pytest.raises(TypeError, match="QKVWithoutKeyBias has no step function"):
        step_function(QKVWithoutKeyBias(8, 24))


def test_a_model_with_start_and_step_is_its_own_decoder():
    class Recurrent:
        def start(self, source: Tensor) -> Tensor:
            return source[:, 0]

        def step(self, token: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            return token[:, None], state

    model = Recurrent()
    assert decoder(model) is model


def test_a_model_that_does_not_decode_is_an_error_that_names_it():
    with pytest.raises(TypeError, match="BERT does not decode"):
        decoder(BERT(BERTConfig(vocab=9, dim=8, depth=1, heads=2)))


def test_a_step_calls_no_modules():
    torch.manual_seed(0)
    model = ImageGPT(ImageGPTConfig(image=4, channels=1, dim=8, depth=2, heads=2)).eval()
    fast, called = decoder(model), []
    assert isinstance(fast, CachedDecoder)
    state = fast.start(torch.zeros(2, 3, dtype=torch.long))
    for part in model.modules():
        part.register_forward_hook(lambda *_: called.append(1))
    with torch.no_grad():
        logits, _ = fast.step(torch.tensor([1, 2]), state)
    assert not called
    assert logits.shape == (2, 9)


def test_column_major_weights_have_the_same_values_and_the_embedding_stays_row_major():
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocab=50, dim=8, depth=1, heads=2, dropout=0.0)).eval()
    source, target = torch.randint(4, 50, (3, 5)), torch.randint(4, 50, (3, 4))
    with torch.no_grad():
        wanted, names = model(source, target), set(model.state_dict())
        torch.testing.assert_close(column_major(model)(source, target), wanted)
    assert set(model.state_dict()) == names
    assert all(part.weight.t().is_contiguous() for part in model.modules() if isinstance(part, torch.nn.Linear))
    assert model.embed_source.tokens.weight.is_contiguous()
