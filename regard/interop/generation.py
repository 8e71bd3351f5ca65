"""generation_config.json, or the generation keys of an old config.json → how our search decodes.

`max_length` and `min_length` count the start token of an encoder-decoder; ours count only the answer.
"""

from collections.abc import Mapping
from typing import NamedTuple

from regard.config import DecodeConfig, build
from regard.interop.keys import CONFIG, KeyTable, check_keys
from regard.interop.tables import HFConfig, TextFormat

__all__ = ["CONFIG_KEYS", "GENERATION", "GENERATION_KEYS", "NO_LIMIT", "Generation", "describe_generation", "read_generation"]

GENERATION = "generation_config.json"
GENERATION_KEYS = KeyTable.of(
    read="num_beams length_penalty early_stopping max_length max_new_tokens min_length min_new_tokens no_repeat_ngram_size "
    "repetition_penalty suppress_tokens bad_words_ids forced_bos_token_id forced_eos_token_id do_sample temperature top_k top_p "
    "renormalize_logits pad_token_id bos_token_id eos_token_id decoder_start_token_id",
    # How fast, how much memory, what else is returned; and options of sampling that nothing uses unless do_sample is true.
    without_effect="transformers_version use_cache cache_implementation cache_config max_cache_len compile_config "
    "disable_compile low_memory prefill_chunk_size num_return_sequences output_attentions output_hidden_states output_scores "
    "output_logits return_dict_in_generate return_legacy_cache remove_invalid_values is_assistant num_assistant_tokens "
    "speculation_type use_mtp num_assistant_tokens_schedule assistant_confidence_threshold assistant_early_exit "
    "assistant_lookbehind target_lookbehind assistant_ensemble_weight prompt_lookup_num_tokens max_matching_ngram_size "
    "continuous_batching_config trust_remote_code",
    refused={"begin_suppress_tokens": ([],), "typical_p": (1.0,), "min_p": (0.0,), "top_h": (), "epsilon_cutoff": (0.0,),
             "eta_cutoff": (0.0,), "diversity_penalty": (0.0,), "num_beam_groups": (1,), "encoder_no_repeat_ngram_size": (0,),
             "encoder_repetition_penalty": (1.0,), "exponential_decay_length_penalty": (), "sequence_bias": (),
             "guidance_scale": (1.0,), "watermarking_config": (), "constraints": (),
             "force_words_ids": (), "stop_strings": (), "token_healing": (False,), "penalty_alpha": (0.0,), "dola_layers": (),
             "max_time": (), "forced_decoder_ids": ([],)},
)  # fmt: skip
# Of every config.json: what generation_config.json replaces if there is one, and only then read by `read_generation`.
CONFIG_KEYS = KeyTable.of("", " ".join(sorted(GENERATION_KEYS.keys))) | CONFIG
NO_LIMIT = "_regard_no_limit"  # in a file of ours: the max_length that stands for a run without one; transformers ignores it
DEFAULT_LENGTH = 20  # tokens, of transformers
SAMPLING = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}  # options of sampling and transformers' defaults


class Generation(NamedTuple):
    """How a checkpoint generates: our settings, and what a user should know."""

    decode: DecodeConfig = DecodeConfig(beam_size=1)
    notes: tuple[str, ...] = ()


def read_generation(file: str, hf: HFConfig, text: TextFormat, vocab: int) -> Generation:
    """The settings of a file, for a model that writes `vocab` tokens."""
    hf = {key: value for key, value in hf.items() if value is not None}
    check_keys(file, hf, GENERATION_KEYS)
    ends = _token_list(file, hf, "eos_token_id", vocab)
    values = {
        "no_repeat_ngram_size": hf.get("no_repeat_ngram_size", 0),
        "repetition_penalty": _number(file, hf, "repetition_penalty", 1.0),
        "suppress_tokens": sorted({*_token_list(file, hf, "suppress_tokens", vocab)}),
        "bad_words": [word for word in _token_lists(file, hf, "bad_words_ids", vocab) if word not in [[end] for end in ends]],
        "forced_bos": _token(file, hf, "forced_bos_token_id", vocab),
        "forced_eos": _token(file, hf, "forced_eos_token_id", vocab),
        "renormalize_logits": hf.get("renormalize_logits", False),
        **_lengths(file, hf, text),
    }
    beams = hf.get("num_beams", 1)
    if not isinstance(beams, int) or isinstance(beams, bool) or beams < 1:
        raise ValueError(f"{file} has num_beams = {beams!r}; wanted 1 or more")
    if text.seq2seq:
        notes = _notes_of_search(file, hf, beams)
        values |= {"beam_size": beams, "length_penalty": _number(file, hf, "length_penalty", 1.0)}
    else:
        notes = _notes_of_sampling(file, hf, beams)
        values |= {"beam_size": 1}
    if "max_length" not in hf and "max_new_tokens" not in hf:
        notes.append(f"{file} has no max_length: transformers stops after {DEFAULT_LENGTH} tokens, regard at a limit of its own; "
                     f"decode.max_length sets one")  # fmt: skip
    return Generation(build(file, DecodeConfig, values), tuple(notes))


def _notes_of_search(file: str, hf: Mapping[str, object], beams: int) -> list[str]:
    """How the search of an encoder-decoder differs."""
    if hf.get("do_sample") is True:
        raise ValueError(f"{file} has do_sample = True; regard searches for the best answer: set it to false")
    if beams > 1 and hf.get("early_stopping", False) is not True:
        return [f"{file} has early_stopping = {hf.get('early_stopping', False)!r}; regard's beam search stops as true does, "
                f"so that a few answers may differ"]  # fmt: skip
    return []


def _notes_of_sampling(file: str, hf: Mapping[str, object], beams: int) -> list[str]:
    """How sampling from a language model differs."""
    if "forced_bos_token_id" in hf:
        raise ValueError(f"{file} has forced_bos_token_id = {hf['forced_bos_token_id']!r}, which transformers applies only to "
                         f"prompts of one token; regard's language model does not: set it to null")  # fmt: skip
    notes = []
    if hf.get("do_sample") is True:
        options = ", ".join(f"{key} = {hf.get(key, default)!r}" for key, default in SAMPLING.items())
        notes.append(f"{file} samples with {options}; give these to `regard generate`, whose defaults differ")
    else:
        shown = f"do_sample = {hf['do_sample']!r}" if "do_sample" in hf else "no do_sample"
        notes.append(f"{file} has {shown}: transformers takes the most likely token, `regard generate` samples; --temperature 0 "
                     f"takes the most likely")  # fmt: skip
    if beams > 1:
        named = ", ".join(f"{key} = {hf[key]!r}" for key in ("num_beams", "length_penalty", "early_stopping") if key in hf)
        notes.append(f"{file} has {named}; `regard generate` has no beam search, so that these have no effect")
    if "max_length" in hf and "max_new_tokens" not in hf:
        notes.append(f"{file} has max_length = {hf['max_length']!r}, which counts the prompt; regard counts what follows it: "
                     f"give `regard generate` --tokens")  # fmt: skip
    return notes


def describe_generation(decode: DecodeConfig, max_length: int, start: bool) -> dict[str, object]:
    """The generation_config.json of a run; `start` if an answer begins with a start token, which its lengths count.

    A run without a limit gets `max_length`, which `read_generation` recognizes.
    """
    hf: dict[str, object] = {}
    if start:
        hf = {"num_beams": decode.beam_size, "length_penalty": decode.length_penalty, "early_stopping": decode.beam_size > 1,
              "max_length": decode.max_length + 1 if decode.max_length else max_length}  # fmt: skip
        hf |= {} if decode.max_length else {NO_LIMIT: max_length}
    elif decode.max_length:  # without it, whoever uses a language model says how long
        hf = {"max_new_tokens": decode.max_length}
    off = DecodeConfig()
    names = {"no_repeat_ngram_size": "no_repeat_ngram_size", "repetition_penalty": "repetition_penalty",
             "suppress_tokens": "suppress_tokens", "bad_words": "bad_words_ids", "forced_bos": "forced_bos_token_id",
             "forced_eos": "forced_eos_token_id", "renormalize_logits": "renormalize_logits"}  # fmt: skip
    hf |= {key: value for ours, key in names.items() if (value := getattr(decode, ours)) != getattr(off, ours)}
    length = {"min_length": decode.min_length + 1} if start else {"min_new_tokens": decode.min_length}
    return hf | (length if decode.min_length else {})


def _lengths(file: str, hf: Mapping[str, object], text: TextFormat) -> dict[str, int]:
    """The fewest and the most tokens of an answer, without its start token."""
    least, most = _count(file, hf, "min_length"), _count(file, hf, "max_length")
    if text.seq2seq:
        if "max_length" in hf and "max_new_tokens" not in hf and most < 2:
            raise ValueError(f"{file} has max_length = {most}, which leaves no token after the start token; wanted 2 or more")
        most = 0 if hf.get(NO_LIMIT) == most else most
        least, most = max(0, least - 1), max(0, most - 1)
    else:
        if least > 0:
            raise ValueError(f"{file} has min_length = {least}, which counts the prompt; regard counts what follows it: "
                             f"use min_new_tokens instead")  # fmt: skip
        most = 0  # it counts the prompt too: a note says so
    if "max_new_tokens" in hf and not (most := _count(file, hf, "max_new_tokens")):
        raise ValueError(f"{file} has max_new_tokens = 0; wanted 1 or more")
    return {"min_length": _count(file, hf, "min_new_tokens") if "min_new_tokens" in hf else least, "max_length": most}


def _count(file: str, hf: Mapping[str, object], key: str) -> int:
    value = hf.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{file} has {key} = {value!r}; wanted a number of tokens")
    return value


def _number(file: str, hf: Mapping[str, object], key: str, default: float) -> float:
    value = hf.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{file} has {key} = {value!r}; wanted a number")
    return float(value)


def _token(file: str, hf: Mapping[str, object], key: str, vocab: int) -> int:
    """One token id; -1 if there is none."""
    ids = _token_list(file, hf, key, vocab)
    if len(ids) > 1:
        raise ValueError(f"{file} has {key} = {hf[key]!r}; regard's search has one such token: use another checkpoint")
    return ids[0] if ids else -1


def _token_list(file: str, hf: Mapping[str, object], key: str, vocab: int) -> list[int]:
    value = hf.get(key, [])
    listed: list[object] = value if isinstance(value, list) else [value]
    ids = [token for token in listed if isinstance(token, int) and not isinstance(token, bool) and token >= 0]
    if len(ids) < len(listed):
        raise ValueError(f"{file} has {key} = {value!r}; wanted token ids")
    if (largest := max(ids, default=0)) >= vocab:
        raise ValueError(f"{file} has token {largest} in {key}; its model's tokens are 0 to {vocab - 1}: correct {file}")
    return ids


def _token_lists(file: str, hf: Mapping[str, object], key: str, vocab: int) -> list[list[int]]:
    value = hf.get(key, [])
    if not isinstance(value, list) or not all(isinstance(word, list) and word for word in value):
        raise ValueError(f"{file} has {key} = {value!r}; wanted lists of token ids")
    return [_token_list(file, {key: word}, key, vocab) for word in value]
