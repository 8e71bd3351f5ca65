"""Parts of convolutional networks: a convolution with its batch norm, and a residual block.

Shapes: B batch, C channels, Y X rows and columns of the grid.
"""

import torch
from torch import Tensor, nn

from regard.layers.dropout import DropPath

__all__ = ["ConvNorm", "Residual", "batch_norm", "fold_batch_norms"]


def batch_norm(dim: int) -> nn.BatchNorm2d:
    """Torch's batch norm without its count of batches, which only a norm without momentum reads."""
    norm = nn.BatchNorm2d(dim)
    norm.num_batches_tracked = None
    return norm


class ConvNorm(nn.Module):
    """A convolution and its batch norm, whose shift replaces the bias; stride 1 keeps the size of the grid.

    A strided 1 × 1 convolution subsamples its input first: oneDNN's own kernel (torch 2.13, AVX2, channels_last, fewer than
    8 input channels) writes past its buffer when it computes the gradient of the weights.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1):
        super().__init__()
        self.subsample = stride if kernel == 1 else 1
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride // self.subsample, kernel // 2, bias=False)
        self.norm: nn.Module = batch_norm(outputs)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, Y, X) → (B, outputs, ⌈Y / stride⌉, ⌈X / stride⌉)."""
        return self.norm(self.conv(x[:, :, :: self.subsample, :: self.subsample]))


class Residual(nn.Module):
    """Figure 2 of https://arxiv.org/abs/1512.03385.

    x ─┬─ body ─ + ─ relu ─
       └─────────┘ 1 × 1 convolution if the body changes the shape
    """

    def __init__(self, body: nn.Module, inputs: int, outputs: int, stride: int = 1, drop_path: float = 0.0):
        super().__init__()
        self.body, self.drop = body, DropPath(drop_path)
        same_shape = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same_shape else ConvNorm(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, Y, X) → (B, outputs, ⌈Y / stride⌉, ⌈X / stride⌉)."""
        return torch.relu_(self.drop.add_residual(self.shortcut(x), self.body(x)))


@torch.no_grad()
def fold_batch_norms(model: nn.Module) -> nn.Module:
    """Multiply every batch norm into the convolution before it, in place: for inference only.

    The output changes by rounding alone, and each norm saves a pass over its grid.
    """
    for part in model.modules():
        if isinstance(part, ConvNorm) and isinstance(part.norm, nn.BatchNorm2d):
            conv, norm = part.conv, part.norm
            assert norm.running_var is not None
            assert norm.running_mean is not None
            scale = norm.weight * (norm.running_var + norm.eps).rsqrt()  # (C,)
            weight = conv.weight * scale[:, None, None, None]
            conv.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last))  # the layout of the input
            conv.bias = nn.Parameter(norm.bias - norm.running_mean * scale)
            part.norm = nn.Identity()
    return model.requires_grad_(False)
