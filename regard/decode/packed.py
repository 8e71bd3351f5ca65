"""Products with few rows, such as the beams of one sentence, by weights in oneDNN's own layout.

A step of beam search for one sentence multiplies a handful of rows by every weight of the decoder.  torch's `F.linear` is made
for one row or for many; oneDNN, with weights that were rearranged once, takes half its time.

Shapes: R rows, N outputs, D width.
"""

from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.linear import ONEDNN

__all__ = ["MAX_ROWS", "FewRowsLinear", "few_rows_linear"]

MIN_ROWS, MAX_ROWS = 2, 16  # one row is faster by F.linear; of each number of rows oneDNN keeps a compiled product, 0.7 MB
PACK = torch.ops.mkldnn._reorder_linear_weight.default if ONEDNN is not None else None


class FewRowsLinear:
    """A linear layer as a function (R, D) → (R, N), which packs its weights at the first call with few rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias, self.version = weight, bias, weight._version
        self._packed: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Compute x W + b."""
        if not MIN_ROWS <= x.shape[0] <= MAX_ROWS:
            return F.linear(x, self.weight, self.bias)
        assert PACK is not None
        assert ONEDNN is not None
        if self._packed is None:
            self._packed = PACK(self.weight.contiguous(), x.shape[0])
        return ONEDNN(x, self._packed, self.bias, "none", [], "")


_LAYERS: "WeakKeyDictionary[nn.Linear, dict[tuple[int, int | None], FewRowsLinear]]" = WeakKeyDictionary()


def few_rows_linear(layer: nn.Linear, start: int = 0, stop: int | None = None) -> FewRowsLinear | None:
    """Outputs `start` to `stop` - 1 of a layer; None if its weights are being trained, or oneDNN does not multiply them.

    The same function again for the same layer, so that its weights are packed once, unless they were changed meanwhile.
    """
    weight = layer.weight
    if PACK is None or weight.requires_grad or weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    if weight.is_inference():  # made in inference mode: torch does not count its changes
        return None
    parts = _LAYERS.setdefault(layer, {})
    known = parts.get((start, stop))
    if known is None or known.weight.data_ptr() != weight[start:stop].data_ptr() or known.version != weight._version:
        bias = None if layer.bias is None else layer.bias[start:stop]
        known = parts[start, stop] = FewRowsLinear(weight[start:stop], bias)
    return known
