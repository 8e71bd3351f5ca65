"""The runs that a server serves, a thread for each, and how an endpoint awaits the answer of a model.

An endpoint that waits notices when its client hangs up, and takes its job back; a job that is decoded then leaves its batch.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from regard.web.batching import ModelThread, OutOfTime
from regard.web.explorer import Explorer, ServedRun
from regard.web.metrics import Metrics
from regard.web.routes import BadRequest
from regard.web.security import ClientGone, Limits

__all__ = ["EventStream", "Serving", "Settings", "await_answer", "gather_futures", "json_bytes", "map_future"]

Result = TypeVar("Result")
BACKGROUND = "background"  # the thread of requests that need no model


@dataclass(frozen=True)
class Settings:
    """How to serve."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str = ""
    queue: int = 128  # requests that may wait for a model; more are answered with 429
    batch: int = 32  # requests that are decoded together
    names: tuple[str, ...] = ()  # further names by which the server may be asked: a DNS alias, the name of a proxy
    limits: Limits = field(default_factory=Limits)


class Serving:
    """All that endpoints share."""

    def __init__(self, runs: Sequence[ServedRun], settings: Settings):
        self.settings, self.limits, self.explorer, self.metrics = settings, settings.limits, Explorer(runs), Metrics()
        self.threads = {name: self._start(name) for name in self.explorer.runs}
        self.background = ModelThread(BACKGROUND, limit=settings.queue, seconds=settings.limits.seconds)

    def _start(self, name: str) -> ModelThread:
        settings = self.settings
        cores = max(1, torch.get_num_threads() // len(self.explorer.runs))
        thread = ModelThread(name, cores=cores, limit=settings.queue, batch=settings.batch, seconds=settings.limits.seconds,
                             report=self.metrics.count_batch)  # fmt: skip
        self.metrics.watch_queue(thread)
        return thread

    def thread_of(self, values: Mapping[str, str]) -> ModelThread:
        """The thread of the run, or of the record, that an address names; else one that holds up no model."""
        if "run" in values:
            return self.threads[self.explorer.run(values["run"]).name]
        if "record" in values:
            return self.threads[self.explorer.record(values["record"]).run.name]
        return self.background

    def require_texts(self, texts: Sequence[str], name: str) -> None:
        """Refuse more text than a request may have."""
        if len(texts) > self.limits.texts:
            raise BadRequest(f"{name} has {len(texts):,} texts; a request may have {self.limits.texts:,}: send several", 413)
        if (size := sum(map(len, texts))) > self.limits.text:
            raise BadRequest(f"{name} has {size:,} characters; a request may have {self.limits.text:,}: send less", 413)

    def close(self) -> None:
        """End all threads; jobs that wait are given up."""
        threads = (*self.threads.values(), self.background)
        for timeout in (0.0, 10.0):  # all are told to end before any is waited for
            for thread in threads:
                thread.close(timeout=timeout)


async def await_answer(request: Request, future: "Future[Result]", seconds: float) -> Result:
    """The result of a job; if the client hangs up, or the time is over, the job is taken back."""
    done: asyncio.Future[Result] = asyncio.wrap_future(future)
    gone: asyncio.Future[None] = asyncio.ensure_future(_hang_up(request.receive))
    try:
        both: set[asyncio.Future[Any]] = {done, gone}
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            return done.result()
        if gone.done():
            raise ClientGone
        raise OutOfTime(f"no answer within {seconds:.3g} seconds; ask for less, or later")
    finally:
        gone.cancel()
        done.cancel()


async def _hang_up(receive: Receive) -> None:
    """Return when the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass


def gather_futures(futures: "Sequence[Future[Result]]") -> "Future[list[Result]]":
    """The results of several jobs, or the first error; cancelling it cancels all."""
    whole: Future[list[Result]] = Future()
    lock, missing, settled = threading.Lock(), len(futures), False

    def count(done: "Future[Result]") -> None:
        nonlocal missing, settled
        with lock:
            missing -= 1
            first = not settled and (not missing or done.cancelled() or done.exception() is not None)
            settled = settled or first
        if not first:
            return
        # without the lock: a failure cancels the other jobs, which are then counted in this same call
        with suppress(InvalidStateError):  # it has been cancelled meanwhile
            if done.cancelled():
                whole.cancel()
            elif error := done.exception():
                whole.set_exception(error)
            else:
                whole.set_result([future.result() for future in futures])

    def stop(_: object) -> None:  # those that are not done are no longer wanted
        for future in futures:
            future.cancel()

    whole.add_done_callback(stop)
    for future in futures:
        future.add_done_callback(count)
    return whole


def map_future(future: "Future[Result]", function: Callable[[Result], None]) -> "Future[None]":
    """Call a function with the result of a job; cancelling the future that is returned cancels the job."""
    after: Future[None] = Future()

    def follow(done: "Future[Result]") -> None:
        if done.cancelled() or not after.set_running_or_notify_cancel():
            after.cancel()
        elif error := done.exception():
            after.set_exception(error)
        else:
            try:
                function(done.result())
                after.set_result(None)
            except Exception as error:
                after.set_exception(error)

    after.add_done_callback(lambda _: future.cancel())
    future.add_done_callback(follow)
    return after


class EventStream(Response):
    """An answer that is sent piece by piece while a model's thread makes it.

    `start` gets a function that the thread calls with each piece, and returns the future of the whole.  An error before the first
    piece is an ordinary error; a later one is the last piece, as `on_error` writes it.
    """

    def __init__(self, request: Request, start: "Callable[[Callable[[bytes], None]], Future[None]]", *, media_type: str,
                 seconds: float, on_error: Callable[[Exception], bytes], end: bytes = b""):  # fmt: skip
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self.headers["Cache-Control"] = "no-store"
        self.headers["X-Accel-Buffering"] = "no"  # a proxy must not collect the pieces
        self._request, self._start, self._seconds, self._on_error, self._end = request, start, seconds, on_error, end
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._future: Future[None] | None = None
        self._first: bytes | None = None

    async def begin(self) -> "EventStream":
        """Wait for the first piece."""
        loop, pieces = asyncio.get_running_loop(), self._pieces

        def hand_over(piece: bytes | None) -> None:
            with suppress(RuntimeError):  # the loop is closed: the server has shut down
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        self._future = self._start(hand_over)
        self._future.add_done_callback(lambda _: hand_over(None))
        self._first = await self._next(self._request.receive)
        if self._first is None and (error := self._error()):
            raise error
        return self

    def _error(self) -> Exception | None:
        assert self._future is not None
        error = None if self._future.cancelled() else self._future.exception()
        assert error is None or isinstance(error, Exception)
        return error

    async def _next(self, receive: Receive) -> bytes | None:
        """The next piece; None at the end.  The job is taken back if the client hangs up or the time is over."""
        assert self._future is not None
        piece, gone = asyncio.ensure_future(self._pieces.get()), asyncio.ensure_future(_hang_up(receive))
        try:
            both: set[asyncio.Future[Any]] = {piece, gone}
            await asyncio.wait(both, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            if piece.done():
                return piece.result()
            if gone.done():
                raise ClientGone
            raise OutOfTime(f"no answer within {self._seconds:.3g} seconds; ask for less, or later")
        except BaseException:
            self._future.cancel()
            raise
        finally:
            piece.cancel()
            gone.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the pieces as they come."""
        assert self._future is not None
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            piece = self._first
            while piece is not None:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                piece = await self._next(receive)
            error = self._error()
        except OutOfTime as late:
            error = late
        finally:
            self._future.cancel()
        last = self._on_error(error) if error else self._end
        await send({"type": "http.response.body", "body": last, "more_body": False})


def json_bytes(value: object) -> bytes:
    """JSON as bytes; a NaN in an answer is a bug of ours, not a mistake of the user."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
    except ValueError as error:
        raise AssertionError(f"an answer that is not JSON: {error}") from error
