"""The files that sentence-transformers adds to a checkpoint: how it pools, and how long a text may be."""

from pathlib import Path

from regard.interop.weights import parse_json, read_json

__all__ = ["POOLING", "read_max_len"]

POOLING = "1_Pooling/config.json"
MEAN = ("mean", ["mean"], ["mean_tokens"])  # values of pooling_mode that mean what ours does


def read_max_len(folder: Path) -> int:
    """The maximum length of a text, with start and end; 0 if no file gives one.  Only mean pooling is supported."""
    for module in parse_json(folder, "modules.json", list[object]()):
        kind = str(module.get("type")).rpartition(".")[2] if isinstance(module, dict) else module
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise ValueError(f"modules.json has a {kind} after the model; regard embeds a text by the mean of its tokens: "
                             f"use a checkpoint without it")  # fmt: skip
        if kind == "Pooling" and not (folder / POOLING).exists():
            raise ValueError(f"there is no {POOLING}, though modules.json has a Pooling; download it")
    if (folder / POOLING).exists():
        pooling, start = read_json(folder, POOLING), "pooling_mode_"
        enabled = [key.removeprefix(start) for key, on in pooling.items() if key.startswith(start) and on]
        if (mode := pooling.get("pooling_mode", enabled)) not in MEAN:
            raise ValueError(f"{POOLING} has pooling_mode = {mode!r}; regard embeds a text by the mean of its tokens: "
                             f"use a checkpoint that does")  # fmt: skip
    max_len = read_json(folder, "sentence_bert_config.json").get("max_seq_length")
    return max_len if isinstance(max_len, int) and max_len > 0 else 0
