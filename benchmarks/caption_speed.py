"""How many captions a second does regard write, compared with Hugging Face's VisionEncoderDecoderModel on the same weights?

ViT-B/16 and the smallest GPT-2 with cross-attention, 239 M parameters, the sizes of nlpconnect/vit-gpt2-image-captioning, with
random weights.  Hugging Face's side saves them to a temporary folder, which regard imports; both run in float32, with one thread
per core, and read the same images, one or eight at a time.  Captions have a fixed number of tokens and no end token, greedily and
with five beams.  Before timing starts the sides' logits and captions are compared.  The timed repeats are interleaved.

    python benchmarks/caption_speed.py --repeats 7
"""

import argparse
import tempfile
from typing import Any

import rig
import torch
from rich.console import Console
from rich.table import Table
from rig import Peer, Spread, say

BATCHES, BEAMS = (1, 8), (1, 5)
TOKENS = 16  # of a caption
BAR = 1.1  # the ratio that regard must reach
CLOSE = 1e-3  # largest difference of logits, relative to their standard deviation
OURS, THEIRS = "regard", "transformers"
PEERS = (Peer(THEIRS, "hf_captions.py", "hf.txt"), Peer(OURS, "ours_captions.py"))  # the first one saves the weights


def main() -> None:
    """Measure each batch and beam, print the table, save the results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--tokens", type=int, default=TOKENS, help=f"of a caption; only the results of {TOKENS} are saved")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ready, missing = rig.start(PEERS, {}, {"folder": folder, "tokens": asked.tokens})
    try:
        versions = {worker.name: worker.ask("versions") for worker in ready}
        compare_logits(ready)
        rows = [measure(batch, beam, ready, asked.repeats) for batch in BATCHES for beam in BEAMS]
    finally:
        for worker in ready:
            worker.stop()
    show(rows, asked.repeats, asked.tokens)
    for name, reason in missing.items():
        print(f"{name} is not measured: {reason}")
    if asked.tokens == TOKENS:
        result = {"tokens": TOKENS, "repeats": asked.repeats, "versions": versions, "rows": rows}
        say(f"saved in {rig.named(rig.save('caption_speed', result))}")


def compare_logits(ready: list[rig.Worker]) -> None:
    """Both sides must give the same logits for the same images and tokens."""
    logits = [torch.tensor(worker.ask("logits", batch=2)) for worker in ready]
    if len(logits) == len(PEERS) and (difference := float((logits[0] - logits[1]).abs().max())) > CLOSE * float(logits[0].std()):
        raise RuntimeError(f"the sides differ by {difference:.2g}; their speed cannot be compared")


def measure(batch: int, beam: int, ready: list[rig.Worker], repeats: int) -> dict[str, Any]:
    """Captions per second of each side, their ratio, and how many captions are the same."""
    say(f"{batch} at a time, beam {beam}")
    captions = [worker.ask("write", batch=batch, beam=beam) for worker in ready]
    same = sum(len({tuple(caption) for caption in both}) == 1 for both in zip(*captions, strict=True))
    found = rig.interleave(ready, repeats, "repeat", batch=batch, beam=beam)
    speeds = {side: [batch / seconds for seconds in times] for side, times in found.items()}
    ratio = rig.ratio(speeds[OURS], speeds[THEIRS]) if speeds.keys() >= {OURS, THEIRS} else None
    sides = {side: Spread.of(values) for side, values in speeds.items()}
    return {"batch": batch, "beam": beam, "same": same, "ratio": ratio, **sides}


def show(rows: list[dict[str, Any]], repeats: int, tokens: int) -> None:
    """One table."""
    title = f"captions/s, {tokens} tokens each, float32, {rig.threads()} threads; {repeats} repeats, median (least–most)"
    table = Table("at a time", "beam", OURS, "Hugging Face", "ratio", "same captions", title=title, caption=f"bar: {BAR}")
    for row in rows:
        cells = [row[side].text(",.3f") if side in row else "–" for side in (OURS, THEIRS)]
        ratio = row["ratio"].text(".2f") if row["ratio"] else "–"
        table.add_row(str(row["batch"]), str(row["beam"]), *cells, ratio, f"{row['same']} of {row['batch']}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
