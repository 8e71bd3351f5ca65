"""x W + b, in float32 or with 8-bit weights.  Shapes: N outputs, D width."""

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data.machine import is_amd

__all__ = ["Activation", "Int8Linear", "Linear", "add_product", "affine", "product", "to_int8"]

# CPUs without VNNI add byte products in 16 bits, which overflows unless the inputs have 7 bits.
REDUCE_RANGE = not getattr(torch.cpu, "_is_vnni_supported", lambda: False)()

# oneDNN's product with a fused activation: faster than F.linear for large inputs, but without a gradient.
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
ONEDNN = torch.ops.mkldnn._linear_pointwise.default if HAS_ONEDNN else None
ONEDNN_MIN = 1 << 24  # multiplications from which oneDNN is faster
# MKL, behind F.linear, does not use AVX-512 on AMD's processors; there oneDNN is twice as fast, forward and backward.
TRAINS_BY_ONEDNN = HAS_ONEDNN and torch.backends.cpu.get_cpu_capability() == "AVX512" and is_amd()
IMAGES = 16  # from which ATen computes a convolution by oneDNN with one thread too

Activation = Callable[[Tensor], Tensor]

FUSED: dict[Activation | None, str] = {None: "none", F.gelu: "gelu", torch.relu_: "relu", F.silu: "swish"}  # oneDNN's names


def affine(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None = None) -> Tensor:
    """Compute x W + b, then the activation: (..., D), (N, D), (N,) → (..., N)."""
    large = _is_large(x, weight)
    if large and ONEDNN is not None and not torch.is_grad_enabled() and activation in FUSED:
        return ONEDNN(x, weight, bias, FUSED[activation], [], "none")
    if large and TRAINS_BY_ONEDNN and torch.is_grad_enabled():
        return _convolution(x, weight, bias, activation)
    y = F.linear(x, weight, bias)  # (..., N)
    return y if activation is None else activation(y)


def _is_large(a: Tensor, b: Tensor) -> bool:
    return a.device.type == "cpu" and a.dtype == torch.float32 and a.numel() * len(b) >= ONEDNN_MIN


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None) -> Tensor:
    """F.linear as a convolution of one pixel, which oneDNN computes with its gradients: (..., D) → (..., N).

    In channels-last order the rows are the pixels, so that nothing is copied.
    """
    rows = x.numel() // x.shape[-1]
    images = IMAGES if rows % IMAGES == 0 else 1
    pixels = x.reshape(images, rows // images, 1, x.shape[-1]).permute(0, 3, 1, 2)  # (images, D, R / images, 1)
    y = F.conv2d(pixels, weight[:, :, None, None], bias)  # (images, N, R / images, 1)
    y = y if activation is None else activation(y)  # in place on the result itself, not on a view of it
    return y.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Compute a bᵀ in a backward pass written by hand, for it has no gradient itself: (R, D), (N, D) → (R, N)."""
    if ONEDNN is None or not TRAINS_BY_ONEDNN or not _is_large(a, b):
        return a @ b.T
    return ONEDNN(a, b, None, "none", [], "none")


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add aᵀ b to a total in place, without a gradient: (N, D), (R, N), (R, D)."""
    if TRAINS_BY_ONEDNN and _is_large(a, b.T):
        total += product(b.T.contiguous(), a.T).T
    else:
        total.addmm_(a.T, b)


class Linear(nn.Linear):
    """torch's linear layer, with an activation, and with a product of only some rows of its weight."""

    def forward(self, x: Tensor, activation: Activation | None = None) -> Tensor:
        """(..., D) → (..., N)."""
        return affine(x, self.weight, self.bias, activation)

    def rows(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Only outputs `start` to `stop` - 1: (..., D) → (..., stop - start)."""
        return affine(x, self.weight[start:stop], None if self.bias is None else self.bias[start:stop])


class Int8Linear(nn.Module):
    """`Linear` with 8-bit weights: a quarter of the bytes to read, for decoding on a CPU.

    Each output has its own scale, so that its largest weight is 127.  Inputs are quantized at each call, to bytes between
    their minimum and maximum.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.outputs = linear.out_features
        self.weight, self.bias = linear.weight.detach(), linear.bias if linear.bias is None else linear.bias.detach()
        self.packed: dict[tuple[int, int], torch.ScriptObject] = {}
        with warnings.catch_warnings():  # torch warns once that a later release changes this API
            warnings.simplefilter("ignore")
            self.prepack(0, self.outputs)

    def prepack(self, start: int = 0, stop: int | None = None) -> torch.ScriptObject:
        """The weights of outputs `start` to `stop` - 1, in the layout the kernel reads."""
        part = start, self.outputs if stop is None else stop
        if part not in self.packed:
            weight = self.weight[start:stop]
            scale = weight.abs().amax(1).clamp(min=1e-12).double() / 127
            zeros = torch.zeros(len(weight), dtype=torch.long)
            quantized = torch.quantize_per_channel(weight, scale, zeros, 0, torch.qint8)
            bias = None if self.bias is None else self.bias[start:stop]
            self.packed[part] = torch.ops.quantized.linear_prepack(quantized, bias)
        return self.packed[part]

    def rows(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Only outputs `start` to `stop` - 1: (..., D) → (..., stop - start)."""
        return torch.ops.quantized.linear_dynamic(x, self.prepack(start, stop), REDUCE_RANGE)

    def forward(self, x: Tensor, activation: Activation | None = None) -> Tensor:
        """(..., D) → (..., N)."""
        y = self.rows(x)
        return y if activation is None else activation(y)


def to_int8(model: nn.Module) -> nn.Module:
    """Quantize the weights of every linear layer of a model to 8 bits, in place; it can then run, but not train."""
    # The other x86 engine uses instructions that some machines report but do not have.
    engines = torch.backends.quantized.supported_engines
    torch.backends.quantized.engine = "fbgemm" if "fbgemm" in engines else "qnnpack"
    for part in list(model.modules()):
        for name, child in part.named_children():
            if isinstance(child, nn.Linear):
                setattr(part, name, Int8Linear(child))
    return model
