"""How much faster does training become by oneDNN's products and by plain attention over short sequences?

Training steps of a Transformer on random sentence pairs of one length, three ways in turn: torch's linear layers (MKL) with the
fused attention kernel, oneDNN's products with that kernel, and what regard does: oneDNN's products, with plain attention where
sequences are short.

    python benchmarks/products.py [--repeats 9]
"""

import argparse
import time
from dataclasses import replace

import rig
import torch
from rich.console import Console
from rich.table import Table
from rig import Spread

from regard.config import TrainConfig
from regard.data.text.batches import PairBatch
from regard.layers import attention, linear
from regard.models import FAMILIES, new_model
from regard.tasks.translation import sequence_loss
from regard.train.malloc import keep_freed
from regard.train.optim import make_optimizer

SIZES, LENGTHS, TOKENS, VOCAB = ("tiny", "small"), (15, 60), 4096, 10_000
BY_ONEDNN = linear.TRAINS_BY_ONEDNN
WAYS = {"MKL, fused": (False, 0), "oneDNN, fused": (BY_ONEDNN, 0), "regard": (BY_ONEDNN, attention.SHORT)}
STEPS = 1  # of each way in a repeat


def main() -> None:
    """Measure, print the table, save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(rig.threads())
    table = Table("size", "length", *WAYS, "ratio", title=f"target tokens/s in training, {rig.threads()} cores")
    found: dict[str, dict[str, object]] = {}
    with keep_freed():
        for size in SIZES:
            for length in LENGTHS:
                speeds = measure(size, length, repeats)
                ratio = rig.ratio(speeds["regard"], speeds["MKL, fused"])
                spreads = {way: Spread.of(values) for way, values in speeds.items()}
                table.add_row(size, str(length), *(spread.text(",.0f") for spread in spreads.values()), ratio.text(".2f"))
                found[f"{size}, {length} tokens"] = {**spreads, "ratio": ratio}
    Console(width=150).print(table)
    rig.save("products", {"instructions": torch.backends.cpu.get_cpu_capability(), **found})


def measure(size: str, length: int, repeats: int) -> dict[str, list[float]]:
    """Target tokens per second of each way in each repeat; the first repeat warms up."""
    torch.manual_seed(0)
    model = new_model("transformer", replace(FAMILIES["transformer"].sizes[size], vocab=VOCAB), 0).train()
    optimizer = make_optimizer(model, TrainConfig())
    rows = TOKENS // length
    batch = PairBatch(torch.randint(4, VOCAB, (rows, length)), torch.randint(4, VOCAB, (rows, length + 1)))
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    for repeat in range(repeats + 1):
        for way, (wide, short) in WAYS.items():
            linear.TRAINS_BY_ONEDNN, attention.SHORT = wide, short
            start = time.perf_counter()
            for _ in range(STEPS):
                (sequence_loss(model, batch, 0.1)[0] / batch.tokens).backward()
                optimizer.step()
                optimizer.zero_grad()
            if repeat:
                speeds[way].append(STEPS * batch.tokens / (time.perf_counter() - start))
    return speeds


if __name__ == "__main__":
    main()
