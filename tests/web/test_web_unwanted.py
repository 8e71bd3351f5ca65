"""Answers that nobody waits for any more, because the client hung up or the time is over, end at the next decoding step."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from asgi_client import ask
from serving_runs import served_app
from tiny_runs import TEXT

from regard.decode import search

PATIENCE = 20.0


@pytest.fixture(scope="module")
def app(runs: dict[str, Path]) -> Iterator[object]:
    app = served_app(runs, ("transformer",))
    yield app
    app.state.serving.close()


@pytest.fixture
def record(app: object) -> str:
    return ask(app, "POST", "/api/v1/runs/transformer/inspect", {"text": TEXT}).json()["id"]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def hang_up(app: object, path: str, body: dict, begun: Callable[[], bool]) -> None:
    """Send a request, and hang up once it is being answered."""
    content = json.dumps(body).encode()
    headers = {"host": "127.0.0.1:8000", "content-type": "application/json", "content-length": str(len(content))}
    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
             "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http",
             "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
             "client": ("127.0.0.1", 50000), "server": ("127.0.0.1", 8000), "state": {}}  # fmt: skip
    pieces = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> dict:
        if pieces:
            return pieces.pop()
        while not begun():
            await asyncio.sleep(0.005)
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        pass

    asyncio.run(app(scope, receive, send))


@pytest.mark.parametrize("reason", ["hang-up", "time"])
@pytest.mark.parametrize(("path", "body"), [
    ("/runs/transformer/inspect", {"text": TEXT}),
    ("/runs/transformer/inspect", {"text": TEXT, "beam": 1}),
    ("/runs/transformer/inspect/stream", {"text": TEXT}),
    ("/records/{record}/decoding", {}),
    ("/records/{record}/ablate", {"heads": [[0, 0]]}),
    ("/records/{record}/importance", {}),
])  # fmt: skip
def test_no_step_follows_once_nobody_waits(app, record, monkeypatch, path, body, reason):
    serving = app.state.serving
    thread, steps, observe = serving.threads["transformer"], [], search._observe
    before = len(serving.explorer.store)

    def patient(observer, output, done):
        """At the first step, wait until nobody wants the answer any more."""
        steps.append(output)
        if len(steps) == 1:
            [job] = thread._running
            wait_for(lambda: not job.wanted)
        return observe(observer, output, done)

    monkeypatch.setattr(search, "_observe", patient)
    address = "/api/v1" + path.format(record=record)
    if reason == "hang-up":
        hang_up(app, address, body, lambda: bool(steps))
    else:
        monkeypatch.setattr(thread, "seconds", 0.05)
        while not steps:  # the time may be over before the first step
            reply = ask(app, "POST", address, body)
            assert reply.status == 503 or b"no answer within" in reply.body  # of a stream that had begun
            thread.seconds *= 2
    wait_for(lambda: not thread.busy)
    assert len(steps) == 1
    assert len(serving.explorer.store) == before, "an answer that was given up is not kept"
