"""What one layer of causal self-attention costs in training, forward and backward: seconds, and the most bytes held.

Two ways to the same numbers: `fused` is what training does, `explicit` what a model does while its weights are looked at.
Shapes: H heads, T tokens, E width of one head.
"""

from pathlib import Path

import torch
from torch import Tensor
from worker import peak_memory, resident_memory, serve, timed

from regard.layers.attention import attend

HEADS, WIDTH = 4, 64
WARM = 64  # tokens of a first pass, which starts the threads and makes their buffers
LEAST = 0.3  # seconds; what is quicker is done several times


def make(length: int) -> list[Tensor]:
    """Queries, keys and values (1, H, T, E)."""
    return [torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for _ in range(3)]


def learn(qkv: list[Tensor], path: str) -> tuple[Tensor, ...]:
    """Forward and backward; → the gradients of queries, keys and values."""
    mixed, _ = attend(*qkv, causal=True, need_weights=path == "explicit")
    return torch.autograd.grad(mixed, qkv, torch.ones_like(mixed))


def memory(path: str, length: int) -> dict[str, int]:
    """The most bytes held at once, inputs and gradients counted.

    The peak is set back before, so that one process can be asked for many lengths.  What was freed has to leave the
    process for that: `scale.py` starts this worker with MALLOC_MMAP_THRESHOLD_.
    """
    learn(make(WARM), path)
    before = resident_memory()
    Path("/proc/self/clear_refs").write_text("5")
    learn(make(length), path)
    return {"bytes": peak_memory() - before}


def time(path: str, length: int) -> dict[str, float]:
    """Seconds of one pass, the mean of as many as take a moment."""
    qkv, spent, passes = make(length), 0.0, 0
    while spent < LEAST:
        seconds, _ = timed(lambda: learn(qkv, path))
        spent, passes = spent + seconds, passes + 1
    return {"seconds": spent / passes}


if __name__ == "__main__":
    serve({"prepare": lambda: None, "memory": memory, "time": time, "about": lambda: {"heads": HEADS, "width": WIDTH}})
