"""How does the cost grow?  With the length of a text, with the size of a model, and with the number of processes.

    python benchmarks/scale.py --repeats 3 --max-len 8192

Attention: one layer, forward and backward, fused as in training and explicit as when its weights are inspected; the bar:
memory of the fused path grows no faster than length ** 1.1.  Training: the step of `regard train` on one batch of
Multi30k.  Processes: two under torchrun compared with one that makes the same steps with all cores.
Decoding by batch and beam is measured by `translation.py`; `plots.py` draws it all.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import rig
import training
from rich.console import Console
from rich.table import Table
from rig import Peer, Spread, Worker

from regard.data.text.config import TextData
from regard.data.text.splits import find_split

PATHS = ("fused", "explicit")
SHORTEST, FIT_FROM = 128, 1024  # tokens; below, fixed costs hide how the cost grows
BAR = 1.1  # the largest exponent of the fused path's memory
SCORE_MATRICES = 4.5  # float32 score matrices that the explicit path holds at once, measured
MEMORY_FRACTION = 1 / 3  # maximum fraction of the machine's memory
# Each tensor is its own mapping and is returned when freed: the peak is then the memory in use.
EXACT = {"MALLOC_MMAP_THRESHOLD_": str(2**16)}

WIDTHS = {"tiny": {}, "small": {}, "middle": {"dim": 384, "mlp": 4 * 384, "heads": 6, "depth": 4}, "base": {}}
TOKENS = 4096  # of a batch on its longer side, padding counted

PROCESSES, STEPS, SKIPPED = 2, 10, 2  # the first steps warm up

console = Console(width=120)


def exponent(sizes: Iterable[float], costs: Iterable[float]) -> float | None:
    """The slope of a straight line through the logarithms, by least squares; None for one point."""
    x, y = ([math.log(number) for number in numbers] for numbers in (sizes, costs))
    return statistics.linear_regression(x, y).slope if len(x) > 1 else None


def spell(power: float | None) -> str:
    return "–" if power is None else f"{power:.2f}"


# ---- attention against length


def lengths(max_len: int) -> list[int]:
    """128, 256, … tokens."""
    return [SHORTEST << i for i in range(max(1, max_len // SHORTEST).bit_length())]


def fits(path: str, length: int, heads: int) -> bool:
    """Whether the explicit path's scores fit into this machine's memory."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return path == "fused" or SCORE_MATRICES * heads * length**2 * 4 <= MEMORY_FRACTION * whole


def attention(max_len: int, repeats: int) -> dict[str, Any]:
    """Seconds and bytes of both paths at each length, and the exponents of their growth."""
    peer = Peer("attention", "attention_cost.py")
    exact, kept, own = (Worker(peer, Path(sys.executable), environ) for environ in (EXACT, rig.KEEP, EXACT))
    try:
        about = exact.ask("about")
        points = [(path, n) for n in lengths(max_len) for path in PATHS]
        skipped = [(path, n) for path, n in points if not fits(path, n, about["heads"])]
        points = [point for point in points if point not in skipped]
        rig.say(f"attention over {points[0][1]:,} to {points[-1][1]:,} tokens: memory")
        used = {point: exact.ask("memory", path=point[0], length=point[1])["bytes"] for point in points}
        check = max((n for path, n in points if path == "explicit" and n <= 2048), default=points[0][1])
        alone = own.ask("memory", path="explicit", length=check)["bytes"]
        times = take_turns(kept, points, repeats)
    finally:
        for worker in (exact, kept, own):
            worker.stop()
    rows = [{"path": path, "length": n, "seconds": times[path, n], "bytes": used[path, n]} for path, n in points]
    return {
        **about, "repeats": repeats, "rows": rows, "fitted from": FIT_FROM, "bar": BAR, "skipped": skipped,
        "exponents": {path: grow(rows, path) for path in PATHS},
        "check": {"path": "explicit", "length": check, "bytes": used["explicit", check], "own process": alone},
    }  # fmt: skip


def take_turns(worker: Worker, points: list[tuple[str, int]], repeats: int) -> dict[tuple[str, int], Spread]:
    """Each point once to warm up, then all in turn: a slow minute affects all alike."""
    times: dict[tuple[str, int], list[float]] = {point: [] for point in points}
    for repeat in range(repeats + 1):
        rig.say(f"attention: time, {f'repeat {repeat}' if repeat else 'warming up'}")
        for path, n in points:
            seconds = worker.ask("time", path=path, length=n)["seconds"]
            if repeat:
                times[path, n].append(seconds)
    return {point: Spread.of(found) for point, found in times.items()}


def grow(rows: list[dict[str, Any]], path: str) -> dict[str, float | None]:
    """Exponents of time and memory over the longer lengths."""
    long = [row for row in rows if row["path"] == path and row["length"] >= FIT_FROM]
    sizes = [row["length"] for row in long]
    return {
        "time": exponent(sizes, [row["seconds"].median for row in long]),
        "memory": exponent(sizes, [row["bytes"] for row in long]),
    }


def show_attention(found: dict[str, Any]) -> None:
    """One table, and the bar."""
    title = f"attention, forward and backward, {found['heads']} heads of width {found['width']}"
    caption = f"{rig.threads()} threads, {found['repeats']} repeats, median (least–most)"
    table = Table("tokens", title=title, caption=caption)
    for path in PATHS:
        table.add_column(f"{path}, ms", justify="right")
        table.add_column(f"{path}, MB", justify="right")
    at = {(row["path"], row["length"]): row for row in found["rows"]}
    for n in sorted({row["length"] for row in found["rows"]}):
        cells = []
        for row in (at.get((path, n)) for path in PATHS):
            cells += [milliseconds(row["seconds"]), f"{row['bytes'] / 1e6:,.1f}"] if row else ["–", "–"]
        table.add_row(f"{n:,}", *cells)
    powers = [spell(found["exponents"][path][what]) for path in PATHS for what in ("time", "memory")]
    table.add_row(f"exponent from {found['fitted from']:,}", *powers)
    console.print(table)
    for path, n in found["skipped"]:
        console.print(f"{path} at {n:,} tokens was not measured: it needs more than a third of this machine's memory")
    check, power = found["check"], found["exponents"]["fused"]["memory"]
    console.print(
        f"check: {check['path']} at {check['length']:,} tokens takes {check['bytes'] / 1e6:,.1f} MB here, "
        f"{check['own process'] / 1e6:,.1f} MB in a process of its own"
    )
    if power is not None:
        console.print(f"memory of fused training attention: length ** {power:.2f}, bar {BAR}: {verdict(power <= BAR)}")


def milliseconds(seconds: Spread) -> str:
    return Spread(*(1000 * x for x in vars(seconds).values())).text(",.1f")


def verdict(met: bool) -> str:
    return "met" if met else "NOT met"


# ---- training against size


def sizes(folder: Path, repeats: int) -> dict[str, Any]:
    """Seconds a step and tokens a second of `regard train`'s own step, for models of several sizes, on one batch."""
    batches = training.typical(training.stream(folder, TOKENS, 100), 1)
    file = training.write_batches(folder / "batch.npz", batches)
    shapes = {name: {**training.shape_of("small" if given else name), **given} for name, given in WIDTHS.items()}
    workers: list[Worker] = []
    try:
        for name, shape in shapes.items():
            workers += rig.start([Peer(name, "ours_training.py")], {}, {"shape": shape, "batches": str(file)})[0]
        rig.say(f"training: {', '.join(worker.name for worker in workers)}")
        counts = {worker.name: worker.ask("about")["parameters"] for worker in workers}
        answers = rig.interleave(workers, repeats, "repeat")
    finally:
        for worker in workers:
            worker.stop()
    rows = [
        {
            "size": name, "dim": shapes[name]["dim"], "depth": shapes[name]["depth"], "parameters": counts[name],
            "inner": counts[name] - shapes[name]["vocab"] * shapes[name]["dim"],
            "flops": sum(training.flops(batch, shapes[name]) for batch in batches),
            "seconds": Spread.of(answer["seconds"] for answer in found),
            "tokens_per_s": Spread.of(answer["tokens"] / answer["seconds"] for answer in found),
        }
        for name, found in answers.items()
    ]  # fmt: skip
    power = exponent([row["inner"] for row in rows], [row["seconds"].median for row in rows])
    batch = {"source": [*batches[0].source.shape], "target": [*batches[0].target.shape], "tokens": batches[0].tokens}
    return {"repeats": repeats, "batch": batch, "vocab": training.VOCAB, "rows": rows, "exponent": power}


def show_sizes(found: dict[str, Any]) -> None:
    """One table."""
    title = f"training, one batch of {found['batch']['tokens']:,} target tokens, vocabulary {found['vocab']:,}"
    caption = f"{rig.threads()} threads, {found['repeats']} repeats, median (least–most)"
    table = Table("", title=title, caption=caption)
    for column in ("width", "layers", "parameters without embeddings", "s a step", "target tokens/s", "GFLOP/s"):
        table.add_column(column, justify="right")
    for row in found["rows"]:
        speed = row["flops"] / row["seconds"].median / 1e9
        cells = (row["dim"], f"{row['depth']} + {row['depth']}", f"{row['inner']:,}", row["seconds"].text(".2f"))
        table.add_row(row["size"], *map(str, cells), row["tokens_per_s"].text(), f"{speed:,.0f}")
    console.print(table)
    console.print(f"seconds a step grow as parameters without embeddings ** {spell(found['exponent'])}")


# ---- two processes against one


def processes(folder: Path, repeats: int) -> dict[str, Any]:
    """Target tokens per second of two processes, and of one that accumulates two batches: the same steps, on the same batches."""
    data = own_files(folder)
    found: dict[int, list[float]] = {1: [], PROCESSES: []}
    for repeat in range(repeats):
        for n in (1, PROCESSES) if repeat % 2 == 0 else (PROCESSES, 1):
            rig.say(f"training with {n} {'process' if n == 1 else 'processes'}, repeat {repeat + 1}")
            found[n].append(train(folder / f"{n}-{repeat}", n, data))
    return {
        "processes": PROCESSES, "repeats": repeats, "steps": STEPS - SKIPPED, "size": "small",
        "threads": {n: threads_of(n) for n in found}, "tokens_per_s": {n: Spread.of(speeds) for n, speeds in found.items()},
        "ratio": rig.ratio(found[PROCESSES], found[1]),
    }  # fmt: skip


def own_files(folder: Path) -> list[str]:
    """Multi30k as TSV files with a small validation set: only training is measured, not the final scores."""
    config = TextData(source="multi30k", pair="en-de", text="raw")
    for split, count in (("train", None), ("valid", 8)):
        pairs = islice(find_split(config, split).pairs(), count)
        text = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (folder / f"{split}.tsv").write_text(text, encoding="utf-8")
    return ["data.source=", "data.pair=", *(f"data.{split}={folder / split}.tsv" for split in ("train", "valid"))]


def threads_of(count: int) -> int:
    """Threads of each process."""
    return max(1, rig.threads() // count)


def train(folder: Path, count: int, data: list[str]) -> float:
    """Target tokens per second of training with `count` processes, the mean over steps."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)] if count > 1 else []
    changes = ["model=small", *data, f"train.steps={STEPS}", "train.log_every=1", f"train.accumulate={PROCESSES // count}",
               "train.device=cpu", "decode.beam_size=1"]  # fmt: skip
    safe = {"PYTHONSAFEPATH": "1"}  # what -P is for the processes that torch.distributed.run starts
    done = subprocess.run(
        [sys.executable, "-P", *launch, "-m", "regard", "train", "multi30k", *changes, "--out", str(folder)],
        env={**os.environ, **safe, "OMP_NUM_THREADS": str(threads_of(count)), "XDG_CACHE_HOME": str(folder.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"training with {count} processes stopped: {done.stderr.strip().splitlines()[-1]}")
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    speeds = [line["tokens_per_s"] for line in lines if "tokens_per_s" in line and line["step"] > SKIPPED]
    return statistics.harmonic_mean(speeds)


def show_processes(found: dict[str, Any]) -> None:
    """One table."""
    title = f"training, {found['size']}, the same {found['steps']} steps of {found['processes']} batches"
    table = Table("processes", title=title, caption=f"{found['repeats']} repeats in turn, median (least–most)")
    for column in ("threads of each", "target tokens/s"):
        table.add_column(column, justify="right")
    for n, speed in found["tokens_per_s"].items():
        table.add_row(str(n), str(found["threads"][n]), speed.text())
    console.print(table)
    console.print(f"{found['processes']} processes are {found['ratio'].text('.2f')} times as fast as one")


def main() -> None:
    """Measure, print and save one part after the other."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--max-len", type=int, default=8192, help="tokens")
    asked = options.parse_args()
    result: dict[str, Any] = {}
    parts = {
        "attention": (lambda folder: attention(asked.max_len, asked.repeats), show_attention),
        "training": (lambda folder: sizes(folder, asked.repeats), show_sizes),
        "processes": (lambda folder: processes(folder, asked.repeats), show_processes),
    }
    for name, (measure, show) in parts.items():
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            result[name] = measure(Path(folder))
        show(result[name])
        saved = rig.save("scale", result)
        rig.say(f"{name}: {time.monotonic() - began:.0f} s")
    rig.say(f"saved in {saved.relative_to(rig.HERE.parent)}")


if __name__ == "__main__":
    main()
