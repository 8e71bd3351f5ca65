"""How Hugging Face writes a ResNet: its table of names, and what its config.json says.

A batch norm has more than learnt weights: the mean and variance it has counted stand beside them, here and there.
"""

from collections.abc import Iterator
from typing import Any

from regard.interop.names import BOTH, Described, Names, Theirs, Weights, classes_of, make, same
from regard.models.resnet import ResNet, ResNetConfig

__all__ = ["THEIRS_RESNET"]

NORM = (*BOTH, "running_mean", "running_var")


def _resnet_config(said: Described, weights: Weights) -> ResNetConfig:
    same(said, {"hidden_act": "relu", "downsample_in_first_stage": False, "downsample_in_bottleneck": False,
                 "layer_type": ("basic", "bottleneck"), "problem_type": "single_label_classification"})  # fmt: skip
    said = {"num_channels": 3, "embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048], "depths": [3, 4, 6, 3],
            "layer_type": "bottleneck", **said}  # their defaults  # fmt: skip
    return make(ResNetConfig, said, {"channels": "num_channels", "dim": "embedding_size"}, dims=said["hidden_sizes"],
                 depths=said["depths"], block=said["layer_type"],
                 classes=classes_of(said, weights, "classifier.1.weight"))  # fmt: skip


def _resnet_describe(c: ResNetConfig) -> dict[str, Any]:
    for key, value in {"attention": [], "stem": "imagenet"}.items():
        if getattr(c, key) != value:
            raise ValueError(f"this resnet has {key} = {getattr(c, key)!r}; Hugging Face's has {value!r}: train it with "
                             f"model.{key}={value}")  # fmt: skip
    return {"model_type": "resnet", "architectures": ["ResNetForImageClassification"], "num_channels": c.channels,
            "embedding_size": c.dim, "hidden_sizes": c.dims, "depths": c.depths, "layer_type": c.block,
            "hidden_act": "relu", "downsample_in_first_stage": False, "downsample_in_bottleneck": False,
            "id2label": {str(n): f"LABEL_{n}" for n in range(c.classes)}}  # fmt: skip


def _resnet_names(c: ResNetConfig) -> Iterator[Names]:
    yield from _conv_norm("stem.0", "resnet.embedder.embedder")
    inputs, layers = c.dim, 2 if c.block == "basic" else 3
    for i, (dim, depth) in enumerate(zip(c.dims, c.depths, strict=True)):
        for j in range(depth):
            ours, theirs = f"stages.{i}.{j}", f"resnet.encoder.stages.{i}.layers.{j}"
            for n in range(layers):  # in ours there is a ReLU between each two
                yield from _conv_norm(f"{ours}.body.{2 * n}", f"{theirs}.layer.{n}")
            if j == 0 and (i > 0 or inputs != dim):
                yield from _conv_norm(f"{ours}.shortcut", f"{theirs}.shortcut")
            inputs = dim
    for kind in BOTH:
        yield Names(f"classifier.{kind}", (f"classifier.1.{kind}",))


def _conv_norm(ours: str, theirs: str) -> Iterator[Names]:
    yield Names(f"{ours}.conv.weight", (f"{theirs}.convolution.weight",))
    for kind in NORM:
        yield Names(f"{ours}.norm.{kind}", (f"{theirs}.normalization.{kind}",))


THEIRS_RESNET = {  # by their model_type
    "resnet": Theirs("resnet", ResNet, _resnet_config, _resnet_describe, _resnet_names, "resnet.",
                     ignored=("num_batches_tracked",), heads=lambda c: ("classifier",), bare="ResNetModel"),
}  # fmt: skip
