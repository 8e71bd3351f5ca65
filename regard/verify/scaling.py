"""Why scores are divided by √d: the variance of a dot product, and what a softmax of large scores does."""

from collections.abc import Iterator

import torch

from regard.layers.attention import attend
from regard.verify.claim import Finding, at_least, at_most, between, claim, close
from regard.verify.measures import Points
from regard.verify.plots import Curves

__all__: list[str] = []


@claim(25, "001 002 004", "The dot product of two random vectors of width d has variance d; divided by √d it has variance 1.")
def dot_products_are_scaled_to_variance_1() -> Iterator[Finding]:
    raw, scaled = [], []
    for width in (1, 2, 3, 64, 512):  # 200,000 pairs, or 2,000 queries and as many keys
        q, k = torch.randn(2, 200_000, 1, width) if width < 64 else torch.randn(2, 1, 2000, width)
        dots = q @ k.transpose(-2, -1)
        yield close(f"Var(q · k) / d, d = {width}", dots.var().item() / width, 1.0, within=0.03)
        raw.append((width, dots.var().item()))
        scaled.append((width, scores_of(q, k).var().item()))
        yield close(f"variance of the scores of our attention, d = {width}", scaled[-1][1], 1.0, within=0.03)
    yield Curves("Variance of scores", "width d of a head", "variance", {"q · k": raw, "q · k / √d": scaled}, True, True)


@claim(25, "001", "The scale keeps the gradients of the softmax stable in high dimensions.")
def gradients_of_unscaled_softmax_vanish() -> Iterator[Finding]:
    keys, lines = 64, {"scaled": Points(), "not scaled": Points()}
    for width in (4, 16, 64, 256, 1024):
        q, k = torch.randn(2, 50, keys, width)
        for name, scale in (("scaled", None), ("not scaled", 1.0)):
            bias = torch.zeros(50, keys, keys, requires_grad=True)  # added to the scores, so it has their gradient
            _, weights = attend(q, k, k, scale=scale, bias=bias, need_weights=True)
            assert weights is not None
            [gradient] = torch.autograd.grad((weights * torch.randn_like(weights)).sum(), bias)
            lines[name].append((width, gradient.norm(dim=-1).median().item()))
    (narrow, *_, wide), (*_, wide_unscaled) = ([y for _, y in points] for points in lines.values())
    yield between("gradient of the scaled scores of a query, median, d = 1024 / d = 4", wide / narrow, 0.7, 1.4)
    yield at_most("gradient without the scale / with it, d = 1024", wide_unscaled / wide, 0.1)
    yield Curves(
        "Gradient of the scores of a query, 64 keys", "width d of a head", "median norm of the gradient", lines, True, True
    )


@claim(26, "004", "Without the scale, softmax gets peaked as the width grows: its entropy falls.")
def softmax_of_unscaled_scores_is_peaked() -> Iterator[Finding]:
    keys, lines = 64, {"scaled": Points(), "not scaled": Points()}
    for width in (4, 16, 64, 256, 1024):
        q, k = torch.randn(2, 50, keys, width)
        for name, scale in (("scaled", None), ("not scaled", 1.0)):
            _, weights = attend(q, k, k, scale=scale, need_weights=True)
            lines[name].append((width, torch.special.entr(weights).sum(-1).mean().item()))
    yield at_least("entropy of scaled weights, d = 1024, nats (uniform: 4.16)", lines["scaled"][-1][1], 3.5)
    yield at_least("how much lower it is without the scale, nats", lines["scaled"][-1][1] - lines["not scaled"][-1][1], 3.0)
    yield Curves("Entropy of a row of attention over 64 keys", "width d of a head", "entropy in nats", lines, log_x=True)


def scores_of(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The scores before softmax that `attend` computes: differences of log-weights, to a key of zeros."""
    keys = torch.cat((k, torch.zeros_like(k[..., :1, :])), -2)
    _, weights = attend(q, keys, keys, need_weights=True)
    assert weights is not None
    return (weights[..., :-1].double() / weights[..., -1:].double()).log()
