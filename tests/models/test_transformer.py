"""The Transformer: its counts, its config, its tying, and the wiring of Figure 1."""

import dataclasses

import pytest
import torch
from torch import nn

from regard.decode.fast import decoder
from regard.layers.attention import Attention
from regard.models import preset
from regard.models.transformer import SIZES, Transformer, TransformerConfig


def tiny(**changes) -> Transformer:
    torch.manual_seed(0)
    sizes = {"vocab": 11, "dim": 8, "depth": 3, "heads": 2, "mlp_ratio": 2, "max_len": 16, **changes}
    return Transformer(TransformerConfig(**sizes)).eval()


def count(config: TransformerConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in Transformer(config).parameters())


# Counts


@pytest.mark.parametrize(
    ("size", "changes", "wanted"),
    [
        ("base", {}, 63_084_544),
        ("base", {"tied": False}, 101_009_544),
        ("base", {"norm": "post"}, 63_084_544 - 2 * 2 * 512),  # without the two final norms
        ("tiny", {"vocab": 10_000, "norm": "post"}, 2_605_056),
    ],
)
def test_parameter_counts_are_exact(size, changes, wanted):
    assert count(dataclasses.replace(SIZES[size], **changes)) == wanted


def test_the_base_model_without_its_embeddings_has_44_million_parameters():
    assert count(SIZES["base"]) - 37_000 * 512 == 44_140_544


@pytest.mark.parametrize("size", SIZES)
def test_every_size_has_the_parameter_count_of_the_formula(size):
    c = SIZES[size]
    attention, mlp, norm = 4 * c.dim**2 + 4 * c.dim, 2 * c.mlp_ratio * c.dim**2 + (c.mlp_ratio + 1) * c.dim, 2 * c.dim
    encoder, decoder = attention + mlp + 2 * norm, 2 * attention + mlp + 3 * norm
    assert count(c) == c.depth * (encoder + decoder) + 2 * norm + c.vocab * c.dim
    assert preset(f"transformer-{size}") == ("transformer", c)


def test_learned_positions_are_counted_for_source_and_target():
    plain = count(SIZES["base"])
    assert count(dataclasses.replace(SIZES["base"], positions="learned")) == plain + 2 * 512 * 512


# Config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 100}, "width 100 does not split into 8 heads; use a multiple of 8"),
        ({"vocab": 0}, "vocab is 0; use 1 or more"),
        ({"depth": 0}, "depth is 0; use 1 or more"),
        ({"heads": -8}, "heads is -8; use 1 or more"),
        ({"mlp_ratio": 0}, "mlp_ratio is 0; use 1 or more"),
        ({"max_len": 0}, "max_len is 0; use 1 or more"),
        ({"dropout": 1.0}, "dropout is 1.0; use 0 or more and less than 1"),
        ({"attention_dropout": -0.1}, "attention_dropout is -0.1; use 0 or more and less than 1"),
        ({"dropout": float("nan")}, "dropout is nan"),
        ({"norm": "middle"}, "'pre' or 'post'"),
        ({"positions": "rotary"}, "'sinusoid' or 'learned'"),
        ({"dim": 512.5}, "dim"),
        ({"dim": "512"}, "dim"),
        ({"d_model": 512}, "d_model"),
        ({"heads": 0}, "heads is 0; use 1 or more"),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)  # fmt: skip
def test_an_invalid_config_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**changes)


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SIZES["base"].dim = 1


def test_an_unknown_size_names_the_nearest():
    with pytest.raises(ValueError, match=r"did you mean 'transformer-base'\?"):
        preset("transformer-bose")


# Tying


def test_a_tied_model_has_one_matrix_for_source_target_and_output():
    model = tiny()
    assert model.embed_source.tokens.weight is model.embed_target.tokens.weight is model.output.weight
    assert model.output.bias is None


def test_an_untied_model_has_three_matrices_and_an_output_bias():
    model = tiny(tied=False)
    tables = (model.embed_source.tokens.weight, model.embed_target.tokens.weight, model.output.weight)
    assert len({table.data_ptr() for table in tables}) == 3
    assert model.output.bias is not None


def test_the_gradient_of_a_tied_matrix_is_the_sum_over_its_three_uses():
    tied, untied = tiny(), tiny(tied=False)
    shared = {name: p for name, p in tied.named_parameters() if "tokens" not in name and "output" not in name}
    with torch.no_grad():
        for name, p in untied.named_parameters():
            if name == "output.bias":
                p.zero_()
            else:
                p.copy_(shared.get(name, tied.output.weight))
    source, target = torch.randint(1, 11, (2, 4)), torch.randint(1, 11, (2, 3))
    for model in (tied, untied):
        model(source, target).square().sum().backward()
    parts = (untied.embed_source.tokens, untied.embed_target.tokens, untied.output)
    torch.testing.assert_close(tied.output.weight.grad, sum(part.weight.grad for part in parts))


# Wiring


def spied(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The memory passed to each decoder block's cross-attention, in order."""
    given = []
    for block in model.decoder:
        project = block.cross.keys_values
        monkeypatch.setattr(block.cross, "keys_values", lambda x, project=project: given.append(x) or project(x))
    return given


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_decoder_block_attends_to_the_encoders_last_layer(norm, monkeypatch):
    model, source, target = tiny(norm=norm), torch.randint(1, 11, (2, 5)), torch.randint(1, 11, (2, 4))
    given = spied(model, monkeypatch)
    model(source, target)
    assert len(given) == 3
    assert all(memory is given[0] for memory in given)
    assert torch.equal(given[0], model.encode(source)[0])
    x = model.embed_source(source)
    for block in model.encoder:
        x = block(x, (source != 0)[:, None, None])
    torch.testing.assert_close(given[0], model.encoder_norm(x))


def test_decoding_projects_the_memory_once(monkeypatch):
    model, source = tiny(), torch.randint(1, 11, (2, 5))
    given = spied(model, monkeypatch)
    fast = decoder(model)
    state = fast.start(source)
    for token in torch.randint(1, 11, (4, 2)):
        _, state = fast.step(token, state)
    assert len(given) == 3
    assert all(memory is given[0] for memory in given)


def test_attention_dropout_applies_in_training_and_never_in_a_decoding_step():
    model, source = tiny(attention_dropout=0.9), torch.randint(1, 11, (2, 5))
    assert {part.dropout for part in model.modules() if isinstance(part, Attention)} == {0.9}
    state, token = decoder(model).start(source), torch.tensor([1, 1])
    fast = decoder(model.train())
    first, second = (fast.step(token, state)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_only_pre_norm_has_a_final_norm():
    pre, post = tiny(norm="pre"), tiny(norm="post")
    assert isinstance(pre.encoder_norm, nn.LayerNorm)
    assert isinstance(pre.decoder_norm, nn.LayerNorm)
    assert not list(post.encoder_norm.parameters())
    assert not list(post.decoder_norm.parameters())
    for model in (pre, post):
        assert "mlp_residual.norm.weight" in dict(model.decoder[0].named_parameters())


def test_post_norm_features_have_mean_zero_and_variance_one():
    features = tiny(norm="post").features(torch.randint(1, 11, (2, 5)), torch.randint(1, 11, (2, 4)))
    torch.testing.assert_close(features.mean(-1), torch.zeros(2, 4), rtol=0, atol=1e-6)
    torch.testing.assert_close(features.var(-1, unbiased=False), torch.ones(2, 4), rtol=0, atol=1e-3)


def test_logits_are_the_output_layer_on_the_features():
    model, source, target = tiny(), torch.randint(1, 11, (2, 5)), torch.randint(1, 11, (2, 4))
    torch.testing.assert_close(model(source, target), model.features(source, target) @ model.output.weight.T)


def test_dropout_acts_only_while_training():
    model, source, target = tiny(dropout=0.3), torch.randint(1, 11, (2, 5)), torch.randint(1, 11, (2, 4))
    assert torch.equal(model(source, target), model(source, target))
    model.train()
    assert not torch.equal(model(source, target), model(source, target))


def test_a_sentence_longer_than_the_learned_positions_is_refused():
    model = tiny(positions="learned")
    model(torch.ones(1, 16, dtype=torch.long), torch.ones(1, 16, dtype=torch.long))
    with pytest.raises(ValueError, match="17 tokens are more than the 16 learned positions"):
        model(torch.ones(1, 17, dtype=torch.long), torch.ones(1, 3, dtype=torch.long))


def test_the_sinusoid_takes_any_length():
    logits = tiny()(torch.ones(1, 40, dtype=torch.long), torch.ones(1, 50, dtype=torch.long))
    assert logits.shape == (1, 50, 11)
