"""The measures that several chapters take."""

import time

import pytest
import torch
from torch import nn

from regard.verify.measures import count_flops, depends_on, exponent, least_cpu_seconds, minimize, saved_bytes


def test_the_exponent_is_the_slope_of_the_logarithms():
    assert exponent([(n, 3.0 * n**2) for n in (2, 5, 9)]) == pytest.approx(2)
    assert exponent([(n, 7) for n in (2, 5, 9)]) == pytest.approx(0)


def test_the_least_cpu_time_counts_neither_the_first_run_nor_time_asleep():
    calls = []

    def first_is_slow() -> None:
        calls.append(1)
        end = time.process_time() + (0.05 if len(calls) == 1 else 0.001)
        while time.process_time() < end:
            pass

    found = least_cpu_seconds({"busy": first_is_slow, "asleep": lambda: time.sleep(0.02)}, rounds=3)
    assert len(calls) == 4
    assert 0.001 <= found["busy"] < 0.05
    assert found["asleep"] < 0.01


def test_flops_of_all_products_or_of_one_kind():
    x = torch.randn(5, 8)
    assert count_flops(lambda: x @ x.T) == 2 * 5 * 8 * 5
    assert count_flops(lambda: (x @ x.T, x[None] @ x.T[None]), "bmm") == 2 * 5 * 8 * 5


def test_saved_bytes_count_a_tensor_once_and_no_weights():
    layer, x = nn.Linear(8, 8, bias=False), torch.randn(5, 8, requires_grad=True)
    assert saved_bytes(lambda: layer(x), layer.parameters()) == 5 * 8 * 4  # the input, for the gradient of the weights
    assert saved_bytes(lambda: x * x) == 5 * 8 * 4


def test_an_output_depends_on_what_changes_it():
    x = torch.randn(4, 3, requires_grad=True)
    assert depends_on(x[:2].sum(0).softmax(-1), x).any(-1).tolist() == [True, True, False, False]


def test_minimize_lowers_a_loss_and_records_it_before_each_step():
    weight = nn.Parameter(torch.ones(3))
    losses = minimize([weight], lambda: weight.square().sum(), steps=20, lr=0.1)
    assert [step for step, _ in losses] == list(range(20))
    assert losses[0][1] == 3
    assert losses[-1][1] < 0.5
