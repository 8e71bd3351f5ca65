"""Numbers of fewer bits, after a try in a child process.

A processor may claim instructions that its machine does not let it run: the first product then kills the process.  So
the first one is made by a child, and a machine that cannot do it costs the user an error, not the session.
"""

import subprocess
import sys

import torch
from torch import nn

from regard.layers.linear import Linear, by_columns, to_int8

__all__ = ["Trial"]


class Trial:
    """A child that tries the products of a precision while its parent goes on; `passed` waits for it."""

    def __init__(self, precision: str):
        if precision not in ("float32", "int8"):
            raise ValueError(f"precision {precision!r}; use float32 or int8")
        self.precision = precision
        self.child = None
        if precision != "float32":
            command = [sys.executable, "-m", __name__]
            self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603  our own module

    def passed(self, model: nn.Module) -> nn.Module:
        """The model in that precision, or an error that says why not."""
        if self.child is None:
            return by_columns(model) if next(model.parameters()).device.type == "cpu" else model
        _, words = self.child.communicate()
        if self.child.returncode:
            why = words.strip().splitlines()[-1] if words.strip() else f"its trial ended with {self.child.returncode}"
            raise ValueError(f"{self.precision} does not run on this machine ({why}); use --precision float32")
        return to_int8(model)


if __name__ == "__main__":
    with torch.inference_mode():
        for rows, width in ((1, 256), (64, 256), (300, 1024)):
            to_int8(nn.Sequential(Linear(width, 512)))(torch.randn(rows, width))
