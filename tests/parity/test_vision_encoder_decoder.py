"""A caption Transformer with imported weights equals Hugging Face's ViT with GPT-2: logits, greedy and beam output, round trip.

Shapes: B images, T tokens.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hf_models import CLOSE, GPT, randomize, same_weights, sentences
from torch import Tensor

from regard.data.text.tokenizer import SpecialTokens
from regard.decode import search
from regard.decode.fast import decoder
from regard.interop.hf import export_model, import_model

PAD, BOS, EOS = 0, 1, 2
SPECIAL = SpecialTokens(PAD, BOS, EOS, 3, None, ())
VIT = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "image_size": 28, "patch_size": 7}
WIDTHS = {"same width": 32, "wider encoder": 48, "narrower encoder": 16}  # the decoder has 32


def make_theirs(width: int, **keys: Any) -> Any:
    """Hugging Face's model with random weights and sharp attention, so that captions depend on the image."""
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    sizes = {**VIT, "hidden_size": width, "intermediate_size": 2 * width}
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**sizes), transformers.GPT2Config(**{**GPT, "add_cross_attention": True, **ids, **keys}),
        decoder_start_token_id=BOS, **ids)  # fmt: skip
    model = randomize(transformers.VisionEncoderDecoderModel(config=config))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(5 if name.endswith("crossattention.q_attn.weight") else 1)
    for part in (model, model.encoder, model.decoder):
        part.set_attn_implementation("eager")  # not the fused kernel that we call
    return model


def random_images(count: int) -> Tensor:
    return torch.randn(count, 3, 28, 28, generator=torch.Generator().manual_seed(count))


@pytest.fixture(scope="module", params=WIDTHS)
def both(request, tmp_path_factory):
    """Hugging Face's model, and ours imported from it."""
    folder = tmp_path_factory.mktemp("theirs")
    theirs = make_theirs(WIDTHS[request.param])
    theirs.save_pretrained(folder)
    return theirs, *import_model(folder)


@torch.inference_mode()
def test_logits_equal_hugging_faces_with_padded_targets(both):
    theirs, family, _, ours = both
    images, (target, real) = random_images(5), sentences(5, 20, 0)
    assert family == "caption-transformer"
    assert not real.all()
    wanted = theirs(pixel_values=images, decoder_input_ids=target, decoder_attention_mask=real.long()).logits
    assert wanted.std() > 0.1
    torch.testing.assert_close(ours(images, target)[real], wanted[real], **CLOSE)
    other = theirs(pixel_values=images.flip(0), decoder_input_ids=target).logits
    assert (other[real] - wanted[real]).abs().max() > 0.1  # the image matters


@torch.inference_mode()
def test_the_loss_of_hugging_faces_shifted_labels_is_ours(both):
    theirs, _, _, ours = both
    images, (labels, real) = random_images(4), sentences(4, 12, 1)
    wanted = theirs(pixel_values=images, labels=labels.masked_fill(~real, -100)).loss
    inputs = torch.cat((torch.full((4, 1), BOS), labels[:, :-1]), 1)  # a start token before each caption
    logs = ours(images, inputs).log_softmax(-1).gather(2, labels[:, :, None])[:, :, 0]
    torch.testing.assert_close(-logs[real].mean(), wanted, **CLOSE)


@torch.inference_mode()
def test_greedy_captions_equal_hugging_faces(both):
    theirs, _, _, ours = both
    images = random_images(8)
    wanted = strip(theirs.generate(images, do_sample=False, max_new_tokens=20))
    found = search.greedy(decoder(ours), images, torch.full((8,), 20), bos=BOS, eos=EOS)
    assert [hypothesis.tokens for hypothesis in found] == wanted
    assert len({tuple(row) for row in wanted}) > 4  # captions depend on the image


@torch.inference_mode()
def test_beam_captions_equal_hugging_faces(both):
    theirs, _, _, ours = both
    images = random_images(8)
    wanted = strip(theirs.generate(images, do_sample=False, max_new_tokens=15, num_beams=4, early_stopping=True))
    found = search.beam(decoder(ours), images, torch.full((8,), 15), bos=BOS, eos=EOS, width=4)
    assert [best.tokens for best, *_ in found] == wanted


def strip(captions: Tensor) -> list[list[int]]:
    """Captions without start, end and padding."""
    return [row[: row.index(EOS)] if EOS in row else row for row in captions[:, 1:].tolist()]


@torch.inference_mode()
def test_from_pretrained_loads_an_export_with_the_same_logits(both, tmp_path):
    theirs, family, config, ours = both
    export_model(family, config, ours, tmp_path, SPECIAL)
    again, info = transformers.VisionEncoderDecoderModel.from_pretrained(tmp_path, output_loading_info=True)
    assert all("encoder.pooler." in name for name in info["missing_keys"])  # which captions do not use
    assert not info["unexpected_keys"]
    images, (target, _) = random_images(3), sentences(3, 9, 0)
    wanted, got = (model.eval()(pixel_values=images, decoder_input_ids=target).logits for model in (theirs, again))
    torch.testing.assert_close(got, wanted, **CLOSE)
    assert again.generation_config.decoder_start_token_id == BOS
    torch.testing.assert_close(again.generate(images, max_new_tokens=9), theirs.generate(images, max_new_tokens=9))


def test_export_then_import_is_bit_identical(both, tmp_path):
    _, family, config, ours = both
    export_model(family, config, ours, tmp_path, SPECIAL)
    again = import_model(tmp_path)
    assert again[:2] == (family, config)
    assert same_weights(again[2], ours)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    make_theirs(32).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("part", "keys", "message"),
    [
        ("encoder", {"model_type": "swin"}, r"encoder\.model_type = 'swin'; regard reads a vit encoder with a gpt2 decoder"),
        ("decoder", {"model_type": "bert"}, r"decoder\.model_type = 'bert'; regard reads a vit encoder with a gpt2 decoder"),
        ("decoder", {"add_cross_attention": False}, r"no decoder\.add_cross_attention = true; .* cannot see the image"),
        ("decoder", {"cross_attention_hidden_size": 48}, r"decoder\.cross_attention_hidden_size = 48; regard does not sup"),
        ("decoder", {"activation_function": "tanh"}, r"decoder\.activation_function = 'tanh'; regard's model has 'relu'"),
        ("encoder", {"image_size": 56}, r"position_embeddings is \(1, 17, 32\); its config\.json makes it \(1, 65, 32\)"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_in_one_line(saved, tmp_path, part, keys, message):
    config = json.loads((saved / "config.json").read_text())
    config[part] |= keys
    (tmp_path / "config.json").write_text(json.dumps(config))
    Path(tmp_path / "model.safetensors").symlink_to(saved / "model.safetensors")
    with pytest.raises(ValueError, match=message) as error:
        import_model(tmp_path)
    assert "\n" not in str(error.value)
