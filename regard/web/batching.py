"""One thread for each model, with a bounded queue: requests that wait are decoded together.

The server's event loop never computes.  It submits a job and awaits its future (`asyncio.wrap_future`); the model's thread takes
the job whose turn it is and all others that may share its batch, and hands them to the model at once.  While a batch is
decoded the next one gathers.

A batch is never joined once it has begun.  Of a 20-word sentence, 25 steps with a beam of 5 on a small Transformer, one alone
takes a quarter of the time of 32 together: clients that ask again at once would gain at most a fifth of the throughput, for
states of different ages in one search.  Most of that comes from `GATHER`.

Each of n models computes on 1 / n of torch's threads.  With more threads than cores, OpenMP's would sleep after every product
instead of waiting for the next, and a step would take twice as long.
"""

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch

from regard.web.memory import return_freed

__all__ = ["BatchReport", "Job", "ModelThread", "OutOfTime", "QueueFull", "ThreadClosed"]

LOG = logging.getLogger("regard.serve")

TRIM_EVERY = 32  # batches after which freed memory is returned, if jobs come without a pause
IDLE = 0.2  # seconds without a job after which it is
BATCH_COST = 8_000  # of the jobs of a batch together, if they are several; in characters, about 100 sentences
DELAY_PER_COST = 0.0005  # seconds that a job stands back for each unit of its cost, so that short ones come before it
MAX_DELAY = 10.0  # seconds: a large job is late by no more, however many short ones come
GATHER = 0.004  # seconds without a new job after which a batch begins, if the one before had several jobs

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueFull(Exception):
    """Too many requests wait; `retry_after` estimates the seconds until there is room."""

    def __init__(self, name: str, limit: int, retry_after: float):
        super().__init__(f"{limit} requests wait for {name}; try again in {retry_after:.0f} seconds")
        self.retry_after = retry_after


class ThreadClosed(Exception):
    """The model's thread takes no more jobs: the server is shutting down."""


class OutOfTime(Exception):
    """A job was not done within its time limit."""


@dataclass(eq=False)
class Job(Generic[Item, Result]):
    """One request: what is asked, and the future of its answer.

    Jobs of the same `work` and the same `options` share a batch.  Cancelling the future, at any time, says that nobody wants
    the answer any more: a job that waits is never started, one that is decoded leaves the batch at the next step.  A job is
    the `TextObserver` of its own decoding.
    """

    work: "Work[Item, Result]"
    item: Item
    options: Hashable = ()
    partial: Callable[[str], None] | None = None  # gets the text so far, in the model's thread
    deadline: float = float("inf")  # of time.monotonic
    future: "Future[Result]" = field(default_factory=Future)
    submitted: float = field(default_factory=time.monotonic)
    cost: int = 0  # how much work it is, such as the characters of its texts
    given_up: bool = False  # by a server that shuts down

    @property
    def turn(self) -> float:
        """Jobs are worked on in this order: as they came, but a large one stands back for a while."""
        return self.submitted + min(self.cost * DELAY_PER_COST, MAX_DELAY)

    @property
    def wanted(self) -> bool:
        """Whether anyone waits for the answer, and has time to."""
        return not (self.given_up or self.future.cancelled() or time.monotonic() >= self.deadline)

    def shares_batch(self, other: "Job[Any, Any]") -> bool:
        """Whether the model can answer both at once."""
        return (self.work, self.options) == (other.work, other.options)


Work = Callable[[Sequence[Job[Item, Result]]], Sequence[Result]]  # jobs with the same options → a result of each


@dataclass(frozen=True)
class BatchReport:
    """What a model's thread did in one go, for metrics."""

    name: str  # of the thread
    jobs: int  # 0 if some were dropped while they waited
    waited: tuple[float, ...]  # seconds each job was in the queue
    seconds: float  # of work
    failed: int = 0
    dropped: int = 0  # jobs that nobody wanted in the end, or whose time ran out


class ModelThread:
    """Runs the jobs of one model, in a thread of its own; as a context manager it closes at the end.

    A batch has jobs of at most `BATCH_COST` together, or one that is larger: its clients wait for all of it.  Jobs that cost as
    much as each other take turns in their order; a large one waits up to `MAX_DELAY` longer while short ones come.

    It computes on `cores` of torch's threads.  `limit` bounds the jobs that wait, `batch` those that are handed to the model
    together, `seconds` is the time limit of a job from its submission, unless it has its own.  `report` is called after each
    batch, and for jobs dropped while they waited.

        with ModelThread("enit") as thread:
            work = lambda jobs: translator.translate([job.item for job in jobs], observers=jobs)
            future = thread.submit(work, "I love you very much", options=("translate", 4))
            print(future.result().text)
    """

    def __init__(self, name: str, *, cores: int = 1, limit: int = 128, batch: int = 32, seconds: float = 60.0,
                 report: Callable[[BatchReport], None] = lambda report: None):  # fmt: skip
        if limit < 1 or batch < 1 or not seconds > 0:
            raise ValueError(f"limit {limit}, batch {batch}, seconds {seconds}; use 1 or more, and a time above 0")
        self.name, self.limit, self.batch, self.seconds = name, limit, batch, seconds
        self._report = report
        self._waiting: deque[Job[Any, Any]] = deque()
        self._running: Sequence[Job[Any, Any]] = ()
        self._changed = threading.Condition()
        self._closed = False
        self._seconds_per_job = 0.0  # moving average, for `retry_after`
        self._last = 1  # jobs of the last batch
        self._cores = cores
        self._thread = threading.Thread(target=self._run, name=f"model {name}", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """How many jobs wait."""
        return len(self._waiting)

    @property
    def busy(self) -> int:
        """How many jobs are being worked on."""
        return len(self._running)

    def submit(self, work: Work[Item, Result], item: Item, *, options: Hashable = (),
               partial: Callable[[str], None] | None = None, seconds: float | None = None,
               cost: int = 0) -> Future[Result]:  # fmt: skip
        """Queue a job that may be answered together with others of the same `work` and `options`.

        `work` gets the jobs of a batch and returns their results in order; of a job that is no longer `wanted` any result will
        do.  If a batch fails with a ValueError, its jobs are tried one by one, so that the error reaches only the job that
        caused it.  `partial` is called in the model's thread: a server hands on with `loop.call_soon_threadsafe`.
        """
        now = time.monotonic()
        job = Job(work, item, options, partial, now + (self.seconds if seconds is None else seconds), submitted=now,
                  cost=cost)  # fmt: skip
        unwanted = list[Job[Any, Any]]()
        with self._changed:
            if self._closed:
                raise ThreadClosed(f"{self.name} takes no more requests: the server is shutting down")
            if len(self._waiting) >= self.limit:  # jobs whose time is over make room
                unwanted = [waiting for waiting in self._waiting if not waiting.wanted]
                self._waiting = deque(waiting for waiting in self._waiting if waiting not in unwanted)
            full = len(self._waiting) >= self.limit
            if not full:
                self._waiting.append(job)
                self._changed.notify()
        job.future.add_done_callback(self._forget)  # of the future, not of the job: no cycle keeps its item alive
        self._drop_waiting(unwanted)
        if full:
            raise QueueFull(self.name, self.limit, max(1.0, self._seconds_per_job * self.limit))
        return job.future

    def _forget(self, future: Future[Any]) -> None:
        """Remove a job that was cancelled while it waited, with the file or text that it holds."""
        if future.cancelled():
            with self._changed:
                before = len(self._waiting)
                self._waiting = deque(job for job in self._waiting if job.future is not future)
                dropped = before - len(self._waiting)
            if dropped:
                self._send_report(BatchReport(self.name, 0, (), 0.0, dropped=dropped))

    def _drop_waiting(self, unwanted: Sequence[Job[Any, Any]]) -> None:
        """Settle jobs that left the queue because nobody wants them any more."""
        for job in unwanted:
            _drop(job)
        if unwanted:
            self._send_report(BatchReport(self.name, 0, (), 0.0, dropped=len(unwanted)))

    def run(self, function: Callable[[], Result], *, seconds: float | None = None) -> Future[Result]:
        """Queue a function, which runs alone and in its turn; once it has started it runs to its end."""
        return self.submit(_call, function, options=object(), seconds=seconds)

    def close(self, *, finish: bool = False, timeout: float | None = 10.0) -> bool:
        """Take no more jobs, `finish` or give up those that are there, and wait for the thread; False if it is still busy.

        Jobs given up end with `ThreadClosed`.  May be called again.
        """
        with self._changed:
            self._closed = True
            if not finish:
                for job in (*self._waiting, *self._running):
                    job.given_up = True
            self._changed.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def __enter__(self) -> "ModelThread":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(finish=kind is None)

    def _run(self) -> None:
        torch.get_num_threads()  # each thread takes the number of the process once: now, so that the next line counts
        torch.set_num_threads(self._cores)
        for number in itertools.count(1):
            if not self._wait():
                return
            taken, unwanted = self._take()
            self._drop_waiting(unwanted)
            if taken:
                self._work(taken)
            self._running = ()
            del taken, unwanted  # a result must not stay alive while the thread waits
            if number % TRIM_EVERY == 0:
                return_freed()

    def _wait(self) -> bool:
        """Until there is a job; False if the thread is to end.

        After a batch of several jobs their clients may ask again at the same time: the next begins when no more come.
        """

        def is_called() -> bool:
            return bool(self._waiting) or self._closed

        with self._changed:
            called = self._changed.wait_for(is_called, IDLE)
        if not called:
            return_freed()
        with self._changed:
            self._changed.wait_for(is_called)
            while self._last > 1 and len(self._waiting) < self._last and not self._closed and self._changed.wait(GATHER):
                pass
            return bool(self._waiting)

    def _take(self) -> tuple[list[Job[Any, Any]], list[Job[Any, Any]]]:
        """The job whose turn it is with the others that may share its batch, and the jobs that nobody wants any more."""
        taken, unwanted, rest, cost = list[Job[Any, Any]](), list[Job[Any, Any]](), deque[Job[Any, Any]](), 0
        with self._changed:
            for job in sorted(self._waiting, key=lambda job: job.turn):
                if not job.wanted:
                    unwanted.append(job)
                elif not taken or (len(taken) < self.batch and cost + job.cost <= BATCH_COST and job.shares_batch(taken[0])):
                    taken.append(job)
                    cost += job.cost
                else:
                    rest.append(job)
            self._waiting, self._running = rest, taken
        return taken, unwanted

    def _work(self, jobs: Sequence[Job[Any, Any]]) -> None:
        """Work on a batch, and settle the futures of its jobs."""
        start, failed, dropped = time.monotonic(), 0, 0
        waited = tuple(start - job.submitted for job in jobs)
        results = _results(jobs)
        self._last = len(jobs)
        for job, result in zip(jobs, results, strict=True):
            if not job.wanted:
                dropped += 1
                _drop(job)
            elif isinstance(result, _Failed):
                failed += 1
                _settle(job, result)
            else:
                _settle(job, result)
        seconds = time.monotonic() - start
        self._seconds_per_job += 0.2 * (seconds / len(jobs) - self._seconds_per_job)
        self._send_report(BatchReport(self.name, len(jobs), waited, seconds, failed, dropped))

    def _send_report(self, report: BatchReport) -> None:
        try:
            self._report(report)
        except Exception as error:  # metrics that fail must not end the thread
            LOG.error("metrics of %s: %s: %s", self.name, type(error).__name__, error)


@dataclass(frozen=True)
class _Failed:
    error: BaseException


def _results(jobs: Sequence[Job[Any, Any]]) -> list[Any]:
    """A result of each job, or how it failed; one by one if the input of one of them is refused.

    Other errors, such as a lack of memory, reach all jobs: to try each again would repeat them.
    """
    try:
        results = list(jobs[0].work(jobs))
        if len(results) != len(jobs):
            raise RuntimeError(f"{len(results)} results of {len(jobs)} jobs")
        return results
    except BaseException as error:  # whatever it is, someone waits for the answer
        if len(jobs) > 1 and isinstance(error, ValueError):
            return [_results([job])[0] if job.wanted else None for job in jobs]
        return [_Failed(error)] * len(jobs)


def _settle(job: Job[Any, Any], result: Any) -> None:
    """Hand over the result, unless the future was cancelled meanwhile.

    The future is pending until now, so that it can be cancelled while the job is worked on.
    """
    if job.future.set_running_or_notify_cancel():
        if isinstance(result, _Failed):
            error = result.error
            if isinstance(error, ValueError):  # no bug; its frames have the job, whose file would stay in memory until a GC
                error.__traceback__ = error.__context__ = error.__cause__ = None
            job.future.set_exception(error)
        else:
            job.future.set_result(result)


def _drop(job: Job[Any, Any]) -> None:
    """Settle the future of a job that is no longer wanted."""
    if job.given_up:
        _settle(job, _Failed(ThreadClosed("the server is shutting down")))
    else:
        _settle(job, _Failed(OutOfTime(f"no answer within {job.deadline - job.submitted:.3g} seconds; ask for less, or later")))


def _call(jobs: Sequence[Job[Callable[[], Result], Result]]) -> list[Result]:
    return [job.item() for job in jobs]
