"""Notice a training that diverges before its weights replace good ones in a checkpoint.

A training has diverged if one of these holds:

    each step       the loss or the norm of its gradient is not a finite number
    each step       the running mean of the training loss (about ten steps) is over LIMIT times the reference
    before a save   a weight, or the validation loss of this step, is not a finite number
    before a save   the new weights give the step's last batch a loss over LIMIT times the reference, and over LIMIT times its
                    loss before the step if it has few predictions, which may all be hard

The reference is that of an untrained model: the larger of the run's first loss and of a uniform guess, log(vocabulary or
classes), and at least one nat.  A model that learns stays below it on average, so neither a hard batch nor overfitting, which
raises the validation loss only, stops a training.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.config import TrainConfig

__all__ = ["Divergence", "unchanged"]

LIMIT = 3.0  # times the loss of an untrained model
FEW = 64  # predictions of a batch whose own loss says little
DECAY = 0.9  # of the running mean of the loss


class Divergence:
    """The checks above, for one training; `last` names the checkpoint that an error advises to continue from."""

    def __init__(self, model: nn.Module, train: TrainConfig, first_loss: float, last: Callable[[], int]):
        config = getattr(model, "config", None)
        outputs = max(getattr(config, key, 0) or 0 for key in ("vocab", "classes"))
        self.model, self.train, self.last = model, train, last
        self.reference = max(1.0, first_loss, math.log(max(1, outputs)))
        self.mean = min(first_loss, self.reference)

    def check_step(self, step: int, loss: float, norm: float) -> None:
        """Refuse to take a step whose loss (nats per prediction) or gradient shows that the weights are ruined."""
        if not math.isfinite(loss + norm):
            raise self._error(step, f"the loss is {loss:.3g} and its gradient {norm:.3g}")
        self.mean = DECAY * self.mean + (1 - DECAY) * loss
        if self.mean > LIMIT * self.reference:
            raise self._error(step, f"the loss is {loss:.3g}, that of an untrained model {self.reference:.3g}")

    def check_weights(self, step: int, tensors: Iterable[Tensor], before: float, after: float, count: int, valid: float) -> None:
        """Refuse to save weights that are not finite, or that ruin the loss of a batch of `count` predictions.

        `before` and `after` the step is the loss of that batch, `valid` the validation loss of this step, or 0.
        """
        if not all(bool(tensor.isfinite().all()) for tensor in tensors):
            raise self._error(step, "weights are no longer finite numbers")
        if not math.isfinite(valid):
            raise self._error(step, f"the validation loss is {valid:.3g}")
        if not after <= LIMIT * max(self.reference, before if count < FEW else 0.0):  # NaN too
            raise self._error(step, f"this step took the loss from {before:.3g} to {after:.3g}")

    def _error(self, step: int, what: str) -> ValueError:
        lower, saved = f"a lower train.lr than {self.train.lr:g}", self.last()
        remedy = f"continue from step {saved:,} with --resume and {lower}" if saved else f"start over with --fresh and {lower}"
        return ValueError(f"the training diverges at step {step:,}: {what}; {remedy}")


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Compute a loss in the middle of a training without a trace: random numbers, batch norms and other buffers stay.

    In training mode, for the running statistics of batch norms are far off in the first steps.
    """
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with torch.random.fork_rng(), torch.no_grad():
            yield
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
