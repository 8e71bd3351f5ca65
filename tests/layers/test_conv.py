"""Convolutions with their norms: shapes, folding, and a strided shortcut that no kernel of oneDNN corrupts."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.conv import ConvNorm, Residual, fold_batch_norms


def plain_residual(block: Residual, x: Tensor) -> Tensor:
    """relu(norm(W x[every second position]) + norm(conv 3 × 3)), without a strided 1 × 1 convolution."""
    shortcut, body = block.shortcut, block.body
    around = torch.einsum("oc,bcyx->boyx", shortcut.conv.weight[:, :, 0, 0], x[:, :, ::2, ::2])
    through = F.conv2d(x, body.conv.weight, stride=2, padding=1)
    both = [F.batch_norm(h, None, None, part.norm.weight, part.norm.bias, training=True, eps=part.norm.eps)
            for h, part in ((around, shortcut), (through, body))]  # fmt: skip
    return (both[0] + both[1]).relu()


def check_gradients(channels: int, outputs: int, seed: int) -> None:
    """Backward of a strided block, channels last, against the plain formula in float64."""
    torch.manual_seed(seed)
    block = Residual(ConvNorm(channels, outputs, 3, 2), channels, outputs, stride=2)
    x = torch.randn(8, channels, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
    out = block(x)
    weight = torch.randn_like(out)
    found = torch.autograd.grad(out, [x, *block.parameters()], weight)
    exact, x = block.double(), x.detach().double().contiguous().requires_grad_()
    wanted = torch.autograd.grad(plain_residual(exact, x), [x, *exact.parameters()], weight.double())
    for ours, plain in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), plain, rtol=1e-3, atol=1e-3)


def test_a_strided_shortcut_of_few_channels_has_the_right_gradients_and_corrupts_no_memory():
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)}
    child = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stderr


@pytest.mark.parametrize(("kernel", "stride"), [(1, 2), (1, 3), (3, 2), (7, 2), (1, 1)])
def test_no_1x1_convolution_is_strided(kernel, stride):
    conv = ConvNorm(3, 8, kernel, stride).conv
    assert conv.stride == ((1, 1) if kernel == 1 else (stride, stride))


@torch.no_grad()
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_strided_1x1_convolution_equals_torch_s(stride):
    layer, x = ConvNorm(3, 8, 1, stride), torch.randn(2, 3, 8, 7)
    layer.norm = nn.Identity()
    torch.testing.assert_close(layer(x), F.conv2d(x, layer.conv.weight, stride=stride))
    layer = ConvNorm(3, 8, 1, stride).eval()
    torch.testing.assert_close(fold_batch_norms(layer)(x), F.conv2d(x, layer.conv.weight, layer.conv.bias, stride))


if __name__ == "__main__":  # a child process of the test above: a kernel that overruns its buffer kills it, soon or late
    torch.set_num_threads(1)
    for trial in range(240):
        check_gradients(channels=3 + trial % 4, outputs=(5, 8, 16)[trial % 3], seed=trial)
