"""Ask an ASGI app without a network: every header and every piece of a body is the test's own."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

App = Callable[[dict, Callable, Callable], Awaitable[None]]
JSON = {"content-type": "application/json"}


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> object:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        found = self.json()["error"]
        return found if isinstance(found, str) else found["message"]


def ask(app: App, method: str, path: str, body: bytes | Iterable[bytes] | object = b"", headers: dict[str, str] | None = None,
        pause: float = 0.0) -> Reply:  # fmt: skip
    """Send a request; `body` as bytes, as pieces of them (without a Content-Length), or as JSON; `pause` before each piece."""
    found = {"host": "127.0.0.1:8000"}
    if isinstance(body, bytes):
        pieces = [body]
        found |= {"content-length": str(len(body))} if body else {}
    elif isinstance(body, list | tuple) and body and all(isinstance(piece, bytes) for piece in body):
        pieces = list(body)
        found |= {"transfer-encoding": "chunked"}
    else:
        pieces = [json.dumps(body).encode()]
        found |= JSON | {"content-length": str(len(pieces[0]))}
    found |= {name.lower(): value for name, value in (headers or {}).items()}
    return asyncio.run(
        ask_async(app, method, path, pieces, {name: value for name, value in found.items() if value is not None}, pause)
    )


async def ask_async(app: App, method: str, path: str, pieces: list[bytes], headers: dict[str, str], pause: float = 0.0) -> Reply:
    """The same in an event loop of the test, with all headers as given."""
    address, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": method,
        "path": address, "raw_path": address.encode(), "query_string": query.encode(), "root_path": "", "scheme": "http",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("127.0.0.1", 50000), "server": ("127.0.0.1", 8000), "state": {},
    }  # fmt: skip
    waiting, messages = list(pieces), []

    async def receive() -> dict:
        if not waiting:
            await asyncio.Event().wait()  # the client stays
        await asyncio.sleep(pause)
        piece = waiting.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(waiting)}

    async def send(message: dict) -> None:
        messages.append(message)

    await app(scope, receive, send)
    start = next(message for message in messages if message["type"] == "http.response.start")
    body = b"".join(message.get("body", b"") for message in messages if message["type"] == "http.response.body")
    return Reply(start["status"], {name.decode().lower(): value.decode() for name, value in start["headers"]}, body)
