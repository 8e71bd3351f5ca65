"""Work shared among threads, each of which computes on one core.

A step of decoding is many small products: two cores on each of them wait for one another more than they work.
"""

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

import torch

__all__ = ["map_in_threads"]

Job = TypeVar("Job")
Result = TypeVar("Result")

ALONE = threading.Lock()


def map_in_threads(
    work: Callable[[Job], Result], jobs: Sequence[Job], workers: int
) -> Generator[tuple[Job, Result], None, None]:
    """Each job with its result, as they are done; with one worker in this thread, on all cores.

    How many cores a new thread gets is a number of the whole process, so one such sharing goes on at a time; a second
    one meanwhile works in its own thread.
    """
    if workers < 2 or not ALONE.acquire(blocking=False):
        yield from ((job, work(job)) for job in jobs)
        return
    cores = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        waiting = {pool.submit(work, job): job for job in jobs}
        yield from ((waiting[done], done.result()) for done in as_completed(waiting))
    finally:
        try:
            pool.shutdown(cancel_futures=True)
        finally:
            torch.set_num_threads(cores)  # a thread's number is also that of threads yet to come
            ALONE.release()
