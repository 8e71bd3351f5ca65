"""`attend` and `Attention` against torch's own layer; the laws of `attend` are in tests/laws."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regard.layers.attention import Attention, CosineAttention, QKVWithoutKeyBias, attend
from regard.layers.masks import causal_mask
from regard.layers.scores import Additive
from regard.layers.tap import watch

law = settings(max_examples=30)


def twins(dim: int, heads: int, seed: int) -> tuple[Attention, nn.MultiheadAttention]:
    """Our layer and torch's, with the same random weights and biases."""
    torch.manual_seed(seed)
    ours, theirs = Attention(dim, heads).double(), nn.MultiheadAttention(dim, heads, batch_first=True).double()
    for p in ours.parameters():
        nn.init.normal_(p, std=0.5)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.qkv.weight)
        theirs.in_proj_bias.copy_(ours.qkv.bias)
        theirs.out_proj.weight.copy_(ours.out.weight)
        theirs.out_proj.bias.copy_(ours.out.bias)
    return ours, theirs


@law
@given(
    seed=st.integers(0, 1000), batch=st.integers(1, 3), queries=st.integers(1, 5), keys=st.integers(1, 5),
    heads=st.sampled_from([1, 2, 4]), causal=st.booleans(), masked=st.booleans(), cross=st.booleans(),
)  # fmt: skip
def test_attention_equals_torchs_own_layer(seed, batch, queries, keys, heads, causal, masked, cross):
    ours, theirs = twins(8, heads, seed)
    x = torch.randn(batch, queries, 8, dtype=torch.float64)
    memory = torch.randn(batch, keys, 8, dtype=torch.float64) if cross else x
    real = torch.rand(batch, memory.shape[1]) < 0.6 if masked else torch.ones(batch, memory.shape[1], dtype=torch.bool)
    real[:, 0] = True  # torch's layer is NaN where every key is masked
    causal = causal and not cross
    wanted, wanted_weights = theirs(
        x, memory, memory, key_padding_mask=~real, average_attn_weights=False,
        attn_mask=~causal_mask(queries, queries) if causal else None,
    )  # fmt: skip
    mask = real[:, None, None] if masked else None
    got = ours(x, ours.keys_values(memory), mask=mask, causal=causal)
    with watch(ours) as recorded:
        watched = ours(x, ours.keys_values(memory), mask=mask, causal=causal)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(watched, wanted)
    torch.testing.assert_close(recorded[""][0], wanted_weights)


def test_gradients_equal_those_of_torchs_own_layer():
    ours, theirs = twins(8, 2, 3)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    ours(x, ours.keys_values(x)).square().sum().backward()
    theirs(x, x, x)[0].square().sum().backward()
    torch.testing.assert_close(ours.qkv.weight.grad, theirs.in_proj_weight.grad)
    torch.testing.assert_close(ours.qkv.bias.grad, theirs.in_proj_bias.grad)
    torch.testing.assert_close(ours.out.weight.grad, theirs.out_proj.weight.grad)


def test_a_bias_is_added_to_the_scores_of_each_head():
    ours, theirs = twins(8, 2, 0)
    x, bias = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 5, 5, dtype=torch.float64)
    wanted, _ = theirs(x, x, x, attn_mask=bias.repeat(2, 1, 1))
    torch.testing.assert_close(ours(x, ours.keys_values(x), bias=bias), wanted)


def test_the_last_tokens_attend_the_same_with_and_without_a_cache():
    torch.manual_seed(0)
    attn = Attention(8, 2)
    x = torch.randn(2, 6, 8)
    whole = attn(x, attn.keys_values(x), causal=True)
    torch.testing.assert_close(attn(x[:, 4:], attn.keys_values(x), causal=True), whole[:, 4:])


def test_a_width_that_does_not_split_into_heads_is_refused():
    with pytest.raises(ValueError, match="width 100 does not split into 8 heads; use a multiple of 8"):
        Attention(100, 8)


def test_a_new_layer_has_zero_biases_and_bounded_weights():
    attn = Attention(64, 4)
    assert not attn.qkv.bias.any()
    assert not attn.out.bias.any()
    assert attn.qkv.weight.abs().max() <= (6 / (64 + 3 * 64)) ** 0.5
    assert attn.out.weight.abs().max() <= (6 / (64 + 64)) ** 0.5


@pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
def test_dropout_zeroes_weights_and_keeps_their_mean(need_weights):
    torch.manual_seed(0)
    q, k, v = torch.zeros(2000, 4), torch.zeros(10, 4), torch.eye(10)  # each weight is 0.1, and v shows them
    mixed, _ = attend(q, k, v, dropout=0.25, need_weights=need_weights)
    dropped = mixed == 0
    torch.testing.assert_close(mixed[~dropped], torch.full_like(mixed[~dropped], 0.1 / 0.75))
    assert abs(dropped.float().mean().item() - 0.25) < 5 * (0.25 * 0.75 / mixed.numel()) ** 0.5


def test_returned_weights_are_those_before_dropout():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, 4)
    _, weights = attend(q, k, v, dropout=0.9, need_weights=True)
    torch.testing.assert_close(weights, attend(q, k, v, need_weights=True)[1], rtol=0, atol=0)


def test_the_layer_drops_weights_only_while_training():
    torch.manual_seed(0)
    attn = Attention(8, 2, dropout=0.5)
    x = torch.randn(1, 6, 8)
    memory = attn.keys_values(x)
    assert not torch.equal(attn.train()(x, memory), attn(x, memory))
    assert torch.equal(attn.eval()(x, memory), attn(x, memory))


@pytest.mark.parametrize("need_weights", [False, True])
def test_another_score_replaces_the_dot_product(need_weights):
    torch.manual_seed(0)
    score = Additive(4, 4, 6)
    q, k, v = torch.randn(2, 3, 4), score.keys(torch.randn(2, 3, 4)), torch.randn(2, 3, 4)
    mask = torch.tensor([True, True, False])[None, None]
    mixed, weights = attend(q, k, v, score=score, mask=mask, causal=True, need_weights=need_weights)
    allowed = mask & causal_mask(3, 3)
    wanted = score(q, k).masked_fill(~allowed, -torch.inf).softmax(-1)
    torch.testing.assert_close(mixed, wanted @ v)
    if need_weights:
        torch.testing.assert_close(weights, wanted)
    else:
        assert weights is None


@pytest.mark.parametrize("kind", ["mask", "bias"])
def test_a_one_dimensional_mask_or_bias_applies_to_the_keys(kind):
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    given_ = {kind: torch.tensor([True, True, False]) if kind == "mask" else torch.randn(3)}
    torch.testing.assert_close(attend(q, k, v, **given_)[0], attend(q, k, v, need_weights=True, **given_)[0])


def test_cosine_attention_scores_by_cosine_and_clamped_temperature():
    torch.manual_seed(0)
    prepare = CosineAttention(2, max_scale=3.0)
    attn, x, memory = Attention(8, 2, scale=1.0, prepare=prepare), torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    with torch.no_grad():
        prepare.temperature[:] = torch.tensor([1.0, 2.0])[:, None, None]  # e² is above the maximum
    q, kv = attn.queries(x), attn.keys_values(memory)
    alike = nn.functional.cosine_similarity(q[..., :, None, :], kv.keys[..., None, :, :], dim=-1)  # (1, H, Q, K)
    mixed = (alike * torch.tensor([math.e, 3.0])[:, None, None]).softmax(-1) @ kv.values
    wanted = attn.out(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attn(x, kv), wanted)


def test_a_projection_without_key_bias_equals_a_zero_key_bias():
    torch.manual_seed(0)
    attn = Attention(6, 2, project=QKVWithoutKeyBias)
    nn.init.normal_(attn.qkv.bias)
    plain, x = Attention(6, 2), torch.randn(2, 4, 6)
    with torch.no_grad():
        for mine, other in ((attn.qkv.weight, plain.qkv.weight), (attn.out.weight, plain.out.weight)):
            other.copy_(mine)
        plain.qkv.bias.copy_(attn.qkv.bias)
        plain.qkv.bias[6:12] = 0
    torch.testing.assert_close(attn(x), plain(x))
    torch.testing.assert_close(attn(x, attn.keys_values(x)), plain(x))  # separate projections equal the joint one
    attn(x).square().sum().backward()
    assert not attn.qkv.bias.grad[6:12].any()  # so it stays zero
    assert attn.qkv.bias.grad[:6].all()
