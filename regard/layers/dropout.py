"""Dropout of elements, with one random byte each, and of whole residual branches.  Shapes: B batch."""

import torch
from torch import Tensor, nn

__all__ = ["DropPath", "Dropout", "drop_path_rates"]


class Dropout(nn.Module):
    """Set a fraction of the elements to zero during training, and scale the others so that the mean stays.

    On a CPU, sampling is the cost of dropout.  torch samples 64 bits for each element, on one core; here 64 bits
    serve eight elements.  The rate is rounded to 1/256, and the scale follows the rounded rate, so the mean is unbiased.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.threshold = min(round(rate * 256), 255)  # bytes below it drop their element

    def forward(self, x: Tensor) -> Tensor:
        """Any shape → the same shape."""
        mask = self._sample_mask(x)
        return x if mask is None else x * mask

    def add_residual(self, x: Tensor, branch: Tensor) -> Tensor:
        """Return x + dropout(branch), in one pass over memory."""
        mask = self._sample_mask(branch)
        return x + branch if mask is None else torch.addcmul(x, branch, mask)

    def _sample_mask(self, x: Tensor) -> Tensor | None:
        """0 or the scale for each element of x; None if nothing is dropped."""
        if not self.training or not self.threshold:
            return None
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        random_bytes = words.view(torch.uint8)[: x.numel()].view(x.shape)
        keep = torch.ge(random_bytes, self.threshold, out=torch.empty_like(x.detach()))
        return keep.mul_(256 / (256 - self.threshold))

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        return f"rate={self.threshold / 256:.3f}"


class DropPath(nn.Module):
    """Stochastic depth, https://arxiv.org/abs/1603.09382: during training, skip a branch for a fraction of the examples.

    The branch is scaled for the other examples so that the mean stays.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def add_residual(self, x: Tensor, branch: Tensor) -> Tensor:
        """Add the branch to x (B, ...), except in the examples that drop it."""
        if not self.training or not self.rate:
            return x + branch
        keep = torch.empty(len(x), *(1 for _ in x.shape[1:]), device=x.device).bernoulli_(1 - self.rate)
        return torch.addcmul(x, branch, keep.div_(1 - self.rate))

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        return f"rate={self.rate:.3f}"


def drop_path_rates(rate: float, depth: int) -> list[float]:
    """The rate of each of `depth` blocks: rises linearly from 0 at the first to `rate` at the last."""
    return [rate * i / max(1, depth - 1) for i in range(depth)]
