"""A bound on connections: how many there are, and how long a client may do nothing.

Each takes a descriptor of the process, and without descriptors nobody is served.  uvicorn's timeout of idle connections begins
after their first answer: a client that never sends all headers of a request, or never reads its answer, could stay for ever.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

__all__ = ["BoundedProtocol"]

MAX_CONNECTIONS = 512  # of 1024 descriptors that a process may usually have
IDLE_SECONDS = 30.0  # in which a client must send all headers of a request, or read some of its answer
BUSY = (b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 5\r\nConnection: close\r\n\r\n"
        b'{"error": "too many connections; try again"}')  # fmt: skip


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol of one connection, checked every `IDLE_SECONDS`.

    A connection is ended if no request has begun since the last check, or if nothing of an answer was read.  The time of a body
    and of an answer is limited where they are read and made.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse a connection that is one too many, and watch any other."""
        super().connection_made(transport)
        self._last_request: RequestResponseCycle | None = None
        self._had_none = True  # whether no request was being answered at the last check
        self._unsent = 0  # bytes that waited for the client at the last check
        if len(self.connections) > MAX_CONNECTIONS:
            transport.write(BUSY)
            transport.close()
        self._timer = self.loop.call_later(IDLE_SECONDS, self._check)

    def _check(self) -> None:
        has_none = self.cycle is None or self.cycle.response_complete
        unsent = self.transport.get_write_buffer_size()
        silent = has_none and self._had_none and self.cycle is self._last_request
        if silent or unsent >= self._unsent > 0:
            self.transport.abort()  # to close it would wait for the client to read
            return
        self._last_request, self._had_none, self._unsent = self.cycle, has_none, unsent
        self._timer = self.loop.call_later(IDLE_SECONDS, self._check)

    def resume_writing(self) -> None:
        """The client has read what waited."""
        super().resume_writing()
        self._unsent = 0

    def connection_lost(self, exc: Exception | None) -> None:
        """Watch no longer."""
        self._timer.cancel()
        super().connection_lost(exc)
