"""Laws of `attend`: the fused kernel, the explicit path and a loop of plain Python give the same numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.layers import attention
from regard.layers.attention import attend

law = settings(max_examples=40)
PATHS = pytest.mark.parametrize("need_weights", [False, True], ids=["fused", "explicit"])
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def by_hand(q, k, v, bias=None, mask=None, causal=False, scale=None):
    """Attention as the paper writes it, one query at a time, in float64: → mixed values and weights."""
    q, k, v = (x.detach().double().numpy() for x in (q, k, v))
    lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    queries, keys = q.shape[-2], k.shape[-2]
    bias = np.zeros(1) if bias is None else bias.detach().double().numpy()
    mask = np.ones(1, dtype=bool) if mask is None else mask.numpy()
    bias, mask = (np.broadcast_to(x, (*lead, queries, keys)) for x in (bias, mask))
    q, k, v = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (q, k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    mixed, weights = np.zeros((*lead, queries, v.shape[-1])), np.zeros((*lead, queries, keys))
    for at in np.ndindex(*lead):
        for i in range(queries):
            last = keys - queries + i if causal else keys - 1  # the last query has the position of the last key
            allowed = [j for j in range(keys) if mask[at][i, j] and j <= last]
            power = [math.exp(scale * float(q[at][i] @ k[at][j]) + bias[at][i, j]) for j in allowed]
            for j, p in zip(allowed, power, strict=True):
                weights[at][i, j] = p / sum(power)
                mixed[at][i] += p / sum(power) * v[at][j]
    return torch.from_numpy(mixed), torch.from_numpy(weights)


def close(got, wanted, dtype):
    atol = 2e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=atol)


@st.composite
def attention_inputs(draw):
    """Queries, keys and values with 2 to 5 dimensions, and a bias and a mask that broadcast to their scores."""
    random = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    lead = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    queries, keys, width, out = (draw(st.integers(1, 5)) for _ in range(4))

    def part_of(shape):
        kept = tuple(draw(st.sampled_from([size, size, 1])) for size in shape)
        return kept[draw(st.integers(0, max(0, len(kept) - 2))) :]

    def normal(*shape):
        return torch.randn(shape, generator=random, dtype=torch.float64)

    q, k, v = normal(*lead, queries, width), normal(*part_of((*lead, 9, 9))[:-2], keys, width), normal(*lead, keys, out)
    bias = normal(*part_of((*lead, queries, keys))) if draw(st.booleans()) else None
    mask = torch.rand(part_of((*lead, queries, keys)), generator=random) < 0.6 if draw(st.booleans()) else None
    scale = draw(st.sampled_from([None, 1.0, 0.3]))
    return (q, k, v), {"bias": bias, "mask": mask, "causal": draw(st.booleans()), "scale": scale}


def cast(inputs, dtype):
    qkv, options = inputs
    return [x.to(dtype) for x in qkv], {**options, "bias": None if options["bias"] is None else options["bias"].to(dtype)}


@TYPES
@PATHS
@law
@given(inputs=attention_inputs())
def test_attention_equals_a_loop_of_plain_python(need_weights, dtype, inputs):
    qkv, options = cast(inputs, dtype)
    mixed, weights = attend(*qkv, **options, need_weights=need_weights)
    wanted, wanted_weights = by_hand(*qkv, **options)
    assert mixed.shape == wanted.shape
    close(mixed, wanted, dtype)
    assert (weights is not None) == need_weights
    if need_weights:
        close(weights.expand_as(wanted_weights), wanted_weights, dtype)


@TYPES
@law
@given(inputs=attention_inputs())
def test_the_fused_kernel_and_the_explicit_path_have_the_same_gradients(dtype, inputs):
    found = []
    for short, need_weights in ((0, False), (attention.SHORT, False), (0, True)):
        qkv, options = cast(inputs, dtype)
        leaves = [x.clone().requires_grad_() for x in (*qkv, options["bias"]) if x is not None]
        options["bias"] = None if options["bias"] is None else leaves[3]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attention, "SHORT", short)
            mixed, _ = attend(*leaves[:3], **options, need_weights=need_weights)
        mixed.square().sum().backward()
        found.append([mixed, *(x.grad for x in leaves)])
    atol = 1e-4 if dtype == torch.float32 else 1e-10
    for fused, for_short, explicit in zip(*found, strict=True):
        assert fused.isfinite().all()
        torch.testing.assert_close(fused, explicit, rtol=1e-4, atol=atol)
        torch.testing.assert_close(for_short, explicit, rtol=1e-4, atol=atol)


def test_only_short_sequences_in_training_avoid_the_fused_kernel(monkeypatch):
    calls = []
    monkeypatch.setattr(attention, "_fused", lambda q, *rest: calls.append(q.shape[-2]) or q)
    for tokens, training in ((45, True), (46, True), (45, False)):
        x = torch.randn(2, tokens, 4, requires_grad=training)
        attend(x, x, x, causal=True)
    assert calls == [46, 45]


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("masked", ["none", "keys", "rows", "full"])
@pytest.mark.parametrize("with_bias", ["none", "shared", "by head"])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3)], ids=["2-D", "3-D", "4-D", "5-D"])
@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (1, 4), (2, 5), (5, 2)])
def test_both_paths_agree_for_every_combination_of_inputs(lead, queries, keys, with_bias, masked, causal):
    torch.manual_seed(len(lead))
    q, k, v = (torch.randn(*lead, n, 4) for n in (queries, keys, keys))
    heads = lead[-1:] or ()
    bias = {"none": None, "shared": torch.randn(queries, keys), "by head": torch.randn(*heads, queries, keys)}[with_bias]
    first = lead[:1] + (1,) * len(lead[1:])  # one for each sentence, shared by its heads
    mask = {
        "none": None,
        "keys": torch.rand(*first, 1, keys) < 0.6,
        "rows": torch.rand(queries, 1) < 0.6,
        "full": torch.rand(*lead, queries, keys) < 0.6,
    }[masked]
    wanted, wanted_weights = by_hand(q, k, v, bias, mask, causal)
    fused, no_weights = attend(q, k, v, bias=bias, mask=mask, causal=causal)
    explicit, weights = attend(q, k, v, bias=bias, mask=mask, causal=causal, need_weights=True)
    assert no_weights is None
    close(fused, wanted, torch.float32)
    close(explicit, wanted, torch.float32)
    close(weights, wanted_weights, torch.float32)


@PATHS
@TYPES
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "with_bias"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@law
@given(seed=st.integers(0, 1000), batch=st.integers(1, 3), queries=st.integers(1, 4), keys=st.integers(1, 6))
def test_a_fully_masked_query_gets_zeros_and_finite_gradients(
    need_weights, dtype, with_bias, training, seed, batch, queries, keys
):
    random = torch.Generator().manual_seed(seed)
    shapes = [(batch, 2, queries, 4), (batch, 2, keys, 4), (batch, 2, keys, 4), (1, 2, queries, keys)]
    leaves = [torch.randn(s, generator=random, dtype=dtype).requires_grad_(training) for s in shapes]
    mask = torch.rand((batch, 1, queries, keys), generator=random) < 0.7
    mask[0, :, 0] = False
    empty = ~mask.any(-1).expand(batch, 2, queries)
    mixed, weights = attend(*leaves[:3], bias=leaves[3] if with_bias else None, mask=mask, need_weights=need_weights)
    assert (mixed[empty] == 0).all()
    assert (mixed[~empty] != 0).any(-1).all()
    if need_weights:
        assert (weights[empty] == 0).all()
    if training:
        mixed.sum().backward()
        q, k, v, bias = (x.grad for x in leaves)
        assert (q[empty] == 0).all()
        assert all(g.isfinite().all() for g in (q, k, v))
        assert bias is None or bias.isfinite().all()


@PATHS
@law
@given(queries=st.integers(1, 6), more=st.integers(0, 6), seed=st.integers(0, 1000))
def test_causal_attention_aligns_the_last_query_with_the_last_key(need_weights, queries, more, seed):
    random = torch.Generator().manual_seed(seed)
    keys = queries + more
    q, k, v = (torch.randn((1, 2, n, 4), generator=random, dtype=torch.float64) for n in (queries, keys, keys))
    mixed, _ = attend(q, k, v, causal=True, need_weights=need_weights)
    for i in range(queries):
        visible = more + i + 1  # its own key, those before it, and the cache
        alone, _ = attend(q[:, :, i : i + 1], k[:, :, :visible], v[:, :, :visible], need_weights=need_weights)
        torch.testing.assert_close(mixed[:, :, i : i + 1], alone)


@PATHS
def test_causal_attention_with_more_queries_than_keys_masks_the_first_queries_fully(need_weights):
    q, k, v = torch.randn(5, 4), torch.randn(2, 4), torch.randn(2, 4)
    mixed, _ = attend(q, k, v, causal=True, need_weights=need_weights)
    assert (mixed[:3] == 0).all()
    torch.testing.assert_close(mixed[3], v[0])


@law
@given(inputs=attention_inputs())
def test_weights_sum_to_one_or_to_zero(inputs):
    (q, k, v), options = inputs
    _, weights = attend(q, k, v, **options, need_weights=True)
    sums = weights.sum(-1)
    assert ((sums - 1).abs().lt(1e-12) | (sums == 0)).all()


@law
@given(seed=st.integers(0, 1000), keys=st.integers(2, 6))
def test_the_order_of_the_keys_does_not_matter(seed, keys):
    random = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn((2, n, 4), generator=random, dtype=torch.float64) for n in (3, keys, keys))
    mask = torch.rand((2, 1, keys), generator=random) < 0.7
    order = torch.randperm(keys, generator=random)
    mixed, _ = attend(q, k, v, mask=mask)
    shuffled, _ = attend(q, k[:, order], v[:, order], mask=mask[..., order])
    torch.testing.assert_close(mixed, shuffled)
