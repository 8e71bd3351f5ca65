"""What a measurement was made on, in one line."""

import platform
from pathlib import Path

import torch

from regard.verify.run import THREADS

__all__ = ["describe_machine"]

CPUINFO = Path("/proc/cpuinfo")


def describe_machine() -> str:
    """Processor, threads, torch and Python."""
    threads = "1 thread" if THREADS == 1 else f"{THREADS} threads"
    return f"{_processor()}, {threads}, torch {torch.__version__}, Python {platform.python_version()}"


def _processor() -> str:
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
