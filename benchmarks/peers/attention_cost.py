"""The cost of one layer of causal self-attention in training, forward and backward: seconds, and peak memory.

Two paths with the same result: `fused` is used in training, `explicit` when attention weights are inspected.
Shapes: H heads, T tokens, E width of one head.
"""

from pathlib import Path

import torch
from torch import Tensor
from worker import peak_memory, resident_memory, serve, timed

from regard.layers.attention import attend

HEADS, WIDTH = 4, 64
WARM = 64  # tokens of a warm-up pass, which starts threads and allocates their buffers
LEAST = 0.3  # seconds; a quicker pass is repeated


def make(length: int) -> list[Tensor]:
    """Queries, keys and values (1, H, T, E)."""
    return [torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for _ in range(3)]


def learn(qkv: list[Tensor], path: str) -> tuple[Tensor, ...]:
    """Forward and backward; return the gradients of queries, keys and values."""
    mixed, _ = attend(*qkv, causal=True, need_weights=path == "explicit")
    return torch.autograd.grad(mixed, qkv, torch.ones_like(mixed))


def memory(path: str, length: int) -> dict[str, int]:
    """Peak memory in bytes, with inputs and gradients.

    The peak is reset first, so that one process can measure many lengths.  Freed memory must leave the process for that:
    `scale.py` starts this worker with MALLOC_MMAP_THRESHOLD_.
    """
    learn(make(WARM), path)
    before = resident_memory()
    Path("/proc/self/clear_refs").write_text("5")
    learn(make(length), path)
    return {"bytes": peak_memory() - before}


def time(path: str, length: int) -> dict[str, float]:
    """Seconds of one pass, the mean of several."""
    qkv, spent, passes = make(length), 0.0, 0
    while spent < LEAST:
        seconds, _ = timed(lambda: learn(qkv, path))
        spent, passes = spent + seconds, passes + 1
    return {"seconds": spent / passes}


if __name__ == "__main__":
    serve({"prepare": lambda: None, "memory": memory, "time": time, "about": lambda: {"heads": HEADS, "width": WIDTH}})
