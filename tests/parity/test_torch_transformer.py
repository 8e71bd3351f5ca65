"""Our Transformer is torch.nn.Transformer: the same weights give the same logits and the same gradients.

Shapes: B batch, S source and T target length, D width, V vocabulary.
"""

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models.transformer import PAD, Transformer, TransformerConfig

SHAPES = {  # dim, depth, heads, mlp_ratio, vocab, maximum source and target length, batch
    "small": (32, 2, 4, 2, 50, 9, 7, 3),
    "one head, one layer, one token": (16, 1, 1, 4, 20, 1, 1, 2),
    "deep, long target": (48, 4, 6, 1, 70, 5, 33, 4),
    "wide, long source": (128, 3, 8, 4, 300, 40, 12, 5),
}
NORMS = ("pre", "post")


class Pair(NamedTuple):
    ours: Transformer
    theirs: nn.Transformer
    table: nn.Parameter  # (V, D): torch's model has no embeddings: a copy of ours
    partners: list[tuple[nn.Parameter, nn.Parameter]]  # every weight of ours, and its copy


def twins(norm: str, dim: int, depth: int, heads: int, mlp_ratio: int, vocab: int) -> Pair:
    """Both models, with ours copied into torch's."""
    ours = Transformer(TransformerConfig(vocab, dim, depth, heads, mlp_ratio, dropout=0.0, norm=norm))
    for name, weight in ours.named_parameters():  # so that biases and norms matter
        if weight.ndim == 1:
            nn.init.normal_(weight, mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.2)
    how = {"d_model": dim, "nhead": heads, "dim_feedforward": mlp_ratio * dim, "dropout": 0.0, "batch_first": True}
    first = norm == "pre"  # post-norm has no final norm, which torch's constructor always adds
    theirs = nn.Transformer(
        dim,
        heads,
        custom_encoder=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**how, norm_first=first),
            depth,
            norm=nn.LayerNorm(dim) if first else None,
            enable_nested_tensor=False,
        ),
        custom_decoder=nn.TransformerDecoder(
            nn.TransformerDecoderLayer(**how, norm_first=first), depth, norm=nn.LayerNorm(dim) if first else None
        ),
        batch_first=True,
    )
    table = nn.Parameter(torch.empty(vocab, dim))
    pairs = [(ours.embed_source.tokens.weight, table)]

    def add(mine: nn.Module, other: nn.Module) -> None:
        pairs.append((mine.weight, other.weight))
        pairs.append((mine.bias, other.bias))

    def add_attention(mine: nn.Module, other: nn.MultiheadAttention) -> None:
        pairs.append((mine.qkv.weight, other.in_proj_weight))
        pairs.append((mine.qkv.bias, other.in_proj_bias))
        add(mine.out, other.out_proj)

    for a, b in zip(ours.encoder, theirs.encoder.layers, strict=True):
        add_attention(a.attn, b.self_attn)
        add(a.attn_residual.norm, b.norm1)
        add(a.mlp_residual.norm, b.norm2)
    for a, b in zip(ours.decoder, theirs.decoder.layers, strict=True):
        add_attention(a.attn, b.self_attn)
        add_attention(a.cross, b.multihead_attn)
        add(a.attn_residual.norm, b.norm1)
        add(a.cross_residual.norm, b.norm2)
        add(a.mlp_residual.norm, b.norm3)
    for a, b in zip([*ours.encoder, *ours.decoder], [*theirs.encoder.layers, *theirs.decoder.layers], strict=True):
        add(a.mlp.up, b.linear1)
        add(a.mlp.down, b.linear2)
    if first:
        add(ours.encoder_norm, theirs.encoder.norm)
        add(ours.decoder_norm, theirs.decoder.norm)
    with torch.no_grad():
        for mine, other in pairs:
            other.copy_(mine)
    return Pair(ours.eval(), theirs.eval(), table, pairs)


def sentences(batch: int, max_len: int, vocab: int) -> Tensor:
    """A padded batch (B, T) of random lengths, one the maximum."""
    tokens = torch.randint(1, vocab, (batch, max_len))
    lengths = torch.randint(1, max_len + 1, (batch,))
    lengths[0] = max_len
    return tokens.masked_fill(torch.arange(max_len) >= lengths[:, None], PAD)


def torch_logits(pair: Pair, source: Tensor, target: Tensor) -> Tensor:
    """In torch True means "masked"; the target's padding is masked too, although causality suffices."""
    dim, positions = pair.table.shape[1], pair.ours.embed_source.positions
    masked = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
    out = pair.theirs(
        F.embedding(source, pair.table) * dim**0.5 + positions(0, source.shape[1]),
        F.embedding(target, pair.table) * dim**0.5 + positions(0, target.shape[1]),
        tgt_mask=masked,
        src_key_padding_mask=source == PAD,
        tgt_key_padding_mask=target == PAD,
        memory_key_padding_mask=source == PAD,
    )
    return out @ pair.table.T


def case(shape: str, norm: str) -> tuple[Pair, Tensor, Tensor]:
    torch.manual_seed(7)
    dim, depth, heads, mlp_ratio, vocab, long_source, long_target, batch = SHAPES[shape]
    pair = twins(norm, dim, depth, heads, mlp_ratio, vocab)
    return pair, sentences(batch, long_source, vocab), sentences(batch, long_target, vocab)


def max_distance(a: Tensor, b: Tensor) -> float:
    return (a - b).detach().abs().max().item()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_weight_has_one_counterpart_in_torchs_model(shape, norm):
    pair, _, _ = case(shape, norm)
    mine, theirs = zip(*pair.partners, strict=True)
    assert {id(p) for p in mine} == {id(p) for p in pair.ours.parameters()}
    assert {id(p) for p in theirs} == {id(p) for p in (*pair.theirs.parameters(), pair.table)}
    assert len({id(p) for p in theirs}) == len(pair.partners)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_torchs_transformer(shape, norm):
    pair, source, target = case(shape, norm)
    real = target != PAD
    with torch.no_grad():  # torch takes its fused fast path here
        difference = max_distance(pair.ours(source, target)[real], torch_logits(pair, source, target)[real])
    assert difference < 1e-5


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_every_weight_equal_torchs(shape, norm):
    pair, source, target = case(shape, norm)
    real, labels = target != PAD, torch.randint(0, SHAPES[shape][4], target.shape)
    for logits in (pair.ours(source, target), torch_logits(pair, source, target)):
        F.cross_entropy(logits[real], labels[real]).backward()
    for mine, other in pair.partners:
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_logits_and_gradients_equal_torchs_to_twelve_digits_in_double_precision(norm):
    pair, source, target = case("small", norm)
    pair.ours.double(), pair.theirs.double()
    pair.table.data = pair.table.data.double()
    real = target != PAD
    mine, other = pair.ours(source, target)[real], torch_logits(pair, source, target)[real]
    assert max_distance(mine, other) < 1e-12
    mine.square().mean().backward()
    other.square().mean().backward()
    for a, b in pair.partners:
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12)


def test_pre_norm_and_post_norm_are_different_models():
    """Otherwise the parity above could hold although the option does nothing."""
    pre, source, target = case("small", "pre")
    post, _, _ = case("small", "post")
    with torch.no_grad():
        assert max_distance(pre.ours(source, target), post.ours(source, target)) > 0.1
