"""Unusual options of foreign checkpoints: an import computes the same logits, and so does its export."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from text_checkpoints import assert_run_refused, randomize, save_character_tokenizer, small_bert, small_marian, update_json

from regard.data.text.tokenizer import SpecialTokens, train_tokenizer
from regard.decode import search
from regard.decode.fast import decoder
from regard.interop.hf import export_model, export_run, import_model, import_run
from regard.tasks import TASKS, read_run
from regard.tasks.load import load

SPECIAL = SpecialTokens(pad=0, bos=0, eos=1, unk=1, mask=None, sentinels=())
IDS = torch.tensor([[2, 9, 4, 1], [3, 1, 5, 7]])


def gpt(**keys: Any) -> Any:
    sizes = {"vocab_size": 16, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 12}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **keys))


def bert(**keys: Any) -> Any:
    return transformers.BertForMaskedLM(small_bert(max_position_embeddings=12, **keys))


def vit(**keys: Any) -> Any:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 12,
             "patch_size": 4, "num_labels": 3}  # fmt: skip
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes | keys))


def swin(**keys: Any) -> Any:
    sizes = {"embed_dim": 8, "depths": [1, 2], "num_heads": [1, 2], "num_labels": 3}
    return transformers.SwinForImageClassification(transformers.SwinConfig(**sizes | keys))


def t5(**keys: Any) -> Any:
    sizes = {"vocab_size": 16, "d_model": 8, "num_layers": 2, "num_heads": 2, "d_kv": 4, "d_ff": 12, "decoder_start_token_id": 0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes | keys))


def marian(**keys: Any) -> Any:
    ids = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": None}
    return transformers.MarianMTModel(small_marian(**{**ids, "max_position_embeddings": 20, **keys}))


def pegasus(**keys: Any) -> Any:
    sides = {f"{side}_{key}": n for side in ("encoder", "decoder")
             for key, n in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 16))}  # fmt: skip
    rest = {"vocab_size": 16, "d_model": 8, "scale_embedding": True, "activation_function": "relu", "max_position_embeddings": 20,
            "forced_eos_token_id": None}  # fmt: skip
    return transformers.PegasusForConditionalGeneration(transformers.PegasusConfig(**rest | sides | keys))


OPTIONS: dict[str, Any] = {
    "gpt epsilon": lambda: gpt(layer_norm_epsilon=0.1),
    "gpt exact gelu": lambda: gpt(activation_function="gelu"),
    "gpt relu, odd mlp": lambda: gpt(activation_function="relu", n_inner=12),
    "gpt untied": lambda: gpt(tie_word_embeddings=False),
    "bert epsilon, silu": lambda: bert(layer_norm_eps=0.1, hidden_act="silu"),
    "vit epsilon": lambda: vit(layer_norm_eps=0.1),
    "vit without qkv bias": lambda: vit(qkv_bias=False),
    "vit lists, odd mlp, tanh gelu": lambda: vit(
        image_size=[12, 12], patch_size=[4, 4], intermediate_size=20, hidden_act="gelu_new"
    ),
    "swin lists": lambda: swin(image_size=[16, 16], patch_size=[2, 2], window_size=4),
    "t5 dense_act_fn": lambda: t5(dense_act_fn="gelu"),
    "t5 gated silu": lambda: t5(feed_forward_proj="gated-silu"),
    "t5 gated exact gelu": lambda: t5(feed_forward_proj="gated-gelu", dense_act_fn="gelu"),
    "t5 is_gated_act": lambda: t5(feed_forward_proj="relu", is_gated_act=True),
    "t5 shallow decoder, epsilon": lambda: t5(num_decoder_layers=1, layer_norm_epsilon=0.1),
    "t5 not scaled": lambda: t5(tie_word_embeddings=False),
    "marian deep decoder": lambda: marian(decoder_layers=3),
    "marian gelu, odd mlp": lambda: marian(activation_function="gelu", encoder_ffn_dim=20, decoder_ffn_dim=20),
    "marian two vocabularies": lambda: marian(share_encoder_decoder_embeddings=False, decoder_vocab_size=11),
    "marian untied": lambda: marian(tie_word_embeddings=False),
    "pegasus": lambda: pegasus(),
    "pegasus shallow decoder, gelu": lambda: pegasus(decoder_layers=1, activation_function="gelu"),
}  # fmt: skip


@torch.inference_mode()
def logits(model: Any, *, theirs: bool) -> torch.Tensor:
    """Logits of fixed inputs."""
    config = model.config
    if (theirs and config.model_type in ("vit", "swin")) or (not theirs and hasattr(config, "image")):
        side = config.image_size if theirs else config.image
        side = side if isinstance(side, int) else side[0]
        image = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
        return model(image).logits if theirs else model(image)
    pairs = config.is_encoder_decoder if theirs else hasattr(model, "decoder")
    if not theirs:
        return model(IDS, IDS) if pairs else model(IDS)
    return (model(input_ids=IDS, decoder_input_ids=IDS) if pairs else model(input_ids=IDS)).logits


def saved(name: str, folder: Path) -> Any:
    model = randomize(OPTIONS[name]())
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.copy_(torch.linspace(-1, 1, model.final_logits_bias.shape[1]))
    model.tie_weights()
    positions = [p for name, p in model.named_parameters() if "embed_positions" in name]
    for table, fresh in zip(
        positions, [p for name, p in OPTIONS[name]().named_parameters() if "embed_positions" in name], strict=True
    ):
        table.data.copy_(fresh)  # fixed, not random
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", OPTIONS)
def test_an_imported_option_gives_the_same_logits(name, tmp_path):
    theirs = saved(name, tmp_path / "theirs")
    _, config, ours = import_model(tmp_path / "theirs")
    wanted = logits(theirs, theirs=True)
    assert wanted.std() > 0.03
    torch.testing.assert_close(logits(ours, theirs=False), wanted, rtol=0, atol=1e-4)
    assert config == ours.config


@pytest.mark.parametrize("name", OPTIONS)
def test_an_exported_option_is_the_same_in_transformers(name, tmp_path):
    theirs = saved(name, tmp_path / "theirs")
    family, config, ours = import_model(tmp_path / "theirs")
    export_model(family, config, ours, tmp_path / "again", special=SPECIAL)
    again = type(theirs).from_pretrained(tmp_path / "again").eval()
    torch.testing.assert_close(logits(again, theirs=True), logits(theirs, theirs=True), rtol=0, atol=1e-4)
    assert import_model(tmp_path / "again")[1] == config


@torch.inference_mode()
@pytest.mark.parametrize("name", [name for name in OPTIONS if not name.startswith(("bert", "vit", "swin"))])
def test_the_fast_path_of_decoding_knows_every_option(name, tmp_path):
    saved(name, tmp_path / "theirs")
    *_, ours = import_model(tmp_path / "theirs")
    steps = decoder(ours)
    seq2seq = hasattr(ours, "decoder")
    state, rows = steps.start(IDS if seq2seq else IDS[:, :1]), []
    for token in IDS.T:
        row, state = steps.step(token, state)
        rows.append(row)
    torch.testing.assert_close(torch.stack(rows, 1), logits(ours, theirs=False), rtol=0, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["pegasus", "t5 shallow decoder, epsilon", "marian deep decoder", "t5 dense_act_fn"])
def test_generate_gives_the_same_tokens(name, tmp_path):
    theirs = saved(name, tmp_path / "theirs")
    *_, ours = import_model(tmp_path / "theirs")
    source = torch.tensor([[2, 9, 4, 1], [3, 6, 5, 1]])
    wanted = theirs.generate(source, num_beams=1, max_new_tokens=8, do_sample=False)[:, 1:].tolist()
    answers = search.greedy(decoder(ours), source, torch.tensor([8, 8]), bos=0, eos=1)
    assert [answer.tokens for answer in answers] == [row[: row.index(1)] if 1 in row else row for row in wanted]


@torch.inference_mode()
def test_a_marian_with_two_vocabularies_translates_with_two_tokenizers(tmp_path):
    folder = tmp_path / "theirs"
    keys = {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model = randomize(marian(share_encoder_decoder_embeddings=False, vocab_size=9, decoder_vocab_size=11, **keys))
    fresh = marian(share_encoder_decoder_embeddings=False, vocab_size=9, decoder_vocab_size=11, **keys)
    for stack in ("encoder", "decoder"):
        tables = (getattr(which.model, stack).embed_positions.weight for which in (model, fresh))
        next(tables).data.copy_(next(tables))
    model.save_pretrained(folder)
    train_tokenizer(["abc"], "characters", 16).save(folder / "tokenizer.json")
    assert_run_refused(folder, r"vocabulary of its own, but there is no target_tokenizer\.json; ")
    train_tokenizer(["vwxyz"], "characters", 16).save(folder / "target_tokenizer.json")
    import_run(folder, tmp_path / "run")
    translator = load(tmp_path / "run", device="cpu")
    [answer] = translator.translate(["abca"], beam=1, tokens=6)
    source = torch.tensor([[*translator.tokenizer.encode(["abca"])[0], 2]])
    ids = model.generate(source, num_beams=1, max_new_tokens=6)[0, 1:].tolist()
    ids = ids[: ids.index(2)] if 2 in ids else ids
    assert answer.ids == ids
    assert set(answer.text) <= set("vwxyz")
    with pytest.raises(ValueError, match=r"has a vocabulary of its own for the target; .* cannot be trained"):
        TASKS["translation"].check(translator.run, translator.model)


def test_generation_settings_become_decode_settings(tmp_path):
    folder = tmp_path / "theirs"
    ids = {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    marian(**ids).save_pretrained(folder)
    save_character_tokenizer(folder)
    update_json(folder / "config.json", num_beams=9)  # transformers ignores it if there is a generation_config.json
    update_json(folder / "generation_config.json", num_beams=3, length_penalty=0.5, no_repeat_ngram_size=2,
                repetition_penalty=1.5,
                min_length=4, max_length=21, bad_words_ids=[[0], [5, 6], [2]], suppress_tokens=[7], forced_bos_token_id=4,
                forced_eos_token_id=2, early_stopping=True)  # fmt: skip
    assert import_run(folder, tmp_path / "run") == ()
    decode = read_run(tmp_path / "run" / "run.toml").decode
    assert (decode.beam_size, decode.length_penalty, decode.no_repeat_ngram_size, decode.repetition_penalty) == (3, 0.5, 2, 1.5)
    assert (decode.min_length, decode.max_length) == (3, 20)  # without the start token
    assert (decode.suppress_tokens, decode.bad_words) == ([7], [[0], [5, 6]])  # without the end
    assert (decode.forced_bos, decode.forced_eos) == (4, 2)
    export_run(tmp_path / "run", tmp_path / "again")
    import_run(tmp_path / "again", tmp_path / "run2")
    assert read_run(tmp_path / "run2" / "run.toml").decode == decode
    (folder / "generation_config.json").unlink()
    update_json(folder / "config.json", max_length=21)
    [note] = import_run(folder, tmp_path / "run3")
    assert read_run(tmp_path / "run3" / "run.toml").decode.beam_size == 9
    assert "early_stopping = False" in note
    assert note in (tmp_path / "run3" / "README.md").read_text()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_beam_groups": 2}, r"generation_config\.json has num_beam_groups = 2; regard's model has 1"),
        ({"begin_suppress_tokens": [3]}, r"begin_suppress_tokens = \[3\]; "),
        ({"do_sample": True}, r"do_sample = True; regard searches for the best answer"),
        ({"sequence_bias": [[[3], 2.0]]}, r"sequence_bias = .*; regard does not support it"),
        ({"suppress_tokens": "all"}, r"suppress_tokens = 'all'; wanted token ids"),
        ({"forced_bos_token_id": [1, 2]}, r"forced_bos_token_id = \[1, 2\]; regard's search has one such token"),
        (
            {"bad_words_ids": [[5], [5, 9999]]},
            r"generation_config\.json has token 9999 in bad_words_ids; its model's tokens are 0 to 15",
        ),
        ({"suppress_tokens": [16]}, r"token 16 in suppress_tokens; its model's tokens are 0 to 15: correct generation_config"),
        ({"forced_eos_token_id": 16}, r"token 16 in forced_eos_token_id; "),
        ({"max_length": 1}, r"max_length = 1, which leaves no token after the start token; wanted 2 or more"),
        ({"max_new_tokens": 0}, r"max_new_tokens = 0; wanted 1 or more"),
        ({"num_beams": 0}, r"num_beams = 0; wanted 1 or more"),
        ({"brand_new": 1}, r"generation_config\.json has brand_new = 1, which regard does not know"),
    ],
    ids=str,
)
def test_a_generation_setting_that_regard_lacks_is_refused(keys, message, tmp_path):
    folder = tmp_path / "theirs"
    marian(bos_token_id=1, eos_token_id=2, decoder_start_token_id=1).save_pretrained(folder)
    save_character_tokenizer(folder)
    update_json(folder / "generation_config.json", **keys)
    assert_run_refused(folder, message)


@pytest.mark.parametrize(
    ("make", "key", "value"),
    [
        (t5, "relative_attention_max_distance", 0),
        (t5, "relative_attention_num_buckets", 2),
        (t5, "num_decoder_layers", -1),
        (t5, "layer_norm_epsilon", -1.0),
        (bert, "type_vocab_size", 0),
        (bert, "layer_norm_eps", -1.0),
        (bert, "hidden_dropout_prob", 2.0),
        (gpt, "n_inner", -3),
        (vit, "image_size", 0),
    ],
)
def test_a_value_that_is_refused_has_the_name_of_the_file(make, key, value, tmp_path):
    make().save_pretrained(tmp_path / "theirs")
    update_json(tmp_path / "theirs" / "config.json", **{key: value})
    assert_run_refused(tmp_path / "theirs", rf"config\.json: {key} is {value}; use ")
