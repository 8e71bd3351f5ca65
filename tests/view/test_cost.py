"""The cost of a model against the lecture's closed formulas and against a real model."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.models.transformer import SIZES, Transformer, TransformerConfig
from regard.view.cost import cost

law = settings(max_examples=8)


def encoder_flops(c: TransformerConfig, s: int) -> int:
    """Four projections and an mlp for each token; scores and mixing for each pair."""
    return c.depth * (2 * s * (4 + 2 * c.widen) * c.dim**2 + 4 * s * s * c.dim)


def decoder_flops(c: TransformerConfig, s: int, t: int) -> int:
    """As the encoder, and a look across whose keys and values are made of the source."""
    across = 2 * (2 * t + 2 * s) * c.dim**2 + 4 * t * s * c.dim
    return c.depth * (2 * t * (4 + 2 * c.widen) * c.dim**2 + 4 * t * t * c.dim + across)


def by_name(c: TransformerConfig, s: int, t: int):
    return {part.name.removesuffix(" (tied)"): part for part in cost("transformer", c, s, t)}


def test_the_base_models_encoder_costs_what_the_lecture_says():
    s, d = 100, 512
    assert by_name(SIZES["base"], s, 7)["encoder"].flops == 6 * s * 2 * 12 * d * d + 6 * 4 * s * s * d


@law
@given(
    s=st.integers(1, 40), t=st.integers(1, 40), heads=st.integers(1, 3), depth=st.integers(1, 3),
    widen=st.integers(1, 4), tied=st.booleans(), norm=st.sampled_from(["first", "last"]),
)  # fmt: skip
def test_flops_bytes_and_parameters_follow_their_formulas(s, t, heads, depth, widen, tied, norm):
    c = TransformerConfig(
        vocab=50, dim=8 * heads, depth=depth, heads=heads, widen=widen, tied=tied, norm=norm
    )  # fmt: skip
    parts = by_name(c, s, t)
    assert parts["embeddings"].flops == 0
    assert parts["encoder"].flops == encoder_flops(c, s)
    assert parts["decoder"].flops == decoder_flops(c, s, t)
    assert parts["output"].flops == 2 * t * c.dim * c.vocab
    assert parts["encoder"].score_bytes == 4 * depth * heads * s * s
    assert parts["decoder"].score_bytes == 4 * depth * heads * (t * t + t * s)
    assert all(part.bytes == 4 * part.parameters for part in parts.values())
    *others, whole = parts.values()
    for field in ("parameters", "flops", "bytes", "score_bytes"):
        assert getattr(whole, field) == sum(getattr(part, field) for part in others)
    assert whole.parameters == sum(p.numel() for p in Transformer(c).parameters())


@pytest.mark.parametrize(
    ("tied", "wanted"),
    [(True, {"embeddings": 18_944_000, "encoder": 18_915_328, "decoder": 25_225_216, "output (tied)": 0,
             "all": 63_084_544}),
     (False, {"embeddings": 37_888_000, "encoder": 18_915_328, "decoder": 25_225_216, "output": 18_981_000,
              "all": 101_009_544})],
    ids=["tied", "untied"],
)  # fmt: skip
def test_the_base_models_parameters_are_counted_part_by_part(tied, wanted):
    parts = cost("transformer", dataclasses.replace(SIZES["base"], tied=tied), 10, 10)
    assert {part.name: part.parameters for part in parts} == wanted


def test_learned_positions_count_as_embeddings():
    c = TransformerConfig(vocab=50, dim=8, depth=2, heads=2, positions="learned", longest=40)
    parts = by_name(c, 9, 7)
    assert parts["embeddings"].parameters == 50 * 8 + 2 * 40 * 8
    assert parts["encoder"].flops == encoder_flops(c, 9)
    assert parts["all"].parameters == sum(p.numel() for p in Transformer(c).parameters())


def test_counting_draws_no_random_numbers():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    cost("transformer", SIZES["tiny"], 5, 5)
    assert torch.equal(torch.get_rng_state(), before)
