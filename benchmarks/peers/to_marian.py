"""A run of regard as a folder that Hugging Face's MarianMTModel reads: the same function, so that searches can be compared.

Marian is the paper's Transformer, norm last, but puts the sines of a position first and the cosines after them, where the
paper and regard interleave them.  So the width is permuted, in everything that reads or writes it: then all sums are the
same.  Beside the weights stand `tokens.json`, the vocabulary, and `probe.safetensors`, some sentences with regard's logits:
each peer compares its own with them before it is measured.

Shapes: B batch, S source and T target length, D width, V vocabulary.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from regard.data.batch import pad
from regard.data.tokenizer import BOS, EOS, PAD

__all__ = ["write"]

PLACES = 512  # of Marian's table of positions; no sentence comes near
SIDES = {"encoder": {"attn": "self_attn"}, "decoder": {"attn": "self_attn", "cross": "encoder_attn"}}


def write(run: Path, cache: Path, pairs: list[tuple[str, str]]) -> Path:
    """Write the folder into the cache, unless it is there, with `pairs` of sentences as the probe; → the folder."""
    parts = (run / "config.json", run / "model.safetensors", run / "tokenizer.json", Path(__file__))
    folder = cache / f"marian-{hashlib.sha256(b''.join(part.read_bytes() for part in parts)).hexdigest()[:12]}"
    if folder.exists():
        return folder
    translator = regard.load(run, device="cpu")
    weights = rename(load_file(run / "model.safetensors"), translator.model.config)
    part = cache / f"{folder.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    (cache / ".gitignore").write_text("*\n")
    save_file(weights, part / "model.safetensors", {"format": "pt"})
    (part / "config.json").write_text(json.dumps(describe(translator.model.config), indent=1))
    ends = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "decoder_start_token_id": BOS}
    (part / "generation_config.json").write_text(json.dumps(ends, indent=1))
    tokens = translator.tokenizer.tokens(range(translator.tokenizer.vocab))
    (part / "tokens.json").write_text(json.dumps(tokens, ensure_ascii=False), encoding="utf-8")
    save_file(probe(translator, pairs), part / "probe.safetensors")
    part.rename(folder)
    return folder


def rename(weights: dict[str, Tensor], config: Any) -> dict[str, Tensor]:
    """Regard's weights under Marian's names, the width permuted to Marian's order."""
    if config.norm != "last" or config.positions != "sinusoid" or not config.tied or config.dim % 2:
        raise ValueError(f"{config} is not a Marian; train with norm=last positions=sinusoid tied=true and an even dim")
    order = torch.cat((torch.arange(0, config.dim, 2), torch.arange(1, config.dim, 2)))  # sines, cosines
    found = {"model.shared.weight": weights.pop("embed_source.tokens.weight")[:, order]}
    found["final_logits_bias"] = torch.zeros(1, config.vocab)
    for side, attentions in SIDES.items():
        for i in range(config.depth):
            ours, theirs = f"{side}.{i}", f"model.{side}.layers.{i}"
            for mine, other in attentions.items():
                matrix, bias = (weights.pop(f"{ours}.{mine}.qkv.{kind}").chunk(3) for kind in ("weight", "bias"))
                for name, rows, shift in zip("qkv", matrix, bias, strict=True):  # reads the width
                    found[f"{theirs}.{other}.{name}_proj.weight"] = rows[:, order]
                    found[f"{theirs}.{other}.{name}_proj.bias"] = shift
                for kind in ("weight", "bias"):  # writes it
                    out, norm = (
                        weights.pop(f"{ours}.{mine}.out.{kind}"),
                        weights.pop(f"{ours}.around_{mine}.norm.{kind}"),
                    )
                    found[f"{theirs}.{other}.out_proj.{kind}"] = out[order]
                    found[f"{theirs}.{other}_layer_norm.{kind}"] = norm[order]
            found[f"{theirs}.fc1.weight"] = weights.pop(f"{ours}.mlp.up.weight")[:, order]
            found[f"{theirs}.fc1.bias"] = weights.pop(f"{ours}.mlp.up.bias")
            for kind in ("weight", "bias"):
                found[f"{theirs}.fc2.{kind}"] = weights.pop(f"{ours}.mlp.down.{kind}")[order]
                found[f"{theirs}.final_layer_norm.{kind}"] = weights.pop(f"{ours}.around_mlp.norm.{kind}")[order]
    if weights:
        raise ValueError(f"{', '.join(weights)} of the run have no place in Marian; bring to_marian.py up to date")
    return {name: tensor.contiguous() for name, tensor in found.items()}


def describe(config: Any) -> dict[str, Any]:
    """Marian's `config.json`."""
    both = {"layers": config.depth, "ffn_dim": config.widen * config.dim, "attention_heads": config.heads}
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": config.vocab,
        "decoder_vocab_size": config.vocab,
        "max_position_embeddings": PLACES,
        **{f"{side}_{key}": value for side in SIDES for key, value in both.items()},
        "d_model": config.dim,
        "activation_function": "relu",
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "dropout": 0.0,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "dtype": "float32",
    }


@torch.inference_mode()
def probe(translator: Any, pairs: list[tuple[str, str]]) -> dict[str, Tensor]:
    """Padded sources (B, S), targets (B, T) from their start on, and regard's logits (B, T, V) after each."""
    sources, targets = (translator.tokenizer.encode(side) for side in zip(*pairs, strict=True))
    marks = translator.tokenizer.marks
    source, target = pad(sources, marks), pad([[BOS, *ids] for ids in targets], marks)[:, :-1]
    target = target.masked_fill(target == EOS, PAD).contiguous()  # the end is what the last place must say
    return {"source": source, "target": target, "logits": translator.model(source, target).contiguous()}
