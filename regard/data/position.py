"""The position in an endless, seeded order of batches: what a checkpoint stores to resume at the next batch."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

__all__ = ["BatchStream", "DataPosition"]


class DataPosition(NamedTuple):
    """Which batch of which epoch comes next; texts in pairs are read pool by pool."""

    epoch: int = 0
    pool: int = 0
    batch: int = 0


Batch = TypeVar("Batch")
# Endless: a function that builds the batch when it is called, and the position after it.
BatchStream = Iterator[tuple[Callable[[], Batch], DataPosition]]
