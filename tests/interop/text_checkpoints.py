"""Small text models for the tests: run folders of ours, and Hugging Face checkpoints."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save
from torch import nn

from regard.config import Run, to_toml
from regard.data.text.config import TextData
from regard.data.text.tokenizer import train_tokenizer
from regard.interop.hf import import_model, import_run
from regard.models import FAMILIES, saved_tensors
from regard.models.bert import BERTConfig
from regard.models.gpt import GPTConfig
from regard.models.t5 import T5Config
from regard.models.transformer import TransformerConfig
from regard.run_folder import RunFolder

TEXT = ["the cat sat on the mat.", "a dog, the cat and Ann ran!", "does it rain? no, the sun is out.", "I see 3 old houses."] * 3
TINY = {"vocab": 97, "dim": 16, "depth": 2, "heads": 2}


MARIAN = {"norm": "post", "activation": "silu", "output_bias": True}
OURS: dict[str, tuple[str, Any, str, str]] = {  # kind → family, config, task, tokenizer
    "gpt": ("gpt", GPTConfig(**TINY, max_len=64), "language_model", "bytes"),
    "bert": ("bert", BERTConfig(**TINY, max_len=64), "masked_lm", "wordpiece"),
    "bert classes": ("bert", BERTConfig(**TINY, max_len=64, classes=2), "text_classification", "wordpiece"),
    "t5": ("t5", T5Config(**TINY, head_dim=8, mlp_dim=24), "translation", "bpe"),
    "t5 v1.1": ("t5", T5Config(**TINY, head_dim=8, mlp_dim=24, gated=True, tied=False), "span_corruption", "bpe"),
    "transformer": ("transformer", TransformerConfig(**TINY, **MARIAN), "translation", "bpe"),
    "pre-norm transformer": ("transformer", TransformerConfig(**TINY), "translation", "bpe"),
}  # fmt: skip
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "cafe", "Cafe", "café", ",", "東", "un", "##aff",
         "##able"]  # fmt: skip


ODD = ["The cats,", "CAFÉ cafe Café", "unaffable 東東", "it's", "", "cat\u00adcat\tthe"]


def randomize(model: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model.eval()


def make_run(folder: Path, kind: str) -> Path:
    """A run folder with random weights."""
    family, config, task, tokens = OURS[kind]
    tokenizer = train_tokenizer(TEXT, tokens, 97)
    values = {**vars(config), "vocab": tokenizer.vocab}
    config = type(config)(**{key: value for key, value in values.items() if not key.startswith("_")})
    folder.mkdir()
    tokenizer.save(folder / "tokenizer.json")
    RunFolder(folder).write_description(family, dataclasses.asdict(config), "0")
    (folder / "model.safetensors").write_bytes(save(saved_tensors(randomize(FAMILIES[family].build(config)))))
    (folder / "run.toml").write_text(to_toml(Run("ours", family, config, task, data=TextData())))
    if task == "text_classification":
        (folder / "labels.txt").write_text("bad\nvery good\n", encoding="utf-8")
    return folder


def same_weights(a: Any, b: Any) -> bool:
    pairs = zip(a.named_parameters(), b.named_parameters(), strict=True)
    return a.config == b.config and all(name == other and torch.equal(p, q) for (name, p), (other, q) in pairs)


def bert_tokenizer_folder(folder: Path, **keys: Any) -> Path:
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **keys}))
    return folder


def bert_checkpoint(folder: Path, **keys: Any) -> Path:
    config = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
              "max_position_embeddings": 20} | keys  # fmt: skip
    transformers.BertForMaskedLM(transformers.BertConfig(**config)).save_pretrained(folder)
    return folder


def small_bert(**keys: Any) -> Any:
    return transformers.BertConfig(
        vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, **keys
    )


def small_marian(**keys: Any) -> Any:
    sides = {f"{side}_{key}": n for side in ("encoder", "decoder")
             for key, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))}  # fmt: skip
    rest = {"vocab_size": 16, "d_model": 8, "scale_embedding": True, "activation_function": "relu", "pad_token_id": 15,
            "decoder_start_token_id": 15}  # fmt: skip
    return transformers.MarianConfig(**{**rest, **sides, **keys})


def bert_with_tokenizer(folder: Path, kind: str, **keys: Any) -> Path:
    randomize(getattr(transformers, kind)(small_bert(max_position_embeddings=20, **keys))).save_pretrained(folder)
    shutil.copytree(bert_tokenizer_folder(folder.with_name(f"{folder.name} words")), folder, dirs_exist_ok=True)
    return folder


def save_character_tokenizer(folder: Path) -> None:
    """Save a tokenizer whose padding, start and end are 0, 1 and 2."""
    train_tokenizer(["abc"], "characters", 16).save(folder / "tokenizer.json")


def update_json(file: Path, **keys: Any) -> None:
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | keys))


def assert_model_refused(folder: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        import_model(folder)
    assert "\n" not in str(error.value)


def assert_run_refused(folder: Path, message: str, **how: Any) -> None:
    to = folder.parent / "refused"
    with pytest.raises(ValueError, match=message) as error:
        import_run(folder, to, **how)
    assert "\n" not in str(error.value)
    assert not to.exists()
