"""The schedule and Adam of section 5.3, against the paper's formula and an Adam of plain Python."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from regard.train.optim import adafactor, adam, cosine, inverse_square_root

WARMUPS = [1, 2, 100, 4000]


@pytest.mark.parametrize("warmup", WARMUPS)
def test_the_rate_peaks_at_the_end_of_the_warmup(warmup):
    assert inverse_square_root(warmup, 7e-4, warmup) == pytest.approx(7e-4, rel=1e-12)
    rates = [inverse_square_root(step, 7e-4, warmup) for step in range(1, 3 * warmup + 10)]
    assert rates.index(max(rates)) + 1 == warmup


@pytest.mark.parametrize("warmup", WARMUPS)
def test_the_rate_rises_in_equal_steps_and_then_only_falls(warmup):
    rates = [inverse_square_root(step, 1.0, warmup) for step in range(1, 3 * warmup + 10)]
    rise, fall = [0.0, *rates[:warmup]], rates[warmup - 1 :]
    assert [b - a for a, b in pairwise(rise)] == pytest.approx([1 / warmup] * warmup)
    assert all(b < a for a, b in pairwise(fall))


@pytest.mark.parametrize("warmup", WARMUPS)
def test_four_times_as_many_steps_halve_the_rate(warmup):
    for step in (warmup, 3 * warmup):
        rate = inverse_square_root(step, 1e-3, warmup)
        assert inverse_square_root(4 * step, 1e-3, warmup) == pytest.approx(rate / 2, rel=1e-12)


@pytest.mark.parametrize("width", [128, 512])
@pytest.mark.parametrize("warmup", WARMUPS)
def test_the_papers_formula_is_one_choice_of_the_peak(width, warmup):
    peak = (width * warmup) ** -0.5
    for step in (1, 2, warmup - 1, warmup, warmup + 1, 10 * warmup, 100_000):
        if step:
            paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
            assert inverse_square_root(step, peak, warmup) == pytest.approx(paper, rel=1e-12)


def test_adafactor_is_the_papers_algorithm():
    """Algorithm 4 for a matrix and algorithm 5 for a vector, with relative steps, by hand."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    weights = [p.detach().clone() for p in model.parameters()]
    means: list[list[torch.Tensor]] = [[torch.zeros(2, 1), torch.zeros(1, 3)], [torch.zeros(2)]]
    steps = adafactor(model)
    for step in range(1, 5):
        for group in steps.param_groups:
            group["lr"] = 0.03 * step
        loss = (model(torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)) ** 3).sum()
        model.zero_grad()
        loss.backward()
        steps.step()
        kept = 1 - step**-0.8
        for weight, mean, p in zip(weights, means, model.parameters(), strict=True):
            square = p.grad**2
            if weight.ndim == 2:
                mean[0] = kept * mean[0] + (1 - kept) * square.mean(1, keepdim=True)
                mean[1] = kept * mean[1] + (1 - kept) * square.mean(0, keepdim=True)
                spread = mean[0] * mean[1] / mean[0].mean()
            else:
                mean[0] = spread = kept * mean[0] + (1 - kept) * square
            update = p.grad / spread.sqrt()
            update = update / max(1.0, float(update.norm() / update.numel() ** 0.5))
            size = max(1e-3, float(weight.norm() / weight.numel() ** 0.5))
            weight -= min(0.03 * step, step**-0.5) * size * update
            torch.testing.assert_close(p.detach(), weight, rtol=1e-6, atol=1e-9)


def quadratic(model: nn.Module) -> torch.Tensor:
    """A loss whose gradients differ from weight to weight and from step to step."""
    return sum((parameter - i).pow(4).sum() for i, parameter in enumerate(model.parameters(), 1))


def test_adam_equals_one_of_plain_python():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    optimizer = adam(model)
    weights = [w for parameter in model.parameters() for w in parameter.flatten().tolist()]
    goals = [float(i) for i, parameter in enumerate(model.parameters(), 1) for _ in range(parameter.numel())]
    first, second = [0.0] * len(weights), [0.0] * len(weights)
    for step in range(1, 9):
        rate = inverse_square_root(step, 0.3, 4)  # it rises and falls
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        quadratic(model).backward()
        optimizer.step()
        for i, (weight, goal) in enumerate(zip(weights, goals, strict=True)):
            gradient = 4 * (weight - goal) ** 3
            first[i] = 0.9 * first[i] + 0.1 * gradient
            second[i] = 0.98 * second[i] + 0.02 * gradient**2
            mean, square = first[i] / (1 - 0.9**step), second[i] / (1 - 0.98**step)
            weights[i] -= rate * mean / (math.sqrt(square) + 1e-9)
        learnt = [w for parameter in model.parameters() for w in parameter.flatten().tolist()]
        assert learnt == pytest.approx(weights, rel=1e-10)


def test_a_gradient_as_small_as_epsilon_takes_half_a_step():
    weight = nn.Linear(1, 1, bias=False).double()
    before, optimizer = weight.weight.item(), adam(weight)
    optimizer.param_groups[0]["lr"] = 0.5
    weight.weight.grad = torch.full((1, 1), 1e-9, dtype=torch.float64)
    optimizer.step()  # rate · g / (g + ε) with g = ε
    assert weight.weight.item() == pytest.approx(before - 0.25, rel=1e-9)


def test_adam_changes_nothing_before_the_schedule_sets_a_rate():
    model = nn.Linear(3, 2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = adam(model)
    quadratic(model).backward()
    optimizer.step()
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


def test_adam_trains_every_weight_of_the_model_and_a_shared_one_once():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    trained = [parameter for group in adam(model).param_groups for parameter in group["params"]]
    assert [id(parameter) for parameter in trained] == [id(model[0].weight)]


def test_a_cosine_rises_to_its_peak_and_falls_to_a_tenth():
    rates = [cosine(step, 1.0, 10, 100) for step in range(1, 101)]
    assert rates[4] == 0.5
    assert rates[9] == max(rates) == 1.0
    assert rates[54] == pytest.approx(0.55)  # half of the way down
    assert rates[-1] == pytest.approx(0.1)
    assert rates[9:] == sorted(rates[9:], reverse=True)


def test_weights_decay_and_biases_do_not():
    layer = nn.Linear(3, 3)
    weight, bias = (p.detach().clone() for p in layer.parameters())
    optimizer = adam(layer, weight_decay=0.5)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for p in layer.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), weight * 0.95)
    assert torch.equal(layer.bias.detach(), bias)
