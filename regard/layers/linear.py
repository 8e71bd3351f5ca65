"""x W + b, in float32 or with weights of one byte.

Shapes: N outputs, D width.
"""

import warnings
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Activation", "Int8Linear", "Linear", "column_major", "linear", "to_int8"]


# Processors without VNNI add products of bytes in 16 bits, which overflow unless the inputs have 7 bits.
SEVEN_BITS = not getattr(torch.cpu, "_is_vnni_supported", lambda: False)()


# oneDNN's product, with what follows it in the same pass: faster than the usual one if there is much to do, without a gradient.
ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
MUCH = 1 << 24  # multiplications from which on it is worth its call

Activation = Callable[[Tensor], Tensor]

FUSED: dict[Activation | None, str] = {None: "none", F.gelu: "gelu", torch.relu_: "relu"}  # what it calls them


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, then: Activation | None = None) -> Tensor:
    """A product, x W + b, and what follows it: (..., D), (N, D), (N,) → (..., N)."""
    if (ONEDNN is None or torch.is_grad_enabled() or x.device.type != "cpu" or x.dtype != torch.float32
            or x.numel() * len(weight) < MUCH or then not in FUSED):  # fmt: skip
        y = F.linear(x, weight, bias)  # (..., N)
        return y if then is None else then(y)
    return ONEDNN(x, weight, bias, FUSED[then], [], "none")


class Linear(nn.Linear):
    """torch's linear layer with what follows it, which also comes, whole or in part, as a plain function."""

    def forward(self, x: Tensor, then: Activation | None = None) -> Tensor:
        """(..., D) → (..., N)."""
        return linear(x, self.weight, self.bias, then)

    def at_hand(self, start: int = 0, stop: int | None = None) -> Callable[[Tensor], Tensor]:
        """A function for outputs `start` to `stop` - 1, (..., D) → (..., stop - start), with its weights at hand.

        A step of decoding is so short that calling modules and looking up their weights is felt.
        """
        bias = None if self.bias is None else self.bias[start:stop]
        return partial(F.linear, weight=self.weight[start:stop], bias=bias)


class Int8Linear(nn.Module):
    """The same with weights of 8 bits: a quarter of the bytes to read, and products of bytes, for decoding on a CPU.

    Each output has a scale of its own, so that its largest weight is 127; the inputs are rounded anew at each call, to
    bytes between the least and the largest of them.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.outputs = linear.out_features
        self.weight, self.bias = linear.weight.detach(), linear.bias if linear.bias is None else linear.bias.detach()
        self.packed: dict[tuple[int, int], torch.ScriptObject] = {}
        with warnings.catch_warnings():  # torch says once that a later release will do this in another way
            warnings.simplefilter("ignore")
            self.pack(0, self.outputs)

    def pack(self, start: int, stop: int) -> torch.ScriptObject:
        """Some of the outputs, in the order the product reads them."""
        if (start, stop) not in self.packed:
            weight = self.weight[start:stop]
            scale = weight.abs().amax(1).clamp(min=1e-12).double() / 127
            zeros = torch.zeros(len(weight), dtype=torch.long)
            rounded = torch.quantize_per_channel(weight, scale, zeros, 0, torch.qint8)
            bias = None if self.bias is None else self.bias[start:stop]
            self.packed[start, stop] = torch.ops.quantized.linear_prepack(rounded, bias)
        return self.packed[start, stop]

    def at_hand(self, start: int = 0, stop: int | None = None) -> Callable[[Tensor], Tensor]:
        """A function for outputs `start` to `stop` - 1: (..., D) → (..., stop - start)."""
        packed = self.pack(start, self.outputs if stop is None else stop)
        return partial(torch.ops.quantized.linear_dynamic.default, W_prepack=packed, reduce_range=SEVEN_BITS)

    def forward(self, x: Tensor, then: Activation | None = None) -> Tensor:
        """(..., D) → (..., N)."""
        y = self.at_hand()(x)
        return y if then is None else then(y)


def to_int8(model: nn.Module) -> nn.Module:
    """Give every linear layer of a model 8-bit weights, in place; it can then be run, not trained."""
    # The other engine for x86 uses instructions that some machines claim to have and do not.
    engines = torch.backends.quantized.supported_engines
    torch.backends.quantized.engine = "fbgemm" if "fbgemm" in engines else "qnnpack"
    for part in list(model.modules()):
        for name, child in part.named_children():
            if isinstance(child, nn.Linear):
                setattr(part, name, Int8Linear(child))
    return model


def column_major(model: nn.Module) -> nn.Module:
    """Lay out the weights of every linear layer column by column, in place: for decoding on a CPU, not for training.

    The numbers stay the same.  A product of few rows reads them faster so, by up to a half; an embedding that shared its
    table with the output layer keeps its own, whose rows are looked up.
    """
    for part in model.modules():
        if isinstance(part, nn.Linear):
            part.weight = nn.Parameter(part.weight.detach().t().contiguous().t())
    return model.requires_grad_(False)
