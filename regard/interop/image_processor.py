"""preprocessor_config.json ↔ how our images are prepared.

image ── resize to `resize`: both sides (squash), or the shorter (crop) ── center crop of `image` ── minus mean, over std
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regard.interop.keys import KeyTable, check_keys
from regard.interop.tables import HFConfig
from regard.interop.weights import read_json

__all__ = ["PROCESSOR", "ImagePreprocessing", "describe_processor", "read_processor"]

PROCESSOR = "preprocessor_config.json"
RESAMPLING: dict[int, Literal["bilinear", "bicubic"]] = {2: "bilinear", 3: "bicubic"}  # by PIL's constants
DEFAULTS: dict[str, dict[str, object]] = {  # kind of processor → values of the keys its file may omit
    "ViT": {"size": {"height": 224, "width": 224}, "resample": 2},
    "DeiT": {"size": {"height": 256, "width": 256}, "resample": 3, "do_center_crop": True, "crop_size": 224},
    "ConvNext": {"size": {"shortest_edge": 384}, "resample": 3, "crop_pct": 224 / 256},
    "Bit": {"size": {"shortest_edge": 224}, "resample": 3, "do_center_crop": True, "crop_size": 224},
}
SQUASH_FROM = 384  # pixels from which ConvNext's processor squashes an image instead of cropping it
KEYS = KeyTable.of(
    read="image_processor_type feature_extractor_type do_resize size resample do_center_crop crop_size crop_pct do_rescale "
    "rescale_factor do_normalize image_mean image_std",
    # Images are always read as RGB, or grey, as the model has channels; the rest is how the library computes.
    without_effect="do_convert_rgb default_to_square input_data_format data_format return_tensors disable_grouping device "
    "processor_class image_processor_class model_input_names transformers_version use_fast backend crop_to_patches",
    refused={
        "do_flip_channel_order": (False,),
        "do_pad": (False,),
        "pad_size": (),
        "offset": (False,),
        "auto_map": (),
        "do_thumbnail": (False,),
        "do_align_long_axis": (False,),
        "do_reduce_labels": (False,),
        "size_divisor": (),
        "image_seq_length": (),
    },
)


@dataclass(frozen=True)
class ImagePreprocessing:
    """How an image becomes the input of a model."""

    image: int  # side of the input, in pixels
    resize: int  # side before the center crop
    fit: Literal["crop", "squash"]  # whether the shorter side is resized to that, or both
    resample: Literal["bilinear", "bicubic"]
    mean: list[float]  # of each channel, of pixels from 0 to 1
    std: list[float]


def read_processor(folder: Path, default: str, channels: int) -> ImagePreprocessing:
    """Read a checkpoint's preprocessing; `default` is the kind of processor if the file names none."""
    hf: HFConfig = read_json(folder, PROCESSOR)
    if not hf:
        raise ValueError(f"there is no {PROCESSOR}, which describes how images are resized; make one with transformers, "
                         f"AutoImageProcessor.from_pretrained(...).save_pretrained(...), and put it there")  # fmt: skip
    kind = _parse_kind(hf, default)
    hf = {"do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255, **DEFAULTS[kind],
          **{key: value for key, value in hf.items() if value is not None}}  # fmt: skip
    check_keys(PROCESSOR, hf, KEYS)
    if not hf["do_resize"]:
        raise ValueError(f"{PROCESSOR} has do_resize = {hf['do_resize']!r}; regard does not support it: use another checkpoint")
    resample = hf["resample"]
    if not isinstance(resample, int) or resample not in RESAMPLING:
        raise ValueError(f"{PROCESSOR} has resample = {resample!r}; regard resizes images with 2 (bilinear) or "
                         f"3 (bicubic): use another checkpoint")  # fmt: skip
    fit, side = _parse_size(hf, kind)
    image = side
    if kind == "ConvNext" and fit == "crop":
        fraction = hf["crop_pct"]
        if not isinstance(fraction, int | float) or not 0 < fraction <= 1:
            raise ValueError(f"{PROCESSOR} has crop_pct = {fraction!r}; wanted a fraction above 0 and up to 1")
        fit, side = ("crop", int(side / fraction)) if side < SQUASH_FROM else ("squash", side)
    if hf.get("do_center_crop"):
        image = _parse_square(hf, "crop_size")
    if image > side:
        raise ValueError(f"{PROCESSOR} crops {image} pixels out of an image of {side}; correct it")
    mean, std = _parse_normalization(hf, channels)
    return ImagePreprocessing(image, side, fit, RESAMPLING[resample], mean, std)


def describe_processor(how: ImagePreprocessing) -> dict[str, object]:
    """The preprocessor_config.json of a preprocessing."""
    uncropped = how.fit == "squash" and how.image == how.resize
    kind = "ViT" if uncropped else "DeiT" if how.fit == "squash" else "Bit"
    size = {"height": how.resize, "width": how.resize} if how.fit == "squash" else {"shortest_edge": how.resize}
    crop = {"do_center_crop": True, "crop_size": {"height": how.image, "width": how.image}}
    return {"image_processor_type": f"{kind}ImageProcessor", "do_resize": True, "size": size,
            "resample": next(constant for constant, name in RESAMPLING.items() if name == how.resample),
            **({} if uncropped else crop), "do_convert_rgb": len(how.mean) == 3, "do_rescale": True,
            "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": how.mean, "image_std": how.std}  # fmt: skip


def _parse_kind(hf: HFConfig, default: str) -> str:
    """Which of their processors it is; the oldest files do not name it."""
    name = hf.get("image_processor_type") or hf.get("feature_extractor_type")
    if name is None:
        return default
    kind = str(name).removesuffix("Fast").removesuffix("Pil")
    kind = kind.removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    if kind not in DEFAULTS:
        known = ", ".join(f"{kind}ImageProcessor" for kind in DEFAULTS)
        raise ValueError(f"{PROCESSOR} is for a {name}; regard supports {known}")
    return kind


def _parse_size(hf: HFConfig, kind: str) -> tuple[Literal["crop", "squash"], int]:
    """How an image is resized: its shorter side (crop) or both, and to how many pixels."""
    size = hf["size"]
    if isinstance(size, int) and "shortest_edge" in str(DEFAULTS[kind]["size"]):
        size = {"shortest_edge": size}
    if isinstance(size, dict) and set(size) == {"shortest_edge"}:
        return "crop", _parse_square(size, "shortest_edge")
    return "squash", _parse_square(hf, "size")


def _parse_square(hf: HFConfig, key: str) -> int:
    """The side of a square, written as 224, [224, 224] or {"height": 224, "width": 224}."""
    size = hf.get(key)
    sides = list(size.values()) if isinstance(size, dict) and set(size) == {"height", "width"} else size
    sides = sides if isinstance(sides, list) else [sides, sides]
    if len(sides) == 2 and sides[0] == sides[1] and isinstance(side := sides[0], int) and side > 0:
        return side
    raise ValueError(f"{PROCESSOR} has {key} = {size!r}; wanted the side of a square, in pixels")


def _parse_normalization(hf: HFConfig, channels: int) -> tuple[list[float], list[float]]:
    """Mean and std for pixels from 0 to 1, whatever range theirs have."""
    factor = hf["rescale_factor"] if hf["do_rescale"] else 1
    if not isinstance(factor, int | float) or not factor > 0:
        raise ValueError(f"{PROCESSOR} has rescale_factor = {factor!r}; wanted 1 / 255, or another number above 0")
    white = round(255 * factor, 9)  # a pixel of 255 after rescaling: 1, but for rounding
    normalization = []
    for key, neutral in (("image_mean", 0.0), ("image_std", 1.0)):
        values = hf.get(key) if hf["do_normalize"] else neutral
        values = [values] * channels if isinstance(values, int | float) else values
        if not isinstance(values, Sequence) or not all(isinstance(value, int | float) for value in values):
            raise ValueError(f"{PROCESSOR} has {key} = {values!r}; wanted a number for each channel")
        if len(values) != channels:
            raise ValueError(f"{PROCESSOR} has {key} = {values!r}; the model has {channels} channels")
        if key == "image_std" and not all(0 < value < math.inf for value in values):
            raise ValueError(f"{PROCESSOR} has image_std = {values!r}; wanted numbers above 0")
        normalization.append([value / white for value in values])
    return normalization[0], normalization[1]
