"""x W + b, whole or in part.

Shapes: N outputs, D width.
"""

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Linear"]


class Linear(nn.Linear):
    """torch's linear layer, of which a part of the outputs can be asked for alone."""

    def part(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Outputs `start` to `stop` - 1 of what the whole layer would give: (..., D) → (..., stop - start)."""
        return F.linear(x, self.weight[start:stop], self.bias[start:stop])
