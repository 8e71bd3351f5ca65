"""The tokenizer of a Hugging Face checkpoint, from whatever files it has; and of ours, what theirs need beside it."""

import json
import os
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from regard.data.text.tokenizer import BERTS, Tokenizer
from regard.interop.weights import numbers, read_json

__all__ = ["describe_tokenizer", "read_tokenizer", "with_ends"]


def read_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """A checkpoint's tokenizer, from tokenizer.json or the files that came before it."""
    have = {file.name for file in folder.iterdir()}
    try:
        if "tokenizer.json" in have:
            return tokenizers.Tokenizer.from_file(os.fspath(folder / "tokenizer.json"))
        if "vocab.txt" in have:
            return _wordpiece(folder)
        if {"vocab.json", "merges.txt"} <= have:
            return _bytes(folder)
    except ValueError:
        raise
    except Exception as error:  # the library raises a bare Exception for a damaged file
        raise ValueError(f"cannot read its tokenizer: {error}") from None
    if "source.spm" in have or read_json(folder, "config.json").get("model_type") == "marian":
        raise ValueError(
            "there is no tokenizer.json, and Marian's source.spm, target.spm and vocab.json are not read; put one there, made "
            "with the tokenizers library, that splits as source.spm does and numbers tokens as vocab.json does"
        )
    pieces = sorted(name for name in have if name.endswith((".model", ".spm")))
    why = f"only {pieces[0]}" if pieces else "nor vocab.txt, nor vocab.json and merges.txt"
    raise ValueError(
        f"there is no tokenizer.json, {why}; make one with transformers, "
        f"AutoTokenizer.from_pretrained(...).save_pretrained(...), and put it there"
    )


def _wordpiece(folder: Path) -> tokenizers.Tokenizer:
    """BERT's, from vocab.txt: a token a line."""
    said = read_json(folder, "tokenizer_config.json")
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocab = {token: n for n, token in enumerate(lines) if token}
    lacking = [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in vocab]
    if lacking:
        raise ValueError(f"vocab.txt has no {lacking[0]}; wanted BERT's list of tokens, one a line")
    inner = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))  # noqa: S106
    inner.normalizer = normalizers.BertNormalizer(
        lowercase=said.get("do_lower_case", True),
        strip_accents=said.get("strip_accents"),
        handle_chinese_chars=said.get("tokenize_chinese_chars", True),
    )
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    inner.add_special_tokens([token for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if token in vocab])
    return _around(inner, "[CLS]", "[SEP]")


def _bytes(folder: Path) -> tokenizers.Tokenizer:
    """GPT-2's, from vocab.json and merges.txt."""
    inner = tokenizers.Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder, inner.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    if inner.token_to_id("<|endoftext|>") is not None:
        inner.add_special_tokens(["<|endoftext|>"])
    return inner


def _around(inner: tokenizers.Tokenizer, first: str, last: str) -> tokenizers.Tokenizer:
    """One that puts tokens around every text: `first`, if there is one, and `last`."""
    inner = tokenizers.Tokenizer.from_str(inner.to_str())
    start = f"{first} " if first else ""
    inner.post_processor = processors.TemplateProcessing(
        single=f"{start}$A {last}",
        pair=f"{start}$A {last} $B:1 {last}:1",
        special_tokens=[(token, inner.token_to_id(token)) for token in dict.fromkeys((first, last)) if token],
    )
    return inner


def with_ends(file: Path, family: str) -> str:
    """Our tokenizer.json, as it has to be there: it adds by itself what `regard` puts around a text in batches.

    Our own word pieces come with BERT's ends, whatever reads them; those of an imported tokenizer are its own affair.
    """
    ours, inner = Tokenizer.load(file), tokenizers.Tokenizer.from_file(os.fspath(file))
    first, last = ours.tokens([ours.special.bos, ours.special.eos])
    said = json.loads(inner.to_str())
    if ours.tokens(range(len(BERTS))) == list(BERTS) and said == json.loads(_around(inner, first, last).to_str()):
        inner = tokenizers.Tokenizer.from_str(json.dumps({**said, "post_processor": None}))
    if inner.post_processor is None and family != "gpt":
        inner = _around(inner, first if family == "bert" else "", last)
    return inner.to_str(pretty=True)


def describe_tokenizer(tokenizer: Tokenizer, family: str, max_len: int) -> dict[str, Any]:
    """Their tokenizer_config.json: which token has which role."""
    special = tokenizer.special
    roles: dict[str, int | None] = {
        "pad": special.pad,
        "eos": special.eos,
        "unk": special.unk,
        "mask": special.mask,
    }
    roles |= {"cls": special.bos, "sep": special.eos} if family == "bert" else {}
    roles |= {"bos": special.bos} if "bos_token_id" in numbers(special, family) else {}
    tokens = {f"{role}_token": tokenizer.tokens([n])[0] for role, n in roles.items() if n is not None}
    inputs = ["input_ids", *(["token_type_ids"] if family == "bert" else []), "attention_mask"]
    return {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_len, "model_input_names": inputs,
            "padding_side": "left" if family == "gpt" else "right", "clean_up_tokenization_spaces": False, **tokens}  # fmt: skip
