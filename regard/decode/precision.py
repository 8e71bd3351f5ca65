"""Lower precision, after a trial in a child process.

A CPU may report instructions that its (virtual) machine cannot run: the first product then kills the process.  So a child
process makes the first one, and a machine that cannot run it costs the user an error message, not the session.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from regard.layers.linear import Linear, to_int8

__all__ = ["PrecisionProbe"]

TIMEOUT = 120  # seconds for the child to load torch and compute


class PrecisionProbe:
    """A child process that tries a precision while its parent continues; `passed` waits for it.

    `with PrecisionProbe("int8") as probe: model = probe.passed(model)`.
    """

    def __init__(self, precision: str):
        if precision not in ("float32", "int8"):
            raise ValueError(f"precision {precision!r}; use float32 or int8")
        self.precision = precision
        self.child: subprocess.Popen[str] | None = None

    def __enter__(self) -> "PrecisionProbe":
        if self.precision != "float32":
            command = [sys.executable, "-P", "-m", __name__]  # -P: a torch.py in the current folder must not run
            paths = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")  # the package may be a clone, not installed
            safe = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
            env, null = {**os.environ, **safe}, subprocess.DEVNULL
            self.child = subprocess.Popen(command, env=env, stdin=null, stdout=null, stderr=subprocess.PIPE, text=True)  # noqa: S603
        return self

    def __exit__(self, *_: object) -> None:
        if self.child is not None:  # still running if the run could not be opened
            self.child.kill()
            self.child.communicate()

    def passed(self, model: nn.Module) -> nn.Module:
        """Convert the model to the precision, with its weights laid out for decoding, or raise an error that says why not."""
        from regard.decode.fast import column_major  # not at the top: the child must start fast

        if self.child is None:
            return column_major(model) if next(model.parameters()).device.type == "cpu" else model
        try:
            _, stderr = self.child.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise ValueError(f"the trial of {self.precision} took too long; use --precision float32") from None
        if self.child.returncode:
            lines = stderr.strip().splitlines()
            why = lines[-1] if lines else f"its trial ended with {self.child.returncode}"
            raise ValueError(f"{self.precision} does not run on this machine ({why}); use --precision float32")
        return to_int8(model)


if __name__ == "__main__":
    with torch.inference_mode():
        for rows, width in ((1, 256), (64, 256), (300, 1024)):
            to_int8(nn.Sequential(Linear(width, 512)))(torch.randn(rows, width))
