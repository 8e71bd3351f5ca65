"""Products of a decoding step by weights in oneDNN's own layout.

A step multiplies the beams of some sentences, a handful of rows to a few hundred, by every weight of the decoder.  `F.linear` is
made for one row or for many thousands, and on AMD processors does not use AVX-512; oneDNN, with weights that were rearranged
once, takes half its time or less.

Shapes: R rows, N outputs, D width.
"""

from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.linear import ONEDNN

__all__ = ["MAX_ROWS", "PackedLinear", "packed_linear", "padded_rows"]

MIN_ROWS, MAX_ROWS = 2, 256  # one row is faster by F.linear; more rows are split
PACK = torch.ops.mkldnn._reorder_linear_weight.default if ONEDNN is not None else None


def padded_rows(rows: int) -> int:
    """With how many rows a product of `rows` is computed: oneDNN keeps a compiled product of each number, 0.7 MB."""
    step = 1 if rows <= 16 else 16 if rows <= 96 else 32
    return -(-rows // step) * step


class PackedLinear:
    """A linear layer as a function (R, D) → (R, N), which packs its weights at the first call with several rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias, self.version = weight, bias, weight._version
        self._packed: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Compute x W + b."""
        rows = len(x)
        if rows < MIN_ROWS:
            return F.linear(x, self.weight, self.bias)
        if rows > MAX_ROWS:
            return torch.cat([self(part) for part in x.split(MAX_ROWS)])
        assert PACK is not None
        assert ONEDNN is not None
        padded = padded_rows(rows)
        if self._packed is None:
            self._packed = PACK(self.weight.contiguous(), padded)
        if padded == rows:
            return ONEDNN(x, self._packed, self.bias, "none", [], "")
        return ONEDNN(F.pad(x, (0, 0, 0, padded - rows)), self._packed, self.bias, "none", [], "")[:rows]


_LAYERS: "WeakKeyDictionary[nn.Linear, dict[tuple[int, int | None], PackedLinear]]" = WeakKeyDictionary()


def packed_linear(layer: nn.Linear, start: int = 0, stop: int | None = None) -> PackedLinear | None:
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
        known = parts[start, stop] = PackedLinear(weight[start:stop], bias)
    return known
