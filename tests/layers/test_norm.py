"""Where the norm stands: each order against its formula, written out."""

import pytest
import torch
from torch import nn

from regard.layers.norm import PostNorm, PreNorm, ResPostNorm


def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Layer norm written out: x (B, T, D)."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def built(kind: type[PreNorm] | type[PostNorm] | type[ResPostNorm], dropout: float = 0.0):
    torch.manual_seed(0)
    around = kind(8, dropout)
    nn.init.normal_(around.norm.weight)
    nn.init.normal_(around.norm.bias)
    return around, torch.randn(2, 3, 8), nn.Linear(8, 8)


def test_norm_first_is_x_plus_f_of_the_norm():
    around, x, f = built(PreNorm)
    torch.testing.assert_close(around(x, f), x + f(norm(x, around.norm.weight, around.norm.bias)))


def test_norm_last_is_the_norm_of_x_plus_f():
    around, x, f = built(PostNorm)
    torch.testing.assert_close(around(x, f), norm(x + f(x), around.norm.weight, around.norm.bias))


def test_a_normed_branch_is_x_plus_the_norm_of_f():
    around, x, f = built(ResPostNorm)
    torch.testing.assert_close(around(x, f), x + norm(f(x), around.norm.weight, around.norm.bias))


def test_only_norm_last_ends_without_one_more_norm():
    for kind in (PreNorm, ResPostNorm):
        assert isinstance(kind.final_norm(8), nn.LayerNorm)
    x = torch.randn(2, 3, 8)
    assert PostNorm.final_norm(8)(x) is x
    assert not list(PostNorm.final_norm(8).parameters())


def test_dropout_falls_on_the_sub_layer_and_never_on_the_residual():
    around, _, _ = built(PreNorm, dropout=0.5)
    x = torch.full((2, 3, 8), 7.0)
    out = around.train()(x, torch.ones_like)
    assert set(out.unique().tolist()) == {7.0, 9.0}  # dropped, or kept and doubled


@pytest.mark.parametrize("kind", [PreNorm, PostNorm, ResPostNorm])
def test_nothing_is_dropped_when_not_training(kind):
    around, x, f = built(kind, dropout=0.5)
    assert torch.equal(around.eval()(x, f), around(x, f))
