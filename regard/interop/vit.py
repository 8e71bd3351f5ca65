"""ViT ↔ Hugging Face's vit: config.json and tensor names.

Shapes: D width, C channels, P side of a patch, T tokens, the class token first.
"""

from collections.abc import Iterator

from regard.interop.keys import THEIRS, KeyTable
from regard.interop.tables import FIRST_ROW, HFCheckpoint, HFFamily, TensorMap, Transform, map_layer
from regard.models.vit import ViT, ViTConfig

__all__ = ["FAMILY"]

SIZES = {"image": "image_size", "patch": "patch_size", "channels": "num_channels", "dim": "hidden_size",
         "depth": "num_hidden_layers", "heads": "num_attention_heads"}  # our key → theirs  # fmt: skip
KEYS = KeyTable.of(
    read="image_size patch_size num_channels hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act "
    "layer_norm_eps qkv_bias hidden_dropout_prob drop_path_rate",
    without_effect="attention_probs_dropout_prob encoder_stride pooler_act pooler_output_size",
)
BLOCK = {
    "attn_residual.norm": ("layernorm_before",),
    "attn.qkv": ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    "attn.out": ("attention.output.dense",), "mlp_residual.norm": ("layernorm_after",),
    "mlp.up": ("intermediate.dense",), "mlp.down": ("output.dense",),
}  # fmt: skip


def _parse_config(hf: HFCheckpoint) -> ViTConfig:
    hf = hf.with_defaults(num_channels=3).square("image_size", "patch_size")
    return hf.build(ViTConfig, SIZES, **hf.mlp_width("intermediate_size", "hidden_size"),
                    classes=hf.count_classes("classifier.weight"), dropout=hf.number("hidden_dropout_prob", 0.0),
                    drop_path=hf.number("drop_path_rate", 0.0), activation=hf.activation("hidden_act", "gelu"),
                    eps=hf.number("layer_norm_eps", 1e-12), qkv_bias=hf.get("qkv_bias") is not False)  # fmt: skip


def _describe_config(c: ViTConfig) -> dict[str, object]:
    if c.pool != "token":
        raise ValueError(f"this vit has pool = {c.pool!r}; Hugging Face's has 'token': train it with model.pool=token")
    if c.convs:
        raise ValueError(f"this vit has convs = {c.convs}; Hugging Face's has none: train it with 'model.convs=[]'")
    return {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_act": THEIRS[c.activation],
            "layer_norm_eps": c.eps, "qkv_bias": c.qkv_bias, "intermediate_size": c.mlp_dim or c.mlp_ratio * c.dim,
            "hidden_dropout_prob": c.dropout,
            "attention_probs_dropout_prob": 0.0, "drop_path_rate": c.drop_path, "encoder_stride": c.patch}  # fmt: skip


def _map_tensors(c: ViTConfig) -> Iterator[TensorMap]:
    # Their patch embedding is a convolution (D, C, P, P), ours is linear (D, C · P · P).
    conv = Transform(lambda x: x.flatten(1), lambda x: x.unflatten(1, (c.channels, c.patch, c.patch)))
    yield TensorMap("token", ("vit.embeddings.cls_token",))
    yield TensorMap("positions.table", ("vit.embeddings.position_embeddings",), FIRST_ROW)  # (1, T, D) → (T, D)
    yield from map_layer("embed", "vit.embeddings.patch_embeddings.projection", weight=conv)
    for i in range(c.depth):
        for ours, names in BLOCK.items():
            for entry in map_layer(f"blocks.{i}.{ours}", *(f"vit.encoder.layer.{i}.{name}" for name in names)):
                if c.qkv_bias or not entry.ours.endswith("qkv.bias"):
                    yield entry
    yield from map_layer("final_norm", "vit.layernorm")
    yield from map_layer("classifier", "classifier")


FAMILY = HFFamily(
    "vit", "vit", ViT, _parse_config, _describe_config, _map_tensors, SIZES, KEYS, "vit.",
    dropped=("pooler.dense.weight", "pooler.dense.bias", "embeddings.mask_token", "decoder.0.weight", "decoder.0.bias"),
    heads=lambda c: ("classifier",), headless="ViTModel", image_processor="ViT",
)  # fmt: skip
