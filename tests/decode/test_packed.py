import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.decode import packed
from regard.decode.fast import column_major, step_function
from regard.decode.packed import MAX_ROWS, PackedLinear, packed_linear, padded_rows

pytestmark = pytest.mark.skipif(packed.PACK is None, reason="this build of torch is without oneDNN")


def frozen(bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    layer = nn.Linear(48, 96, bias)
    column_major(layer)
    return layer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("part", [(0, None), (0, 32), (32, 96)])
@pytest.mark.parametrize("rows", [1, 2, 5, 16, 17, 80, 100, MAX_ROWS, MAX_ROWS + 1, 2 * MAX_ROWS + 20])
def test_products_are_those_of_f_linear(rows, part, bias):
    layer, x = frozen(bias), torch.randn(rows, 48)
    start, stop = part
    wanted = F.linear(x.double(), layer.weight[start:stop].double(), layer.bias[start:stop].double() if bias else None)
    found = step_function(layer, start, stop)(x)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5)


def test_products_of_any_number_of_rows_have_few_shapes(monkeypatch):
    shapes, layer, product = set(), frozen(), packed.ONEDNN
    monkeypatch.setattr(packed, "ONEDNN", lambda x, *rest: shapes.add(x.shape) or product(x, *rest))
    for rows in range(1, 600):
        assert packed_linear(layer)(torch.randn(rows, 48)).shape == (rows, 96)
    assert {rows for rows, _ in shapes} == {*range(2, 17), *range(32, 97, 16), *range(128, 257, 32)}
    assert all(rows <= padded_rows(rows) < 2 * rows for rows in range(1, MAX_ROWS + 1))


def test_weights_are_packed_once_for_all_searches():
    layer = frozen()
    first = packed_linear(layer)
    assert first is packed_linear(layer)
    assert first is not packed_linear(layer, 0, 10)


@pytest.mark.parametrize("change", ["in place", "replaced"])
def test_changed_weights_are_packed_again(change):
    layer, x = frozen(), torch.randn(3, 48)
    packed_linear(layer)(x)
    if change == "in place":
        with torch.no_grad():
            layer.weight[:10] = 0
    else:
        layer.weight = nn.Parameter(torch.randn(96, 48), requires_grad=False)
    torch.testing.assert_close(packed_linear(layer)(x), F.linear(x, layer.weight, layer.bias), rtol=0, atol=1e-5)


def test_weights_in_training_and_other_types_are_left_to_torch():
    assert packed_linear(nn.Linear(4, 4)) is None
    assert packed_linear(nn.Linear(4, 4).double().requires_grad_(False)) is None
    with torch.inference_mode():
        assert packed_linear(nn.Linear(4, 4).requires_grad_(False)) is None
    assert isinstance(packed_linear(frozen()), PackedLinear)


def test_a_layer_that_is_gone_leaves_nothing_behind():
    layer = frozen()
    packed_linear(layer)(torch.randn(2, 48))
    before = len(packed._LAYERS)
    del layer
    assert len(packed._LAYERS) == before - 1
