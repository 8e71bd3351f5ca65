"""Swin, versions 1 and 2 ↔ Hugging Face's swin and swinv2: config.json and tensor names.

Shapes: D width of the stage before a merge, P side of a patch, C channels.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from regard.interop.keys import KeyTable
from regard.interop.tables import SAME, ZEROS, HFCheckpoint, HFFamily, TensorMap, Transform, map_layer
from regard.models.swin import Swin, SwinConfig

__all__ = ["V1", "V2"]

SIZES = {"image": "image_size", "patch": "patch_size", "channels": "num_channels", "dim": "embed_dim",
         "window": "window_size"}  # our key → theirs  # fmt: skip
FIXED = {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "qkv_bias": True, "use_absolute_embeddings": False}
KEYS = KeyTable.of(
    read="image_size patch_size num_channels embed_dim window_size depths num_heads mlp_ratio hidden_dropout_prob drop_path_rate",
    without_effect="attention_probs_dropout_prob encoder_stride hidden_size num_layers out_features out_indices stage_names "
    "path_norm",
    refused={**{key: (value,) for key, value in FIXED.items()}, "pretrained_window_sizes": ([0, 0, 0, 0],)},
)
BLOCK = {"attn.out": "attention.output.dense", "attn_residual.norm": "layernorm_before", "mlp.up": "intermediate.dense",
         "mlp.down": "output.dense", "mlp_residual.norm": "layernorm_after"}  # fmt: skip


def _parse_config(hf: HFCheckpoint) -> SwinConfig:
    hf = hf.square("image_size", "patch_size", "window_size")
    ratio, depths, windows = hf.number("mlp_ratio", 4.0), hf.get("depths"), hf.get("pretrained_window_sizes")
    if not ratio.is_integer():
        raise ValueError(f"config.json has mlp_ratio = {ratio!r}; regard's model has a whole number")
    v2 = hf.get("model_type") == V2.model_type
    if not (v2 and isinstance(windows, list) and any(windows)):
        windows = []
    elif isinstance(depths, list):
        windows = windows[: len(depths)]  # it may list further stages
    return hf.build(SwinConfig, SIZES, depths=depths, heads=hf.get("num_heads"), mlp_ratio=int(ratio),
                    classes=hf.count_classes("classifier.weight"), version="v2" if v2 else "v1", pretrained_windows=windows,
                    dropout=hf.number("hidden_dropout_prob", 0.0), drop_path=hf.number("drop_path_rate", 0.1))  # fmt: skip


def _describe_config(c: SwinConfig) -> dict[str, object]:
    windows = c.pretrained_windows or [0] * len(c.depths)
    model_type, name = {"v1": ("swin", "Swin"), "v2": ("swinv2", "Swinv2")}[c.version]
    return {"model_type": model_type, "architectures": [f"{name}ForImageClassification"], **FIXED,
            "depths": c.depths, "num_heads": c.heads, "mlp_ratio": float(c.mlp_ratio),
            "hidden_dropout_prob": c.dropout, "attention_probs_dropout_prob": 0.0, "drop_path_rate": c.drop_path,
            **({"pretrained_window_sizes": windows} if c.version == "v2" else {})}  # fmt: skip


def _map_tensors(c: SwinConfig) -> Iterator[TensorMap]:
    v2 = c.version == "v2"
    root = "swinv2" if v2 else "swin"
    conv = Transform(lambda x: x.flatten(1), lambda x: x.view(-1, c.channels, c.patch, c.patch))  # (D, C, P, P)
    square = Transform(_swap_middle, _swap_middle)
    yield from map_layer("embed", f"{root}.embeddings.patch_embeddings.projection", weight=conv)
    yield from map_layer("norm", f"{root}.embeddings.norm")
    for i, depth in enumerate(c.depths):
        if i:
            merge = f"{root}.encoder.layers.{i - 1}.downsample"
            norm = SAME if v2 else square  # V2 normalizes after the reduction
            yield TensorMap(f"stages.{i}.merge.reduce.weight", (f"{merge}.reduction.weight",), square)
            yield from map_layer(f"stages.{i}.merge.norm", f"{merge}.norm", weight=norm, bias=norm)
        for n in range(depth):
            yield from _map_block(f"stages.{i}.blocks.{n}", f"{root}.encoder.layers.{i}.blocks.{n}", v2)
    yield from map_layer("final_norm", f"{root}.layernorm")
    yield from map_layer("classifier", "classifier")


def _swap_middle(x: Tensor) -> Tensor:
    """Reorder the four patches of a merge, column by column ↔ row by row: (..., 4 · D) → (..., 4 · D)."""
    first, second, third, last = x.chunk(4, -1)
    return torch.cat((first, third, second, last), -1)


def _map_block(ours: str, hf: str, v2: bool) -> Iterator[TensorMap]:
    for part, name in BLOCK.items():
        yield from map_layer(f"{ours}.{part}", f"{hf}.{name}")
    attn = f"{hf}.attention.self"
    key_bias = ZEROS if v2 else f"{attn}.key.bias"
    yield TensorMap(f"{ours}.attn.qkv.weight", (f"{attn}.query.weight", f"{attn}.key.weight", f"{attn}.value.weight"))
    yield TensorMap(f"{ours}.attn.qkv.bias", (f"{attn}.query.bias", key_bias, f"{attn}.value.bias"))
    if v2:
        yield TensorMap(f"{ours}.attn.prepare.temperature", (f"{attn}.logit_scale",))
        yield from map_layer(f"{ours}.bias.up", f"{attn}.continuous_position_bias_mlp.0")
        yield TensorMap(f"{ours}.bias.down.weight", (f"{attn}.continuous_position_bias_mlp.2.weight",))
    else:
        yield TensorMap(f"{ours}.bias.table", (f"{attn}.relative_position_bias_table",))


V1 = HFFamily(
    "swin", "swin", Swin, _parse_config, _describe_config, _map_tensors, SIZES, KEYS, "swin.",
    ignored=("relative_position_index", "relative_coords_table"),  # computed from the window size
    heads=lambda c: ("classifier",), headless="SwinModel", image_processor="ViT",
)  # fmt: skip
V2 = replace(
    V1, model_type="swinv2", keys=KEYS | KeyTable.of("pretrained_window_sizes"), prefix="swinv2.", headless="Swinv2Model"
)
