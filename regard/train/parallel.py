"""Several processes, one training: `torchrun --nproc-per-node 2 -m regard train multi30k`.

Each process takes its own batches of a step; their gradients are added, and all make the same step on the same weights.
So n processes do what one does with `train.accumulate` n times as large.  The first of them also writes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["World", "first_process", "joined"]


class World(NamedTuple):
    """Which of how many processes this is."""

    rank: int = 0
    size: int = 1

    @property
    def writes(self) -> bool:
        """Whether this is the one that logs and saves."""
        return self.rank == 0

    def wait(self) -> None:
        """Until all have come here."""
        if self.size > 1:
            dist.barrier()

    def seed(self, seed: int, step: int) -> None:
        """Draw other dropout masks in each process, the same ones again after a resume."""
        if self.size > 1:
            torch.manual_seed(((seed * 1_000_003 + step) * self.size + self.rank) % 2**63)

    def first(self, number: float) -> float:
        """The number that the first process has: for what all must decide alike."""
        if self.size == 1:
            return number
        held = torch.tensor(number, dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.broadcast(held, 0)
        return held.item()

    def add_up(self, model: nn.Module, *numbers: float) -> list[float]:
        """Leave in each process the sum of all gradients; return the sums of some numbers, in the same message."""
        if self.size == 1:
            return list(numbers)
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        message = torch.cat([*(g.flatten() for g in grads), torch.tensor(numbers, device=grads[0].device)])
        dist.all_reduce(message)
        *sums, rest = message.split([*(g.numel() for g in grads), len(numbers)])
        for g, part in zip(grads, sums, strict=True):
            g.copy_(part.view_as(g))
        return rest.tolist()


def first_process() -> bool:
    """Whether this process is alone, or the first that torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) < 2 or os.environ.get("RANK", "0") == "0"


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """The team that torchrun has started, or a team of one."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield World()
        return
    if device.type == "mps" or device.index is not None:
        raise ValueError(f"train.device={device} and several processes; use cpu, or cuda without a number")
    if device.type == "cuda":
        here = int(os.environ["LOCAL_RANK"])
        if here >= torch.cuda.device_count():
            raise ValueError(
                f"process {here + 1} of this machine has no GPU; start {torch.cuda.device_count()} of them"
            )
        torch.cuda.set_device(here)
    # The others wait while the first one encodes the corpus, however long that takes.
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(days=1))
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
