"""An exponential moving average of a model's weights, often better than the last step's."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.models import state_tensors

__all__ = ["EMA"]


class EMA:
    """Averaged weights; the decay is smaller in the first steps, so that the random initialization is soon forgotten."""

    def __init__(self, model: nn.Module, decay: float):
        self.model, self.decay = model, decay
        self.weights: dict[str, Tensor] = {
            name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in state_tensors(model).items()
        }

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the model's weights after this step."""
        move = 1 - min(self.decay, (1 + step) / (10 + step))
        now = [tensor.detach() for tensor in state_tensors(self.model).values()]
        torch._foreach_lerp_(list(self.weights.values()), now, move)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Use the average in place of the model's weights, inside the `with`."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def apply(self) -> None:
        """Leave the average in the model for good."""
        for name, tensor in state_tensors(self.model).items():
            tensor.copy_(self.weights[name])

    @torch.no_grad()
    def _swap(self) -> None:
        for name, tensor in state_tensors(self.model).items():
            kept = tensor.detach().clone()
            tensor.copy_(self.weights[name])
            self.weights[name].copy_(kept)
