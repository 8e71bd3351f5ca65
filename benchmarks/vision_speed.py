"""How fast is an image classifier with regard, compared with Hugging Face on the same weights?  One table, and JSON.

ViT-B/16, Swin-T, Swin-V2-T and ResNet-50 with random weights; both sides load the same folder, in float32, with one thread per
core, and classify the same images, in batches of one and eight.  Their logits are compared before timing starts.

    python benchmarks/vision_speed.py --repeats 7
"""

import argparse
import hashlib
import os
from pathlib import Path
from typing import Any

import rig
import torch
from rich.console import Console
from rich.table import Table
from rig import Peer, Spread, say

from regard.interop.hf import export_model
from regard.models import FAMILIES, preset

MODELS = ("vit-base", "swin-tiny", "swin-v2-tiny", "resnet-50")
BATCHES = (1, 8)
SEED, CLOSE = 1, 1e-3
OURS, THEIRS = "regard", "transformers"
PEERS = (Peer(OURS, "ours_vision.py"), Peer(THEIRS, "hf_vision.py", "hf.txt"))


def main() -> None:
    """Measure model by model, print the table, save the results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    asked = options.parse_args()
    rows: list[dict[str, Any]] = []
    versions: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name in asked.models:
        given = {"folder": str(write_model(name).resolve()), "side": preset(name)[1].image}
        ready, reasons = rig.start(PEERS, {}, given)
        missing |= reasons
        try:
            versions |= {worker.name: worker.ask("versions") for worker in ready}
            for batch in BATCHES:
                rows.append(measure(name, batch, ready, asked.repeats))
        finally:
            for worker in ready:
                worker.stop()
    show(rows, asked.repeats)
    for name, reason in missing.items():
        print(f"{name} is not measured: {reason}")
    if asked.models == list(MODELS):
        say(f"saved in {rig.named(rig.save('vision', {'repeats': asked.repeats, 'versions': versions, 'rows': rows}))}")


def write_model(name: str) -> Path:
    """Export a model with random weights into the cache, if it is not there; return the folder."""
    cache, (family, config) = rig.HERE / ".cache", preset(name)
    key = hashlib.sha256(repr((config, SEED)).encode()).hexdigest()[:12]
    folder = cache / f"{name}-{key}"
    if not folder.exists():
        say(f"writing {rig.named(folder)}")
        torch.manual_seed(SEED)
        model = FAMILIES[family].build(config)
        with torch.no_grad():
            for p in model.parameters():  # parameters initialized to zero would hide a difference
                p.add_(0.02 * torch.randn_like(p))
        part = cache / f"{folder.name}.{os.getpid()}.part"
        export_model(family, config, model, part)
        (cache / ".gitignore").write_text("*\n")
        part.rename(folder)
    return folder


def measure(name: str, batch: int, ready: list[rig.Worker], repeats: int) -> dict[str, Any]:
    """Images per second of each side, and their ratio; both must give the same logits."""
    logits = [torch.tensor(worker.ask("logits", batch=batch)) for worker in ready]
    spread = float(logits[0].std()) if logits else 0.0
    if len(logits) == len(PEERS) and (difference := float((logits[0] - logits[1]).abs().max())) > CLOSE * spread:
        raise RuntimeError(f"{name}: the sides differ by {difference:.2g}; their speed cannot be compared")
    say(f"{name}, {batch} at a time")
    found = rig.interleave(ready, repeats, "repeat", batch=batch, rounds=max(1, 4 // batch))
    speeds = {side: [batch / seconds for seconds in times] for side, times in found.items()}
    ratio = rig.ratio(speeds[OURS], speeds[THEIRS]) if speeds.keys() >= {OURS, THEIRS} else None
    return {"model": name, "batch": batch, "ratio": ratio, **{side: Spread.of(values) for side, values in speeds.items()}}


def show(rows: list[dict[str, Any]], repeats: int) -> None:
    """One table."""
    title = f"images/s, float32, {rig.threads()} threads; {repeats} repeats, median (least–most)"
    table = Table("", "at a time", OURS, "Hugging Face", "ratio", title=title)
    for row in rows:
        cells = [row[side].text(",.2f") if side in row else "–" for side in (OURS, THEIRS)]
        table.add_row(row["model"], str(row["batch"]), *cells, row["ratio"].text(".2f") if row["ratio"] else "–")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
