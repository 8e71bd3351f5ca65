"""Run checks: the same seed before each, one verdict after each."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from regard.data.sources import describe_download
from regard.verify.claim import Claim, Measurement, Verdict
from regard.verify.plots import Curves, Heatmap

__all__ = ["THREADS", "Result", "verify"]

THREADS = 1  # checks are small: on a busy machine, several threads would mostly wait for one another


@dataclass(frozen=True)
class Result:
    """What a check found."""

    claim: Claim
    verdict: Verdict
    measurements: tuple[Measurement, ...] = ()
    plots: tuple[Curves | Heatmap, ...] = ()
    seconds: float = 0.0
    reason: str = ""  # why it was not run, or the error that stopped it


def verify(claims: Iterable[Claim], seed: int = 0) -> Iterator[Result]:
    """Check one claim after another; nothing that a check does changes the random numbers of the next, or of the caller."""
    for claim in claims:
        with torch.random.fork_rng(devices=[]), _threads(THREADS):
            torch.manual_seed(seed)
            result = _verify(claim)
        yield result


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _verify(claim: Claim) -> Result:
    if claim.check is None:
        return Result(claim, Verdict.NOT_CHECKABLE, reason=claim.why_not)
    for name in claim.data:
        if missing := describe_download(name):
            return Result(claim, Verdict.SKIPPED, reason=f"{missing}. Run a recipe that reads it to download it.")
    start, measurements, plots, error = time.perf_counter(), list[Measurement](), list[Curves | Heatmap](), ""
    try:
        for finding in claim.check():
            if isinstance(finding, Measurement):
                measurements.append(finding)
            else:
                plots.append(finding)
    except Exception as failure:  # it says nothing about the claim, and the other checks still run
        error = f"{type(failure).__name__}: {failure}".splitlines()[0]
    seconds, error = time.perf_counter() - start, error or ("" if measurements else "the check measured nothing")
    holds = all(measurement.holds for measurement in measurements)
    verdict = Verdict.FAILS if not holds else Verdict.ERROR if error else claim.intended
    return Result(claim, verdict, tuple(measurements), tuple(plots), seconds, error)
