"""SentencePiece models → tokenizers of the `tokenizers` library: Marian's with the ids of vocab.json, T5's with its sentinels."""

from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from regard.data.text.sentencepiece import ESCAPE, REPLACED, Normalization, require_charsmap
from regard.interop.sentencepiece import Kind, SentencePieceModel, read_sentencepiece
from regard.interop.tables import HFConfig
from regard.interop.weights import parse_json

__all__ = ["MARIAN_FILES", "T5_FILE", "TARGET_VOCAB", "has_marian_files", "read_marian_tokenizers", "read_t5_tokenizer"]

MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")
TARGET_VOCAB = "target_vocab.json"
T5_FILE = "spiece.model"
SENTINELS = 100  # of a T5, unless its file says otherwise
MAX_SENTINELS = 10_000
NAMES = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
LEAST_KNOWN = 0.5  # of the pieces of a model are in its vocabulary; usually nearly all


def has_marian_files(folder: Path, options: HFConfig) -> bool:
    """Whether a folder holds what transformers' MarianTokenizer reads; one that names another class has a tokenizer.json."""
    return options.get("tokenizer_class") in (None, "MarianTokenizer") and (folder / MARIAN_FILES[0]).exists()


def read_marian_tokenizers(folder: Path, options: HFConfig, vocab: int,
                           target_vocab: int) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:  # fmt: skip
    """Read a Marian checkpoint's tokenizers, of source and target; a model with one vocabulary has `target_vocab` 0."""
    _check_names(options)
    separate = options.get("separate_vocabs") is True
    if separate and not target_vocab:
        raise ValueError("tokenizer_config.json has separate_vocabs = True, but its model has one vocabulary for source and "
                         "target; use the files of one checkpoint")  # fmt: skip
    for name in (*MARIAN_FILES, *([TARGET_VOCAB] if separate else [])):
        if not (folder / name).exists():
            raise ValueError(f"there is no {name}, which a Marian tokenizer needs beside {MARIAN_FILES[0]}; download it")
    sizes = {MARIAN_FILES[2]: vocab, TARGET_VOCAB: target_vocab}
    source = folder / MARIAN_FILES[0], MARIAN_FILES[2]
    target = folder / MARIAN_FILES[1], TARGET_VOCAB if separate else MARIAN_FILES[2]
    source_ids, target_ids = (_read_vocabulary(folder, name, sizes[name]) for name in (source[1], target[1]))
    return (_build_marian(read_sentencepiece(source[0]), source_ids, source),
            _build_marian(read_sentencepiece(target[0]), target_ids, target))  # fmt: skip


def _check_names(options: HFConfig) -> None:
    """Refuse special tokens of other names."""
    for key, name in NAMES.items():
        value = options.get(key)
        value = value.get("content") if isinstance(value, dict) else value
        if value not in (None, name):
            raise ValueError(f"tokenizer_config.json has {key} = {value!r}; regard reads SentencePiece models with {name}")


def _read_vocabulary(folder: Path, name: str, size: int) -> dict[str, int]:
    """Read the ids of tokens, of which the model has `size`."""
    read = parse_json(folder, name, dict[str, object]())
    ids = {token: index for token, index in read.items() if isinstance(index, int) and not isinstance(index, bool)}
    if len(ids) < len(read) or len(set(ids.values())) < len(ids):
        raise ValueError(f"{name} is damaged (each token must have an id of its own); download it again")
    wrong = next((index for index in ids.values() if not 0 <= index < size), None)
    if wrong is not None:
        raise ValueError(f"{name} has the id {wrong:,}, its model has {size:,} tokens; they are not from the same checkpoint: "
                         f"download both again")  # fmt: skip
    for token in NAMES.values():
        if token not in ids:
            raise ValueError(f"{name} has no {token}; it is not the vocabulary of a Marian model: download it again")
    if bad := next((token for token in ids if not token or ESCAPE in token or REPLACED in token), None):
        raise ValueError(f"{name} has the token {bad!r} with a noncharacter, which regard does not support")
    return ids


def _build_marian(model: SentencePieceModel, ids: Mapping[str, int], names: tuple[Path, str]) -> tokenizers.Tokenizer:
    """A tokenizer that splits a text as a SentencePiece model does, with the ids of a vocabulary."""
    file, vocabulary = names[0].name, names[1]
    normal = [piece.text for piece in model.pieces if piece.kind is Kind.NORMAL]
    known = sum(text in ids for text in normal)
    if known < LEAST_KNOWN * len(normal):
        raise ValueError(f"{vocabulary} has {known:,} of the {len(normal):,} pieces of {file}; they are not from the same "
                         f"checkpoint: download both again")  # fmt: skip
    scores = _scores(model)
    if any(ESCAPE in text or REPLACED in text for text in scores):
        raise ValueError(f"{file} has a piece with a noncharacter, which regard does not support")

    # The ids of the vocabulary, then the pieces that it lacks; what no text is split into is hidden behind ESCAPE.
    special = [*NAMES.values()]
    hidden = [text for text in ids if text not in scores and text not in special]
    spelled = {text: ESCAPE + text for text in hidden}
    tokens = {index: spelled.get(text, text) for text, index in ids.items()}
    entries = [tokens.get(index, f"{ESCAPE}{ESCAPE}{index}") for index in range(max(tokens) + 1)]
    missing = [text for text in scores if text not in ids]
    entries += [ESCAPE, *missing] if missing else []
    if model.algorithm == "unigram":
        vocab = [(text, scores.get(text, 0.0)) for text in entries]
        inner = tokenizers.Tokenizer(models.Unigram(vocab, ids["<unk>"], model.byte_fallback))
    else:
        positions = {text: index for index, text in enumerate(entries)}
        inner = tokenizers.Tokenizer(models.BPE(positions, _merges(model), unk_token="<unk>", fuse_unk=True,  # noqa: S106
                                                byte_fallback=model.byte_fallback))  # fmt: skip
    inner.normalizer = _normalization(model, file).to_library()
    inner.decoder = decoders.Sequence([decoders.Replace(ESCAPE, ""), decoders.ByteFallback(), decoders.Replace("▁", " "),
                                       decoders.Fuse(), decoders.Strip(" ", 1, 0)])  # fmt: skip
    controls = [ESCAPE + piece.text for piece in model.pieces if piece.kind is Kind.CONTROL and piece.text in hidden]
    inner.add_special_tokens([*special, *controls])
    inner.add_tokens(_symbols(model))
    return inner


def _normalization(model: SentencePieceModel, file: str) -> Normalization:
    if model.charsmap:
        try:
            require_charsmap(model.charsmap)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
    return Normalization(model.charsmap, model.add_dummy_prefix, model.remove_extra_whitespaces, model.escape_whitespaces)


def _scores(model: SentencePieceModel) -> dict[str, float]:
    """The pieces that a text is split into, and their scores; that of a symbol defined by a user is SentencePiece's rule."""
    largest = max(0.0, *(piece.score for piece in model.pieces if piece.kind is Kind.NORMAL))
    scores = {}
    for text, score, kind in model.pieces:
        if kind in (Kind.NORMAL, Kind.BYTE):
            scores[text] = score
        elif kind is Kind.USER_DEFINED:
            scores[text] = len(text.encode()) * largest - 0.1
    return scores


def _symbols(model: SentencePieceModel) -> list[AddedToken]:
    """The symbols defined by a user."""
    return [AddedToken(piece.text, normalized=False) for piece in model.pieces if piece.kind is Kind.USER_DEFINED]


def _merges(model: SentencePieceModel) -> list[tuple[str, str]]:
    """The pairs that a BPE merges, best first: two pieces that make a third, whose score decides."""
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind is Kind.NORMAL}
    found = []
    for text in sorted(scores, key=scores.__getitem__, reverse=True):
        halves = ((text[:at], text[at:]) for at in range(1, len(text)))
        found += [(left, right) for left, right in halves if left in scores and right in scores]
    return found


def read_t5_tokenizer(folder: Path, options: HFConfig) -> tokenizers.Tokenizer:
    """T5's tokenizer, from spiece.model: its pieces, then the sentinels, the last first."""
    _check_names(options)
    model = read_sentencepiece(folder / T5_FILE)
    count = options.get("extra_ids", SENTINELS)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_SENTINELS:
        raise ValueError(f"tokenizer_config.json has extra_ids = {count!r}; wanted 0 to {MAX_SENTINELS}")
    if model.algorithm != "unigram" or model.byte_fallback:
        kind = f"{model.algorithm} model{' with byte_fallback' * model.byte_fallback}"
        raise ValueError(f"{T5_FILE} is a {kind}; a T5 has a unigram model without")
    vocab = [(piece.text, piece.score) for piece in model.pieces]
    names = {text for text, _ in vocab}
    if lacks := [name for name in NAMES.values() if name not in names]:
        raise ValueError(f"{T5_FILE} has no piece {lacks[0]}; it is not of a T5: use the files of one checkpoint")
    sentinels = [f"<extra_id_{n}>" for n in range(count)]
    vocab += [(name, 0.0) for name in reversed(sentinels) if name not in names]
    inner = tokenizers.Tokenizer(models.Unigram(vocab, model.unk, False))
    if _normalization(model, T5_FILE).charsmap:
        inner.normalizer = normalizers.Precompiled(model.charsmap)
    inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    inner.decoder = decoders.Metaspace()
    inner.add_special_tokens([*NAMES.values(), *sentinels])
    inner.add_tokens(_symbols(model))
    return inner
