"""Jobs mapped over threads, each of which computes on one core.

A decoding step is many small products: two cores that share each of them spend most of their time waiting.
"""

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from typing import TypeVar

import torch

__all__ = ["map_in_threads"]

Job = TypeVar("Job")
Result = TypeVar("Result")

POOL_LOCK = threading.Lock()


def map_in_threads(work: Callable[[Job], Result], jobs: Sequence[Job], workers: int) -> Generator[tuple[Job, Result], None, None]:
    """Each job with its result, in order of completion; one worker runs in this thread, on all cores.

    torch's thread count for new threads is global to the process, so only one pool exists at a time; a second call
    meanwhile runs in its own thread.
    """
    if workers < 2 or not POOL_LOCK.acquire(blocking=False):
        yield from ((job, work(job)) for job in jobs)
        return
    cores = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        pending = {pool.submit(copy_context().run, work, job): job for job in jobs}  # jobs belong to the caller's context
        yield from ((pending[future], future.result()) for future in as_completed(pending))
    finally:
        try:
            pool.shutdown(cancel_futures=True)
        finally:
            torch.set_num_threads(cores)  # also the count for new threads
            POOL_LOCK.release()
