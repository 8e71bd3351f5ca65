"""Dropout with one random byte an element: on a CPU, drawing the numbers is what dropout costs; and of whole branches.

Shapes: B batch.
"""

import torch
from torch import Tensor, nn

__all__ = ["DropPath", "Dropout", "drop_path_rates"]


class Dropout(nn.Module):
    """Set a share of the elements to zero while training, and scale the others so that the mean stays.

    torch draws a 64-bit number for each element, on one core; here each draw decides for eight.  The rate is rounded to
    1/256, and the scale follows the rounded rate, so nothing is biased.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.cut = min(round(rate * 256), 255)  # of the 256 values of a byte, so many drop

    def forward(self, x: Tensor) -> Tensor:
        """Any shape → the same shape."""
        keep = self._draw(x)
        return x if keep is None else x * keep

    def onto(self, x: Tensor, change: Tensor) -> Tensor:
        """Dropout of the change, added to x: in one pass over memory."""
        keep = self._draw(change)
        return x + change if keep is None else torch.addcmul(x, change, keep)

    def _draw(self, x: Tensor) -> Tensor | None:
        """What to multiply x with: 0, or the scale, for each element; None if all stay as they are."""
        if not self.training or not self.cut:
            return None
        draws = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        bytes_ = draws.view(torch.uint8)[: x.numel()].view(x.shape)
        return torch.ge(bytes_, self.cut, out=torch.empty_like(x.detach())).mul_(256 / (256 - self.cut))

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        return f"rate={self.cut / 256:.3f}"


class DropPath(nn.Module):
    """Stochastic depth, https://arxiv.org/abs/1603.09382: while training, leave a branch out for a share of the examples.

    What a branch adds to the others is scaled so that the mean stays.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def onto(self, x: Tensor, change: Tensor) -> Tensor:
        """The change, added to the x (B, ...) of those examples that keep it."""
        if not self.training or not self.rate:
            return x + change
        keep = torch.empty(len(x), *(1 for _ in x.shape[1:]), device=x.device).bernoulli_(1 - self.rate)
        return torch.addcmul(x, change, keep.div_(1 - self.rate))

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        return f"rate={self.rate:.3f}"


def drop_path_rates(rate: float, depth: int) -> list[float]:
    """A rate for each of so many blocks: nothing at the first, rising in a line to `rate` at the last."""
    return [rate * i / max(1, depth - 1) for i in range(depth)]
