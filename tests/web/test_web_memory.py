"""A server's and a training's libraries keep a bounded number of compiled products."""

import os
import subprocess
import sys

import pytest

SHAPES = """
import os, platform, sys
from regard.data.machine import bound_products
from regard.web.memory import bound_memory

if sys.argv[1] == "bounded":
    assert "torch" not in sys.modules
    bound_memory()

import torch
from regard.layers.linear import ONEDNN, affine

if sys.argv[1] == "training":
    bound_products()

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if ONEDNN is None or platform.system() != "Linux":
    print("skip")
    raise SystemExit
torch.set_num_threads(1)
weight, bias = torch.randn(512, 256), torch.randn(512)
with torch.inference_mode():
    for rows in range(200, 280):
        affine(torch.randn(rows, 256), weight, bias)
    before = resident()
    for rows in range(280, 600):
        affine(torch.randn(rows, 256), weight, bias)
print(resident() - before)
"""


def grown(how: str) -> int:
    """Bytes that a process grows by while it computes products of 320 further shapes."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("ONEDNN_", "LRU_", "MALLOC_"))}
    done = subprocess.run([sys.executable, "-c", SHAPES, how], capture_output=True, text=True, env=environ, check=True)
    if done.stdout.strip() == "skip":
        pytest.skip("torch without oneDNN, or not on Linux")
    return int(done.stdout)


def test_products_of_many_shapes_do_not_add_up():
    free = grown("free")
    if free < 20 << 20:
        pytest.skip(f"on this machine 320 products take {free >> 10} KB")
    assert grown("bounded") < free / 3
    assert grown("training") < free / 3


def test_the_verb_bounds_memory_before_torch_is_imported():
    """Nothing that the command line imports before `serve` imports torch."""
    code = "import sys, regard.cli, regard.cli.serve; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
