"""Training memory does not grow with the corpus: it is streamed to the disk and read back a pool at a time."""

import gc
import os
import random
import shutil
import subprocess
import sys
import tracemalloc
from itertools import islice
from pathlib import Path

import pytest

from regard.data.text import batches, store
from regard.data.text.batches import all_pair_batches, pair_batches
from regard.data.text.store import encode_pairs
from regard.data.text.tokenizer import SpecialTokens

MEASURED = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "regard", *sys.argv[1:]], capture_output=True, text=True)
assert done.returncode == 0, done.stderr
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // (1024 if sys.platform == "linux" else 1 << 20))
"""


def write(file: Path, count: int) -> None:
    """Write `count` pairs of made-up words, about 35 bytes a line."""
    rng = random.Random(1)
    words = sorted({"".join(rng.choice("bcdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(1, 3)))
                    for _ in range(3000)})  # fmt: skip
    with open(file, "w") as out:
        for first in range(0, count, 10_000):
            sampled = iter(rng.choices(words, k=6 * min(10_000, count - first)))
            out.writelines(f"{a} {b} {c}\t{d} {e} {f}\n" for a, b, c, d, e, f in zip(*[sampled] * 6, strict=True))


def peak(folder: Path, count: int) -> int:
    """Peak memory, in MiB, of a process that trains 20 steps on `count` pairs."""
    home = folder / str(count)
    home.mkdir()
    write(home / "train.tsv", count)
    write(home / "valid.tsv", 20)
    try:
        changes = ["data.source=", f"data.train={home}/train.tsv", f"data.valid={home}/valid.tsv", "data.vocab=1000",
                   "model.dim=32", "model.heads=2", "model.depth=1", "train.steps=20",
                   "train.save_every=10", "--out", f"{home}/run"]  # fmt: skip
        env = {**os.environ, "XDG_CACHE_HOME": str(home), "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
        command = [sys.executable, "-c", MEASURED, "train", "reverse", *changes]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)
    finally:
        shutil.rmtree(home)


@pytest.mark.slow
@pytest.mark.parametrize("count", [300_000, 10_000_000])
def test_training_on_a_larger_corpus_takes_no_more_memory(tmp_path, count):
    small, large = peak(tmp_path, 10_000), peak(tmp_path, count)
    print(f"{small} MiB for 10,000 pairs, {large} MiB for {count:,}")
    assert large < 1.1 * small


class Numbers:
    """A tokenizer of numbers written out."""

    vocab, digest, special = 5000, "numbers", SpecialTokens(0, 1, 2, 3, None, ())

    def encode(self, lines):
        return [[int(word) for word in line.split()] for line in lines]


def traced(count: int) -> int:
    """Peak memory, in bytes, of Python and numpy while `count` pairs are encoded and batched."""
    gc.collect()  # garbage of earlier tests is not measured
    tracemalloc.start()
    try:
        pairs = lambda: (("10 11 12", "13 14") for _ in range(count))  # noqa: E731
        stored = encode_pairs(pairs, "numbers", count, Numbers(), 256)
        for make, _ in islice(pair_batches(stored, Numbers.special, 64, 1), 100):
            make()
        for _ in all_pair_batches(stored, Numbers.special, 640):
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_encoding_and_batching_keep_a_pool_in_memory_and_not_the_corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(store, "BLOCK", 512)
    monkeypatch.setattr(batches, "POOL", 4)
    traced(5000)  # allocations made once, such as caches of numpy
    assert traced(60_000) < 1.2 * traced(6000)  # many pools, and three
