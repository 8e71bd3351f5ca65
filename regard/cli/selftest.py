"""What `regard doctor` tries in child processes: `python -m regard.cli.selftest device|attention|train|translate|…` prints JSON.

A broken torch can kill its process; then the child ends, not the doctor.
"""

import itertools
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ATTENTION_ERROR", "DTYPES", "MULTIPLY_ERROR", "attention", "device", "multiply", "train", "translate"]

ATTENTION_ERROR = 1e-5  # largest difference of fused and explicit attention in float32, of values about 1
CHANGES = ("model.dim=32", "model.heads=2", "model.depth=1", "data.vocab=60", "train.steps=150", "train.batch_tokens=512",
           "train.lr=0.01", "train.warmup=20", "train.save_every=150", "train.eval_every=150", "train.device=cpu", "data.source=",
           "decode.beam_size=1")  # fmt: skip
MULTIPLY_ERROR = 0.1  # the same of a reduced precision, of values up to about 5
DTYPES = ("bfloat16", "float16")  # that a processor may not multiply
SENTENCE = "I love you very much"
EXPECTED = {"en-it": "Ti amo molto."}  # its translation by the models that are known
COPIES = 25  # of each training pair


def device() -> dict[str, object]:
    """The version of torch, what it was built for, and what it finds."""
    import torch

    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    found = "cuda" if gpus else "mps" if torch.backends.mps.is_available() else "cpu"
    instructions = torch.backends.cpu.get_cpu_capability()
    return {"version": torch.__version__, "cuda": torch.version.cuda, "device": found, "gpus": gpus,
            "threads": torch.get_num_threads(), "instructions": instructions}  # fmt: skip


def _largest(difference: "Tensor") -> float:
    """The largest absolute value; infinity if one is not a number, which `max` would pass over."""
    return float(difference.abs().nan_to_num(nan=math.inf).max())


def attention() -> dict[str, object]:
    """The largest difference between torch's fused attention and the explicit one, which `regard show` draws."""
    import torch

    from regard.layers.attention import attend

    torch.manual_seed(0)
    worst = 0.0
    for causal in (False, True):
        q, k, v = (torch.randn(2, 4, 33, 16) for _ in range(3))
        fused, _ = attend(q, k, v, causal=causal)
        explicit, _ = attend(q, k, v, causal=causal, need_weights=True)
        worst = max(worst, _largest(fused - explicit))
    return {"difference": worst}


def multiply(dtype: str) -> dict[str, object]:
    """The largest error of products of matrices and of attention in a reduced precision, compared with float32."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(0)
    x, reduced = torch.randn(2, 4, 64, 64), getattr(torch, dtype)
    worst = 0.0
    for compute in (lambda a: a @ a / 8, lambda a: scaled_dot_product_attention(a, a, a)):
        worst = max(worst, _largest(compute(x.to(reduced)).float() - compute(x)))
    return {"error": worst}


def train() -> dict[str, object]:
    """Train a toy that copies two or three letters, in a temporary folder; open it, and count the sequences that it copies."""
    import torch
    from rich.console import Console

    from regard.tasks import read_run
    from regard.tasks.load import load
    from regard.train.loop import fit

    torch.set_num_threads(1)  # enough for a toy, and fast on a busy machine
    began = time.monotonic()
    texts = [" ".join(letters) for count in (2, 3) for letters in itertools.product("abcd", repeat=count)]
    with tempfile.TemporaryDirectory(prefix="regard-doctor-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # its encoded text is not kept
        run, data = Path(folder) / "run", []
        for split, rows in (("train", texts * COPIES), ("valid", texts[:8])):
            file = Path(folder) / f"{split}.tsv"
            file.write_text("".join(f"{text}\t{text}\n" for text in rows), encoding="utf-8")
            data.append(f"data.{split}={file}")
        done = fit(read_run("copy", (*CHANGES, *data)), run, console=Console(quiet=True))
        answers = load(run, "cpu").translate(texts)  # type: ignore[union-attr]
        log = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    first = next(line["loss"] for line in log if "loss" in line)
    right = sum(answer.text == text for answer, text in zip(answers, texts, strict=True))
    return {"seconds": round(time.monotonic() - began, 1), "first_loss": first, "loss": done.loss, "right": right,
            "of": len(texts)}  # fmt: skip


def translate() -> dict[str, object]:
    """What each translator that ships with this installation answers, by its name, and how long the second answer takes.

    An answer is right if it is the expected one, or for other models at least not empty and not the source.
    """
    from regard.cli.default_run import has_task
    from regard.shipped import shipped_models
    from regard.tasks.load import load

    found = dict[str, object]()
    for name, folder in shipped_models().items():
        if has_task(folder, "translate"):
            try:
                translator = load(folder, "cpu")
                answers = translator.translate([SENTENCE])  # type: ignore[union-attr]
                began = time.monotonic()
                translator.translate([SENTENCE])  # type: ignore[union-attr]
                milliseconds = round(1000 * (time.monotonic() - began))
                text = answers[0].text
                right = text == EXPECTED.get(name, text) and text not in ("", SENTENCE)
                found[name] = {"source": SENTENCE, "answer": text, "right": right, "milliseconds": milliseconds}
            except ValueError as error:  # a damaged file
                found[name] = {"source": str(error), "answer": "", "right": False, "milliseconds": 0}
    return found


if __name__ == "__main__":
    tests: dict[str, Callable[[], dict[str, object]]] = {
        "device": device,
        "attention": attention,
        "train": train,
        "translate": translate,
        **{dtype: partial(multiply, dtype) for dtype in DTYPES},
    }
    print(json.dumps({name: tests[name]() for name in sys.argv[1:]}))
