"""Checkpoints store the same model in several ways; each is read with the same logits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hf_models import CLOSE, SMALL, T5, Both, hf_model, logits, randomize, same_weights, sentences
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.interop.hf import import_model


def update_json(file: Path, changes: dict[str, Any], without: tuple[str, ...] = ()) -> None:
    config = {key: value for key, value in json.loads(file.read_text()).items() if key not in without}
    file.write_text(json.dumps(config | changes))


@torch.inference_mode()
@pytest.mark.parametrize("old", [True, False], ids=["old keys", "new keys"])
@pytest.mark.parametrize("own", [True, False], ids=["untied output", "tied output"])
@pytest.mark.parametrize("scaled", [True, False], ids=["scaled", "not scaled"])
def test_every_form_of_t5s_output_layer_is_read(scaled, own, old, tmp_path):
    """Old checkpoints have only tie_word_embeddings; in new ones it is always true, and scale_decoder_outputs counts."""
    theirs = randomize(transformers.T5ForConditionalGeneration(transformers.T5Config(**T5, tie_word_embeddings=scaled)))
    if own:
        theirs.lm_head.weight = nn.Parameter(theirs.lm_head.weight.flip(0).contiguous())
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["scale_decoder_outputs"], config["tie_word_embeddings"]) == (scaled, True)
    if old:
        keys = {} if scaled else {"tie_word_embeddings": False}
        update_json(tmp_path / "config.json", keys, without=("scale_decoder_outputs", "tie_word_embeddings"))
    if old and not scaled and not own:  # older versions of transformers would initialize it at random
        with pytest.raises(ValueError, match=r"there is no tensor lm_head\.weight; "):
            import_model(tmp_path)
        return
    family, config, ours = import_model(tmp_path)
    assert config.tied == (scaled and not own)
    wanted, got = logits(Both("t5", theirs, family, config, ours, 0))
    torch.testing.assert_close(got, wanted, **CLOSE)


@torch.inference_mode()
def test_a_marian_with_minus_infinity_for_padding_has_finite_logits(tmp_path):
    theirs = randomize(hf_model("marian", SMALL))
    theirs.final_logits_bias[:, 96] = -torch.inf
    theirs.save_pretrained(tmp_path)
    _, _, ours = import_model(tmp_path)
    source, _ = sentences(2, 12, 2, pad=96)
    output = ours(source, source)
    assert output.isfinite().all()
    assert (output[..., 96] < -5e3).all()


def to_half(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.half() if weight.is_floating_point() else weight for name, weight in weights.items()}


def to_bfloat16(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.bfloat16() if weight.is_floating_point() else weight for name, weight in weights.items()}


def to_old_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names in bert-base-uncased."""
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, first in old.items():
        weights = {name.replace(new, first): weight for name, weight in weights.items()}
    return weights | {"cls.seq_relationship.weight": torch.zeros(2, 32), "cls.seq_relationship.bias": torch.zeros(2)}


def to_untied_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Store the tied output weight too, and the bias under its second name only."""
    table = weights["bert.embeddings.word_embeddings.weight"].clone()
    bias = weights.pop("cls.predictions.bias")
    return weights | {"cls.predictions.decoder.weight": table, "cls.predictions.decoder.bias": bias}


@torch.inference_mode()
@pytest.mark.parametrize("form", [to_half, to_bfloat16, to_old_names, to_untied_names])
def test_other_dtypes_and_tensor_names_are_read(form: Callable[[Any], Any], tmp_path):
    theirs = randomize(hf_model("bert", SMALL))
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(form(load_file(file)), file, {"format": "pt"})
    family, config, ours = import_model(tmp_path)
    assert {p.dtype for p in ours.parameters()} == {torch.float32}
    if form in (to_half, to_bfloat16):
        for p in theirs.parameters():
            p.copy_(p.half() if form is to_half else p.bfloat16())
    wanted, got = logits(Both("bert", theirs, family, config, ours, 0))
    torch.testing.assert_close(got, wanted, **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["gpt2", "t5", "marian"])
def test_sharded_weights_are_read(kind, tmp_path):
    theirs = randomize(hf_model(kind, SMALL))
    theirs.save_pretrained(tmp_path / "one")
    theirs.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert not (tmp_path / "many" / "model.safetensors").exists()
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 2
    assert same_weights(import_model(tmp_path / "many")[2], import_model(tmp_path / "one")[2])
