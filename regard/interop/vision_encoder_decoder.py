"""Caption Transformer ↔ Hugging Face's vision-encoder-decoder, a ViT and a GPT-2: config.json and tensor names.

Shapes: D width.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from regard.config import build
from regard.interop import gpt2, vit
from regard.interop.generation import CONFIG_KEYS as CONFIG
from regard.interop.keys import KeyTable
from regard.interop.tables import HFCheckpoint, HFFamily, TensorMap, TextFormat, map_layer
from regard.models.caption_transformer import CaptionTransformer, CaptionTransformerConfig
from regard.models.gpt import GPTConfig
from regard.models.vit import ViTConfig

__all__ = ["FAMILY"]

KEYS = KeyTable.of(
    read="encoder decoder",  # each with the keys of its own family
    without_effect="tie_word_embeddings",  # of encoder and decoder: the decoder ties its own
    refused={"is_encoder_decoder": (True,)},
)
DECODER_KEYS = gpt2.KEYS | KeyTable.of("add_cross_attention is_decoder")
PARTS = {"encoder": "vit", "decoder": "gpt2"}  # table of config.json → its model_type
DECODER = tuple(field.name for field in dataclasses.fields(GPTConfig))  # keys that ours shares with a GPT


def _parse_config(hf: HFCheckpoint) -> CaptionTransformerConfig:
    encoder, decoder = (_part(hf, name) for name in PARTS)
    if decoder.get("add_cross_attention") is not True:
        raise ValueError("config.json has no decoder.add_cross_attention = true; without it the decoder cannot see the image")
    eyes = dataclasses.asdict(vit.FAMILY.parse_config(encoder))
    gpt = gpt2.FAMILY.parse_config(decoder)
    return build("config.json", CaptionTransformerConfig, {**dataclasses.asdict(gpt), "encoder": {"family": "vit", **eyes}})


def _part(hf: HFCheckpoint, name: str) -> HFCheckpoint:
    """The encoder or the decoder of a checkpoint, without its tensors."""
    table = hf.get(name)
    part = HFCheckpoint(table if isinstance(table, dict) else {}, {}, inside=f"{name}.")
    if part.get("model_type") != PARTS[name]:
        raise ValueError(f"config.json has {name}.model_type = {part.get('model_type')!r}; regard reads a "
                         f"{' encoder with a '.join(PARTS.values())} decoder: use a checkpoint of these")  # fmt: skip
    part.check(CONFIG | {"encoder": vit.KEYS, "decoder": DECODER_KEYS}[name])
    return part


def _split(c: CaptionTransformerConfig) -> tuple[ViTConfig, GPTConfig]:
    """The configs of encoder and decoder, each as that of a model of its own."""
    encoder: dict[str, Any] = {key: value for key, value in c.encoder.items() if key != "family"}
    if (family := c.encoder["family"]) != "vit":
        raise ValueError(f"this caption-transformer has a {family} encoder; only those with a vit can be exported: "
                         f"train it with model.encoder.family=vit")  # fmt: skip
    return ViTConfig(**encoder), GPTConfig(**{key: getattr(c, key) for key in DECODER})


def _describe_config(c: CaptionTransformerConfig) -> dict[str, object]:
    eyes, gpt = _split(c)
    encoder = {**vit.FAMILY.describe(eyes), "architectures": ["ViTModel"]}
    decoder = {**gpt2.FAMILY.describe(gpt), "add_cross_attention": True, "is_decoder": True}
    return {"model_type": "vision-encoder-decoder", "architectures": ["VisionEncoderDecoderModel"],
            "is_encoder_decoder": True, "tie_word_embeddings": False,  # of encoder and decoder: the decoder ties its own
            "encoder": {key: value for key, value in encoder.items() if key != "id2label"}, "decoder": decoder}  # fmt: skip


def _map_tensors(c: CaptionTransformerConfig) -> Iterator[TensorMap]:
    eyes, gpt = _split(c)
    for entry in vit.FAMILY.map_tensors(eyes):
        if not entry.ours.startswith("classifier."):
            names = tuple(f"encoder.{name.removeprefix(vit.FAMILY.prefix)}" for name in entry.hf)
            yield entry._replace(ours=f"encoder.net.{entry.ours}", hf=names)
    if eyes.dim != gpt.dim:
        yield from map_layer("encoder_projection", "enc_to_dec_proj")
    for entry in gpt2.FAMILY.map_tensors(gpt):
        ours = entry.ours.replace("blocks.", "decoder.").replace("final_norm.", "decoder_norm.")
        yield entry._replace(ours=ours, hf=tuple(f"decoder.{name}" for name in entry.hf))
    for i in range(gpt.depth):
        ours, hf = f"decoder.{i}.cross", f"decoder.transformer.h.{i}"
        yield from map_layer(f"{ours}_residual.norm", f"{hf}.ln_cross_attn")
        yield from map_layer(f"{ours}.out", f"{hf}.crossattention.c_proj", weight=gpt2.TRANSPOSED)
        # Their keys and values are one matrix of twice the rows of the queries.
        for entry in map_layer(f"{ours}.qkv", f"{hf}.crossattention.q_attn", f"{hf}.crossattention.c_attn",
                               weight=gpt2.TRANSPOSED):  # fmt: skip
            yield entry._replace(heights=(1, 2))


def _find_aliases(hf: HFCheckpoint) -> dict[str, str]:
    """Second names of the decoder's tensors."""
    aliases = gpt2.FAMILY.aliases(_part(hf, "decoder"))
    return {f"decoder.{second}": f"decoder.{first}" for second, first in aliases.items()}


FAMILY = HFFamily(
    "vision-encoder-decoder", "caption-transformer", CaptionTransformer, _parse_config, _describe_config, _map_tensors, {}, KEYS,
    aliases=_find_aliases,
    ignored=(*gpt2.FAMILY.ignored, ".crossattention.bias", ".crossattention.masked_bias", *vit.FAMILY.dropped),
    text=TextFormat("bytes", {"pad_token_id": "pad", "eos_token_id": "eos", "decoder_start_token_id": "bos",
                              "bos_token_id": "bos"}, unchecked=("pad_token_id", "bos_token_id")),
    image_processor="ViT",
)  # fmt: skip
