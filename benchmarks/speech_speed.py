"""How fast is a transcript by CTC with regard, compared with Hugging Face's Conformer encoder on the same weights?

Conformer S and M with random weights, 80 features and 32 tokens.  Hugging Face's side is `Wav2Vec2ConformerEncoder` with
relative positions and the fused attention, behind the same two convolutions and before the same output layer, written in plain
torch; both end in the best path.  Both run in float32, with one thread per core, on the same frames: ten seconds, in batches of
one and of eight, the eight of different lengths.  Before timing starts their logits are compared, for an utterance without
padding: Hugging Face's convolutions read the padding after an utterance.

    python benchmarks/speech_speed.py --repeats 7
"""

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import rig
import torch
from rich.console import Console
from rich.table import Table
from rig import Peer, Spread, say
from safetensors.torch import save_file
from torch import Tensor

from regard.models import saved_tensors
from regard.models.conformer import SIZES, Conformer

MODELS = ("s", "m")
BATCHES = (1, 8)
FRAMES, VOCAB, SEED = 1000, 32, 1  # frames of 10 ms
CLOSE = 1e-3  # largest difference of logits, relative to their standard deviation
OURS, THEIRS = "regard", "transformers"
PEERS = (Peer(OURS, "ours_speech.py"), Peer(THEIRS, "hf_speech.py", "hf.txt"))

BLOCK = {  # ours → theirs, in each block
    "mlp1.up": "ffn1.intermediate_dense", "mlp1.down": "ffn1.output_dense", "mlp1_residual.norm": "ffn1_layer_norm",
    "mlp2.up": "ffn2.intermediate_dense", "mlp2.down": "ffn2.output_dense", "mlp2_residual.norm": "ffn2_layer_norm",
    "attn.out": "self_attn.linear_out", "attn_residual.norm": "self_attn_layer_norm",
    "position_bias.distances": "self_attn.linear_pos", "position_bias.content": "self_attn.pos_bias_u",
    "position_bias.position": "self_attn.pos_bias_v", "conv.up": "conv_module.pointwise_conv1",
    "conv.down": "conv_module.pointwise_conv2", "conv.depthwise": "conv_module.depthwise_conv",
    "conv.norm": "conv_module.batch_norm", "conv_residual.norm": "conv_module.layer_norm", "norm": "final_layer_norm",
}  # fmt: skip


def main() -> None:
    """Measure model by model, print the table, save the results."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    asked = options.parse_args()
    rows: list[dict[str, Any]] = []
    versions: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for size in asked.models:
        with tempfile.TemporaryDirectory() as folder:
            ready, reasons = rig.start(PEERS, {}, {"folder": folder, "shape": write_model(size, Path(folder))})
        missing |= reasons
        try:
            versions |= {worker.name: worker.ask("versions") for worker in ready}
            for batch in BATCHES:
                rows.append(measure(size, batch, ready, asked.repeats))
        finally:
            for worker in ready:
                worker.stop()
    show(rows, asked.repeats)
    for name, reason in missing.items():
        print(f"{name} is not measured: {reason}")
    if asked.models == list(MODELS):
        result = {"frames": FRAMES, "repeats": asked.repeats, "versions": versions, "rows": rows}
        say(f"saved in {rig.named(rig.save('speech_speed', result))}")


def write_model(size: str, folder: Path) -> dict[str, Any]:
    """Write random weights under the names of each side; return the shape of the model."""
    torch.manual_seed(SEED)
    config = dataclasses.replace(SIZES[size], vocab=VOCAB)
    model = Conformer(config)
    with torch.no_grad():
        for p in model.parameters():  # parameters initialized to zero would hide a difference
            p.add_(0.02 * torch.randn_like(p))
    ours = saved_tensors(model)
    save_file(ours, folder / "ours.safetensors")
    theirs: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        theirs |= renamed(name, tensor, config.heads)
    save_file({name: tensor.contiguous() for name, tensor in theirs.items()}, folder / "theirs.safetensors")
    return dataclasses.asdict(config)


def renamed(name: str, tensor: Tensor, heads: int) -> dict[str, Tensor]:
    """A tensor of ours under the names of Hugging Face's side."""
    if not name.startswith("encoder."):
        return {name: tensor}  # convolutions and output layer, which both sides name alike
    _, block, rest = name.split(".", 2)
    part, _, kind = rest.rpartition(".")
    if part == "attn.qkv":
        return {
            f"encoder.layers.{block}.self_attn.linear_{key}.{kind}": row for key, row in zip("qkv", tensor.chunk(3), strict=True)
        }
    if rest.startswith("position_bias") and kind in ("content", "position"):
        return {f"encoder.layers.{block}.{BLOCK[rest]}": tensor.view(heads, -1)}
    if part == "conv.depthwise":
        tensor = tensor[:, :, 0]
    elif part in ("conv.up", "conv.down"):
        tensor = tensor[:, :, None]
    return {f"encoder.layers.{block}.{BLOCK[part]}.{kind}": tensor}


def measure(size: str, batch: int, ready: list[rig.Worker], repeats: int) -> dict[str, Any]:
    """Transcripts per second of each side, and their ratio; both must give the same logits."""
    lengths = torch.linspace(0.6 * FRAMES, FRAMES, batch).long().tolist() if batch > 1 else [FRAMES]
    logits = [torch.tensor(worker.ask("logits", lengths=lengths)) for worker in ready]  # of the longest, which has no padding
    spread = float(logits[0].std()) if logits else 0.0
    if len(logits) == len(PEERS) and (difference := float((logits[0] - logits[1]).abs().max())) > CLOSE * spread:
        raise RuntimeError(f"conformer-{size}: the sides differ by {difference:.2g}; their speed cannot be compared")
    say(f"conformer-{size}, {batch} at a time")
    found = rig.interleave(ready, repeats, "repeat", lengths=lengths, rounds=max(1, 8 // batch))
    speeds = {side: [batch / seconds for seconds in times] for side, times in found.items()}
    ratio = rig.ratio(speeds[OURS], speeds[THEIRS]) if speeds.keys() >= {OURS, THEIRS} else None
    return {"model": f"conformer-{size}", "batch": batch, "ratio": ratio,
            **{side: Spread.of(values) for side, values in speeds.items()}}  # fmt: skip


def show(rows: list[dict[str, Any]], repeats: int) -> None:
    """One table."""
    title = f"transcripts/s of {FRAMES} frames, float32, {rig.threads()} threads; {repeats} repeats, median (least–most)"
    table = Table("", "at a time", OURS, "Hugging Face", "ratio", title=title)
    for row in rows:
        cells = [row[side].text(",.2f") if side in row else "–" for side in (OURS, THEIRS)]
        table.add_row(row["model"], str(row["batch"]), *cells, row["ratio"].text(".2f") if row["ratio"] else "–")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
