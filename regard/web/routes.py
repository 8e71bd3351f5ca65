"""A row for each address of the explorer's API, so that the server and `map.html` give the same answers.

An endpoint is a function of the explorer and of the values in its address and body; it knows nothing of HTTP.  The server calls
it for a request; an exported page holds its results for the requests that the page makes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["BadRequest", "Endpoint", "FileAnswer", "Json"]

Json = dict[str, Any]  # what json.dumps takes


class BadRequest(ValueError):
    """A request that cannot be answered: one line for the user, and the HTTP status of the answer.

    `expired`: a record was asked for that the server no longer holds; the page inspects its input again.
    """

    def __init__(self, message: str, status: int = 400, *, expired: bool = False):
        super().__init__(message)
        self.status, self.expired = status, expired


@dataclass(frozen=True)
class FileAnswer:
    """An answer that is a file to download instead of JSON."""

    content: bytes
    media_type: str  # "image/svg+xml"
    name: str  # suggested to the browser


@dataclass(frozen=True)
class Endpoint:
    """`answer(explorer, **values)` gets what is in braces in the path, the query's values, and the body's keys.

    What is in braces comes as text.  `body` and `query` are pydantic dataclasses, which check types and bounds.  All run in the
    thread of the model they use, which `run` or `record` in the path names.

    One that decodes is `observed`: it gets an `observer` too, and ends at the next step if nobody waits for the answer.
    `stream` also gets `send`, which it calls with each line of JSON.
    """

    method: Literal["GET", "POST"]
    path: str  # below /api/v1: "/records/{record}/layers/{layer}/weights"
    answer: Callable[..., Json | FileAnswer]
    body: type | None = None
    query: type | None = None
    stream: Callable[..., None] | None = None
    observed: bool = False
