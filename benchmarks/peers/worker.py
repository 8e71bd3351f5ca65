"""Shared by all workers: answer requests, one line of JSON each, on standard input and output.

Only the standard library is used here: a worker runs in the environment of the peer it measures.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

__all__ = [
    "Training",
    "each",
    "learn",
    "parameters",
    "peak_memory",
    "read_batches",
    "resident_memory",
    "serve",
    "serve_training",
    "timed",
]


def serve(handlers: dict[str, Callable[..., Any]]) -> None:
    """Call the handler each request names, with the rest of the request, and send back what it returns."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(handlers[request.pop("do")](**request)) + "\n")
        answers.flush()


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the call, and its result."""
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def each(work: Callable[[Any], Any], items: Iterable[Any]) -> tuple[list[float], list[Any]]:
    """Seconds per item, and the results."""
    seconds, found = zip(*(timed(partial(work, item)) for item in items), strict=True)
    return list(seconds), list(found)


def peak_memory() -> int:
    """The most bytes this process ever held in memory."""
    return _memory("VmHWM")


def resident_memory() -> int:
    """The bytes this process holds in memory now."""
    return _memory("VmRSS")


def _memory(key: str) -> int:
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith(key)]
    return int(line.split()[1]) * 1024


class Training(NamedTuple):
    """A model ready to train."""

    step: Callable[[Any], float]  # a full optimisation step on one batch → its smoothed loss a token, before the step
    batches: list[Any]  # in the form the peer takes
    about: dict[str, Any]  # version, parameters, settings
    more: dict[str, Callable[..., Any]] | None = None  # further requests it answers


def serve_training(begin: Callable[[dict[str, Any], list[tuple[Any, Any]]], Training]) -> None:
    """Answer the training benchmark; `begin` builds the model of a shape, for pairs of source and target."""
    ready: dict[str, Any] = {}

    def prepare(shape: dict[str, Any], batches: str) -> None:
        pairs = read_batches(batches)
        ready["tokens"] = [int((target[:, 1:] != shape["pad"]).sum()) for _, target in pairs]
        ready["sizes"] = [source.numel() + target.numel() for source, target in pairs]
        ready["before"] = resident_memory()
        ready["training"] = begin(shape, pairs)
        handlers.update(ready["training"].more or {})

    def memory() -> dict[str, Any]:
        """Before anything else: the second step also holds the optimizer's moments."""
        step, batches = ready["training"].step, ready["training"].batches
        largest = batches[max(range(len(batches)), key=ready["sizes"].__getitem__)]
        losses = [step(largest), step(largest)]
        return {"bytes": peak_memory() - ready["before"], "losses": losses}

    def repeat() -> dict[str, Any]:
        step, batches = ready["training"].step, ready["training"].batches
        seconds, losses = timed(lambda: [step(batch) for batch in batches])
        return {"seconds": seconds, "tokens": sum(ready["tokens"]), "losses": losses}

    handlers: dict[str, Callable[..., Any]] = {
        "prepare": prepare, "memory": memory, "repeat": repeat, "about": lambda: ready["training"].about
    }  # fmt: skip
    serve(handlers)


def read_batches(file: str) -> list[tuple[Any, Any]]:
    """Tensors of token ids: source (B, S) with ends, target (B, T + 1) with starts and ends, both padded."""
    import numpy  # here, not above: not every peer has them
    import torch

    torch.manual_seed(1)
    with numpy.load(file) as arrays:
        count = len(arrays.files) // 2
        return [tuple(torch.from_numpy(arrays[f"{side}{i}"]) for side in ("source", "target")) for i in range(count)]


def learn(loss_of: Callable[[Any], Any], optimizer: Any) -> Callable[[Any], float]:
    """The usual step: forward, backward, update, zero the gradient."""

    def step(batch: Any) -> float:
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return step


def parameters(model: Any) -> int:
    """The number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
