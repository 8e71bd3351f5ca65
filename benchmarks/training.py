"""How fast does regard train, compared with its peers?  `python benchmarks/training.py` prints one table, `--size all` three.

Same shape of model, same batches of Multi30k, same threads, float32, dropout 0.1, label smoothing 0.1; further
settings of a peer are at the top of its file in `peers/`.  Repeats are interleaved, and each is compared with the fastest
matrix product of the machine in the same minute.  `--curves` shows that speed does not cost quality: the loss of regard
and of the textbook, from the same initial weights, over the same batches.

Shapes: B batch, S source and T target length.
"""

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import rig
from rich.console import Console
from rich.table import Table

from regard.data.text.batches import PairBatch, pair_batches
from regard.data.text.config import TextData
from regard.data.text.dataset import prepare_pairs
from regard.data.text.tokenizer import BOS, EOS, PAD, UNK
from regard.models.transformer import SIZES
from regard.train.optim import inverse_square_root

VOCAB = 10_000
SETTINGS = {"vocab": VOCAB, "label_smoothing": 0.1, "rate": 3e-4, "pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK}
COUNTS = {"small": 4, "tiny": 4, "base": 2}  # batches per repeat, enough for some seconds
TOKENS = {"small": 4096, "tiny": 4096, "base": 2048}  # of a batch; all peers of a size must fit into memory at once
ALLOCATORS = {"box": {}, "same": rig.KEEP}
ALLOCATOR_TEXT = {"box": "as it comes", "same": "one allocator setting for all"}  # in a title
OURS, TEXTBOOK, GEMM = "regard", "textbook", "GEMM"
PEERS = (
    rig.Peer(GEMM, "gemm.py"),
    rig.Peer(OURS, "ours_training.py"),
    rig.Peer(TEXTBOOK, "textbook.py"),
    rig.Peer("torch nn.Transformer", "torch_transformer.py"),
    rig.Peer("Hugging Face Marian", "hf_marian_training.py", needs="hf.txt"),
    rig.Peer("JoeyNMT", "joey.py", needs="joey.txt"),
    rig.Peer("x-transformers", "xtransformer.py", needs="xtransformer.txt"),
)


def shape_of(size: str, dropout: float = 0.1) -> dict[str, Any]:
    """The sizes of a model, as every worker reads them."""
    c = SIZES[size]
    return {
        "dim": c.dim, "mlp": c.mlp_ratio * c.dim, "heads": c.heads, "depth": c.depth, "dropout": dropout, **SETTINGS,
    }  # fmt: skip


def stream(folder: Path, tokens: int, count: int) -> list[PairBatch]:
    """The first batches of `regard train multi30k`."""
    config = TextData(source="multi30k", pair="en-de", text="raw", vocab=VOCAB)
    corpus = prepare_pairs(config, folder / "tokenizer.json", rig.say, lambda what, done: None, task="translation")
    if corpus.tokenizer.vocab != VOCAB:
        raise ValueError(f"the tokenizer has {corpus.tokenizer.vocab:,} tokens; wanted {VOCAB:,}")
    return [make() for make, _ in islice(pair_batches(corpus.train, corpus.tokenizer.special, tokens, seed=1), count)]


def typical(found: list[PairBatch], count: int) -> list[PairBatch]:
    """`count` batches at evenly spaced quantiles of length; for one, the median."""
    found = sorted(found, key=lambda batch: batch.target.shape[1])
    return [found[(2 * i + 1) * len(found) // (2 * count)] for i in range(count)]


def write_batches(file: Path, found: list[PairBatch]) -> Path:
    """Batches for workers to read: source (B, S) and target (B, T + 1) of each."""
    sides = {f"{side}{i}": getattr(b, side).numpy() for i, b in enumerate(found) for side in ("source", "target")}
    np.savez(file, **sides)
    return file


def flops(batch: PairBatch, shape: dict[str, Any]) -> float:
    """Operations in the matrix products of one training step on a batch, without padding.

    With D width, M width of the mlp, V vocabulary, a sentence of S source and T target tokens multiplies and adds
        S · (4D² + 2DM) + 2D · S²                          in an encoder layer,
        T · (6D² + 2DM) + S · 2D² + 2D · (T(T + 1)/2 + ST) in a decoder layer, its queries across among the 6D²,
        T · DV                                             in the output layer;
    each is two operations, and the backward pass needs twice the forward's.
    """
    d, m, v, depth = (shape[key] for key in ("dim", "mlp", "vocab", "depth"))
    s, t = ((side != PAD).sum(1).double() for side in (batch.source, batch.target[:, 1:]))
    encoder = s * (4 * d * d + 2 * d * m) + 2 * d * s * s
    decoder = t * (6 * d * d + 2 * d * m) + s * 2 * d * d + 2 * d * (t * (t + 1) / 2 + s * t)
    return 3 * 2 * float((depth * (encoder + decoder) + t * d * v).sum())


def measure(size: str, allocator: str, repeats: int, found: list[PairBatch], file: Path) -> dict[str, Any]:
    """All peers on one size with one allocator."""
    shape = shape_of(size)
    rig.say(f"{size}, allocator {allocator}")
    needed = sum(flops(batch, shape) for batch in found)
    answers = run_peers(PEERS, ALLOCATORS[allocator], shape, found, file, repeats, lambda peer: needed)
    return {"size": size, "allocator": allocator, "flops": needed, **answers}


def run_peers(
    asked: Iterable[rig.Peer], environ: dict[str, str], shape: dict[str, Any], found: list[PairBatch], file: Path, repeats: int,
    needed: Callable[[str], float], tolerance: float = 0.01,
) -> dict[str, Any]:  # fmt: skip
    """Speed and memory of peers, the machine's limit and regard among them, on the same batches.

    `needed` gives the operations of a peer on all batches, `tolerance` is the largest relative difference in parameters.
    """
    workers, missing = rig.start(asked, environ, {"shape": shape, "batches": str(file)})
    try:
        peers = _describe(workers, missing)
        if GEMM in missing or OURS in missing:
            raise RuntimeError(f"nothing to compare with: {missing}")
        answers = rig.interleave(workers, repeats, "repeat")
    finally:
        for worker in workers:
            worker.stop()
    limits = [answer["per_s"] for answer in answers.pop(GEMM)]
    for name, results in answers.items():
        peers[name] |= {
            "speeds": [answer["tokens"] / answer["seconds"] for answer in results],
            "of_limit": rig.Spread.of(needed(name) / a["seconds"] / g for a, g in zip(results, limits, strict=True)),
            "losses": [answer["losses"] for answer in results],
        }
        peers[name]["tokens_per_s"] = rig.Spread.of(peers[name]["speeds"])
    ours = peers[OURS]
    for name in list(peers):
        if doubt := _doubt(peers[name], ours["parameters"], tolerance):
            missing[name] = doubt
            rig.say(f"{name} is excluded: {doubt}")
            peers.pop(name)
    for peer in peers.values():
        peer["regard_is_faster"] = rig.ratio(ours["speeds"], peer["speeds"])
    return {
        "shape": shape, "repeats": repeats, "peers": peers, "missing": missing, "limit_flops_per_s": rig.Spread.of(limits),
        "batches": [{"source": [*b.source.shape], "target": [*b.target.shape], "tokens": b.tokens} for b in found],
    }  # fmt: skip


def _describe(workers: list[rig.Worker], missing: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Describe each worker: version, first losses, peak memory; stop one that cannot make a step."""
    peers = {}
    for worker in [w for w in workers if w.name != GEMM]:
        try:
            usage = worker.ask("memory")
            peers[worker.name] = {**worker.ask("about"), "memory": usage["bytes"], "first_losses": usage["losses"]}
        except RuntimeError as error:
            missing[worker.name] = str(error)
            rig.say(f"{worker.name} is excluded: {error}")
            workers.remove(worker)
            worker.stop()
    return peers


def _doubt(peer: dict[str, Any], parameters: int, tolerance: float) -> str:
    """The reason why a result is not comparable, or nothing."""
    first, [*early, last] = peer["first_losses"][0], [statistics.mean(losses) for losses in peer["losses"]]
    if abs(peer["parameters"] / parameters - 1) > tolerance:
        return f"it has {peer['parameters']:,} parameters, regard {parameters:,}"
    if not 8 <= first <= 12:
        return f"its first loss is {first:.2f}; an untrained model's is about ln {VOCAB:,} = {math.log(VOCAB):.2f}"
    if not all(last < before for before in (first, *early[:1])):
        return f"its loss does not fall: from {first:.2f}, after one repeat {[*early, last][0]:.2f}, to {last:.2f}"
    return ""


def show(found: dict[str, Any]) -> None:
    """The table of one size and allocator."""
    allocator, shape = ALLOCATOR_TEXT[found["allocator"]], found["shape"]
    title = f"training, {found['size']} ({shape['depth']} + {shape['depth']} layers, width {shape['dim']}), {allocator}"
    draw(found, f"{title}, batches of {TOKENS[found['size']]:,} tokens")


def draw(found: dict[str, Any], title: str) -> None:
    """One table, the fastest first, and the reasons why peers are missing."""
    limit = found["limit_flops_per_s"]
    caption = (
        f"{rig.threads()} threads, {found['repeats']} repeats, median (least–most); "
        f"the limit is {limit.median / 1e9:,.0f} ({limit.least / 1e9:,.0f}–{limit.most / 1e9:,.0f}) GFLOP/s"
    )
    table = Table("", title=title, caption=caption)
    for column in ("target tokens/s", "regard is … times as fast", "% of the GEMM limit", "peak memory, MB", "parameters"):
        table.add_column(column, justify="right")
    for name, peer in sorted(found["peers"].items(), key=lambda item: -item[1]["tokens_per_s"].median):
        percent = rig.Spread(*(100 * x for x in vars(peer["of_limit"]).values()))
        faster = "" if name == OURS else peer["regard_is_faster"].text(".2f")
        table.add_row(
            f"{name} {peer['version']}".strip(),
            peer["tokens_per_s"].text(),
            faster,
            percent.text(".1f"),
            f"{peer['memory'] / 1e6:,.0f}",
            f"{peer['parameters']:,}",
        )
    console = Console(width=130)
    console.print(table)
    for name, reason in found["missing"].items():
        console.print(f"{name} was not measured: {reason}", markup=False)


def curves(file: Path, steps: int, dropout: float) -> dict[str, list[float]]:
    """Negative log-likelihood a token at each step, of two models with the same initial weights on the same batches."""
    rates = [inverse_square_root(step, peak=2e-3, warmup=50) for step in range(1, steps + 1)]
    both = [peer for peer in PEERS if peer.name in (OURS, TEXTBOOK)]
    workers, missing = rig.start(both, {}, {"shape": shape_of("tiny", dropout), "batches": str(file)})
    try:
        if missing:
            raise RuntimeError(f"both are needed: {missing}")
        weights = str(file.with_name("weights.pt"))
        workers[0].ask("keep", file=weights)
        workers[1].ask("take", file=weights)
        return {worker.name: worker.ask("curve", rates=rates) for worker in workers}
    finally:
        for worker in workers:
            worker.stop()


def compare(lines: dict[str, list[float]], dropout: float) -> str:
    """Describe the difference between two curves."""
    ours, theirs = lines[OURS], lines[TEXTBOOK]
    difference = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    tenth = max(1, len(difference) // 10)
    ends = (statistics.mean(line[-tenth:]) for line in (ours, theirs))
    return (
        f"dropout {dropout}: largest difference {max(difference[:tenth]):.1e} nats over the first {tenth} steps, "
        f"{max(difference):.1e} over all {len(difference)}; mean of the last {tenth}: "
        + ", ".join(f"{name} {end:.4f}" for name, end in zip(lines, ends, strict=True))
    )


def draw_curves(folder: Path, steps: int) -> None:
    """Both pairs of curves, saved for a plot."""
    file = write_batches(folder / "batches.npz", stream(folder, TOKENS["tiny"], steps))
    found = {}
    for dropout in (0.0, 0.1):
        lines = curves(file, steps, dropout)
        print(compare(lines, dropout))
        found[f"dropout {dropout}"] = lines
    print(f"saved in {rig.named(rig.save('curves', {'size': 'tiny', 'peak': 2e-3, 'warmup': 50, **found}))}")


def draw_tables(folder: Path, sizes: Iterable[str], allocators: Iterable[str], repeats: int, count: int) -> None:
    """One table for each size and allocator; each result is saved at once, with earlier results."""
    runs = {(run["size"], run["allocator"]): run for run in rig.saved("training").get("runs", [])}
    for size in sizes:
        found = typical(stream(folder, TOKENS[size], 100), count or COUNTS[size])
        file = write_batches(folder / f"{size}.npz", found)
        for allocator in allocators:
            runs[size, allocator] = measure(size, allocator, repeats, found, file)
            show(runs[size, allocator])
            saved = rig.save("training", {"runs": list(runs.values())})
    print(f"saved in {rig.named(saved)}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--size", default="small", choices=[*COUNTS, "all"])
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--allocator", default="box", choices=[*ALLOCATORS, "both"])
    options.add_argument("--batches", type=int, default=0, help="of one repeat; 0 = enough for some seconds")
    options.add_argument("--curves", action="store_true", help="loss curves instead of speed")
    options.add_argument("--steps", type=int, default=150, help="of the curves")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if asked.curves:
            draw_curves(Path(folder), asked.steps)
        else:
            sizes = COUNTS if asked.size == "all" else [asked.size]
            allocators = ALLOCATORS if asked.allocator == "both" else [asked.allocator]
            draw_tables(Path(folder), sizes, allocators, asked.repeats, asked.batches)


if __name__ == "__main__":
    main()
