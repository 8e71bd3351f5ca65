"""A running mean of a model's weights, a steadier model than its last step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.models import state_tensors

__all__ = ["EMA"]


class EMA:
    """Weights that follow the trained ones by a share of the way each step (EMA).

    The share is larger in the first steps, so that the random beginning is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.model, self.decay = model, decay
        self.weights: dict[str, Tensor] = {
            name: one.detach().clone(memory_format=torch.contiguous_format)
            for name, one in state_tensors(model).items()
        }

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Come a bit nearer to the model as it is after this step."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(
            list(self.weights.values()), [one.detach() for one in state_tensors(self.model).values()], share
        )

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """The mean in place of the model's weights, inside the `with`."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def apply(self) -> None:
        """Leave the mean in the model for good."""
        for name, one in state_tensors(self.model).items():
            one.copy_(self.weights[name])

    @torch.no_grad()
    def _swap(self) -> None:
        for name, one in state_tensors(self.model).items():
            kept = one.detach().clone()
            one.copy_(self.weights[name])
            self.weights[name].copy_(kept)
