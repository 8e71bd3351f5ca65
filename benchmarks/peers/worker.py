"""What every worker shares: answer requests, one line of JSON each, on standard input and output.

Only the standard library is used here: a worker runs in the environment of the peer it measures.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["peak_memory", "serve", "timed"]


def serve(handlers: dict[str, Callable[..., Any]]) -> None:
    """Call the handler each request names, with the rest of the request, and send back what it returns."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(handlers[request.pop("do")](**request)) + "\n")
        answers.flush()


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds it took, and what came out."""
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def peak_memory() -> int:
    """The most bytes this process ever held in memory."""
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024
