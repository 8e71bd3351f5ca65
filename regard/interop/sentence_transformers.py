"""The files that sentence-transformers adds to a checkpoint: how it pools, how long a text may be, whether it is lower-cased."""

from pathlib import Path
from typing import NamedTuple

from regard.interop.keys import KeyTable, check_keys
from regard.interop.weights import parse_json, read_json

__all__ = ["FILES", "SentenceTransformer", "read_sentence_transformer"]

POOLING, TRANSFORMER, PROMPTS = "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"
FILES = ("modules.json", POOLING, TRANSFORMER, PROMPTS)
MEAN = ("mean", ["mean"], ["mean_tokens"])  # values of pooling_mode that mean what ours does
MODES = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")

POOLING_KEYS = KeyTable.of(
    read=" ".join(("pooling_mode", *(f"pooling_mode_{mode}" for mode in MODES))),
    without_effect="word_embedding_dimension embedding_dimension",
    refused={"include_prompt": (True,)},
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


def read_sentence_transformer(folder: Path) -> SentenceTransformer:
    """Read these files, if there are any.  Only mean pooling is supported."""
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
        check_keys(POOLING, pooling, POOLING_KEYS)
    prompts = read_json(folder, PROMPTS)
    check_keys(PROMPTS, prompts, PROMPT_KEYS)
    named, default = prompts.get("prompts"), prompts.get("default_prompt_name")
    if default is not None and not (isinstance(named, dict) and named.get(default) == ""):
        raise ValueError(f"{PROMPTS} has default_prompt_name = {default!r}, a prompt before every text; regard embeds a text as "
                         f"it is: set it to null, and write the prompt before your texts")  # fmt: skip
    options = read_json(folder, TRANSFORMER)
    check_keys(TRANSFORMER, options, TRANSFORMER_KEYS)
    max_len = options.get("max_seq_length")
    return SentenceTransformer(max_len if isinstance(max_len, int) and max_len > 0 else 0, options.get("do_lower_case") is True)
