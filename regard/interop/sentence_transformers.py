"""The files that sentence-transformers adds to a checkpoint: how it pools, how long a text may be, whether it is lower-cased."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from regard.interop.keys import KeyTable, check_keys
from regard.interop.weights import parse_json, read_json

__all__ = ["FILES", "SentenceTransformer", "describe_sentence_transformer", "read_sentence_transformer"]

POOLING, TRANSFORMER, PROMPTS = "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"
FILES = ("modules.json", POOLING, "*_Pooling/config.json", TRANSFORMER, PROMPTS)
MEAN = ("mean", ["mean"], ["mean_tokens"])  # values of pooling_mode that mean what ours does
MODES = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
DIMENSIONS = ("word_embedding_dimension", "embedding_dimension")  # of the model; the name depends on the version
ORDERS = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])  # of modules

POOLING_KEYS = KeyTable.of(
    read=" ".join(("pooling_mode", *DIMENSIONS, *(f"pooling_mode_{mode}" for mode in MODES))), refused={"include_prompt": (True,)}
)
TRANSFORMER_KEYS = KeyTable.of(
    read="max_seq_length do_lower_case",
    without_effect="transformer_task module_output_name",
    refused={"modality_config": (), "tokenizer_args": ({},), "config_args": ({},), "model_args": ({},)},
)
PROMPT_KEYS = KeyTable.of(
    read="prompts default_prompt_name", without_effect="similarity_fn_name model_type", refused={"truncate_dim": ()}
)


class SentenceTransformer(NamedTuple):
    """What these files say of a text."""

    max_len: int = 0  # tokens with start and end; 0: no limit
    lowercase: bool = False
    normalizes: bool = False  # vectors have length 1


def read_sentence_transformer(folder: Path, dim: int) -> SentenceTransformer:
    """Read these files, if there are any, for a model of width `dim`.  Only mean pooling is supported."""
    kinds, pooling = _read_modules(folder)
    if pooling:
        _check_pooling(pooling, read_json(folder, pooling), dim)
    prompts = read_json(folder, PROMPTS)
    check_keys(PROMPTS, prompts, PROMPT_KEYS)
    named, default = prompts.get("prompts"), prompts.get("default_prompt_name")
    if default is not None and not (isinstance(named, dict) and named.get(default) == ""):
        raise ValueError(f"{PROMPTS} has default_prompt_name = {default!r}, a prompt before every text; regard embeds a text as "
                         f"it is: set it to null, and write the prompt before your texts")  # fmt: skip
    options = read_json(folder, TRANSFORMER)
    check_keys(TRANSFORMER, options, TRANSFORMER_KEYS)
    max_len = options.get("max_seq_length")
    if max_len is not None and (not isinstance(max_len, int) or isinstance(max_len, bool) or max_len < 4):
        raise ValueError(f"{TRANSFORMER} has max_seq_length = {max_len!r}; wanted a number of tokens, 4 or more with start and "
                         f"end: correct it")  # fmt: skip
    return SentenceTransformer(max_len or 0, options.get("do_lower_case") is True, "Normalize" in kinds)


def _read_modules(folder: Path) -> tuple[list[str], str]:
    """The kinds of modules.json, and the file of its pooling; no kinds if there is no such file."""
    kinds, pooling = list[str](), POOLING if (folder / POOLING).exists() else ""
    for module in parse_json(folder, "modules.json", list[object]()):
        table = module if isinstance(module, dict) else {"type": module}
        kind, path = str(table.get("type")).rpartition(".")[2], table.get("path", "")
        if kind not in ORDERS[1]:
            raise ValueError(f"modules.json has a {kind} after the model; regard embeds a text by the mean of its tokens: "
                             f"use a checkpoint without it")  # fmt: skip
        if not isinstance(path, str) or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ValueError(f"modules.json has the path {path!r} for its {kind}; wanted a folder inside the checkpoint")
        if kind == "Transformer" and path:
            raise ValueError(f"modules.json has the path {path!r} for its Transformer; regard reads config.json and the weights "
                             f"beside modules.json: move them there and write an empty path")  # fmt: skip
        if kind == "Pooling":
            pooling = f"{path.rstrip('/')}/config.json" if path else POOLING
            if not (folder / pooling).exists():
                raise ValueError(f"there is no {pooling}, though modules.json has a Pooling; download it")
            if not (folder / pooling).resolve().is_relative_to(folder.resolve()) and not _is_in_cache(folder):
                raise ValueError(f"{pooling} is a link to a file outside the checkpoint; copy the file itself")
        kinds.append(kind)
    if kinds and kinds not in ORDERS:
        raise ValueError(f"modules.json has {', '.join(kinds)}; regard embeds a text by Transformer, Pooling and at most "
                         f"Normalize, in this order: use a checkpoint that does")  # fmt: skip
    return kinds, pooling


def _is_in_cache(folder: Path) -> bool:
    """Whether a folder is a snapshot of the hub's cache, whose files are links to others of the cache."""
    return folder.resolve().parent.name == "snapshots"


def _check_pooling(file: str, pooling: Mapping[str, object], dim: int) -> None:
    start = "pooling_mode_"
    enabled = [key.removeprefix(start) for key, on in pooling.items() if key.startswith(start) and on]
    if (mode := pooling.get("pooling_mode", enabled)) not in MEAN:
        raise ValueError(f"{file} has pooling_mode = {mode!r}; regard embeds a text by the mean of its tokens: "
                         f"use a checkpoint that does")  # fmt: skip
    check_keys(file, pooling, POOLING_KEYS)
    for key in DIMENSIONS:
        if pooling.get(key) not in (None, dim):
            raise ValueError(f"{file} has {key} = {pooling[key]!r}, its model has vectors of {dim} numbers; they are not from "
                             f"the same checkpoint: download both again")  # fmt: skip


def describe_sentence_transformer(dim: int, max_len: int) -> dict[str, object]:
    """The files of an embedder, by name; `max_len` counts start and end."""
    names = {"Transformer": "", "Pooling": POOLING.partition("/")[0], "Normalize": "2_Normalize"}
    modules = [{"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
               for n, (kind, path) in enumerate(names.items())]  # fmt: skip
    modes = {f"pooling_mode_{mode}": mode == "mean_tokens" for mode in MODES}
    return {"modules.json": modules, POOLING: {DIMENSIONS[0]: dim, **modes},
            TRANSFORMER: {"max_seq_length": max_len, "do_lower_case": False}}  # fmt: skip
