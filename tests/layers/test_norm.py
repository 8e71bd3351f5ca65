"""Pre-norm, post-norm and res-post-norm against their formulas."""

import pytest
import torch
from torch import nn

from regard.layers.norm import PostNorm, PreNorm, ResPostNorm


def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Layer norm by its formula: x (B, T, D)."""
    centered = x - x.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def built(kind: type[PreNorm] | type[PostNorm] | type[ResPostNorm], dropout: float = 0.0):
    torch.manual_seed(0)
    residual = kind(8, dropout)
    nn.init.normal_(residual.norm.weight)
    nn.init.normal_(residual.norm.bias)
    return residual, torch.randn(2, 3, 8), nn.Linear(8, 8)


def test_pre_norm_is_x_plus_f_of_the_norm():
    residual, x, f = built(PreNorm)
    torch.testing.assert_close(residual(x, f), x + f(norm(x, residual.norm.weight, residual.norm.bias)))


def test_post_norm_is_the_norm_of_x_plus_f():
    residual, x, f = built(PostNorm)
    torch.testing.assert_close(residual(x, f), norm(x + f(x), residual.norm.weight, residual.norm.bias))


def test_res_post_norm_is_x_plus_the_norm_of_f():
    residual, x, f = built(ResPostNorm)
    torch.testing.assert_close(residual(x, f), x + norm(f(x), residual.norm.weight, residual.norm.bias))


def test_only_post_norm_has_no_final_norm():
    for kind in (PreNorm, ResPostNorm):
        assert isinstance(kind.final_norm(8), nn.LayerNorm)
    x = torch.randn(2, 3, 8)
    assert PostNorm.final_norm(8)(x) is x
    assert not list(PostNorm.final_norm(8).parameters())


def test_dropout_applies_to_the_sub_layer_and_never_to_the_residual():
    residual, _, _ = built(PreNorm, dropout=0.5)
    x = torch.full((2, 3, 8), 7.0)
    out = residual.train()(x, torch.ones_like)
    assert set(out.unique().tolist()) == {7.0, 9.0}  # dropped, or kept and doubled


@pytest.mark.parametrize("kind", [PreNorm, PostNorm, ResPostNorm])
def test_nothing_is_dropped_in_eval_mode(kind):
    residual, x, f = built(kind, dropout=0.5)
    assert torch.equal(residual.eval()(x, f), residual(x, f))
