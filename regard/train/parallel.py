"""Several processes, one training: `torchrun --nproc-per-node 2 -m regard train multi30k`.

Each process makes its own batches of a step; their gradients are summed, and all take the same step on the same weights.  So n
processes do what one does with `train.accumulate` n times as large.  The first of them also writes.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["World", "first_process", "joined"]


class World(NamedTuple):
    """Which of how many processes this is."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process logs and saves."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait until all processes have come here."""
        if self.size > 1:
            dist.barrier()

    def seed(self, seed: int, step: int) -> None:
        """Use other dropout masks in each process, the same ones again after a resume."""
        if self.size > 1:
            torch.manual_seed(((seed * 1_000_003 + step) * self.size + self.rank) % 2**63)

    def broadcast(self, value: float) -> float:
        """The value of the first process: for what all must decide alike."""
        if self.size == 1:
            return value
        message = _scalar(value)
        dist.broadcast(message, 0)
        return message.item()

    def total(self, count: int) -> int:
        """The sum over all processes."""
        if self.size == 1:
            return count
        message = _scalar(count)
        dist.all_reduce(message)
        return round(message.item())

    def copy_from_main(self, tensors: Iterable[Tensor]) -> None:
        """Start from the weights of the first process: another machine may initialize other ones."""
        for tensor in tensors if self.size > 1 else ():
            dist.broadcast(tensor.data, 0)

    def all_reduce(self, model: nn.Module, *values: float) -> list[float]:
        """Sum gradients and values over all processes in one message."""
        if self.size == 1:
            return list(values)
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        message = torch.cat([*(g.flatten() for g in grads), torch.tensor(values, device=grads[0].device)])
        dist.all_reduce(message)
        *sums, rest = message.split([*(g.numel() for g in grads), len(values)])
        for g, part in zip(grads, sums, strict=True):
            g.copy_(part.view_as(g))
        return rest.tolist()


def _scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")


def first_process() -> bool:
    """Whether this process is alone, or the first that torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) < 2 or os.environ.get("RANK", "0") == "0"


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """The processes that torchrun has started, or this one alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield World()
        return
    if device.type == "mps" or device.index is not None:
        raise ValueError(f"train.device={device} and several processes; use cpu, or cuda without an index")
    if device.type == "cuda":
        local = int(os.environ["LOCAL_RANK"])
        if local >= torch.cuda.device_count():
            raise ValueError(f"process {local + 1} of this machine has no GPU; start {torch.cuda.device_count()} of them")
        torch.cuda.set_device(local)
    # The others wait while the first one encodes the data, however long that takes.
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(days=1))
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
