"""Numbers of fewer bits, after a try in a child process.

A processor may claim instructions that its machine does not let it run: the first product then kills the process.  So
the first one is made by a child, and a machine that cannot do it costs the user an error, not the session.
"""

import os
import subprocess
import sys

import torch
from torch import nn

from regard.layers.linear import Linear, column_major, to_int8

__all__ = ["PrecisionProbe"]

PATIENCE = 120  # seconds for a child to load torch and try


class PrecisionProbe:
    """A child that tries the products of a precision while its parent goes on; `passed` waits for it.

    `with Trial("int8") as trial: model = trial.passed(model)`.
    """

    def __init__(self, precision: str):
        if precision not in ("float32", "int8"):
            raise ValueError(f"precision {precision!r}; use float32 or int8")
        self.precision = precision
        self.child: subprocess.Popen[str] | None = None

    def __enter__(self) -> "PrecisionProbe":
        if self.precision != "float32":
            self.child = subprocess.Popen(  # noqa: S603  our own module
                [sys.executable, "-P", "-m", __name__],
                env={**os.environ, "PYTHONSAFEPATH": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self.child is not None:  # of a run that could not be opened
            self.child.kill()
            self.child.communicate()

    def passed(self, model: nn.Module) -> nn.Module:
        """The model in that precision, its weights laid out for decoding, or an error that says why not."""
        if self.child is None:
            return column_major(model) if next(model.parameters()).device.type == "cpu" else model
        try:
            _, words = self.child.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise ValueError(f"the trial of {self.precision} took too long; use --precision float32") from None
        if self.child.returncode:
            why = words.strip().splitlines()[-1] if words.strip() else f"its trial ended with {self.child.returncode}"
            raise ValueError(f"{self.precision} does not run on this machine ({why}); use --precision float32")
        return to_int8(model)


if __name__ == "__main__":
    with torch.inference_mode():
        for rows, width in ((1, 256), (64, 256), (300, 1024)):
            to_int8(nn.Sequential(Linear(width, 512)))(torch.randn(rows, width))
