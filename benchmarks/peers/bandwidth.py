"""The limit of decoding one sentence: how fast weights can be read, as each step uses each weight once."""

from typing import Any

import torch
from worker import serve, timed

TIMES = 500
held: dict[str, Any] = {}


def prepare(floats: int, width: int) -> None:
    """A float32 matrix of about `floats` elements, as wide as the model."""
    held["matrix"], held["vector"] = torch.randn(floats // width, width), torch.randn(width)
    held["out"] = torch.empty(floats // width)


def repeat() -> dict[str, float]:
    """Multiply it with a vector, with all threads, the fastest of several."""
    once = lambda: torch.mv(held["matrix"], held["vector"], out=held["out"])  # noqa: E731
    return {"per_s": held["matrix"].nbytes / min(timed(once)[0] for _ in range(TIMES))}


if __name__ == "__main__":
    serve({"prepare": prepare, "repeat": repeat})
