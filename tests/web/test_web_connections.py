"""Clients that do nothing lose their connection, others do not; more than a process can serve are refused."""

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from conftest import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

SECONDS = 20.0  # of any wait in these tests: they fail, they do not hang
IDLE = 0.3


@pytest.fixture
def ended() -> threading.Event:
    """Set when the endless answer has ended."""
    return threading.Event()


@pytest.fixture
def place(monkeypatch, ended) -> Iterator[tuple[str, int]]:
    """Where an app is served that has a plain, a slow and an endless answer."""
    monkeypatch.setattr("regard.web.connections.IDLE_SECONDS", IDLE)
    monkeypatch.setattr("regard.web.connections.MAX_CONNECTIONS", 3)

    async def plain(request: Request) -> PlainTextResponse:
        return PlainTextResponse("done")

    async def slow(request: Request) -> PlainTextResponse:
        await asyncio.sleep(4 * IDLE)
        return PlainTextResponse("done")

    async def endless(request: Request) -> StreamingResponse:
        async def pieces():
            try:
                while True:
                    yield b"x" * 10_000
                    await asyncio.sleep(0)
            finally:
                ended.set()

        return StreamingResponse(pieces())

    app = Starlette(routes=[Route("/plain", plain), Route("/slow", slow), Route("/endless", endless)])
    for address in serve(app):
        found = urlsplit(address)
        yield found.hostname, found.port


def is_closed(connection: socket.socket) -> bool:
    """Whether the server ends the connection."""
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True


def test_a_client_that_sends_nothing_is_disconnected(place):
    with socket.create_connection(place, timeout=SECONDS) as connection:
        assert is_closed(connection)


def test_a_client_that_sends_its_headers_byte_by_byte_is_disconnected(place):
    with socket.create_connection(place, timeout=SECONDS) as connection:
        started = time.monotonic()
        try:
            while time.monotonic() < started + SECONDS:
                connection.sendall(b"a")
                time.sleep(IDLE / 10)
        except ConnectionError:
            return
    pytest.fail("it is still connected")


def test_a_client_that_does_not_read_its_answer_is_disconnected(place, ended):
    with socket.create_connection(place, timeout=SECONDS) as connection:
        connection.sendall(b"GET /endless HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert ended.wait(SECONDS)


def test_a_client_that_reads_on_keeps_its_connection(place, ended):
    with socket.create_connection(place, timeout=SECONDS) as connection:
        connection.sendall(b"GET /endless HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        end = time.monotonic() + 5 * IDLE
        while time.monotonic() < end:
            assert connection.recv(1 << 20)
        assert not ended.is_set()


def test_a_slow_answer_is_awaited_and_a_connection_is_used_again(place):
    connection = http.client.HTTPConnection(*place, timeout=SECONDS)
    kept = None
    for path in ("/plain", "/slow", "/slow", "/plain"):
        connection.request("GET", path)
        assert connection.getresponse().read() == b"done"
        assert kept in (None, connection.sock)
        kept = connection.sock
    connection.close()


def test_one_connection_too_many_is_refused_until_another_ends(place, monkeypatch):
    monkeypatch.setattr("regard.web.connections.IDLE_SECONDS", SECONDS)
    connections = [http.client.HTTPConnection(*place, timeout=SECONDS) for _ in range(4)]
    for connection in connections[:3]:
        connection.request("GET", "/slow")
    for connection in connections[:3]:
        assert connection.getresponse().read() == b"done"
    connections[3].connect()
    with connections[3].sock as refused:
        assert refused.recv(1000).startswith(b"HTTP/1.1 503 ")
    connections[0].close()
    end, status = time.monotonic() + SECONDS, 503
    while status == 503 and time.monotonic() < end:  # the server has to notice
        with socket.create_connection(place, timeout=SECONDS) as again:
            again.sendall(b"GET /plain HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            status = int(again.recv(1000).split()[1])
    assert status == 200
    for connection in connections:
        connection.close()
