"""Checkpoints as they are published, with SentencePiece models trained here in a second, and texts that are hard to split."""

import json
import random
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

spm = pytest.importorskip("sentencepiece", reason="pip install sentencepiece")

DOCS = Path(__file__).parents[1] / "docs"
CYRILLIC = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопяртувшзыжэ")
DEVANAGARI = str.maketrans("abcdefghijklmnopqrstuvwxyz", "अबचडएफगहइजकलमनोपकरसतउवशषयझ")
CODES = (">>rus<<", ">>hin<<")
RANGES = ((32, 127), (0, 32), (127, 160), (0xA0, 0x250), (0x300, 0x370), (0x590, 0x600), (0x600, 0x700), (0x900, 0x980),
          (0x1100, 0x1200), (0x2000, 0x2070), (0x2580, 0x2582), (0x3040, 0x3100), (0x4E00, 0x4E80), (0xAC00, 0xAC40),
          (0xFB00, 0xFB50), (0xFE00, 0xFE10), (0xFF00, 0xFFEF), (0x1D400, 0x1D500), (0x1F1E6, 0x1F200), (0x1F300, 0x1F700),
          (0x10FFF0, 0x10FFFF))  # fmt: skip
ODD = ["", " ", "▁", "▁▁ a▁", "\t\n", "a\u00a0\u3000b", "½\u0301ﬁ\u0301", "e\u0302\u0301", "\u1100\u1161\u11a8", "\0", "\ufeffa"]
ODD += ["نص عربي", "A" * 300, ">>rus<< a man", ">>rus<<", ">>xyz<< a man", " >>rus<< a", ">> a << b", "a >>rus<< b", "<0x41>"]
ODD += ["..........!!!!!!!!", "ｆｕｌｌ　ｗｉｄｔｈ"]


@cache
def lines(script: str = "latin") -> list[str]:
    """Sentences of the documentation, in another alphabet if asked for."""
    found = [
        line for file in sorted(DOCS.glob("*.md")) for line in file.read_text(encoding="utf-8").split(". ") if len(line) < 300
    ]
    table = {"cyrillic": CYRILLIC, "devanagari": DEVANAGARI}.get(script)
    return [line.lower().translate(table) for line in found] if table else found


@cache
def hostile(count: int) -> list[str]:
    """Texts of all scripts with runs of spaces and of one character, combining marks and control characters."""
    rng, real = random.Random(5), [*lines(), *lines("cyrillic"), *lines("devanagari")]

    def part() -> str:
        kind = rng.randrange(5)
        if kind == 0:
            return rng.choice(real)
        if kind == 1:
            return rng.choice(" \t\u00a0\u3000\u2009\n\r") * rng.randint(1, 30)
        if kind == 2:
            return rng.choice(".!-aA東ह😀") * rng.randint(1, 40)
        if kind == 3:
            return "".join(
                rng.choice("aeoEcn") + "".join(chr(rng.randint(0x300, 0x36F)) for _ in range(rng.randrange(4))) for _ in "123"
            )
        return "".join(chr(rng.randrange(*rng.choice(RANGES))) for _ in range(rng.randint(1, 8)))

    return ODD + ["".join(part() for _ in range(rng.randint(1, 5))) for _ in range(count)]


def train_spm(file: Path, texts: Sequence[str], vocab: int = 300, **options: Any) -> Any:
    """Train a SentencePiece model; its processor."""
    spm.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_prefix=str(file), vocab_size=vocab, num_threads=1,
                                   minloglevel=2, hard_vocab_limit=False, **options)  # fmt: skip
    shutil.move(f"{file}.model", file)
    return spm.SentencePieceProcessor(model_file=str(file))


def pieces(processor: Any) -> list[str]:
    return [processor.id_to_piece(n) for n in range(len(processor)) if not (processor.is_control(n) or processor.is_unknown(n))]


def tokenizer_folder(folder: Path, *, scripts: tuple[str, str] = ("latin", "cyrillic"), separate: bool = False, lacking: int = 0,
                     codes: Sequence[str] = (), first: Sequence[str] = ("</s>", "<unk>"), vocab: int = 300,
                     **options: Any) -> dict[str, int]:  # fmt: skip
    """The tokenizer files of a Marian, without `lacking` pieces in vocab.json; the ids of the source."""
    folder.mkdir(parents=True, exist_ok=True)
    sides = [pieces(train_spm(folder / name, lines(script), vocab, **options))
             for name, script in zip(("source.spm", "target.spm"), scripts, strict=True)]  # fmt: skip
    rng, tables = random.Random(3), []
    for known in sides if separate else [[*sides[0], *sides[1]]]:
        mixed = list(dict.fromkeys(known))
        rng.shuffle(mixed)
        rest = [] if "<pad>" in first else ["<pad>"]
        tables.append({token: n for n, token in enumerate([*first, *mixed[lacking:], *codes, *rest])})
    for name, table in zip(("vocab.json", "target_vocab.json"), tables, strict=False):
        (folder / name).write_text(json.dumps(table), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate,
                                                              "source_lang": "eng", "target_lang": "rus"}))  # fmt: skip
    return tables[0]


def randomize(model: nn.Module) -> None:
    """Random weights, large enough that answers depend on the source."""
    torch.manual_seed(4)
    for name, p in model.named_parameters():
        if "embed_positions" not in name:
            nn.init.normal_(p, float("norm" in name and name.endswith("weight")), 0.2)
            p.data.mul_(2 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(std=0.5)
    model.eval()


def marian_folder(folder: Path, **tokens: Any) -> Any:
    """A Marian with random weights as OPUS-MT publishes them; the model."""
    ids = tokenizer_folder(folder, **tokens)
    target = json.loads((folder / "target_vocab.json").read_text()) if tokens.get("separate") else ids
    sides = {f"{side}_{key}": n for side in ("encoder", "decoder")
             for key, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))}  # fmt: skip
    pad, eos = ids["<pad>"], ids["</s>"]
    config = transformers.MarianConfig(
        vocab_size=len(ids), decoder_vocab_size=len(target), share_encoder_decoder_embeddings=ids is target, d_model=32, **sides,
        activation_function="swish", scale_embedding=True, max_position_embeddings=512, pad_token_id=pad, eos_token_id=eos,
        bos_token_id=eos, decoder_start_token_id=pad, forced_eos_token_id=eos, normalize_before=False,
    )  # fmt: skip
    model = transformers.MarianMTModel(config)
    randomize(model)
    model.generation_config.update(
        num_beams=4, max_length=24, bad_words_ids=[[pad]], renormalize_logits=True, early_stopping=True
    )
    model.save_pretrained(folder)
    return model
