"""Measures that several chapters take: exponents, CPU seconds, FLOPs, activations saved, and what an output depends on."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["Points", "count_flops", "depends_on", "exponent", "least_cpu_seconds", "minimize", "saved_bytes"]

Points = list[tuple[float, float]]  # of a curve


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The exponent b of y ≈ a · x^b: the slope of a line through the logarithms."""
    x, y = torch.tensor(points, dtype=torch.float64).log().unbind(1)
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())


def least_cpu_seconds(runs: Mapping[str, Callable[[], object]], rounds: int = 7) -> dict[str, float]:
    """The least CPU time of each, in turns: what other processes do on a busy machine adds to it, and never subtracts.

    The time of all threads is counted, so checks run with one (run.py).
    """
    least = dict.fromkeys(runs, float("inf"))
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            seconds = time.process_time() - start
            if turn:  # the first one warms up
                least[name] = min(least[name], seconds)
    return least


def count_flops(run: Callable[[], object], operation: str = "") -> int:
    """FLOPs of matrix products and convolutions, or of those whose name has this part; (a, b) times (b, c) counts 2abc."""
    with FlopCounterMode(display=False) as counter:
        run()
    return sum(count for name, count in counter.get_flop_counts()["Global"].items() if operation in str(name))


def saved_bytes(run: Callable[[], object], weights: Iterable[Tensor] = ()) -> int:
    """Size of the activations saved for the backward pass; a tensor that two operations save counts once, weights do not."""
    sizes, tensors = {weight.untyped_storage().data_ptr(): 0 for weight in weights}, list[Tensor]()

    def keep(x: Tensor) -> Tensor:
        tensors.append(x)  # alive, so that no address is used twice
        sizes.setdefault(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        run()
    return sum(sizes.values())


def depends_on(output: Tensor, inputs: Tensor) -> Tensor:
    """Which numbers of the inputs an output depends on, by the gradient of a random projection: booleans, as the inputs.

    A sum instead may be constant, as after a norm.
    """
    [gradient] = torch.autograd.grad((output * torch.randn_like(output)).sum(), inputs, retain_graph=True)
    return gradient != 0


def minimize(weights: Iterable[Tensor], loss: Callable[[], Tensor], steps: int, lr: float) -> Points:
    """Train weights by Adam: → (step, loss)."""
    optimizer, losses = torch.optim.Adam(list(weights), lr), Points()
    for step in range(steps):
        value = loss()
        losses.append((step, value.item()))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return losses
