"""Tokenizers of Hugging Face checkpoints, read from all their file formats, and ours, written for transformers."""

import json
import os
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from regard.data.text.tokenizer import BERTS, Tokenizer, read_tokenizer_json
from regard.interop.generation import GENERATION
from regard.interop.keys import KeyTable, check_keys
from regard.interop.sentencepiece_tokenizer import T5_FILE, has_marian_files, read_marian_tokenizers, read_t5_tokenizer
from regard.interop.tables import HFConfig, TextFormat
from regard.interop.weights import ImportedModel, name_errors, read_json, special_token_ids

__all__ = ["add_special_tokens", "describe_tokenizer", "read_tokenizer", "read_tokenizers_for"]


# Of tokenizer_config.json.  Special tokens are found by their names, texts are never padded or cut by it, and only plain texts
# are read: no chats, no pairs.
KEYS = KeyTable.of(
    read="tokenizer_class add_prefix_space add_bos_token add_eos_token do_lower_case strip_accents tokenize_chinese_chars",
    without_effect="bos_token eos_token unk_token pad_token cls_token sep_token mask_token additional_special_tokens "
    "extra_special_tokens added_tokens_decoder special_tokens special_tokens_map_file model_specific_special_tokens "
    "model_max_length max_len max_length padding padding_side truncation truncation_side truncation_strategy stride "
    "pad_to_multiple_of pad_token_type_id model_input_names clean_up_tokenization_spaces name_or_path tokenizer_file vocab_file "
    "merges_file full_tokenizer_file use_fast from_slow backend is_local local_files_only legacy extra_ids "
    "spaces_between_special_tokens split_special_tokens errors chat_template do_basic_tokenize processor_class source_lang "
    "target_lang tokenizer_type trim_offsets return_token_type_ids max_model_input_sizes spm_files offset mask_token_sent "
    "target_vocab_file",
    refused={"auto_map": (), "never_split": ([],), "separate_vocabs": (False,), "wordpieces_prefix": ("##",), "add_tokens": (),
             "sp_model_kwargs": ({},)},
)  # fmt: skip
# model_type → the class, if no file names one
CLASSES = {"gpt2": "GPT2Tokenizer", "vision-encoder-decoder": "GPT2Tokenizer", "bert": "BertTokenizer", "t5": "T5Tokenizer",
           "marian": "MarianTokenizer", "pegasus": "PegasusTokenizer"}  # fmt: skip
TARGET, EOS = "target_tokenizer.json", "</s>"


def read_tokenizers_for(
    imported: ImportedModel, text: TextFormat, folder: Path, *, lowercase: bool = False
) -> tuple[Tokenizer, Tokenizer | None]:
    """Read a checkpoint's tokenizer, and that of its target if it has a vocabulary of its own; check that they match the model.

    With `lowercase` texts are lower-cased before anything else.
    """
    options, config = read_json(folder, "tokenizer_config.json"), imported.config
    two, kind = getattr(config, "target_vocab", 0), imported.table.model_type
    spm = kind == "marian" and has_marian_files(folder, options)
    t5 = kind == "t5" and (folder / T5_FILE).exists() and not (folder / "tokenizer.json").exists()
    check_keys("tokenizer_config.json", options, KEYS | KeyTable.of("separate_vocabs") if two or spm else KEYS)
    target: Tokenizer | None
    if spm:
        sides = read_marian_tokenizers(folder, options, config.vocab, two)
        tokenizer, target = (Tokenizer(_with_template(inner, "", EOS)) for inner in sides)
    else:
        inner = read_t5_tokenizer(folder, options) if t5 else read_tokenizer(folder, text.tokenizer_hint, config.vocab)
        inner = _as_their_class(_with_template(inner, "", EOS) if t5 else inner, imported, text, options)
        if lowercase:
            inner.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([inner.normalizer] if inner.normalizer else [])])
        tokenizer, target = Tokenizer(inner), _read_target(folder, two)
    _check_vocabulary(tokenizer, config.vocab)
    if target and not two and target.digest == tokenizer.digest:
        target = None
    if target:
        _check_vocabulary(target, two or config.vocab)
        if tokenizer.special.pad != config.pad:  # the mask of the source
            raise ValueError(f"config.json has pad_token_id = {config.pad}, the tokenizer of the source has <pad> = "
                             f"{tokenizer.special.pad}; use the files of one checkpoint")  # fmt: skip
        if not two:
            _require_same_ids(tokenizer, target)
    _check_special_tokens(imported, text, target or tokenizer, folder)
    return tokenizer, target


def _read_target(folder: Path, two: int) -> Tokenizer | None:
    """The tokenizer of the target, if it has one of its own."""
    if (folder / TARGET).exists():
        return Tokenizer.load(folder / TARGET)
    if two:
        raise ValueError(f"its target has a vocabulary of its own, but there is no {TARGET}; put one there, made with the "
                         f"tokenizers library, beside the tokenizer.json of the source")  # fmt: skip
    return None


def _require_same_ids(tokenizer: Tokenizer, target: Tokenizer) -> None:
    """Refuse a target whose tokens have other ids, for a model with one vocabulary."""
    ids = range(max(tokenizer.vocab, target.vocab))
    pairs = zip(tokenizer.ids_to_tokens(ids), target.ids_to_tokens(ids), strict=True)
    if other := next(((n, *pair) for n, pair in enumerate(pairs) if pair[0] != pair[1]), None):
        raise ValueError(f"{TARGET} has {other[2]!r} as token {other[0]}, tokenizer.json {other[1]!r}, but its model has one "
                         f"vocabulary for source and target; use the files of one checkpoint")  # fmt: skip


def _check_vocabulary(tokenizer: Tokenizer, vocab: int) -> None:
    if (largest := tokenizer.largest_id) >= vocab:
        raise ValueError(f"its tokenizer has ids up to {largest:,}, its model has {vocab:,} tokens; "
                         f"they are not from the same checkpoint: download both again")  # fmt: skip


def _as_their_class(inner: tokenizers.Tokenizer, imported: ImportedModel, text: TextFormat,
                    options: HFConfig) -> tokenizers.Tokenizer:  # fmt: skip
    """Do what the tokenizer's class in transformers does with tokenizer_config.json.

    The template of a tokenizer.json decides on start and end: transformers, too, ignores add_bos_token and add_eos_token if there
    is one.
    """
    named = options.get("tokenizer_class")
    kind = str(named or CLASSES.get(imported.table.model_type)).removesuffix("Fast")
    parts = json.loads(inner.to_str())
    normalizer, pre = ((parts[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer"))
    if kind == "GPT2Tokenizer":
        if normalizer is None and pre == "ByteLevel":
            inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=options.get("add_prefix_space") is True)
        elif named and (normalizer or pre != "ByteLevel"):
            raise ValueError(f"tokenizer_config.json has tokenizer_class = {named!r}, but tokenizer.json is none (normalizer "
                             f"{normalizer}, pre_tokenizer {pre}); use the files of one checkpoint")  # fmt: skip
    elif kind == "BertTokenizer":
        if normalizer == "BertNormalizer":
            inner.normalizer = _bert_normalizer(options)
        elif named:
            raise ValueError(f"tokenizer_config.json has tokenizer_class = {named!r}, but tokenizer.json has the normalizer "
                             f"{normalizer}, not BertNormalizer; use the files of one checkpoint")  # fmt: skip
    elif options.get("add_prefix_space") is False and kind in CLASSES.values():
        raise ValueError("tokenizer_config.json has add_prefix_space = False; regard reads tokenizer.json alone for this model: "
                         "use another checkpoint")  # fmt: skip
    reads_text = not imported.table.image_processor
    if reads_text and (kind not in CLASSES.values() or kind == "GPT2Tokenizer"):
        _check_template(inner, text, imported.table.family)
    return inner


def _check_template(inner: tokenizers.Tokenizer, text: TextFormat, family: str) -> None:
    """Refuse a tokenizer that adds other special tokens to a text than `regard` does."""
    content, whole = (inner.encode("a", add_special_tokens=special).tokens for special in (False, True))
    before = next((n for n in range(len(whole) + 1) if whole[n : n + len(content)] == content), 0)
    after = len(whole) - before - len(content)
    wanted = (int(text.adds_bos), int(text.adds_eos))
    if (before, after) != wanted and not (text.reads_prompts and (before, after) == (1, 0)):
        texts = " ".join([*whole[:before], "TEXT", *whole[before + len(content) :]])
        raise ValueError(f"its tokenizer makes {texts!r} of a text; regard's {family} adds {wanted[0]} special tokens before and "
                         f"{wanted[1]} after a text: correct the post_processor of tokenizer.json")  # fmt: skip


def read_tokenizer(folder: Path, hint: str = "", vocab: int | None = None) -> tokenizers.Tokenizer:
    """Read a checkpoint's tokenizer, of at most `vocab` tokens, from tokenizer.json or an older format.

    `hint` says how to get one.
    """
    files = {file.name for file in folder.iterdir()}
    try:
        if "tokenizer.json" in files:
            with name_errors("cannot read its tokenizer"):
                return read_tokenizer_json(folder / "tokenizer.json", vocab)
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
    inner.normalizer = _bert_normalizer(options)
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    inner.add_special_tokens([token for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if token in vocab])
    return _with_template(inner, "[CLS]", "[SEP]")


def _bert_normalizer(options: HFConfig) -> normalizers.BertNormalizer:
    """The normalizer of BERT's tokenizer; a key that is absent has the default of its class."""
    chinese, lower = (options.get(key) is not False for key in ("tokenize_chinese_chars", "do_lower_case"))
    strip = None if (accents := options.get("strip_accents")) is None else bool(accents)
    return normalizers.BertNormalizer(handle_chinese_chars=chinese, lowercase=lower, strip_accents=strip)


def _read_byte_bpe(folder: Path) -> tokenizers.Tokenizer:
    """GPT-2's tokenizer, from vocab.json and merges.txt."""
    options = read_json(folder, "tokenizer_config.json")
    inner = tokenizers.Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder, inner.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    if inner.token_to_id("<|endoftext|>") is not None:
        inner.add_special_tokens(["<|endoftext|>"])
    bos, eos = (_token_name(options, key) if options.get(f"add_{key}") is True else "" for key in ("bos_token", "eos_token"))
    return _with_template(inner, bos, eos) if bos or eos else inner


def _token_name(options: HFConfig, key: str) -> str:
    """A special token by its role, written as a string or as a table."""
    token = options.get(key, "<|endoftext|>")
    return str(token.get("content") if isinstance(token, dict) else token)


def _with_template(inner: tokenizers.Tokenizer, bos: str, eos: str) -> tokenizers.Tokenizer:
    """A copy that puts `bos` before each text and `eos` after it, unless they are empty."""
    inner = tokenizers.Tokenizer.from_str(inner.to_str())
    start, end = f"{bos} " if bos else "", f" {eos}" if eos else ""
    inner.post_processor = processors.TemplateProcessing(
        single=f"{start}$A{end}",
        pair=f"{start}$A{end} $B:1{end}{':1' if eos else ''}",
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
