"""How Hugging Face writes Swin, of both versions: a table of names, and what its config.json says.

Shapes: D width of the stage before a merge, P side of a patch, C channels.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.interop.names import BOTH, NOWHERE, SAME, Described, Names, Theirs, Way, Weights, classes_of, make, same
from regard.models.swin import Swin, SwinConfig

__all__ = ["THEIRS_SWIN", "swin_names"]


def _swin_config(said: Described, weights: Weights) -> SwinConfig:
    same(said, {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "qkv_bias": True, "use_absolute_embeddings": False,
                 "problem_type": "single_label_classification"})  # fmt: skip
    sizes = {"image": "image_size", "patch": "patch_size", "channels": "num_channels", "dim": "embed_dim",
             "window": "window_size"}  # fmt: skip
    mlp_ratio = said.get("mlp_ratio", 4.0)
    if not isinstance(mlp_ratio, int | float) or mlp_ratio != int(mlp_ratio):
        raise ValueError(f"config.json has mlp_ratio = {mlp_ratio!r}; regard's model has a whole number")
    depths, second = said.get("depths"), said.get("model_type") == "swinv2"
    pretrained_windows = said.get("pretrained_window_sizes") or []
    if second and isinstance(pretrained_windows, list) and isinstance(depths, list) and any(pretrained_windows):
        pretrained_windows = pretrained_windows[: len(depths)]  # they may name more stages than there are
    else:
        pretrained_windows = []
    return make(SwinConfig, said, sizes, depths=depths, heads=said.get("num_heads"), mlp_ratio=int(mlp_ratio),
                 classes=classes_of(said, weights, "classifier.weight"), version="v2" if second else "v1", pretrained_windows=pretrained_windows,
                 dropout=float(said.get("hidden_dropout_prob", 0.0)),
                 drop_path=float(said.get("drop_path_rate", 0.1)))  # fmt: skip


def _swin_describe(c: SwinConfig) -> dict[str, Any]:
    kind = {"v1": ("swin", "SwinForImageClassification"), "v2": ("swinv2", "Swinv2ForImageClassification")}[c.version]
    return {"model_type": kind[0], "architectures": [kind[1]], "image_size": c.image, "patch_size": c.patch,
            "num_channels": c.channels, "embed_dim": c.dim, "depths": c.depths, "num_heads": c.heads,
            "window_size": c.window, "mlp_ratio": float(c.mlp_ratio), "qkv_bias": True, "hidden_act": "gelu",
            "use_absolute_embeddings": False, "layer_norm_eps": 1e-5, "hidden_dropout_prob": c.dropout,
            "attention_probs_dropout_prob": 0.0, "drop_path_rate": c.drop_path,
            **({"pretrained_window_sizes": c.pretrained_windows or [0] * len(c.depths)} if c.version == "v2" else {}),
            "id2label": {str(i): f"LABEL_{i}" for i in range(c.classes)}}  # fmt: skip


def swin_names(c: SwinConfig) -> Iterator[Names]:
    """Each of our tensors, and where its numbers stand there."""
    second = c.version == "v2"
    theirs = "swinv2" if second else "swin"
    pixels = Way(lambda x: x.flatten(1), lambda x: x.view(-1, c.channels, c.patch, c.patch))  # (D, C, P, P)
    squares = Way(_columns_first, _columns_first)
    yield Names("embed.weight", (f"{theirs}.embeddings.patch_embeddings.projection.weight",), pixels)
    yield Names("embed.bias", (f"{theirs}.embeddings.patch_embeddings.projection.bias",))
    for i, depth in enumerate(c.depths):
        if i:
            before = f"{theirs}.encoder.layers.{i - 1}.downsample"
            yield Names(f"stages.{i}.merge.reduce.weight", (f"{before}.reduction.weight",), squares)
            for kind in BOTH:
                way = SAME if second else squares  # V2 norms what is reduced already
                yield Names(f"stages.{i}.merge.norm.{kind}", (f"{before}.norm.{kind}",), way)
        for n in range(depth):
            yield from _block_names(f"stages.{i}.blocks.{n}", f"{theirs}.encoder.layers.{i}.blocks.{n}", second)
    for kind in BOTH:
        yield Names(f"norm.{kind}", (f"{theirs}.embeddings.norm.{kind}",))
        yield Names(f"final_norm.{kind}", (f"{theirs}.layernorm.{kind}",))
        yield Names(f"classifier.{kind}", (f"classifier.{kind}",))


def _columns_first(x: Tensor) -> Tensor:
    """The four places of a square, which they read column by column and we row by row: (..., 4 · D) → (..., 4 · D)."""
    first, second, third, last = x.chunk(4, -1)
    return torch.cat((first, third, second, last), -1)


def _block_names(ours: str, theirs: str, second: bool) -> Iterator[Names]:
    look = f"{theirs}.attention.self"
    three = [f"{look}.{one}" for one in ("query", "key", "value")]
    yield Names(f"{ours}.attn.qkv.weight", tuple(f"{one}.weight" for one in three))
    for kind in BOTH:
        yield Names(f"{ours}.attn.out.{kind}", (f"{theirs}.attention.output.dense.{kind}",))
        yield Names(f"{ours}.attn_residual.norm.{kind}", (f"{theirs}.layernorm_before.{kind}",))
        yield Names(f"{ours}.mlp.up.{kind}", (f"{theirs}.intermediate.dense.{kind}",))
        yield Names(f"{ours}.mlp.down.{kind}", (f"{theirs}.output.dense.{kind}",))
        yield Names(f"{ours}.mlp_residual.norm.{kind}", (f"{theirs}.layernorm_after.{kind}",))
    if second:
        yield Names(f"{ours}.attn.qkv.bias", (f"{look}.query.bias", NOWHERE, f"{look}.value.bias"))
        yield Names(f"{ours}.attn.prepare.temperature", (f"{look}.logit_scale",))
        for kind in BOTH:
            yield Names(f"{ours}.bias.up.{kind}", (f"{look}.continuous_position_bias_mlp.0.{kind}",))
        yield Names(f"{ours}.bias.down.weight", (f"{look}.continuous_position_bias_mlp.2.weight",))
    else:
        yield Names(f"{ours}.attn.qkv.bias", tuple(f"{one}.bias" for one in three))
        yield Names(f"{ours}.bias.table", (f"{look}.relative_position_bias_table",))


_IGNORED = ("relative_position_index", "relative_coords_table")  # which a window's side says
THEIRS_SWIN = {  # by their model_type; one table for both, as our config says which of the two it is
    "swin": Theirs("swin", Swin, _swin_config, _swin_describe, swin_names, "swin.", ignored=_IGNORED,
                   heads=lambda c: ("classifier",), bare="SwinModel"),
    "swinv2": Theirs("swin", Swin, _swin_config, _swin_describe, swin_names, "swinv2.", ignored=_IGNORED,
                     heads=lambda c: ("classifier",), bare="Swinv2Model"),
}  # fmt: skip
