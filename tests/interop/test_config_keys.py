"""Every key of a foreign file is read, known to be without effect, or refused: none is dropped without a word."""

import json
from typing import Any

import pytest
import transformers
from text_checkpoints import assert_model_refused, assert_run_refused, small_bert, small_marian, update_json

from regard.interop.generation import CONFIG_KEYS, GENERATION_KEYS
from regard.interop.keys import KeyTable, check_keys
from regard.interop.vision_encoder_decoder import DECODER_KEYS
from regard.interop.weights import HF_FAMILIES

CONFIGS: dict[str, type] = {
    "gpt2": transformers.GPT2Config, "bert": transformers.BertConfig, "t5": transformers.T5Config,
    "marian": transformers.MarianConfig, "pegasus": transformers.PegasusConfig, "vit": transformers.ViTConfig,
    "swin": transformers.SwinConfig, "swinv2": transformers.Swinv2Config, "resnet": transformers.ResNetConfig,
}  # fmt: skip


def unplaced(keys: Any, table: KeyTable) -> list[str]:
    return sorted(key for key in keys if key not in table.keys and not key.startswith("_"))


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_key_of_transformers_config_classes_stands_in_a_column(kind):
    assert unplaced(CONFIGS[kind]().to_dict(), CONFIG_KEYS | HF_FAMILIES[kind].keys) == []


def test_every_key_of_a_caption_model_stands_in_a_column():
    kind = transformers.VisionEncoderDecoderConfig
    config = kind.from_encoder_decoder_configs(transformers.ViTConfig(), transformers.GPT2Config()).to_dict()
    assert unplaced(config, CONFIG_KEYS | HF_FAMILIES["vision-encoder-decoder"].keys) == []
    assert unplaced(config["decoder"], CONFIG_KEYS | DECODER_KEYS) == []


def test_every_key_of_the_generation_config_stands_in_a_column():
    assert unplaced(transformers.GenerationConfig().to_dict(), GENERATION_KEYS) == []


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_key_stands_in_one_column_only(kind):
    table = CONFIG_KEYS | HF_FAMILIES[kind].keys
    columns = [*table.read, *table.without_effect, *table.refused]
    assert len(columns) == len(set(columns))


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_defaults_of_transformers_are_not_refused(kind):
    check_keys("config.json", CONFIGS[kind]().to_dict(), CONFIG_KEYS | HF_FAMILIES[kind].keys)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"qk_norm": True},
            r"config\.json has qk_norm = True, which regard does not know; it may change the results: if it does",
        ),
        ({"qk_norm": False}, r"config\.json has qk_norm = False, which regard does not know"),
        (
            {"quantization_config": {"bits": 4}},
            r"config\.json has quantization_config = \{'bits': 4\}; regard does not support it",
        ),
        ({"auto_map": {"AutoModel": "m.M"}}, r"config\.json has auto_map = .*; regard does not support it"),
        ({"pruned_heads": {"0": [1]}}, r"config\.json has pruned_heads = \{'0': \[1\]\}; regard's model has \{\}"),
        ({"is_encoder_decoder": True}, r"config\.json has is_encoder_decoder = True; regard's model has False"),
        ({"scale_attn_by_inverse_layer_idx": True}, r"scale_attn_by_inverse_layer_idx = True; regard's model has False"),
    ],
    ids=str,
)
def test_a_key_that_may_change_the_results_is_refused_with_its_value(gpt2, change, message):
    update_json(gpt2 / "config.json", **change)
    assert_model_refused(gpt2, message)


def test_a_private_key_and_an_unused_one_are_accepted(gpt2):
    from regard.interop.hf import import_model

    update_json(gpt2 / "config.json", _commit_hash="0", qk_norm=None, pruned_heads={}, torch_dtype="float16")
    import_model(gpt2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8)),
        lambda: transformers.T5ForConditionalGeneration(
            transformers.T5Config(vocab_size=9, d_model=8, num_layers=1, num_heads=2, d_kv=4, d_ff=8)
        ),
        lambda: transformers.MarianMTModel(small_marian()),
        lambda: transformers.BertForMaskedLM(small_bert()),
    ],
    ids=["gpt2", "t5", "marian", "bert"],
)
def test_an_untied_head_that_is_missing_is_refused(make, tmp_path):
    make().save_pretrained(tmp_path)  # tied: the head is not stored
    update_json(tmp_path / "config.json", tie_word_embeddings=False)
    assert_model_refused(tmp_path, r"there is no tensor (lm_head|cls\.predictions\.decoder)\.weight; ")


def test_positions_of_a_marian_that_are_not_the_sinusoid_are_refused(tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    from regard.interop.hf import import_model

    model = transformers.MarianMTModel(small_marian(max_position_embeddings=20))
    model.save_pretrained(tmp_path)
    weights, name = load_file(tmp_path / "model.safetensors"), "model.encoder.embed_positions.weight"
    table = model.model.encoder.embed_positions.weight.detach().clone()
    save_file(weights | {name: table.half()}, tmp_path / "model.safetensors")
    import_model(tmp_path)
    save_file(weights | {name: torch.randn(20, 8)}, tmp_path / "model.safetensors")
    assert_model_refused(tmp_path, rf"{name} is not the sinusoid; ")


SENTENCES = "sentence_bert_config.json"


@pytest.mark.parametrize(
    ("file", "keys", "message"),
    [
        (SENTENCES, {"do_lower_case": True, "shout": 1}, r"sentence_bert_config\.json has shout = 1, which regard does not know"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"q": "query: "}, "default_prompt_name": "q"},
            r"default_prompt_name = 'q'",
        ),
        (
            "1_Pooling/config.json",
            {"pooling_mode_mean_tokens": True, "include_prompt": False},
            r"include_prompt = False; regard's",
        ),
        (
            "tokenizer_config.json",
            {"never_split": ["the"]},
            r"tokenizer_config\.json has never_split = \['the'\]; regard's model has",
        ),
        ("tokenizer_config.json", {"new_option": 1}, r"tokenizer_config\.json has new_option = 1, which regard does not know"),
    ],
)
def test_unknown_keys_of_the_other_files_are_refused(file, keys, message, tmp_path):
    from text_checkpoints import bert_with_tokenizer

    theirs = bert_with_tokenizer(tmp_path / "theirs", "BertModel")
    (theirs / file).parent.mkdir(exist_ok=True)
    (theirs / file).write_text(json.dumps(keys))
    assert_run_refused(theirs, message)


def test_an_unknown_key_of_the_image_processor_is_refused(tmp_path):
    from image_checkpoints import vit_checkpoint, write_processor

    theirs = vit_checkpoint(tmp_path / "theirs")
    write_processor(theirs, do_sharpen=True)
    assert_run_refused(theirs, r"preprocessor_config\.json has do_sharpen = True, which regard does not know")
