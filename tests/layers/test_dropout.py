"""Dropout from random bytes equals torch's in distribution, with the rate rounded to 1/256."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.layers.dropout import Dropout

law = settings(max_examples=25)


@law
@given(rate=st.floats(0.02, 0.95), seed=st.integers(0, 1000))
def test_the_fraction_of_zeros_is_the_rate_and_the_mean_stays(rate, seed):
    torch.manual_seed(seed)
    n = 1 << 15
    y = Dropout(rate).train()(torch.ones(n))
    rounded = round(rate * 256) / 256
    noise = (rounded * (1 - rounded) / n) ** 0.5
    assert abs(rounded - rate) <= 1 / 512
    assert abs((y == 0).float().mean().item() - rounded) < 5 * noise
    assert abs(y.mean().item() - 1) < 5 * noise / (1 - rounded)
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - rounded)))


def test_the_eight_bytes_of_a_random_word_drop_independently_and_at_the_same_rate():
    torch.manual_seed(0)
    dropped = Dropout(0.25).train()(torch.ones(1 << 14, 8)) == 0  # a column for each byte of the 64-bit words
    noise = (0.25 * 0.75 / len(dropped)) ** 0.5
    assert (dropped.double().mean(0) - 0.25).abs().max() < 5 * noise
    correlation = torch.corrcoef(dropped.double().T) - torch.eye(8)
    assert correlation.abs().max() < 5 / len(dropped) ** 0.5


@law
@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=4), rate=st.sampled_from([0.0, 0.1, 0.9]))
def test_shape_and_dtype_are_preserved(shape, rate):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        y = Dropout(rate).train()(torch.ones(shape, dtype=dtype))
        assert y.shape == torch.Size(shape)
        assert y.dtype == dtype


def test_dropout_is_the_identity_in_eval_mode_and_at_rate_zero():
    x = torch.randn(50)
    assert torch.equal(Dropout(0.9).eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)


def test_the_same_seed_drops_the_same_elements():
    def run(seed):
        torch.manual_seed(seed)
        return Dropout(0.5).train()(torch.ones(64))

    assert torch.equal(run(3), run(3))
    assert not torch.equal(run(3), run(4))


def test_two_calls_drop_different_elements():
    drop = Dropout(0.5).train()
    assert not torch.equal(drop(torch.ones(64)), drop(torch.ones(64)))


def test_the_gradient_is_zero_exactly_where_the_output_is():
    torch.manual_seed(0)
    x = torch.rand(1000).add(1).requires_grad_()
    y = Dropout(0.3).train()(x)
    y.sum().backward()
    assert torch.equal(x.grad == 0, y == 0)
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_repr_shows_the_rate():
    assert "rate=0.102" in repr(Dropout(0.1))


def test_the_output_is_finite_at_a_rate_close_to_one():
    assert Dropout(0.999).train()(torch.ones(100)).isfinite().all()
