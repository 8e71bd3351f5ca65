"""Random hostile requests, byte by byte over sockets: the server answers each or closes the connection, and stays as it was."""

import gc
import json
import random
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests
from conftest import serve
from serving_runs import served_app

import regard
from regard.web.security import Limits

PATHS = ["/", "/index.html", "/translate", "/detect", "/languages", "/frontend/settings", "/health", "/metrics", "/openapi.json",
         "/v1/models", "/v1/models/gpt", "/v1/completions", "/v1/embeddings", "/api/v1/runs", "/api/v1/runs/learner/inspect",
         "/api/v1/runs/gpt/inspect/stream", "/api/v1/runs/bert/log", "/api/v1/runs/learner/positions", "/api/v1/lecture/steps",
         "/api/v1/records/x/layers/0/weights?head=0", "/api/v1/records/x/steps", "/../../etc/passwd", "/%00", "/%ff%fe", "*",
         "//", "http://evil.example/", "/api/v1/runs/%2e%2e/inspect", "/" + "a" * 70_000]  # fmt: skip
TEXTS = [
    "I love you very much",
    "",
    "\0",
    "\ud800",
    "\u202e",
    "<script>",
    "a" * 500,
    "a" * 25_000,
    "\N{PILE OF POO}" * 50,
    "null",
    "../..",
    "en",
    "it",
]
KEYS = ["q", "source", "target", "format", "alternatives", "model", "prompt", "max_tokens", "temperature", "top_p", "n", "stop",
        "stream", "input", "text", "file", "name", "beam", "tokens", "seed", "checkpoint", "head", "layer", "positions",
        "shuffle", "encoding_format", "__proto__", "api_key"]  # fmt: skip
RUNS = ["gpt", "learner", "bert"]
FITTING = {
    "/translate": {"q": [*TEXTS, TEXTS], "source": ["en", "auto", "xx"], "target": ["it"], "alternatives": [0, 2]},
    "/detect": {"q": TEXTS},
    "/v1/completions": {
        "model": RUNS,
        "prompt": TEXTS,
        "max_tokens": [3],
        "stream": [False, True],
        "n": [1, 2],
        "temperature": [0, 1, 1e-320],
        "top_p": [1, 0.5, 1e-320],
    },
    "/v1/embeddings": {"model": ["bert"], "input": [*TEXTS, TEXTS]},
    "/api/v1/runs/learner/inspect": {"text": TEXTS, "beam": [1, 2], "temperature": [0, 1e-320]},
    "/api/v1/runs/gpt/inspect/stream": {"text": TEXTS, "tokens": [2]},
    "/api/v1/runs/bert/inspect": {"file": ["aGVsbG8=", "!", ""], "name": TEXTS},
}
HEADERS = ["Host: evil.example", "Origin: http://evil.example", "Sec-Fetch-Site: cross-site", "Content-Type: text/plain",
           "Content-Type: application/x-www-form-urlencoded", "Content-Length: -1", "Content-Length: 99999999999",
           "Expect: 100-continue", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Content-Encoding: gzip",
           "X: " + "y" * 9000,
           "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAA=",
           "Authorization: Bearer \xff\xfe", "If-None-Match: *", "Range: bytes=0-1", "Cookie: a=b"]  # fmt: skip
PATIENCE = 30.0  # seconds for one answer, more than the server's limit
WARM = 300  # requests after which memory and threads should have settled


@pytest.fixture
def address(runs: dict[str, Path]) -> Iterator[str]:
    yield from serve(served_app(runs, limits=Limits(body_seconds=0.2, seconds=20)))


def hostile_request(chance: random.Random) -> bytes:
    """The bytes of one request; now and then they are no HTTP at all."""
    if chance.random() < 0.03:
        return chance.randbytes(chance.randrange(1, 300))
    path = chance.choice(PATHS)
    method = chance.choice(["GET"] * 4 + ["POST"] * 8 + ["HEAD", "PUT", "OPTIONS", "DELETE", "BREW", "get"])
    body = hostile_body(chance) if method not in ("GET", "HEAD") or chance.random() < 0.1 else b""
    if chance.random() < 0.3:  # one that may well be answered
        method, (path, keys) = "POST", chance.choice(list(FITTING.items()))
        more = {chance.choice(KEYS): hostile_value(chance)} if chance.random() < 0.5 else {}
        body = json.dumps({key: chance.choice(values) for key, values in keys.items()} | more).encode()
    lines = [f"{method} {path} HTTP/1.1"]
    if chance.random() < 0.95:
        lines.append("Host: 127.0.0.1")
    if body and chance.random() < 0.95:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    if chance.random() < 0.3:
        lines += chance.sample(HEADERS, chance.randrange(1, 3))
    request = "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + body
    if chance.random() < 0.05:
        place = chance.randrange(len(request))
        request = request[:place] + chance.randbytes(3) + request[place + 3 :]
    return request[: chance.randrange(1, len(request))] if chance.random() < 0.03 else request


def hostile_body(chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return chance.choice([b"[" * 5000, b'{"q":' * 900, b"\xff\xfe", b"NaN", b"1e999", b'{"q":"\\ud800"}', b"null", b"[]",
                              b"q=a&source=en", b"x" * 200_000, b'{"q":"' + b'\\"' * 400_000, b'{"q":"' + b"\\" * 400_001,
                              b'["' + b'\\"' * 30_000 + b'"]'])  # fmt: skip
    body = {key: hostile_value(chance) for key in chance.sample(KEYS, chance.randrange(6))}
    plain = {key: chance.choice(values) for key, values in chance.choice(list(FITTING.values())).items()}
    return json.dumps(chance.choice([body, plain, plain | body])).encode()


def hostile_value(chance: random.Random, depth: int = 0) -> object:
    kinds = [chance.choice(TEXTS), chance.choice([0, 1, -1, 3, 2**63, -(2**70), 1e308, 1e-320, -1e-320, 0.5]), None, True, False]
    if depth < 3 and chance.random() < 0.2:
        return [hostile_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if depth < 3 and chance.random() < 0.1:
        return {chance.choice(TEXTS): hostile_value(chance, depth + 1)}
    return chance.choice(kinds)


def send(port: int, request: bytes, leave: bool) -> bytes:
    """What comes back until the connection is closed, or nothing comes for a while; `leave` hangs up without reading."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection, suppress(ConnectionError, TimeoutError):
        connection.sendall(request)
        if leave:
            return b""
        connection.settimeout(PATIENCE if b"\r\n\r\n" in request else 0.05)  # without an end of the headers no answer can come
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
        return answer
    return b""


def resident() -> int:
    """Bytes of memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def fuzz(address: str, count: int, growth: float, seed: int) -> dict[int, int]:
    """How often each status was answered; fails on 5xx, on leaks, and if the server does not answer as before."""
    port, chance, statuses = int(address.rpartition(":")[2]), random.Random(seed), dict[int, int]()
    memory = threads = 0
    for number in range(count):
        request, leave = hostile_request(chance), chance.random() < 0.02
        answer = send(port, request, leave)
        status = int(found[1]) if (found := re.match(rb"HTTP/1\.1 (\d{3})", answer)) else 0
        statuses[status] = statuses.get(status, 0) + 1
        late = status == 503 and b"no answer within" in answer  # an honest answer of a machine that has other work
        assert status < 500 or late, (request[:2000], answer[:2000])
        assert b"Traceback" not in answer
        assert b"access-control-" not in answer.lower()
        if number == WARM:
            memory, threads = resident(), threading.active_count()
    assert resident() < memory * growth
    assert threading.active_count() <= threads
    assert statuses.get(503, 0) <= count // 100
    return statuses


def check_alive(address: str, runs: dict[str, Path]) -> None:
    reply = requests.post(f"{address}/translate", json={"q": "I love you very much", "source": "en", "target": "it"})
    assert reply.json()["translatedText"] == regard.load(runs["learner"], "cpu").translate(["I love you very much"])[0].text
    assert all(run["waiting"] == 0 for run in requests.get(f"{address}/health").json()["runs"])


def test_a_thousand_hostile_requests(address, runs, caplog):
    statuses = fuzz(address, 1000, growth=1.10, seed=1)
    assert not [line.getMessage() for line in caplog.records if line.exc_info], "a traceback in the server's log"
    assert statuses[200] > 100, "some requests must get through"
    assert {400, 403, 404, 405, 413, 415, 421, 422} <= set(statuses), statuses
    check_alive(address, runs)


@pytest.mark.slow
def test_ten_thousand_hostile_requests(runs):
    with contextmanager(serve)(served_app(runs, limits=Limits(body_seconds=0.2, seconds=20))) as address:
        fuzz(address, 10_000, growth=1.05, seed=2)
        check_alive(address, runs)
