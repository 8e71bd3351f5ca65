"""How fast does regard train its recurrent translators, compared with JoeyNMT's?  One table for each model.

`python benchmarks/recurrent_training.py`: Bahdanau's model and sequence to sequence, size tiny, on the same batches of
Multi30k, as training.py does: same threads, float32, dropout 0.1, label smoothing 0.1, interleaved repeats, each compared
with the fastest matrix product of the same minute.  `peers/joey_recurrent.py` says what JoeyNMT was given.

Shapes: B batch, S source and T target length.
"""

import argparse
import tempfile
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import rig
from training import ALLOCATOR_TEXT, ALLOCATORS, GEMM, OURS, SETTINGS, draw, run_peers, stream, typical, write_batches

from regard.data.text.batches import PairBatch
from regard.data.text.tokenizer import PAD
from regard.models import FAMILIES

JOEY = "JoeyNMT"
PEERS = (rig.Peer(GEMM, "gemm.py"), rig.Peer(OURS, "ours_recurrent.py"), rig.Peer(JOEY, "joey_recurrent.py", needs="joey.txt"))
TOKENS, COUNT = 4096, 4  # of a batch; batches per repeat
# The largest relative difference in parameters.  JoeyNMT's Bahdanau has 5 % fewer: one linear layer reads out the state and
# the context, where ours is a maxout over pairs that also reads the embedding.
TOLERANCE = {"bahdanau": 0.05, "seq2seq": 0.0}


def shape_of(family: str) -> dict[str, Any]:
    """The sizes of a model, as every worker reads them."""
    return {"family": family, **asdict(FAMILIES[family].sizes["tiny"]), "dropout": 0.1, **SETTINGS}


def flops(peer: str, batch: PairBatch, shape: dict[str, Any]) -> float:
    """Operations in the matrix products of one training step on a batch, without padding.

    With D width of the embeddings, H of a state, A of the score's hidden layer, L layers and V vocabulary, a sentence of
    S source and T target tokens multiplies and adds, in seq2seq of both,
        S · 4H(D + H + 2H(L - 1))     in the encoder, an LSTM,
        T · 4H(D + H + 2H(L - 1))     in the decoder, another,
        T · HD                        in the readout, a projection,
        T · DV                        in the output layer;
    and in bahdanau
        S · 2 · 3H(D + H)             in the encoder, a GRU from each side,
        S · 2HA + T · (HA + SA + 2SH) in the attention: keys, queries, scores, contexts,
        T · 3H(D + 2H + H)            in the decoder, a GRU that reads a token and a context,
        H² + T · 2D(3H + D)           in the first state and the readout, a maxout over pairs,
        T · DV                        in the output layer.
    JoeyNMT's bahdanau feeds a GRU with state and context combined in a layer of 3H · H instead of the context, which
    together is as much, and has 2H² + T · HD in the first state and the projection.
    Each is two operations, and the backward pass needs twice the forward's.
    """
    d, h, v = (shape[key] for key in ("dim", "hidden", "vocab"))
    s, t = ((side != PAD).sum(1).double() for side in (batch.source, batch.target[:, 1:]))
    if shape["family"] == "seq2seq":
        lstm = 4 * h * (d + h + 2 * h * (shape["depth"] - 1))
        forward = (s + t) * lstm + t * h * d
    else:
        a = shape["align"]
        encoder = s * 2 * 3 * h * (d + h)
        attention = s * 2 * h * a + t * (h * a + s * a + 2 * s * h)
        decoder = t * 3 * h * (d + 2 * h + h)
        readout = 2 * h * h + t * h * d if peer == JOEY else h * h + t * 2 * d * (3 * h + d)
        forward = encoder + attention + decoder + readout
    return 3 * 2 * float((forward + t * d * v).sum())


def measure(family: str, allocator: str, repeats: int, found: list[PairBatch], file: Path) -> dict[str, Any]:
    """Both sides on one model with one allocator."""
    rig.say(f"{family}, allocator {allocator}")
    shape = shape_of(family)
    needed = {peer: sum(flops(peer, batch, shape) for batch in found) for peer in (OURS, JOEY)}
    answers = run_peers(PEERS, ALLOCATORS[allocator], shape, found, file, repeats, needed.__getitem__, TOLERANCE[family])
    return {"family": family, "allocator": allocator, "flops": needed, **answers}


def show(found: dict[str, Any]) -> None:
    """The table of one model and allocator."""
    shape = found["shape"]
    title = f"training, {found['family']} (width {shape['dim']}, state {shape['hidden']}), {ALLOCATOR_TEXT[found['allocator']]}"
    draw(found, f"{title}, batches of {TOKENS:,} tokens")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--allocator", default="box", choices=[*ALLOCATORS, "both"])
    options.add_argument("--batches", type=int, default=COUNT, help="of one repeat")
    asked = options.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        found = typical(stream(Path(folder), TOKENS, 100), asked.batches)
        file = write_batches(Path(folder) / "batches.npz", found)
        for family, allocator in product(TOLERANCE, ALLOCATORS if asked.allocator == "both" else [asked.allocator]):
            runs.append(measure(family, allocator, asked.repeats, found, file))
            show(runs[-1])
            saved = rig.save("recurrent_training", {"runs": runs})
    print(f"saved in {rig.named(saved)}")


if __name__ == "__main__":
    main()
