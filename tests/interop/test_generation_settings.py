"""An imported run generates as transformers does with the same generation_config.json, or its import says how it differs."""

import re
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from text_checkpoints import assert_run_refused, save_character_tokenizer, small_marian, update_json
from tokenizers import decoders, models

from regard.interop.hf import export_run, import_run
from regard.tasks import read_run
from regard.tasks.load import load

IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
FILE = "generation_config.json"


def spread(model: Any, seed: int) -> Any:
    """Random weights, but for the positions, that give peaked distributions."""
    torch.manual_seed(seed)
    for name, p in model.named_parameters():
        if "embed_positions" not in name:
            torch.nn.init.normal_(p, std=0.6)
    return model.eval()


def seq2seq(folder: Path, seed: int, kind: str = "marian", **keys: Any) -> Any:
    """A saved Marian or Pegasus of 8 characters, as opus-mt starts an answer with padding, which it likes to write."""
    sizes = small_marian(**{**IDS, "vocab_size": 12, "max_position_embeddings": 24, "forced_eos_token_id": None}).to_dict()
    if kind == "marian":
        model = transformers.MarianMTModel(transformers.MarianConfig(**sizes))
    else:
        other = ("model_type", "architectures", "share_encoder_decoder_embeddings", "decoder_vocab_size")
        sizes = {key: value for key, value in sizes.items() if key not in other}
        model = transformers.PegasusForConditionalGeneration(transformers.PegasusConfig(**sizes))
    spread(model, seed)
    model.final_logits_bias.copy_(torch.randn(1, 12))
    model.final_logits_bias[0, 0] = 3.0
    model.generation_config = transformers.GenerationConfig(**{**IDS, "max_length": 12, **keys})
    model.save_pretrained(folder)
    save_pad_start_tokenizer(folder)
    return model


def save_pad_start_tokenizer(folder: Path) -> None:
    """A tokenizer without a start token: padding starts an answer."""
    ids = {token: n for n, token in enumerate(["<pad>", "<unk>", "</s>", *"abcdefgh"])}
    inner = tokenizers.Tokenizer(models.BPE(ids, [], unk_token="<unk>"))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(["<pad>", "<unk>", "</s>"])
    inner.save(str(folder / "tokenizer.json"))


def gpt(folder: Path, **keys: Any) -> Any:
    sizes = {"vocab_size": 16, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 32}
    model = spread(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **IDS)), 5)
    model.generation_config = transformers.GenerationConfig(**{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, **keys})
    model.save_pretrained(folder)
    save_character_tokenizer(folder)
    return model


@torch.inference_mode()
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["marian", "pegasus"])
def test_banned_padding_changes_no_score_of_a_beam_search(kind, seed, tmp_path):
    how = {"num_beams": 5, "early_stopping": True, "bad_words_ids": [[0]]}
    theirs = seq2seq(tmp_path / "theirs", seed, kind, **how)
    import_run(tmp_path / "theirs", tmp_path / "run")
    translator = load(tmp_path / "run", device="cpu")
    for text in ("abc", "hgfedcba", "aabb"):
        source = torch.tensor([[*translator.tokenizer.encode([text])[0], 2]])
        out = theirs.generate(source, return_dict_in_generate=True, output_scores=True)
        [row] = out.sequences[:, 1:].tolist()
        [answer] = translator.translate([text])
        assert answer.ids == (row[: row.index(2)] if 2 in row else row)
        assert answer.score == pytest.approx(out.sequences_scores.item(), abs=1e-4)


@torch.inference_mode()
def test_a_language_model_obeys_max_new_tokens_and_a_forced_end(tmp_path):
    theirs = gpt(tmp_path / "theirs", max_new_tokens=5, forced_eos_token_id=2, suppress_tokens=[0, 1, 3], do_sample=True)
    import_run(tmp_path / "theirs", tmp_path / "run")
    writer = load(tmp_path / "run", device="cpu")
    assert writer.run.decode.max_length == 5
    ids = torch.tensor(writer.tokenizer.encode(["abca"]))
    row = theirs.generate(ids, do_sample=False)[0, 4:].tolist()
    assert row[-1] == 2
    assert writer.generate("abca", temperature=0) == writer.tokenizer.decode(row)
    export_run(tmp_path / "run", tmp_path / "again")
    assert transformers.GenerationConfig.from_pretrained(tmp_path / "again").max_new_tokens == 5
    import_run(tmp_path / "again", tmp_path / "run2")
    assert read_run(tmp_path / "run2" / "run.toml").decode == writer.run.decode


@pytest.mark.parametrize(
    ("keys", "notes"),
    [
        ({"max_new_tokens": 5}, [r"no do_sample: .*, `regard generate` samples; --temperature 0 takes the most likely"]),
        ({"max_new_tokens": 5, "do_sample": False}, ["do_sample = False: transformers takes the most likely token"]),
        ({"do_sample": True, "max_length": 50}, ["samples with temp", "max_length = 50, which counts the prompt; .* --tokens"]),
        ({"do_sample": True}, ["samples with temp", "no max_length: transformers stops after 20 tokens, regard at a limit "]),
        ({"num_beams": 4, "length_penalty": 0.5, "early_stopping": True, "max_new_tokens": 5},
         ["no do_sample", "num_beams = 4, length_penalty = 0.5, early_stopping = True; `regard generate` has no beam search"]),
    ],
    ids=str,
)  # fmt: skip
def test_an_import_says_how_a_language_model_generates_differently(keys, notes, tmp_path):
    gpt(tmp_path / "theirs")
    update_json(tmp_path / "theirs" / FILE, **keys)
    found = import_run(tmp_path / "theirs", tmp_path / "run")
    assert len(found) == len(notes)
    for note, wanted in zip(found, notes, strict=True):
        assert re.search(wanted, note), note
        assert note in (tmp_path / "run" / "README.md").read_text()
    decode = read_run(tmp_path / "run" / "run.toml").decode
    assert (decode.beam_size, decode.length_penalty) == (1, 1.0)


def test_a_forced_first_token_of_a_language_model_is_refused(tmp_path):
    gpt(tmp_path / "theirs")
    update_json(tmp_path / "theirs" / FILE, forced_bos_token_id=4)
    assert_run_refused(tmp_path / "theirs", r"forced_bos_token_id = 4, which transformers applies only to prompts of one token; ")


@torch.inference_mode()
def test_a_translation_model_without_a_limit_stops_later_than_in_transformers_and_says_so(tmp_path):
    theirs = seq2seq(tmp_path / "theirs", 0, max_length=None, suppress_tokens=[2], bad_words_ids=[[0]])
    [note] = import_run(tmp_path / "theirs", tmp_path / "run")
    assert "generation_config.json has no max_length: transformers stops after 20 tokens, regard at a limit of its own" in note
    with pytest.warns(UserWarning, match="model-agnostic default"):
        assert theirs.generate(torch.tensor([[4, 5, 2]])).shape[1] == 21


@pytest.mark.parametrize("kind", ["marian", "pegasus"])
def test_a_run_without_a_limit_is_exported_and_imported_without_one(kind, tmp_path):
    seq2seq(tmp_path / "theirs", 0, kind, max_length=None)
    import_run(tmp_path / "theirs", tmp_path / "run")
    decode = read_run(tmp_path / "run" / "run.toml").decode
    assert decode.max_length == 0
    [note] = export_run(tmp_path / "run", tmp_path / "again")
    assert note.endswith("transformers will stop at max_length = 24")
    assert transformers.GenerationConfig.from_pretrained(tmp_path / "again").max_length == 24
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again")
    assert model.generate(torch.tensor([[4, 5, 2]]), suppress_tokens=[2]).shape[1] == 24
    import_run(tmp_path / "again", tmp_path / "run2")
    assert read_run(tmp_path / "run2" / "run.toml").decode == decode
    update_json(tmp_path / "again" / FILE, max_length=10)  # someone else's choice
    import_run(tmp_path / "again", tmp_path / "run3")
    assert read_run(tmp_path / "run3" / "run.toml").decode.max_length == 9
