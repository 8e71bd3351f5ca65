"""A checkpoint that regard cannot read is refused in one line that names the file, key or tensor."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from text_checkpoints import (
    assert_model_refused,
    assert_run_refused,
    save_character_tokenizer,
    small_bert,
    small_marian,
    update_json,
)


def test_a_tensor_of_the_wrong_shape_is_named(gpt2):
    weights = load_file(gpt2 / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.weight"] = torch.zeros(32, 96)
    save_file(weights, gpt2 / "model.safetensors")
    assert_model_refused(gpt2, r"transformer\.h\.1\.mlp\.c_fc\.weight is \(32, 96\); its config\.json makes it \(32, 128\)$")


def test_a_missing_extra_or_different_tensor_is_named(gpt2):
    weights = load_file(gpt2 / "model.safetensors")
    save_file(weights | {"transformer.h.0.extra.weight": torch.zeros(2)}, gpt2 / "model.safetensors")
    assert_model_refused(gpt2, r"there is a tensor transformer\.h\.0\.extra\.weight that regard's gpt does not have$")
    save_file(weights | {"lm_head.weight": torch.zeros(97, 32)}, gpt2 / "model.safetensors")
    assert_model_refused(gpt2, r"lm_head\.weight differs from transformer\.wte\.weight; regard's gpt ties them$")
    save_file(weights | {"transformer.ln_f.bias": torch.zeros(32, dtype=torch.int8)}, gpt2 / "model.safetensors")
    assert_model_refused(gpt2, r"transformer\.ln_f\.bias holds torch\.int8; regard reads float32, float16 and bfloat16$")
    del weights["transformer.ln_f.bias"]
    save_file(weights, gpt2 / "model.safetensors")
    assert_model_refused(gpt2, r"there is no tensor transformer\.ln_f\.bias; it is not the gpt its config\.json describes$")


def test_a_pickle_is_refused_with_a_command_to_convert_it(gpt2):
    (gpt2 / "model.safetensors").rename(gpt2 / "pytorch_model.bin")
    assert_model_refused(gpt2, r"pytorch_model\.bin is a pickle, which can run any code.*transformers\.GPT2LMHeadModel\."
                         r"from_pretrained.*safe_serialization=True\)$")  # fmt: skip
    (gpt2 / "pytorch_model.bin").unlink()
    assert_model_refused(
        gpt2, r"there is no model\.safetensors \(nor other safetensors; pickles, .* neither fetched nor opened\)"
    )


def test_a_t5_without_its_output_layer_is_refused(tmp_path):
    config = transformers.T5Config(vocab_size=97, d_model=32, num_layers=1, num_heads=2, d_kv=16, d_ff=64,
                                   feed_forward_proj="gated-gelu", tie_word_embeddings=False)  # fmt: skip
    transformers.T5Model(config).save_pretrained(tmp_path / "t5")
    assert_model_refused(
        tmp_path / "t5", r"no tensor lm_head\.weight; .* save it again as a transformers\.T5ForConditionalGeneration$"
    )


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ({"model_type": ["gpt2"]}, r"model_type = \['gpt2'\]"),
        ({"architectures": 5}, "architectures = 5; wanted a list of names"),
        ({"architectures": {"a": 1}}, "wanted a list of names"),
        ({"architectures": [1]}, "wanted a list of names"),
    ],
)
def test_a_config_value_of_the_wrong_type_is_refused_in_one_line(gpt2, message, wanted):
    file = gpt2 / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | message))
    assert_model_refused(gpt2, wanted)


def test_a_truncated_or_missing_file_is_named(gpt2):
    file = gpt2 / "model.safetensors"
    whole = file.read_bytes()
    for content in (whole[:-100], whole[:20], b""):
        file.write_bytes(content)
        assert_model_refused(gpt2, r"model\.safetensors is damaged \(.*download it again$")
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    assert_model_refused(gpt2, r"model\.safetensors is a Git LFS pointer; run `git lfs pull` there$")
    (gpt2 / "config.json").write_text("{")
    assert_model_refused(gpt2, r"config\.json is damaged \(.*download it again$")
    (gpt2 / "config.json").write_text("[]")
    assert_model_refused(gpt2, r"config\.json is damaged \(no table of keys\)")
    (gpt2 / "config.json").unlink()
    assert_model_refused(gpt2, r"there is no config\.json; give the folder of a Hugging Face checkpoint$")
    assert_model_refused(gpt2 / "nowhere", r"nowhere: there is no config\.json")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            {"a": "model-1.safetensors"},
            r"there is no model-1\.safetensors, which model\.safetensors\.index\.json names; download it$",
        ),
        ({"a": "../elsewhere.safetensors"}, r"index\.json is damaged \(no names of files beside it\)"),
        ("none", r"index\.json is damaged \(no names of files beside it\)"),
    ],
    ids=str,
)
def test_an_index_of_missing_files_is_refused(names, message, gpt2):
    (gpt2 / "model.safetensors").rename(gpt2.parent / "elsewhere.safetensors")
    (gpt2 / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert_model_refused(gpt2, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt3"}, r"model_type = 'gpt3' \(did you mean 'gpt2'\?\); regard reads gpt2, .*vision-encoder-decoder$"),
        ({"model_type": None}, r"config\.json has model_type = None; regard reads gpt2, bert, .*, vision-encoder-decoder$"),
        ({"activation_function": "tanh"}, r"activation_function = 'tanh'; regard's model has 'relu', 'gelu', .*: use another ch"),
        ({"n_heads": 4}, r"config\.json has n_heads = 4, which regard does not know \(did you mean 'n_head'\?\); it may change "),
        ({"scale_attn_weights": False}, r"has scale_attn_weights = False; regard's model has True: use another checkpoint$"),
        ({"n_embd": None}, r"config\.json has n_embd = None; wanted a number$"),
        ({"n_embd": "many"}, r"config\.json has n_embd = 'many'; wanted a number$"),
        ({"n_head": 5}, r"width 32 does not split into 5 heads; use a multiple of 5$"),
        ({"n_inner": -4}, r"n_inner is -4; use 0 or more$"),
        ({"resid_pdrop": "no"}, r"config\.json has resid_pdrop = 'no'; wanted a number$"),
    ],
    ids=str,
)  # fmt: skip
def test_an_unsupported_config_value_is_named(gpt2, change, message):
    file = gpt2 / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert_model_refused(gpt2, message)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: transformers.BertForTokenClassification(small_bert()), r"architectures = 'BertForTokenClassification'"),
        (lambda: transformers.MarianMTModel(small_marian(scale_embedding=False)), r"scale_embedding = False; .* has True$"),
        (lambda: transformers.MarianMTModel(small_marian(decoder_ffn_dim=24)), r"decoder_ffn_dim = 24; regard's model has 16$"),
        (
            lambda: transformers.MarianMTModel(small_marian(activation_function="tanh")),
            r"activation_function = 'tanh'; regard's mo",
        ),
    ],
    ids=["token classification", "not scaled", "narrow decoder", "tanh"],
)
def test_unsupported_variants_of_a_family_are_refused(make: Callable[[], Any], message, tmp_path):
    make().save_pretrained(tmp_path)
    assert_model_refused(tmp_path, message)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_tensor_with_nan_or_infinity_is_named(value, gpt2):
    weights = load_file(gpt2 / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.bias"][3] = value
    save_file(weights, gpt2 / "model.safetensors")
    assert_model_refused(gpt2, r"transformer\.h\.1\.mlp\.c_fc\.bias has NaN or infinite values; download it again")
    weights["transformer.h.1.mlp.c_fc.bias"][3] = 0
    weights["transformer.wte.weight"][3] = value
    save_file(weights | {"lm_head.weight": weights["transformer.wte.weight"].clone()}, gpt2 / "model.safetensors")
    assert_model_refused(gpt2, r"transformer\.wte\.weight has NaN or infinite values")


def test_a_context_length_of_one_is_refused(tmp_path):
    config = transformers.GPT2Config(vocab_size=16, n_embd=8, n_layer=1, n_head=2, n_positions=1, bos_token_id=1, eos_token_id=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "theirs")
    save_character_tokenizer(tmp_path / "theirs")
    assert_run_refused(tmp_path / "theirs", r"max_len is 1; use 2 or more$")


def test_weights_that_are_no_regular_file_are_refused_at_once(gpt2):
    (gpt2 / "model.safetensors").unlink()
    os.mkfifo(gpt2 / "model.safetensors")
    assert_model_refused(gpt2, r"model\.safetensors is a FIFO, not a regular file; download it again$")
    (gpt2 / "model.safetensors").unlink()
    (gpt2 / "model.safetensors").symlink_to("/dev/zero")
    assert_model_refused(gpt2, r"model\.safetensors is a device, not a regular file; ")
    (gpt2 / "model.safetensors").unlink()
    (gpt2 / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    os.mkfifo(gpt2 / "model-1.safetensors")
    assert_model_refused(gpt2, r"model-1\.safetensors is a FIFO, not a regular file; ")


@pytest.mark.parametrize("head", ["GPT2ForSequenceClassification", "GPT2ForTokenClassification", "GPT2DoubleHeadsModel"])
def test_another_head_of_a_language_model_is_refused(head, gpt2):
    update_json(gpt2 / "config.json", architectures=[head])
    assert_model_refused(gpt2, rf"config\.json has architectures = '{head}', whose head regard's gpt does not have; use a ")
