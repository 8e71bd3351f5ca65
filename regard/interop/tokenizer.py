"""Tokenizers of Hugging Face checkpoints, read from all their file formats, and ours, written for transformers."""

import json
import os
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from regard.data.text.tokenizer import BERTS, Tokenizer
from regard.interop.tables import TextFormat
from regard.interop.weights import GENERATION, ImportedModel, read_json, special_token_ids

__all__ = ["add_special_tokens", "describe_tokenizer", "read_tokenizer", "read_tokenizer_for"]


def read_tokenizer_for(imported: ImportedModel, text: TextFormat, folder: Path) -> Tokenizer:
    """Read a checkpoint's tokenizer, and check that it matches the model."""
    inner = read_tokenizer(folder, text.tokenizer_hint)
    if (largest := max(inner.get_vocab().values(), default=0)) >= imported.config.vocab:
        raise ValueError(f"its tokenizer has ids up to {largest:,}, its model has {imported.config.vocab:,} tokens; "
                         f"they are not from the same checkpoint: download both again")  # fmt: skip
    tokenizer = Tokenizer(inner)
    _check_special_tokens(imported, text, tokenizer, folder)
    return tokenizer


def read_tokenizer(folder: Path, hint: str = "") -> tokenizers.Tokenizer:
    """Read a checkpoint's tokenizer, from tokenizer.json or an older format; `hint` says how to get one."""
    files = {file.name for file in folder.iterdir()}
    try:
        if "tokenizer.json" in files:
            return tokenizers.Tokenizer.from_file(os.fspath(folder / "tokenizer.json"))
        if "vocab.txt" in files:
            return _read_wordpiece(folder)
        if {"vocab.json", "merges.txt"} <= files:
            return _read_byte_bpe(folder)
    except ValueError:
        raise
    except Exception as error:  # the library raises a bare Exception for a damaged file
        raise ValueError(f"cannot read its tokenizer: {error}") from None
    if hint:
        raise ValueError(f"there is no tokenizer.json, and {hint}")
    pieces = sorted(name for name in files if name.endswith((".model", ".spm")))
    why = f"only {pieces[0]}" if pieces else "nor vocab.txt, nor vocab.json and merges.txt"
    raise ValueError(f"there is no tokenizer.json, {why}; make one with transformers, "
                     f"AutoTokenizer.from_pretrained(...).save_pretrained(...), and put it there")  # fmt: skip


def _check_special_tokens(imported: ImportedModel, text: TextFormat, tokenizer: Tokenizer, folder: Path) -> None:
    """Model and tokenizer must agree on the ids of padding, start and end."""
    ids = special_token_ids(tokenizer.special, text)
    configs = {name: read_json(folder, name) for name in ("config.json", GENERATION)}
    if text.seq2seq and "pad_token_id" not in text.unchecked:
        configs["config.json"]["pad_token_id"] = imported.config.pad  # also if the file omits it
    for file, hf in configs.items():
        for key, wanted in ids.items():
            if key not in text.unchecked and hf.get(key) not in (None, wanted, [wanted]):
                [token] = tokenizer.ids_to_tokens([wanted])
                raise ValueError(f"{file} has {key} = {hf[key]!r}, its tokenizer has {token} = {wanted} for that; use the "
                                 f"tokenizer the model was trained with, or correct {file}")  # fmt: skip


def _read_wordpiece(folder: Path) -> tokenizers.Tokenizer:
    """BERT's tokenizer, from vocab.txt: one token per line."""
    options = read_json(folder, "tokenizer_config.json")
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocab = {token: i for i, token in enumerate(lines) if token}
    missing = [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in vocab]
    if missing:
        raise ValueError(f"vocab.txt has no {missing[0]}; wanted BERT's vocabulary, one token per line")
    inner = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))  # noqa: S106
    chinese, lower = (bool(options.get(key, True)) for key in ("tokenize_chinese_chars", "do_lower_case"))
    strip = None if (accents := options.get("strip_accents")) is None else bool(accents)
    inner.normalizer = normalizers.BertNormalizer(handle_chinese_chars=chinese, lowercase=lower, strip_accents=strip)
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    inner.add_special_tokens([token for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if token in vocab])
    return _with_template(inner, "[CLS]", "[SEP]")


def _read_byte_bpe(folder: Path) -> tokenizers.Tokenizer:
    """GPT-2's tokenizer, from vocab.json and merges.txt."""
    inner = tokenizers.Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder, inner.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    if inner.token_to_id("<|endoftext|>") is not None:
        inner.add_special_tokens(["<|endoftext|>"])
    return inner


def _with_template(inner: tokenizers.Tokenizer, bos: str, eos: str) -> tokenizers.Tokenizer:
    """A copy that puts `bos` before each text, unless it is empty, and `eos` after it."""
    inner = tokenizers.Tokenizer.from_str(inner.to_str())
    start = f"{bos} " if bos else ""
    inner.post_processor = processors.TemplateProcessing(
        single=f"{start}$A {eos}",
        pair=f"{start}$A {eos} $B:1 {eos}:1",
        special_tokens=[(token, inner.token_to_id(token)) for token in dict.fromkeys((bos, eos)) if token],
    )
    return inner


def add_special_tokens(file: Path, text: TextFormat) -> str:
    """Our tokenizer.json for transformers: it adds the special tokens that `regard` adds in batches.

    Our word pieces have BERT's template, whatever model reads them; an imported tokenizer keeps its own.
    """
    ours, inner = Tokenizer.load(file), tokenizers.Tokenizer.from_file(os.fspath(file))
    bos, eos = ours.ids_to_tokens([ours.special.bos, ours.special.eos])
    stored = json.loads(inner.to_str())
    if ours.ids_to_tokens(range(len(BERTS))) == list(BERTS) and stored == json.loads(_with_template(inner, bos, eos).to_str()):
        inner = tokenizers.Tokenizer.from_str(json.dumps({**stored, "post_processor": None}))
    if inner.post_processor is None and text.adds_eos:
        inner = _with_template(inner, bos if text.adds_bos else "", eos)
    return inner.to_str(pretty=True)


def describe_tokenizer(tokenizer: Tokenizer, text: TextFormat, max_len: int) -> dict[str, object]:
    """The tokenizer_config.json of a tokenizer."""
    special = tokenizer.special
    roles = {"pad": "pad", "eos": "eos", "unk": "unk", "mask": "mask", **text.roles}
    roles |= {"bos": "bos"} if "bos_token_id" in special_token_ids(special, text) else {}
    ids = {role: getattr(special, name) for role, name in roles.items()}
    tokens = {f"{role}_token": tokenizer.ids_to_tokens([token])[0] for role, token in ids.items() if token is not None}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_len, "model_input_names": list(text.inputs),
            "padding_side": text.padding_side, "clean_up_tokenization_spaces": False, **tokens}  # fmt: skip
