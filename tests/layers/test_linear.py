"""Linear layers against torch's own; with 8-bit weights, within the rounding error."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from regard.layers import linear as layers
from regard.layers.linear import Int8Linear, Linear, add_product, product, to_int8
from regard.layers.mlp import MLP, gelu
from regard.models.transformer import Transformer, TransformerConfig

law = settings(max_examples=60)

seeds, sizes = st.integers(0, 10_000), st.integers(1, 70)


def layer(seed: int, width: int, outputs: int, bias: bool = True, size: float = 1.0) -> Linear:
    torch.manual_seed(seed)
    linear = Linear(width, outputs, bias=bias)
    for p in linear.parameters():
        nn.init.normal_(p, std=size)
    return linear


def quantized(linear: nn.Linear) -> Int8Linear:
    return to_int8(nn.Sequential(linear))[0]


def max_error(linear: nn.Linear, x: Tensor) -> Tensor:
    """The largest rounding error of each output: (..., D) → (..., N).

    A weight is off by half a step of its output's scale, an input by half a step of its own.
    """
    weight = linear.weight.double()
    w_off = weight.abs().amax(1) / 127 / 2  # (N,)
    x_off = input_step(x) / 2
    off = x.double().abs().sum(-1, keepdim=True) * w_off + x_off * (weight.abs().sum(1) + weight.shape[1] * w_off)
    return off * 1.0001 + 1e-5 * (1 + x.abs().double() @ weight.abs().T)  # plus the float32 error


def input_step(x: Tensor) -> Tensor:
    """The range of the inputs, including zero, in steps of 8 bits, or of 7 without VNNI."""
    return (x.amax().clamp(min=0) - x.amin().clamp(max=0)).double() / (127 if layers.REDUCE_RANGE else 255)


def exact(linear: nn.Linear, x: Tensor) -> Tensor:
    y = x.double() @ linear.weight.double().T
    return y if linear.bias is None else y + linear.bias.double()


# Without a gradient


@law
@given(seed=seeds, width=sizes, outputs=sizes, rows=st.integers(1, 5), bias=st.booleans())
def test_the_onednn_product_equals_the_exact_one_and_gradients_still_work(seed, width, outputs, rows, bias):
    linear, x = layer(seed, width, outputs, bias), torch.randn(2, rows, width)
    wanted = exact(linear, x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "ONEDNN_MIN", 0)
        with torch.no_grad():
            torch.testing.assert_close(linear(x).double(), wanted, atol=1e-4, rtol=1e-4)
            found = linear(x, nn.functional.gelu)
            torch.testing.assert_close(found.double(), nn.functional.gelu(wanted), atol=1e-4, rtol=1e-4)
        linear(x).sum().backward()
    torch.testing.assert_close(linear.weight.grad, x.sum((0, 1)).expand(outputs, -1), atol=1e-3, rtol=1e-3)


@law
@given(seed=seeds, width=sizes, outputs=sizes, rows=st.integers(1, 5), bias=st.booleans(), data=st.data())
def test_the_convolution_equals_the_linear_layer_and_its_gradients(seed, width, outputs, rows, bias, data):
    start = data.draw(st.integers(0, outputs - 1))
    stop = data.draw(st.integers(start + 1, outputs))
    linear, x = layer(seed, width, outputs, bias), torch.randn(2, rows, width).transpose(0, 1).requires_grad_()
    leaves = [x, *linear.parameters()]
    double = [leaf.detach().double().requires_grad_() for leaf in leaves]
    toward = torch.randn(rows, 2, stop - start)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "ONEDNN_MIN", 0)
        patch.setattr(layers, "TRAINS_BY_ONEDNN", True)
        patch.setattr(nn.functional, "linear", None)  # it is not called
        found = linear.rows(x, start, stop)
    wanted = nn.functional.linear(*double)[..., start:stop]
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-4)
    grads = torch.autograd.grad(found, leaves, toward)
    for ours, exact_one in zip(grads, torch.autograd.grad(wanted, double, toward.double()), strict=True):
        torch.testing.assert_close(ours.double(), exact_one, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not layers.HAS_ONEDNN, reason="this torch was built without oneDNN")
@pytest.mark.parametrize(("rows", "threads"), [(1024, 1), (1024, 2), (1001, 2)])
@pytest.mark.parametrize("activation", [None, torch.relu_, nn.functional.gelu])
def test_onednn_computes_a_large_layer_and_its_gradients(rows, threads, activation, monkeypatch):
    monkeypatch.setattr(layers, "TRAINS_BY_ONEDNN", True)
    linear = layer(0, 256, 128)
    x, toward = torch.randn(rows, 256, requires_grad=True), torch.randn(rows, 128)
    leaves = [x, *linear.parameters()]
    double = [leaf.detach().double().requires_grad_() for leaf in leaves]
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            found = linear(x, activation)
            grads = torch.autograd.grad(found, leaves, toward)
    finally:
        torch.set_num_threads(usual)
    names = {event.key for event in profiled.key_averages()}
    assert "aten::mkldnn_convolution" in names
    assert not any("slow_conv" in name for name in names)
    wanted = nn.functional.linear(*double)
    wanted = wanted if activation is None else activation(wanted)
    torch.testing.assert_close(found.double(), wanted, atol=1e-3, rtol=1e-4)
    for ours, exact_one in zip(grads, torch.autograd.grad(wanted, double, toward.double()), strict=True):
        torch.testing.assert_close(ours.double(), exact_one, atol=2e-2, rtol=1e-3)


@pytest.mark.parametrize("by_onednn", [False, True])
@law
@given(seed=seeds, width=sizes, outputs=sizes, rows=sizes)
def test_products_are_added_to_a_total(by_onednn, seed, width, outputs, rows):
    torch.manual_seed(seed)
    a, b, total = torch.randn(rows, outputs), torch.randn(rows, width), torch.randn(outputs, width)
    wanted = total.double() + a.double().T @ b.double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "ONEDNN_MIN", 0)
        patch.setattr(layers, "TRAINS_BY_ONEDNN", by_onednn and layers.HAS_ONEDNN)
        add_product(total, a, b)
    torch.testing.assert_close(total.double(), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("by_onednn", [False, True])
@law
@given(seed=seeds, width=sizes, outputs=sizes, rows=sizes, strided=st.booleans())
def test_the_product_without_gradient_equals_the_exact_one(by_onednn, seed, width, outputs, rows, strided):
    torch.manual_seed(seed)
    a, b = torch.randn(rows, width), torch.randn(width, outputs).T if strided else torch.randn(outputs, width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "ONEDNN_MIN", 0)
        patch.setattr(layers, "TRAINS_BY_ONEDNN", by_onednn and layers.HAS_ONEDNN)
        found = product(a, b)
    torch.testing.assert_close(found.double(), a.double() @ b.double().T, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(layers.ONEDNN is None, reason="this torch was built without oneDNN")
def test_only_large_float32_products_without_gradient_use_onednn(monkeypatch):
    shapes: list[tuple[int, ...]] = []

    def recorded(x, weight, bias, activation, scalars, algorithm):
        shapes.append(tuple(x.shape))
        return nn.functional.linear(x, weight, bias)

    monkeypatch.setattr(layers, "ONEDNN", recorded)
    linear = Linear(512, 512)
    with torch.inference_mode():
        linear(torch.randn(64, 512))
        linear(torch.randn(63, 512))
        linear.double()(torch.randn(64, 512).double())
    linear.float()(torch.randn(64, 512))
    assert shapes == [(64, 512)]


@pytest.mark.parametrize("change", [lambda model: model, to_int8])
@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_an_mlp_equals_its_two_layers(monkeypatch, change):
    monkeypatch.setattr(layers, "ONEDNN_MIN", 0)
    torch.manual_seed(0)
    mlp, x = MLP(8, 24, gelu), torch.randn(3, 5, 8)
    wanted = nn.functional.gelu(x.double() @ mlp.up.weight.double().T) @ mlp.down.weight.double().T  # biases start at 0
    with torch.no_grad():
        found = change(mlp)(x)
    torch.testing.assert_close(found.double(), wanted, atol=0.05 if change is to_int8 else 1e-5, rtol=0)
    assert change is not to_int8 or not torch.allclose(found.double(), wanted, atol=1e-6)


# Some rows


@law
@given(seed=seeds, width=sizes, outputs=sizes, rows=st.integers(1, 5), bias=st.booleans(), data=st.data())
def test_some_rows_equal_those_of_torchs_layer(seed, width, outputs, rows, bias, data):
    start = data.draw(st.integers(0, outputs - 1))
    stop = data.draw(st.integers(start + 1, outputs))
    linear = layer(seed, width, outputs, bias).double()
    theirs = nn.Linear(width, outputs, bias=bias).double()
    theirs.load_state_dict(linear.state_dict())
    x = torch.randn(rows, width, dtype=torch.float64)
    torch.testing.assert_close(linear(x), theirs(x))
    torch.testing.assert_close(linear.rows(x, start, stop), theirs(x)[:, start:stop])
    assert torch.equal(linear.rows(x), linear(x))


# 8-bit weights


@law
@given(
    seed=seeds, lead=st.lists(st.integers(1, 4), min_size=1, max_size=3), width=sizes, outputs=sizes,
    bias=st.booleans(), size=st.sampled_from([0.01, 1.0, 30.0]), middle=st.sampled_from([-3.0, 0.0, 3.0]),
)  # fmt: skip
def test_int8_outputs_are_within_the_rounding_error_of_weights_and_inputs(seed, lead, width, outputs, bias, size, middle):
    linear = layer(seed, width, outputs, bias, size)
    x = torch.randn(*lead, width) + middle
    x[..., 0] += 1  # so that inputs differ even if the width is one
    got, wanted = quantized(linear)(x), exact(linear, x)
    assert got.shape == wanted.shape
    assert got.dtype == torch.float32
    assert ((got - wanted).abs() <= max_error(linear, x)).all()


@law
@given(seed=seeds, width=sizes, outputs=sizes, size=st.sampled_from([0.01, 1.0, 30.0]))
def test_quantized_weights_are_off_by_at_most_half_a_step(seed, width, outputs, size):
    linear = layer(seed, width, outputs, False, size)
    weight = quantized(linear)(torch.eye(width)).T  # ones and zeros are exact
    step = linear.weight.abs().amax(1, keepdim=True) / 127
    assert ((weight - linear.weight).abs() <= 0.501 * step).all()


@law
@given(seed=seeds, width=sizes, rows=st.integers(1, 4), size=st.sampled_from([0.1, 1.0, 30.0]))
def test_quantized_inputs_are_off_by_at_most_half_a_step(seed, width, rows, size):
    linear = Linear(width, width, bias=False)
    nn.init.eye_(linear.weight)  # ones and zeros are exact
    x = size * torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    assert ((quantized(linear)(x) - x).abs() <= 0.501 * input_step(x).clamp(min=1e-4)).all()


@law
@given(seed=seeds, width=sizes, outputs=sizes, bias=st.booleans(), data=st.data())
def test_some_int8_rows_equal_those_of_the_whole_layer(seed, width, outputs, bias, data):
    start = data.draw(st.integers(0, outputs - 1))
    stop = data.draw(st.integers(start + 1, outputs))
    linear = layer(seed, width, outputs, bias)
    x = torch.randn(2, 3, width)
    small = quantized(linear)
    got = small.rows(x, start, stop)
    assert got.shape == (2, 3, stop - start)
    assert small.rows(x, start, start + 1).shape == (2, 3, 1)  # after another part was packed
    assert small.prepack(start, stop) is small.prepack(start, stop)  # packed once
    torch.testing.assert_close(got, small(x)[..., start:stop])  # each output has its own scale
    assert ((got - exact(linear, x)[..., start:stop]).abs() <= max_error(linear, x)[..., start:stop]).all()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("width", [2, 64, 513])
def test_the_largest_int8_products_do_not_overflow(width, sign):
    linear = Linear(width, 3)
    nn.init.constant_(linear.weight, sign)  # 127 each, and each input 255
    nn.init.zeros_(linear.bias)
    torch.testing.assert_close(quantized(linear)(torch.ones(2, width)), torch.full((2, 3), float(sign * width)))


LARGEST = """
import torch
from regard.layers import linear
linear.REDUCE_RANGE = True  # as without VNNI
layer = linear.Linear(64, 2)
with torch.no_grad():
    layer.weight[:] = torch.tensor([[1.0], [-1.0]])
    layer.bias[:] = 0
print(linear.to_int8(torch.nn.Sequential(layer))(torch.ones(1, 64)).tolist())
"""

x86 = pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="only the x86 engine has this limit")


@x86
def test_the_largest_int8_products_do_not_overflow_without_vnni():
    env = {**os.environ, "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2"}
    done = subprocess.run([sys.executable, "-c", LARGEST], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "[[64.0, -64.0]]"


@x86
def test_seven_bit_inputs_are_within_their_larger_rounding_error(monkeypatch):
    linear, x = layer(0, 40, 30), torch.randn(9, 40)
    monkeypatch.setattr(layers, "REDUCE_RANGE", True)
    coarse = quantized(linear)(x)
    assert ((coarse - exact(linear, x)).abs() <= max_error(linear, x)).all()
    monkeypatch.setattr(layers, "REDUCE_RANGE", False)
    assert not torch.equal(coarse, quantized(linear)(x))


def test_a_large_weight_of_one_output_does_not_affect_the_precision_of_others():
    linear = layer(0, 32, 8)
    with torch.no_grad():
        linear.weight[3] *= 1e6
    x = torch.randn(5, 32)
    others = [0, 1, 2, 4, 5, 6, 7]
    assert ((quantized(linear)(x) - exact(linear, x)).abs() <= max_error(linear, x))[:, others].all()
    assert max_error(linear, x)[:, others].max() < 2


@pytest.mark.parametrize("bias", [True, False])
def test_zero_weights_give_exactly_the_bias(bias):
    linear = layer(0, 16, 6, bias)
    with torch.no_grad():
        linear.weight[:3] = 0
    got = quantized(linear)(torch.randn(4, 16))[:, :3]
    wanted = linear.bias[:3].detach() if bias else torch.zeros(3)
    assert torch.equal(got, wanted.expand(4, 3))


def test_zero_inputs_give_exactly_the_bias():
    linear = layer(0, 16, 6)
    assert torch.equal(quantized(linear)(torch.zeros(4, 16)), linear.bias.detach().expand(4, 6))


@pytest.mark.parametrize("tied", [True, False])
def test_to_int8_quantizes_every_linear_layer_and_nothing_else(tied):
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocab=30, dim=16, depth=2, heads=2, mlp_ratio=2, tied=tied)).eval()
    linear = {name for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    others = {name: p.detach().clone() for name, p in model.named_parameters() if name.rpartition(".")[0] not in linear}
    tables = model.embed_source.tokens, model.embed_target.tokens
    source, target = torch.randint(4, 30, (3, 7)), torch.randint(4, 30, (3, 5))
    with torch.inference_mode():
        wanted = model(source, target)
        assert to_int8(model) is model
        got = model(source, target)
    assert {name for name, part in model.named_modules() if isinstance(part, Int8Linear)} == linear
    assert not any(isinstance(part, nn.Linear) for part in model.modules())
    assert len(linear) == 2 * 4 + 2 * 6 + 1  # attention two, mlp two; cross-attention two more; the output
    left = dict(model.named_parameters())
    assert left.keys() == others.keys()
    assert all(torch.equal(left[name], p) for name, p in others.items())
    assert (model.embed_source.tokens, model.embed_target.tokens) == tables
    assert (got - wanted).abs().max() < 0.1 * wanted.std()
    assert not torch.equal(got, wanted)
