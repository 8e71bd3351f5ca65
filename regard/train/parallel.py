"""Several processes, one training: `torchrun --nproc-per-node 2 -m regard train multi30k`.

Each process takes its own batches of a step; their gradients are added, and all make the same step on the same weights.
So n processes do what one does with `train.accumulate` n times as large.  The first of them also writes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["Team", "joined"]


class Team(NamedTuple):
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
            torch.manual_seed((seed * 1_000_003 + step) * self.size + self.rank)

    def add_up(self, model: nn.Module, *numbers: float) -> list[float]:
        """Leave in each process the sum of all gradients; return the sums of some numbers, in the same message."""
        if self.size == 1:
            return list(numbers)
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        device = grads[0].device
        message = torch.cat([*(g.flatten() for g in grads), torch.tensor(numbers, device=device)])
        dist.all_reduce(message)
        sums = message[len(message) - len(numbers) :]
        torch._foreach_copy_(grads, [
            part.view_as(g) for part, g in zip(message[: len(message) - len(numbers)].split([g.numel() for g in grads]),
                                               grads, strict=True)
        ])  # fmt: skip
        return sums.tolist()


@contextmanager
def joined(device: torch.device) -> Iterator[Team]:
    """The team that torchrun has started, or a team of one."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield Team()
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Team(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
