"""ResNet ↔ Hugging Face's resnet: config.json and tensor names, with the statistics of batch norms."""

from collections.abc import Iterator

from regard.interop.keys import KeyTable
from regard.interop.tables import HFCheckpoint, HFFamily, TensorMap, map_layer
from regard.models.resnet import ResNet, ResNetConfig

__all__ = ["FAMILY"]

SIZES = {"channels": "num_channels", "dim": "embedding_size"}  # our key → theirs
FIXED = {"hidden_act": "relu", "downsample_in_first_stage": False, "downsample_in_bottleneck": False}
KEYS = KeyTable.of(
    read="num_channels embedding_size hidden_sizes depths layer_type",
    without_effect="out_features out_indices stage_names",
    refused={key: (value,) for key, value in FIXED.items()},
)


def _parse_config(hf: HFCheckpoint) -> ResNetConfig:
    hf.require(layer_type=("basic", "bottleneck"))
    hf = hf.with_defaults(num_channels=3, embedding_size=64, hidden_sizes=[256, 512, 1024, 2048], depths=[3, 4, 6, 3],
                          layer_type="bottleneck")  # fmt: skip
    return hf.build(ResNetConfig, SIZES, dims=hf.get("hidden_sizes"), depths=hf.get("depths"),
                    block=hf.get("layer_type"), classes=hf.count_classes("classifier.1.weight"))  # fmt: skip


def _describe_config(c: ResNetConfig) -> dict[str, object]:
    for key, value in {"attention": [], "stem": "imagenet"}.items():
        if getattr(c, key) != value:
            raise ValueError(f"this resnet has {key} = {getattr(c, key)!r}; Hugging Face's has {value!r}: train it with "
                             f"model.{key}={value}")  # fmt: skip
    return {"model_type": "resnet", "architectures": ["ResNetForImageClassification"],
            "hidden_sizes": c.dims, "depths": c.depths, "layer_type": c.block, **FIXED}  # fmt: skip


def _map_tensors(c: ResNetConfig) -> Iterator[TensorMap]:
    yield from _map_conv_norm("stem.0", "resnet.embedder.embedder")
    inputs, layers = c.dim, 2 if c.block == "basic" else 3
    for i, (dim, depth) in enumerate(zip(c.dims, c.depths, strict=True)):
        for j in range(depth):
            ours, hf = f"stages.{i}.{j}", f"resnet.encoder.stages.{i}.layers.{j}"
            for n in range(layers):  # our body has a ReLU between two convolutions
                yield from _map_conv_norm(f"{ours}.body.{2 * n}", f"{hf}.layer.{n}")
            if j == 0 and (i > 0 or inputs != dim):
                yield from _map_conv_norm(f"{ours}.shortcut", f"{hf}.shortcut")
            inputs = dim
    yield from map_layer("classifier", "classifier.1")


def _map_conv_norm(ours: str, hf: str) -> Iterator[TensorMap]:
    yield TensorMap(f"{ours}.conv.weight", (f"{hf}.convolution.weight",))
    for kind in ("weight", "bias", "running_mean", "running_var"):
        yield TensorMap(f"{ours}.norm.{kind}", (f"{hf}.normalization.{kind}",))


FAMILY = HFFamily(
    "resnet", "resnet", ResNet, _parse_config, _describe_config, _map_tensors, SIZES, KEYS, "resnet.",
    ignored=("num_batches_tracked",), heads=lambda c: ("classifier",), headless="ResNetModel",
    image_processor="ConvNext",
)  # fmt: skip
