"""Export a run for Hugging Face's MarianMTModel: the same function, so that searches can be compared.

The folder also has `tokens.json`, the vocabulary, and `probe.safetensors`, some sentences with regard's logits: each peer
compares its own logits with them before it is measured.

Shapes: B batch, S source and T target length, D width, V vocabulary.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import regard
from regard.data.text.batches import pad
from regard.data.text.tokenizer import BOS, EOS, PAD
from regard.interop.hf import export_model

__all__ = ["write"]


def write(run: Path, cache: Path, pairs: list[tuple[str, str]]) -> Path:
    """Write the folder into the cache, if it is not there, with `pairs` of sentences as the probe; return the folder."""
    parts = (run / "config.json", run / "model.safetensors", run / "tokenizer.json", Path(__file__))
    folder = cache / f"marian-{hashlib.sha256(b''.join(part.read_bytes() for part in parts)).hexdigest()[:12]}"
    if folder.exists():
        return folder
    translator = regard.load(run, device="cpu")
    part = cache / f"{folder.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    (cache / ".gitignore").write_text("*\n")
    export_model("transformer", translator.model.config, translator.model, part, translator.tokenizer.special)
    ends = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "decoder_start_token_id": BOS}
    (part / "generation_config.json").write_text(json.dumps(ends, indent=1))
    tokens = translator.tokenizer.ids_to_tokens(range(translator.tokenizer.vocab))
    (part / "tokens.json").write_text(json.dumps(tokens, ensure_ascii=False), encoding="utf-8")
    save_file(probe(translator, pairs), part / "probe.safetensors")
    part.rename(folder)
    return folder


@torch.inference_mode()
def probe(translator: Any, pairs: list[tuple[str, str]]) -> dict[str, Tensor]:
    """Padded sources (B, S), targets (B, T) from their start on, and regard's logits (B, T, V) after each."""
    sources, targets = (translator.tokenizer.encode(side) for side in zip(*pairs, strict=True))
    special = translator.tokenizer.special
    source, target = pad(sources, special), pad([[BOS, *ids] for ids in targets], special)[:, :-1]
    target = target.masked_fill(target == EOS, PAD).contiguous()  # the end token is only predicted
    return {"source": source, "target": target, "logits": translator.model(source, target).contiguous()}
