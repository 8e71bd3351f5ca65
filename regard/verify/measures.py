"""Measures that several chapters take: the exponent by which a quantity grows, and median times."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch

from regard.verify.plots import Points

__all__ = ["exponent", "median_seconds"]


def exponent(points: Points) -> float:
    """The exponent b of y ≈ a · x^b: the slope of a line through the logarithms."""
    x, y = torch.tensor(points, dtype=torch.float64).log().unbind(1)
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())


def median_seconds(runs: Mapping[str, Callable[[], object]], rounds: int = 7) -> dict[str, float]:
    """The median time of each, in turns, so that a busy machine slows all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}  # the first one warms up
