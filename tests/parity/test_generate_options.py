"""The options of a search mean what they mean in Hugging Face's `generate`: same tokens and scores for Marian, T5 and GPT-2."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hf_models import SMALL, Both, hf_model, randomize, sentences, sharpen_attention

from regard.config import DecodeConfig
from regard.decode import search
from regard.decode.fast import decoder
from regard.decode.logits_processors import logits_processor
from regard.decode.search import Hypothesis
from regard.interop.hf import import_model

EOS, LIMIT, WIDTH = 1, 14, 4
OPTIONS = {  # those of ours; `min_length` counts no start token
    "none": {},
    "min_length": {"min_length": 9},
    "no_repeat_ngram_size 1": {"no_repeat_ngram_size": 1},
    "no_repeat_ngram_size 2": {"no_repeat_ngram_size": 2},
    "no_repeat_ngram_size 3": {"no_repeat_ngram_size": 3},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "repetition_penalty below 1": {"repetition_penalty": 0.8},
    "suppress_tokens": {"suppress_tokens": list(range(10, 60))},
    "bad_words": {"bad_words": [[1], [20], [33, 34], *([a, b] for a in range(40, 60) for b in range(30, 60))]},
    "forced_bos": {"forced_bos": 7},
    "forced_eos": {"forced_eos": 1},
    "both forced": {"forced_bos": 7, "forced_eos": 1, "min_length": 3},
    "renormalize_logits": {"suppress_tokens": list(range(10, 40)), "renormalize_logits": True},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_length": 5},
    "all": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "min_length": 4, "forced_bos": 9, "forced_eos": 1,
            "suppress_tokens": [11, 12, 13, 40, 41], "bad_words": [[21], [50, 51]]},
}  # fmt: skip


@cache
def pair(kind: str) -> Both:
    torch.manual_seed(0)
    theirs = sharpen_attention(randomize(hf_model(kind, SMALL)))
    theirs.generation_config.bad_words_ids = None
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return Both(kind, theirs, *import_model(Path(folder)), SMALL[kind][3])


def for_generate(options: dict[str, object], prompt: int) -> dict[str, object]:
    """The same options by Hugging Face's names and counts, which include the start token or the prompt."""
    names = {"bad_words": "bad_words_ids", "forced_bos": "forced_bos_token_id", "forced_eos": "forced_eos_token_id"}
    renamed = {names.get(key, key): value for key, value in options.items()}
    return {**renamed, "min_length": renamed["min_length"] + prompt} if "min_length" in renamed else renamed


def theirs_and_ours(kind: str, options: dict[str, object], width: int) -> tuple[list, list[Hypothesis], list[float]]:
    both = pair(kind)
    source, real = sentences(6, 10, 4, pad=both.pad)
    if both.family == "gpt":  # no padding: generate would need it on the left
        source, real = source.masked_fill(~real, 5), torch.ones_like(real)
    prompt = source.shape[1] if both.family == "gpt" else 1
    how = {"do_sample": False, "max_new_tokens": LIMIT, "eos_token_id": EOS, "pad_token_id": both.pad, "num_beams": width}
    how |= {"early_stopping": True, "length_penalty": 0.8} if width > 1 else {}
    out = both.theirs.generate(source, attention_mask=real.long(), **how, **for_generate(options, prompt),
                               return_dict_in_generate=True, output_scores=True)  # fmt: skip
    rows = [row[: row.index(EOS)] if EOS in row else row for row in out.sequences[:, prompt:].tolist()]
    scores = out.sequences_scores.tolist() if width > 1 else []
    processor, limits = logits_processor(DecodeConfig(**options), EOS), torch.full((len(source),), LIMIT)
    ends = {"bos": source if both.family == "gpt" else both.pad, "eos": EOS, "processor": processor}
    if width == 1:
        return rows, search.greedy(decoder(both.ours), source, limits, **ends), scores
    found = search.beam(decoder(both.ours), source, limits, **ends, width=width, penalty=0.8)
    return rows, [hypotheses[0] for hypotheses in found], scores


@torch.inference_mode()
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("width", [1, WIDTH], ids=["greedy", "beam"])
@pytest.mark.parametrize("kind", ["marian", "t5", "gpt2"])
def test_a_search_with_options_gives_what_generate_gives(kind, width, options):
    if kind == "gpt2" and "forced_bos" in options:
        options = {key: value for key, value in options.items() if key != "forced_bos"}  # theirs: only if no prompt
    wanted, found, scores = theirs_and_ours(kind, options, width)
    assert [hypothesis.tokens for hypothesis in found] == wanted
    if width > 1:
        assert [hypothesis.score for hypothesis in found] == pytest.approx(scores, rel=1e-3)


@torch.inference_mode()
def test_the_options_change_outputs():
    plain, _, _ = theirs_and_ours("marian", {}, 1)
    changed = [name for name, options in OPTIONS.items() if theirs_and_ours("marian", options, 1)[0] != plain]
    assert len(changed) > len(OPTIONS) // 2
