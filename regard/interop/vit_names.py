"""How Hugging Face writes a ViT: its table of names, and what its config.json says.

Shapes: D width, C channels, P side of a patch, T tokens, the class token's first.
"""

from collections.abc import Iterator
from typing import Any

from regard.interop.names import BOTH, ROW, SAME, Described, Names, Theirs, Way, Weights, classes_of, make, same
from regard.models.vit import EPS, ViT, ViTConfig

__all__ = ["THEIRS_VIT"]


def _vit_config(said: Described, weights: Weights) -> ViTConfig:
    same(said, {"hidden_act": "gelu", "layer_norm_eps": EPS, "qkv_bias": True,
                 "problem_type": "single_label_classification"})  # fmt: skip
    said = {"num_channels": 3, **said}  # what is so common that it may be left out
    sizes = {"image": "image_size", "patch": "patch_size", "channels": "num_channels", "dim": "hidden_size",
             "depth": "num_hidden_layers", "heads": "num_attention_heads"}  # fmt: skip
    for key in ("image_size", "patch_size"):  # a square may also be given by both of its sides
        if isinstance(said.get(key), list) and said[key] == 2 * said[key][:1]:
            said = {**said, key: said[key][0]}
    hidden, dim = said.get("intermediate_size"), said.get("hidden_size")
    if not (isinstance(hidden, int) and isinstance(dim, int) and dim > 0 and hidden % dim == 0):
        raise ValueError(
            f"config.json has intermediate_size = {hidden!r}; regard's model has a multiple of hidden_size"
        )
    return make(ViTConfig, said, sizes, mlp_ratio=hidden // dim, classes=classes_of(said, weights, "classifier.weight"),
                 dropout=said.get("hidden_dropout_prob", 0.0), drop_path=said.get("drop_path_rate", 0.0))  # fmt: skip


def _vit_describe(c: ViTConfig) -> dict[str, Any]:
    if c.pool != "token":
        raise ValueError(f"this vit has pool = {c.pool!r}; Hugging Face's has 'token': train it with model.pool=token")
    if c.convs:
        raise ValueError(f"this vit has convs = {c.convs}; Hugging Face's has none: train it with 'model.convs=[]'")
    return {"model_type": "vit", "architectures": ["ViTForImageClassification"], "image_size": c.image,
            "patch_size": c.patch, "num_channels": c.channels, "hidden_size": c.dim, "num_hidden_layers": c.depth,
            "num_attention_heads": c.heads, "intermediate_size": c.mlp_ratio * c.dim, "hidden_act": "gelu",
            "layer_norm_eps": EPS, "qkv_bias": True, "hidden_dropout_prob": c.dropout,
            "attention_probs_dropout_prob": 0.0, "drop_path_rate": c.drop_path, "encoder_stride": c.patch,
            "id2label": {str(n): f"LABEL_{n}" for n in range(c.classes)}}  # fmt: skip


def _vit_names(c: ViTConfig) -> Iterator[Names]:
    at = "vit.embeddings"
    # There a patch goes through a convolution, here through a linear layer: (D, C, P, P) and (D, C · P · P).
    conv = Way(lambda x: x.flatten(1), lambda x: x.unflatten(1, (c.channels, c.patch, c.patch)))
    yield Names("token", (f"{at}.cls_token",))
    yield Names("positions.table", (f"{at}.position_embeddings",), ROW)  # there (1, T, D), here (T, D)
    for kind, way in (("weight", conv), ("bias", SAME)):
        yield Names(f"embed.{kind}", (f"{at}.patch_embeddings.projection.{kind}",), way)
    for kind in BOTH:
        for i in range(c.depth):
            ours, theirs = f"blocks.{i}", f"vit.encoder.layer.{i}"
            three = tuple(f"{theirs}.attention.attention.{one}.{kind}" for one in ("query", "key", "value"))
            yield Names(f"{ours}.attn_residual.norm.{kind}", (f"{theirs}.layernorm_before.{kind}",))
            yield Names(f"{ours}.attn.qkv.{kind}", three)
            yield Names(f"{ours}.attn.out.{kind}", (f"{theirs}.attention.output.dense.{kind}",))
            yield Names(f"{ours}.mlp_residual.norm.{kind}", (f"{theirs}.layernorm_after.{kind}",))
            yield Names(f"{ours}.mlp.up.{kind}", (f"{theirs}.intermediate.dense.{kind}",))
            yield Names(f"{ours}.mlp.down.{kind}", (f"{theirs}.output.dense.{kind}",))
        yield Names(f"final_norm.{kind}", (f"vit.layernorm.{kind}",))
        yield Names(f"classifier.{kind}", (f"classifier.{kind}",))


THEIRS_VIT = {  # by their model_type
    "vit": Theirs("vit", ViT, _vit_config, _vit_describe, _vit_names, "vit.",
                  ignored=("pooler.dense.weight", "pooler.dense.bias", "embeddings.mask_token", "decoder.0.weight",
                           "decoder.0.bias"),  # heads of other tasks
                  heads=lambda c: ("classifier",), bare="ViTModel"),
}  # fmt: skip
